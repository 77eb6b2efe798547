"""One preparation for many thresholds, where an absolute error of delta will do.

`plan` and `profile` give relative accuracy near one threshold.  A difference of two
profiles needs no more than a small absolute error, and that a single contour (or grid)
gives at all thresholds; its characteristic function is tabulated once.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._interval import Interval, log_complement
from ..losses import ComposedLoss
from ._bounds import select
from ._interface import AbstractPlan
from ._profile import no_release, plan
from ._route import neutral


def prepare(
    loss: ComposedLoss, signs: Float[Array, " s"], anchor: Array
) -> AbstractPlan:
    """Plans of some directions (stacked) for all thresholds eps >= 0.

    They are best near an anchor.
    """
    loss = stop_gradient(loss)
    # One direction after the other: the signs are put in order of leakage by `plan`.
    local = lax.map(lambda sign: plan(loss, sign[None], anchor), signs)
    local = jax.tree.map(lambda x: x[:, 0], local)
    _, loss = neutral(loss)
    return local.prepare(loss)


def log_delta_from(
    loss: ComposedLoss, prepared: AbstractPlan, epsilons: Float[Array, " e"]
) -> Interval:
    """Log delta of one direction at any thresholds >= 0, without derivative.

    Args:
        loss: The composed loss.
        prepared: From `prepare`, a single direction of it.
        epsilons: Finite thresholds.
    """
    nothing, loss = neutral(stop_gradient(loss))
    result = prepared.log_delta(loss, epsilons)
    return stop_gradient(select(nothing, no_release(epsilons).log_delta, result))


def log_delta_estimate(
    loss: ComposedLoss, prepared: AbstractPlan, epsilon: Float[Array, ""]
) -> Float[Array, ""]:
    """The estimate of log delta in one direction, with its derivative in the loss."""
    nothing, loss = neutral(loss)
    found = prepared.profile(loss, epsilon[None]).log_delta.estimate[0]
    none = jnp.where(epsilon < 0, log_complement(jnp.minimum(epsilon, -1e-9)), -jnp.inf)
    return jnp.where(nothing, none, found)
