"""A guarantee in one direction as data on a grid, and questions put to it."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._picture import Lines
from .._internal._special import safe_log
from ..engines import Interval, log_complement
from .logs import Ends, Point, complement, log_room
from .optimum import line, merit, optimal_rates
from .pointwise import AbstractPointwise

_STENCIL = 6
"""Nodes that an estimate is interpolated from."""
_BESIDE = 2
"""Nodes on either side of the best one that bound f."""


class GridCurve(AbstractPointwise):
    """One trade-off function on a grid; its arrays stay float64 in any program.

    Queries interpolate: both sides are proved (and slightly loose between nodes), the
    estimate is a polynomial.  A mechanism's own queries are exact.
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
    _at_once: ClassVar[int] = 256  # a table takes little memory

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
    slack = log_room(jnp.abs(fixed) + jnp.abs(most) + jnp.exp(most - fixed))
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
    middle = _through_nodes(curve, i, inner)
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


def _through_nodes(curve: GridCurve, i: Array, epsilon: Array) -> Array:
    """Estimate of log delta in segment i: a polynomial through the nodes around it."""
    grid, values = curve.epsilon_grid, curve.log_delta_grid.estimate
    # All on one side of eps = 0, where the worse of two directions has a kink, and of
    # the place from which on nothing is lost.
    center = grid.size // 2
    right, some = i >= center, jnp.sum(jnp.isfinite(values))
    first = jnp.where(right, center, 0)
    last = jnp.where(right, some, center + 1) - _STENCIL
    start = jnp.clip(i - _STENCIL // 2 + 1, first, jnp.maximum(last, first))
    places = start + jnp.arange(_STENCIL)
    x, y = grid[places], values[places]
    usable = jnp.all(jnp.isfinite(y))
    own = jnp.eye(_STENCIL, dtype=bool)
    apart = jnp.where(own, 1.0, x[:, None] - x)
    factors = jnp.where(own, 1.0, (epsilon - x) / apart)
    smooth = jnp.sum(jnp.where(usable, y, 0.0) * jnp.prod(factors, axis=1))
    # Elsewhere a line, in delta itself where that falls to 0.
    share = (epsilon - grid[i]) / (grid[i + 1] - grid[i])
    falls = jnp.isneginf(values[i + 1])
    end = jnp.where(falls, 0.0, values[i + 1])
    line = (1 - share) * values[i] + share * end
    line = jnp.where(falls, values[i] + safe_log(1 - share), line)
    return jnp.where(usable & ~falls, smooth, line)
