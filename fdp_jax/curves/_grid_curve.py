"""A guarantee in one direction as data on a grid, and questions put to it."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._picture import Lines
from .._internal._special import safe_log
from ..engines import Interval, log_complement
from ._bounds import with_gradient
from .logs import Ends, Point, complement
from .optimum import line, merit, optimal_rates
from .pointwise import AbstractPointwise

_BESIDE = 2
"""Nodes on either side of the best one that bound f."""


class GridCurve(AbstractPointwise):
    """One trade-off function on a grid; its arrays stay float64 in any program.

    Queries interpolate: the pessimistic side is proved (and slightly loose between
    nodes), the estimate is a cubic.  A mechanism's own queries are exact.
    """

    epsilon_grid: Float[Array, " n"]
    log_delta_grid: Interval
    log_rest_grid: Interval
    """log(1 - delta)."""
    log_alpha_grid: Float[Array, " n"]
    """log P(X > eps) on the grid, an estimate."""
    log_beta_grid: Float[Array, " n"]
    """log Q(Y <= eps) on the grid, an estimate."""
    symmetric: bool = eqx.field(static=True, default=False)
    """Whether it is the worse of two directions, with a kink at eps = 0."""

    @property
    def prior_grid(self) -> Float[np.ndarray, " n"]:
        """The grid as priors of H0."""
        return 1 / (1 + np.exp(-np.asarray(self.epsilon_grid)))

    @property
    def alpha_grid(self) -> Float[np.ndarray, " n"]:
        """Type I errors of the threshold tests (estimates)."""
        return np.exp(np.asarray(self.log_alpha_grid))

    @property
    def beta_grid(self) -> Float[np.ndarray, " n"]:
        """Type II errors of the threshold tests (estimates)."""
        return np.exp(np.asarray(self.log_beta_grid))

    def _drawn(self) -> Lines:
        return ((self.alpha_grid, self.beta_grid),)

    def _point(self, epsilon):
        log_delta, log_rest = _profile_at(self, epsilon)
        return Point(log_delta, complement(log_rest.shifted(-epsilon)), log_rest)

    def _rates(self, log_alpha, log_tnr):
        grid, fixed = self.epsilon_grid, stop_gradient(self)
        at = lambda e: line(fixed, e, *stop_gradient((log_alpha, log_tnr)))
        best = jnp.argmax(merit(jax.vmap(at)(grid)))
        near = jnp.clip(best + jnp.arange(-_BESIDE, _BESIDE + 1), 0, grid.size - 1)
        return optimal_rates(self, log_alpha, log_tnr, stop_gradient(grid[near]))

    def _ends(self):
        # The profile falls on beyond its last node, as the inverse's does to the left.
        first = self.log_rest_grid.shifted(-self.epsilon_grid).map(lambda x: x[0])
        last = self.log_rest_grid.map(lambda x: x[-1])
        delta = self.log_delta_grid.map(lambda x: x[-1])
        starts = (Interval(x.lower, x.estimate, 0 * x.upper) for x in (last, first))
        ends = (
            Interval(x.lower - jnp.inf, x.estimate, x.upper)
            for x in (delta, complement(first))
        )
        (end, other_end), (start, other_start) = ends, starts
        return Ends(end, start, other_end, other_start)


def _cubic(t: Array, width: Array, ends: tuple, slopes: tuple) -> Array:
    """Cubic Hermite interpolation at t in [0, 1]."""
    left, right = ends
    bend = t * (1 - t) * width
    line = (1 - t) * left + t * right
    mean = (right - left) / width
    return line + bend * ((1 - t) * (slopes[0] - mean) - t * (slopes[1] - mean))


def _rounding(log_value: Array) -> Array:
    """Bound on the rounding of a few operations on the logarithm of a probability."""
    return 8 * jnp.finfo(log_value.dtype).eps * (1 + jnp.abs(log_value))


def _chord(log_values: Array, i: Array, weight: Array) -> tuple[Array, Array]:
    """Log of the chord (1 - weight) e^a + weight e^b, and a bound on its rounding.

    With finite derivatives.
    """
    logs = log_values[i], log_values[i + 1]
    found = safe_log((1 - weight) * jnp.exp(logs[0]) + weight * jnp.exp(logs[1]))
    # The weights are rounded; so are all logarithms, but infinite ones.
    fixed, most = stop_gradient((found, jnp.maximum(*logs)))
    some = jnp.isfinite(fixed)
    fixed, most = jnp.where(some, fixed, 0.0), jnp.where(some, most, 0.0)
    slack = _rounding(jnp.abs(fixed) + jnp.abs(most) + jnp.exp(most - fixed))
    return found, jnp.where(some, slack, 0.0)


def _profile_at(curve: GridCurve, epsilon: Array) -> tuple[Interval, Interval]:
    """Log delta and log(1 - delta) at a real threshold."""
    grid = curve.epsilon_grid
    inner = jnp.clip(epsilon, grid[0], grid[-1])
    i = jnp.clip(jnp.searchsorted(grid, inner, side="right") - 1, 0, grid.size - 2)
    width = grid[i + 1] - grid[i]
    weight = jnp.expm1(inner - grid[i]) / jnp.expm1(width)  # in e^eps
    upper, slack = _chord(curve.log_delta_grid.upper, i, weight)
    rest_lower, rest_slack = _chord(curve.log_rest_grid.lower, i, weight)
    middle = _between(curve, i, (inner - grid[i]) / width, width)
    middle = _with_smooth_gradient(curve, i, inner, middle)
    below = jnp.where(inner == grid[i], i, i + 1)
    log_delta = Interval(curve.log_delta_grid.lower[below], middle, upper + slack)
    rest = complement(log_delta)
    log_rest = Interval(
        rest_lower - rest_slack, rest.estimate, jnp.minimum(rest.upper, 0)
    )
    # Beyond the grid: delta falls to the right; (1 - delta) / gamma does to the left.
    left = jnp.minimum(epsilon - grid[0], 0)
    moved = log_rest.shifted(left)
    log_rest = Interval(moved.lower, moved.estimate, log_rest.upper)
    outside_right = epsilon > grid[-1]
    log_delta = Interval(
        jnp.where(outside_right, -jnp.inf, log_delta.lower),
        jnp.where(left < 0, log_complement(log_rest.estimate), log_delta.estimate),
        jnp.where(
            left < 0,
            complement(log_rest).upper,
            log_delta.upper,
        ),
    )
    log_rest = Interval(
        log_rest.lower,
        log_rest.estimate,
        jnp.where(outside_right, 0.0, jnp.minimum(log_rest.upper, epsilon)),
    )
    return _clipped(log_delta), _clipped(log_rest)


def _clipped(interval: Interval) -> Interval:
    lower, upper = interval.lower, interval.upper
    return Interval(lower, jnp.clip(interval.estimate, lower, upper), upper)


def _between(curve: GridCurve, i: Array, t: Array, width: Array) -> Array:
    """Cubic estimate of log delta within a segment."""
    values = curve.log_delta_grid.estimate
    ends = values[i], values[i + 1]
    slopes = _slope(curve, i, jnp.minimum), _slope(curve, i + 1, jnp.maximum)
    finite = jnp.isfinite(ends[1]) & jnp.isfinite(slopes[0]) & jnp.isfinite(slopes[1])
    safe = jnp.where(finite, ends[1], ends[0] - 1)
    slopes = tuple(jnp.where(finite, s, -1.0) for s in slopes)
    cubic = _cubic(t, width, (ends[0], safe), slopes)
    return jnp.where(finite, cubic, ends[0] + safe_log(1 - t))


_STENCIL = 6
"""Nodes that an estimate's derivative is interpolated from."""


