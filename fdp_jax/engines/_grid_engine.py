"""The grid engine: losses on a grid, composed by FFT, for all that has masses."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._batching import one_by_one
from .._internal._interval import Interval, log_complement, sound
from ..losses import ComposedLoss
from ._bounds import Profile, largest_loss, with_infinite
from ._contour_engine import place_of, rough_threshold
from ._discretize import Grid, plan_grid
from ._enclosed import bracketed, estimated, is_bracketed, most_log_delta
from ._grid import compose_grid
from ._grid_profile import GridProfile, grid_profile, grid_threshold
from ._grid_search import search_epsilon
from ._interface import AbstractEngine, AbstractPlan
from ._line_mesh import largest_log_delta, largest_log_rest


class GridPlan(AbstractPlan):
    """A grid for one direction, or several stacked ones."""

    sign: Float[Array, "..."]
    grid: Grid

    def profile(self, loss, epsilons):
        return _profile(loss, compose_grid(loss, self.grid), epsilons)

    def resolution(self, scale):
        return jnp.max(self.grid.spacing)

    def prepare(self, loss):
        one = lambda grid: stop_gradient(compose_grid(loss, grid))
        return ComposedGrid(self.sign, self.grid, lax.map(one, self.grid))


class ComposedGrid(GridPlan):
    """The whole composition on its grid."""

    composed: GridProfile

    def log_delta(self, loss, epsilons):
        return _profile(loss, self.composed, epsilons).log_delta


class GridEngine(AbstractEngine):
    """Discretized losses with a certificate."""

    name: ClassVar[str] = "grid"
    coarse: ClassVar[bool] = True

    def serves(self, loss):
        return loss.on_grid

    def made_safe(self, loss):
        return bracketed(loss)

    def plan(self, loss, signs, anchor, gap):
        loss = estimated(loss)

        def one(sign: Array) -> Grid:
            # No farther than to the largest loss: beyond it all masses underflow, and
            # delta is known.
            most = largest_loss(loss, sign)
            known = anchor > most + gap
            near = jnp.minimum(anchor, jnp.where(known, 0, jnp.maximum(most, 0)))
            return plan_grid(loss, sign, place_of(loss, sign, near), gap)

        return GridPlan(signs, lax.map(one, signs))

    def epsilon(self, loss, signs, target):
        return search_epsilon(loss, signs, target.finite, target.slack)

    def threshold(self, loss, sign, log_alpha, log_not_alpha):
        return _search_threshold(estimated(loss), sign, log_alpha, log_not_alpha)


def _profile(loss: ComposedLoss, composed: GridProfile, epsilons: Array) -> Profile:
    grid = composed.grid
    most = largest_loss(stop_gradient(loss), grid.sign)
    beyond = epsilons >= most
    epsilons = jnp.where(beyond, jnp.maximum(most, 0), epsilons)
    finite, log_alpha = grid_profile(composed, epsilons)
    # Where the grid says nothing, as of a delta below the least number.
    rough = largest_log_delta(grid.bounds, epsilons)
    rough = stop_gradient(jnp.where(jnp.isnan(rough), 0.0, rough))
    known = ~jnp.isnan(stop_gradient(finite.estimate))
    guess = jnp.where(known, finite.estimate, rough)
    finite = sound(Interval(finite.lower, guess, finite.upper), -jnp.inf, jnp.inf)
    # A bound without the grid.
    around = is_bracketed(loss)
    most = most_log_delta(loss, grid.sign, epsilons) if around else rough
    finite = finite.map(lambda x: jnp.minimum(x, most))
    infinite = loss.log_infinite_mass(grid.sign)
    truncated = loss.log_truncated_mass(grid.sign)
    log_delta = with_infinite(finite, infinite, truncated, beyond)
    if not around:
        # Next to one, where the grid's tilt shows nothing.
        missed = largest_log_rest(grid.bounds, epsilons)
        least = stop_gradient(log_complement(jnp.logaddexp(missed, truncated)))
        log_delta = log_delta.map(lambda x: jnp.where(x < least, least, x))
    log_alpha = jnp.where(beyond, -jnp.inf, log_alpha)
    log_rest = log_delta.map_down(log_complement)
    return Profile(log_delta, log_rest, stop_gradient(log_alpha))


@one_by_one
def _search_threshold(
    loss: ComposedLoss, sign: Array, log_alpha: Array, log_not_alpha: Array
) -> tuple[Array, Array]:
    """The threshold of a type I error, and the scale of the profile there."""
    near, scale = rough_threshold(loss, sign, log_alpha, log_not_alpha)
    flip = near < 0
    sign = jnp.where(flip, -sign, sign)
    # Of the largest loss and all above it the threshold is that loss.
    near = jnp.minimum(jnp.abs(near), jnp.maximum(largest_loss(loss, sign), 0))
    grid = plan_grid(loss, sign, place_of(loss, sign, near))
    profile = compose_grid(loss, grid)
    # alpha at -e is the complement of the exchanged pair's power at e.
    logs = log_alpha, log_not_alpha
    target, other = jax.tree.map(lambda a, b: jnp.where(flip, b, a), logs, logs[::-1])
    infinite = jnp.where(flip, loss.log_infinite_mass(sign), -jnp.inf)
    target = target + log_complement(jnp.minimum(infinite - target, -1e-9))
    found = grid_threshold(profile, target, other, flip)
    # Not so small that all thresholds looked at are in one cell.
    reach = jnp.maximum(jnp.minimum(scale, 1 / (1 + grid.shift)), 300 * grid.spacing)
    return jnp.where(flip, -found, found), reach
