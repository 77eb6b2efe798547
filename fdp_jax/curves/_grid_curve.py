"""A guarantee in one direction as data on a grid, and questions put to it."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._picture import Lines
from .._internal._precision import in_float64
from .._internal._special import safe_log
from ..engines import Interval, log_complement, select
from ._bounds import (
    EPSILON,
    Bounds,
    beta_range,
    tpr_range,
    with_gradient,
)
from ._guarantee import AbstractGuarantee
from ._queries import ProfilePoint, at_any_length, bounds_of, elementwise

_FINE = 65
_NEWTON = 4


class GridCurve(AbstractGuarantee):
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

    def _solve(self, delta: Any) -> Bounds:
        return _epsilon(self, delta)

    def _profile(self, epsilon: Any) -> ProfilePoint:
        return _profile(self, epsilon)

    def _error_rate_bounds(self, alpha: Any) -> tuple[Bounds, Bounds]:
        return _error_rates(self, alpha)


def _segment(grid: Array, x: Array) -> tuple[Array, Array]:
    """Index of the segment that holds x, and whether x lies on the grid at all."""
    index = jnp.clip(jnp.searchsorted(grid, x, side="right") - 1, 0, grid.size - 2)
    return index, (x >= grid[0]) & (x <= grid[-1])


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


@at_any_length
@in_float64(cast_out=False)
def _profile(curve: GridCurve, epsilon: Array) -> ProfilePoint:
    one = lambda epsilon: ProfilePoint(*_profile_at(curve, epsilon))
    return elementwise(one, epsilon)


def _profile_at(curve: GridCurve, epsilon: Array) -> tuple[Interval, Interval]:
    """Log delta and log(1 - delta) at a real threshold."""
    grid = curve.epsilon_grid
    inner = jnp.clip(epsilon, grid[0], grid[-1])
    i, _ = _segment(grid, inner)
    width = grid[i + 1] - grid[i]
    weight = jnp.expm1(inner - grid[i]) / jnp.expm1(width)  # in e^eps
    upper, slack = _chord(curve.log_delta_grid.upper, i, weight)
    rest_lower, rest_slack = _chord(curve.log_rest_grid.lower, i, weight)
    middle = _between(curve, i, (inner - grid[i]) / width, width)
    middle = _with_smooth_gradient(curve, i, inner, middle)
    log_delta = Interval(curve.log_delta_grid.lower[i + 1], middle, upper + slack)
    complement = log_delta.map_down(log_complement).widened(_rounding)
    log_rest = Interval(
        rest_lower - rest_slack, complement.estimate, jnp.minimum(complement.upper, 0)
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
            log_rest.map_down(log_complement).widened(_rounding).upper,
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


@at_any_length
@in_float64
def _epsilon(curve: GridCurve, delta: Array) -> Bounds:
    grid = curve.epsilon_grid

    def one(delta: Array) -> Bounds:
        target = safe_log(delta)
        upper = _crossing(grid, jax.lax.cummin(curve.log_delta_grid.upper), target)
        # delta >= its lower bound at the next node, so epsilon is beyond this one.
        reached = jax.lax.cummin(curve.log_delta_grid.lower) > target
        lower = jnp.where(reached[0], grid[jnp.sum(reached) - 1], -jnp.inf)
        estimate = _crossing(
            grid, jax.lax.cummin(curve.log_delta_grid.estimate), target
        )
        estimate = _polish(curve, estimate, target)
        lower, upper = (jnp.where(delta >= 1, -jnp.inf, x) for x in (lower, upper))
        value = Interval(lower, jnp.clip(estimate, lower, upper), upper)
        return bounds_of(value, jnp.isposinf(upper), EPSILON)

    return elementwise(one, delta)


def _crossing(grid: Array, values: Array, target: Array) -> Array:
    """The threshold where chords (in e^eps) of decreasing log-values pass a target."""
    i = jnp.clip(jnp.sum(values > target) - 1, 0, grid.size - 2)
    fall = -jnp.expm1(jnp.minimum(values[i + 1] - values[i], -1e-300))
    share = -jnp.expm1(jnp.clip(target - values[i], -jnp.inf, 0)) / fall
    inside = grid[i] + jnp.log1p(
        jnp.minimum(share, 1) * jnp.expm1(grid[i + 1] - grid[i])
    )
    below = target < values[-1]
    return jnp.where(below, jnp.inf, jnp.where(target >= values[0], grid[0], inside))


def _polish(curve: GridCurve, epsilon: Array, target: Array) -> Array:
    """Newton steps from the chord's crossing to the cubic's."""
    inside = jnp.isfinite(epsilon) & jnp.isfinite(target)
    safe = jnp.where(inside, epsilon, 0.0)

    def value(e: Array) -> Array:
        return _profile_at(curve, e)[0].estimate

    for _ in range(2):
        slope = stop_gradient(jax.grad(value)(safe))
        usable = jnp.isfinite(slope) & (slope < 0)
        step = (value(safe) - target) / jnp.where(usable, slope, -1.0)
        safe = safe - jnp.where(usable & jnp.isfinite(step), step, 0.0)
    return jnp.where(inside, safe, epsilon)


@at_any_length
@in_float64
def _error_rates(curve: GridCurve, alpha: Array) -> tuple[Bounds, Bounds]:
    grid = curve.epsilon_grid

    def lines(
        alpha: Array, at: Array, log_delta: Array, log_rest: Array
    ) -> tuple[Array, Array]:
        """1 - delta - e^eps alpha and its complement, at some thresholds."""
        used = jnp.exp(at + jnp.log(alpha))
        power, rest = jnp.exp(log_delta) + used, jnp.exp(log_rest) - used
        beta = jnp.where(power < 0.5, 1 - power, rest)
        return beta, jnp.where(power < 0.5, power, 1 - beta)

    def sizes(alpha: Array) -> tuple[Array, Array]:
        """A bound of the rounding of `lines`: of beta and of the power."""
        logs = grid + jnp.log(alpha), curve.log_delta_grid.upper
        used, delta = (jnp.where(x > -745, x, -745.0) for x in logs)
        power = jnp.exp(used) * _rounding(used) + jnp.exp(delta) * _rounding(delta)
        lost = curve.log_rest_grid.lower
        lost = jnp.where(lost > -745, lost, -745.0)
        rest = jnp.exp(used) * _rounding(used) + jnp.exp(lost) * _rounding(lost)
        unit = _rounding(jnp.zeros_like(rest))
        small = jnp.exp(used) + jnp.exp(delta) < 0.5
        return jnp.where(small, power + unit, rest), jnp.where(
            small, power, rest + unit
        )

    def estimate(alpha: Array) -> tuple[Array, Array]:
        """The best threshold of a finer grid around the best node."""
        known = curve.log_delta_grid.estimate, curve.log_rest_grid.estimate
        node = jnp.argmin(lines(alpha, grid, *known)[1])
        node = jnp.clip(node, 1, grid.size - 2)
        ends = stop_gradient((grid[node - 1], grid[node + 1]))
        fine = ends[0] + (ends[1] - ends[0]) * jnp.linspace(0, 1, _FINE)
        profiles = jax.vmap(lambda e: _profile_at(curve, e))(fine)
        beta, tpr = lines(alpha, fine, profiles[0].estimate, profiles[1].estimate)
        best = jnp.argmax(jnp.where(jnp.max(beta) > 0.5, -tpr, beta))
        at = refined(alpha, fine, best)
        found = _profile_at(curve, at)
        closer = lines(alpha, at, found[0].estimate, found[1].estimate)
        # At a kink the best threshold is where it is.
        better = closer[1] <= tpr[best] * (1 + 1e-15)
        return (
            jnp.where(better, closer[0], beta[best]),
            jnp.where(better, closer[1], tpr[best]),
        )

    def refined(alpha: Array, fine: Array, best: Array) -> Array:
        """The threshold next to the best of several where P(X > eps) is alpha."""
        fixed, alpha = stop_gradient((curve, alpha))
        low = fine[jnp.maximum(best - 1, 0)]
        high = fine[jnp.minimum(best + 1, fine.size - 1)]

        def excess(e: Array) -> Array:
            value, slope = jax.value_and_grad(
                lambda e: _profile_at(fixed, e)[0].estimate
            )(e)
            falls = slope < 0
            rate = jnp.log(jnp.where(falls, -slope, 1.0))
            return jnp.where(falls, value + rate - e - jnp.log(alpha), 0.0)

        at = fine[best]
        for _ in range(_NEWTON):
            miss, slope = jax.value_and_grad(excess)(at)
            step = miss / jnp.where(slope < 0, slope, -1.0)
            step = jnp.where(jnp.isfinite(step), step, 0.0)
            at = jnp.clip(at - step, low, high)
        return stop_gradient(at)

    def one(alpha: Array) -> tuple[Bounds, Bounds]:
        edge = (alpha <= 0) | (alpha >= 1)
        inner = jnp.where(edge, 0.5, alpha)
        upper, lower = curve.log_delta_grid.upper, curve.log_rest_grid.lower
        beta_low, tpr_high = lines(inner, grid, upper, lower)
        slack = sizes(inner)
        beta_low, tpr_high = jnp.max(beta_low - slack[0]), jnp.min(tpr_high + slack[1])
        beta_mid, tpr_mid = estimate(inner)
        # On [gamma_k, gamma_k+1]: delta >= its value on the right, gamma >= the left.
        step = jnp.exp(grid[:-1] + jnp.log(inner))
        beta_high = jnp.max(-jnp.expm1(curve.log_delta_grid.lower[1:]) - step)
        tpr_low = jnp.min(jnp.exp(curve.log_delta_grid.lower[1:]) + step)
        beta_high = jnp.clip(jnp.maximum(beta_high, beta_mid), 0, 1 - inner)
        beta = Interval(jnp.clip(beta_low, 0, 1 - inner), beta_mid, beta_high)
        tpr = Interval(
            jnp.clip(tpr_low, inner, 1), tpr_mid, jnp.clip(tpr_high, inner, 1)
        )
        first = alpha <= 0
        end = -jnp.expm1(curve.log_delta_grid.lower[-1])
        at_edge = Interval(
            0.0 * end, jnp.where(first, 1.0, 0.0), jnp.where(first, end, 0.0)
        )
        at_edge = at_edge.map(lambda x: jnp.where(first, x, 0.0))
        beta = select(edge, at_edge, _clipped(beta))
        tpr = select(edge, at_edge.map_down(lambda x: 1 - x), _clipped(tpr))
        interior = ~edge
        return (
            bounds_of(beta, (beta.lower <= 0) & interior, beta_range(alpha)),
            bounds_of(tpr, (tpr.upper >= 1) & interior, tpr_range(alpha)),
        )

    return elementwise(one, alpha)
