"""The epsilon of a delta on the grid.

A discrete loss on a lattice is exact on any grid that holds the lattice.  The arrays of
a discrete Gaussian have room for every noise multiplier, and so has the grid; where a
small part of both is enough, as for all but large noise, that is used; a number of
points that the user asked for is kept.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

from .._internal._batching import one_by_one
from .._internal._implicit import implicit_root
from .._internal._interval import Interval
from ..losses import ComposedLoss, Method
from ._bounds import largest_loss, worst_of
from ._contour_engine import place_of
from ._discretize import Grid, plan_grid
from ._enclosed import estimated, is_bracketed, most_epsilon
from ._grid import compose_grid
from ._grid_profile import grid_epsilon, grid_profile

_FEW_ATOMS = 1 << 12
_FEW_POINTS = 1 << 13


def search_epsilon(
    loss: ComposedLoss,
    signs: Float[Array, " s"],
    targets: Float[Array, " s"],
    slacks: Float[Array, "s 2"],
) -> Interval:
    """The epsilon of the worst direction, differentiable in loss and targets.

    The lower and upper bound allow for errors `slacks` of the targets.
    """
    found, worst = _search(*stop_gradient((loss, signs, targets, slacks)))
    args = estimated(loss).without_ends(), targets[worst]
    estimate = implicit_root(_residual, found.estimate, args, signs[worst])
    return Interval(found.lower, estimate, found.upper)


@one_by_one
def _search(
    loss: ComposedLoss, signs: Array, targets: Array, slacks: Array
) -> tuple[Interval, Array]:
    """The epsilon of the worst direction, and which one that is; no derivative."""

    def in_full() -> Interval:
        grids = _grids(loss, signs, targets, slacks)
        return _each_direction(loss, grids, signs, targets, slacks)

    small = _small(loss)
    if small is None:
        found = in_full()
    else:
        loss_of_few, fits = small
        grids = _grids(loss_of_few, signs, targets, slacks)
        exact = fits & _holds_lattice(loss_of_few, grids)
        found = lax.cond(
            exact,
            lambda: _each_direction(loss_of_few, grids, signs, targets, slacks),
            in_full,
        )
    return jax.tree.map(jnp.max, found), worst_of(found.estimate, signs)


def _grids(
    loss: ComposedLoss, signs: Array, targets: Array, slacks: Array
) -> tuple[Grid, Array]:
    """A grid for each direction, and what is known of its epsilon without one."""
    near, around = estimated(loss), is_bracketed(loss)

    def one(direction: tuple[Array, Array, Array]) -> tuple[Grid, Array]:
        sign, target, least = direction
        place = place_of(near, sign, target, inverse=True)
        end = jnp.maximum(largest_loss(near, sign), 0.0)
        place = place._replace(epsilon=jnp.minimum(place.epsilon, end))
        most = most_epsilon(loss, least) if around else place.largest_epsilon(least)
        return plan_grid(near, sign, place), most

    return lax.map(one, (signs, targets, targets - slacks[:, 1]))


def _each_direction(
    loss: ComposedLoss,
    grids: tuple[Grid, Array],
    signs: Array,
    targets: Array,
    slacks: Array,
) -> Interval:
    def one(direction: tuple[Grid, Array, Array, Array, Array]) -> Interval:
        grid, most, sign, target, slack = direction
        found = grid_epsilon(compose_grid(loss, grid), target, slack)
        most = jnp.minimum(most, largest_loss(loss, sign))
        return found.map(lambda x: jnp.minimum(x, most))

    return lax.map(one, (*grids, signs, targets, slacks))


def _small(loss: ComposedLoss) -> tuple[ComposedLoss, Bool[Array, ""]] | None:
    """The loss with few outputs on few points, and whether no output is missing.

    What was calculated of its ends stays: it is of all outputs.
    """
    first = loss.terms[0]
    trimmed = None if first.lattice() is None else first.trimmed(_FEW_ATOMS)
    if trimmed is None or len(loss.terms) > 1:
        return None
    few, fits = trimmed
    method = loss.method
    if method.name == "auto":  # else the number of points was asked for
        method = Method(method.name, _FEW_POINTS)
    return dataclasses.replace(loss, terms=(few,), method=method), fits


def _holds_lattice(loss: ComposedLoss, grids: tuple[Grid, Array]) -> Bool[Array, ""]:
    unit = loss.terms[0].lattice()
    assert unit is not None
    steps = unit / grids[0].spacing
    return jnp.all((steps > 0.5) & (jnp.abs(steps - jnp.round(steps)) < 1e-9))


def _residual(epsilon: Array, args: tuple[ComposedLoss, Array], sign: Array) -> Array:
    loss, log_delta = args
    fixed = stop_gradient((loss, sign, log_delta))
    grid = plan_grid(loss, sign, place_of(*fixed, inverse=True))
    finite, _ = grid_profile(compose_grid(loss, grid), epsilon[None])
    return finite.estimate[0] - log_delta
