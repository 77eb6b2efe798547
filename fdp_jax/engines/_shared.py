"""One preparation for many thresholds, where an absolute error of delta will do.

`plan` and `profile` give relative accuracy near one threshold.  A difference of two
profiles needs no more than a small absolute error, and that a single contour (or grid)
gives at all thresholds; its characteristic function is tabulated once.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._interval import Interval, log_complement
from ..losses import AbstractClosedForm, ComposedLoss
from ._bounds import select, with_infinite
from ._closed_queries import closed_profile
from ._contour import chernoff
from ._grid import compose_grid
from ._grid_profile import GridProfile, grid_profile
from ._inversion import Table, look_up, tabulate
from ._profile import LocalPlan, direction_profile, no_release, plan
from ._route import neutral
from ._spectral import as_profile, largest_loss


class Prepared(eqx.Module):
    """A plan for each of some directions (stacked), and what it makes of the loss."""

    local: LocalPlan
    table: Table | None = None
    composed: GridProfile | None = None
    form: AbstractClosedForm | None = None


def prepare(loss: ComposedLoss, signs: Float[Array, " s"], anchor: Array) -> Prepared:
    """Prepares a loss for all thresholds eps >= 0, best near an anchor."""
    loss = stop_gradient(loss)
    # One direction after the other: the signs are put in order of leakage by `plan`.
    local = lax.map(lambda sign: plan(loss, sign[None], anchor), signs)
    local = jax.tree.map(lambda x: x[:, 0], local)
    _, loss = neutral(loss)
    if local.contour is not None:
        table = lax.map(lambda c: tabulate(loss, c), local.contour)
        contour = dataclasses.replace(local.contour, path=table.path)
        return Prepared(dataclasses.replace(local, contour=contour), table)
    if local.grid is not None:
        composed = lax.map(lambda g: compose_grid(loss, g), local.grid)
        return Prepared(local, composed=stop_gradient(composed))
    return Prepared(local, form=lax.map(loss.closed_form, local.sign))


def log_delta_from(
    loss: ComposedLoss, prepared: Prepared, epsilons: Float[Array, " e"]
) -> Interval:
    """Log delta of one direction at any thresholds >= 0, without derivative.

    Args:
        loss: The composed loss.
        prepared: From `prepare`, a single direction of it.
        epsilons: Finite thresholds.
    """
    loss = stop_gradient(loss)
    nothing, loss = neutral(loss)
    sign = prepared.local.sign
    if prepared.table is not None:
        assert prepared.local.contour is not None
        contour = prepared.local.contour
        found = look_up(prepared.table, contour, epsilons)
        beyond = epsilons >= largest_loss(loss, sign)
        result = as_profile(loss, contour, found, beyond).log_delta
    elif prepared.composed is not None:
        assert prepared.local.grid is not None
        grid = prepared.local.grid
        finite, _ = grid_profile(prepared.composed, epsilons)
        most = chernoff(grid.chernoff_shifts, grid.chernoff_logs, epsilons)
        finite = finite.map(lambda x: jnp.minimum(x, most))
        beyond = epsilons >= largest_loss(loss, sign)
        infinite = loss.log_infinite_mass(sign)
        truncated = loss.log_truncated_mass(sign)
        result = with_infinite(finite, infinite, truncated, beyond)
    else:
        assert prepared.form is not None
        result = closed_profile(prepared.form, epsilons).log_delta
    return stop_gradient(select(nothing, no_release(epsilons).log_delta, result))


def log_delta_estimate(
    loss: ComposedLoss, prepared: Prepared, epsilon: Float[Array, ""]
) -> Float[Array, ""]:
    """The estimate of log delta in one direction, with its derivative in the loss."""
    nothing, loss = neutral(loss)
    found = direction_profile(loss, prepared.local, epsilon[None]).log_delta.estimate[0]
    none = jnp.where(epsilon < 0, log_complement(jnp.minimum(epsilon, -1e-9)), -jnp.inf)
    return jnp.where(nothing, none, found)