def _with_smooth_gradient(
    curve: GridCurve, i: Array, epsilon: Array, value: Array
) -> Array:
    """The estimate, differentiated as a polynomial through the nodes around it.

    The slopes that the cubic takes at its nodes are numbers without derivative.
    """
    grid, values = curve.epsilon_grid, curve.log_delta_grid.estimate
    # All on one side of eps = 0, where the worse of two directions has a kink.
    center = grid.size // 2
    right = i >= center
    first = jnp.where(right, center, 0)
    last = jnp.where(right, grid.size, center + 1) - _STENCIL
    places = jnp.clip(i - _STENCIL // 2 + 1, first, last) + jnp.arange(_STENCIL)
    x, y = grid[places], values[places]
    usable = jnp.all(jnp.isfinite(y))
    y = jnp.where(usable, y, 0.0)
    apart = jnp.where(jnp.eye(_STENCIL, dtype=bool), 1.0, x[:, None] - x)
    factors = jnp.where(jnp.eye(_STENCIL, dtype=bool), 1.0, (epsilon - x) / apart)
    smooth = jnp.sum(y * jnp.prod(factors, axis=1))
    return with_gradient(value, jnp.where(usable, smooth, value))


def _slope(curve: GridCurve, i: Array, kink: Callable[[Array, Array], Array]) -> Array:
    """Derivative of log delta at a node; at a kink, of the side that `kink` selects.

    At eps = 0 the directions exchange their errors: to its right the worse one has the
    smaller alpha, to its left the larger.
    """
    epsilon, log_alpha = curve.epsilon_grid[i], curve.log_alpha_grid[i]
    if curve.symmetric:
        one_sided = kink(log_alpha, curve.log_beta_grid[i])
        log_alpha = jnp.where(epsilon == 0, one_sided, log_alpha)
    return -jnp.exp(epsilon + log_alpha - curve.log_delta_grid.estimate[i])
