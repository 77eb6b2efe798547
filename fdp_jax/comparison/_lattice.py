r"""The lattice of guarantees: the least one above two, and the greatest one below.

Join (an adversary may choose which of the two mechanisms runs): delta is the larger of
the two everywhere, R the smaller, f the convex hull of min(f, f~).  Meet: f is the
larger one, R the concave hull of max(R, R~).  (The order is Blackwell's, in which more
informative is larger.)
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._precision import in_float64
from ..curves import (
    EPSILON,
    AbstractGuarantee,
    Bounds,
    ProfilePoint,
    Range,
    beta_range,
    bounds_of,
    classify,
    elementwise,
    tpr_range,
    uncrossed,
    with_gradient,
)
from ..engines import Interval
from ._meet import meet_epsilon, meet_profile, without_derivative
from .delta import halves_of, sources
from .explore import ROUND, first_grid
from .sources import Pair, Request, comparable, pair, share

_SEARCHES = 7


class Join(AbstractGuarantee):
    """The least informative guarantee that is at least as informative as two others.

    What holds if either of two mechanisms may be the one that runs.  Its trade-off
    function has no derivative here (NaN); all other queries have one.

    Args:
        a: A mechanism, one direction of it, a curve, or any other guarantee.
        b: Another one, under the same neighboring relation.

    Raises:
        ValueError: If the neighboring relations differ.

    Example:
        >>> import fdp_jax as fdp
        >>> join = fdp.comparison.Join(fdp.Gaussian(1.0), fdp.Laplace(1.0))
        >>> print(f"{join.beta(alpha=0.2):.9f}")
        0.437079172

    References:
        Blackwell (1953), Theorem 10; Kaissis et al. (2024), Section 3.
    """

    a: Any
    b: Any

    def __check_init__(self):
        comparable(self.a, self.b)

    @property
    def symmetric(self) -> bool:
        """Whether exchanging P and Q changes nothing."""
        return all(r.symmetric for r in comparable(self.a, self.b))

    def _solve(self, delta):
        one, other = (g._bounds_of("epsilon", delta) for g in (self.a, self.b))
        return _pick(one, other, jnp.maximum)

    def _profile(self, epsilon):
        return _join_profile(self.a._profile(epsilon), self.b._profile(epsilon))

    def _error_rate_bounds(self, alpha):
        infinite = self._bounds_of("delta", jnp.inf)
        return _join_rates(*pair(self.a, self.b), alpha, infinite)


class Meet(AbstractGuarantee):
    """The most informative guarantee that is at most as informative as two others.

    The pessimistic end of every query is tight; the optimistic one of delta, epsilon
    and the Bayes error less so between the thresholds looked at.  These three have no
    derivative here (NaN).

    Args:
        a: A mechanism, one direction of it, a curve, or any other guarantee.
        b: Another one, under the same neighboring relation.

    Raises:
        ValueError: If the neighboring relations differ.

    Example:
        >>> import fdp_jax as fdp
        >>> meet = fdp.comparison.Meet(fdp.Gaussian(1.0), fdp.Laplace(1.0))
        >>> print(f"{meet.beta(alpha=0.2):.9f}")
        0.459849301

    References:
        Blackwell (1953), Theorem 10; Kaissis et al. (2024), Section 3.
    """

    a: Any
    b: Any

    def __check_init__(self):
        comparable(self.a, self.b)

    @property
    def symmetric(self) -> bool:
        """Whether exchanging P and Q changes nothing."""
        return all(r.symmetric for r in comparable(self.a, self.b))

    def _error_rate_bounds(self, alpha):
        one, other = (g._error_rate_bounds(alpha) for g in (self.a, self.b))
        return (
            _pick(one[0], other[0], jnp.maximum),
            _pick(one[1], other[1], jnp.minimum),
        )

    def _solve(self, delta):
        one, other = (g._bounds_of("epsilon", delta) for g in (self.a, self.b))
        least = _pick(one, other, jnp.minimum)
        return _at_most(meet_epsilon(*pair(self.a, self.b), delta), least, EPSILON)

    def _profile(self, epsilon):
        either = self.a._profile(epsilon), self.b._profile(epsilon)
        return meet_profile(*pair(self.a, self.b), either, epsilon)


@in_float64(cast_out=False)
def _join_profile(one: ProfilePoint, other: ProfilePoint) -> ProfilePoint:
    """The larger delta of two."""
    methods = dict.fromkeys(x.method for x in (one, other) if x.method)
    return ProfilePoint(
        jax.tree.map(jnp.maximum, one.log_delta, other.log_delta),
        jax.tree.map(jnp.minimum, one.log_rest, other.log_rest),
        ", ".join(methods),
    )


def _pick(one: Bounds, other: Bounds, choose: Callable) -> Bounds:
    """The larger (or smaller) of two certified numbers."""
    lower, upper = choose(one.lower, other.lower), choose(one.upper, other.upper)
    status = jnp.maximum(one.status, other.status)
    methods = dict.fromkeys(m for m in (one.method, other.method) if m)
    estimate = choose(one.estimate, other.estimate)
    return Bounds(lower, estimate, upper, status, ", ".join(methods))


@in_float64
def _at_most(found: Bounds, least: Bounds, known: Range) -> Bounds:
    """The meet's own, which beyond the priors looked at is at most that of either."""
    upper = jnp.minimum(found.upper, least.upper)
    lower, upper, _ = uncrossed(found.lower, upper, known)
    estimate = jnp.minimum(*stop_gradient((found.estimate, least.estimate)))
    estimate = with_gradient(jnp.maximum(estimate, lower), found.estimate)
    status = classify(lower, upper, upper >= known.most)
    return Bounds(lower, estimate, upper, status, found.method)


# -------------------------------------------------------------- f of a join


@in_float64
def _join_rates(
    first: Request, second: Request, alpha: Array, infinite: Bounds
) -> tuple[Bounds, Bounds]:
    chosen = sources(first, second)
    halves = halves_of(first, second)
    prepared = chosen.prepared()

    def one(alpha: Array) -> tuple[Bounds, Bounds]:
        edge = (alpha <= 0) | (alpha >= 1)
        inner = jnp.where(edge, 0.5, alpha)
        tpr = _join_power(chosen, prepared, halves, inner)
        ends = Interval(infinite.lower, infinite.estimate, infinite.upper)
        ends = ends.map(lambda x: jnp.where(alpha > 0, 1.0, x))
        tpr = jax.tree.map(lambda x, y: jnp.where(edge, x, y), ends, tpr)
        beta = tpr.map_down(lambda x: jnp.clip(1 - x, 0, 1 - alpha))
        inside = ~edge
        return (
            bounds_of(beta, (beta.lower <= 0) & inside, beta_range(alpha)),
            bounds_of(tpr, (tpr.upper >= 1) & inside, tpr_range(alpha)),
        )

    found = elementwise(one, jnp.asarray(alpha))
    beta, tpr = (without_derivative(x, first, second, alpha) for x in found)
    return beta, tpr


def _join_power(pair: Pair, prepared: tuple, halves: int, alpha: Array) -> Interval:
    """The least delta + e^eps alpha over all eps, delta that of the join."""
    grid = first_grid(jnp.concatenate([pair.first.kinks(), pair.second.kinks()]))
    grid = jnp.sort(grid)
    start = jnp.concatenate([-grid[::-1], grid])
    share_of = jnp.linspace(0.0, 1.0, ROUND)

    def step(state: tuple, _: None) -> tuple[tuple, Interval]:
        points, certain, first = state
        delta = _join_delta(pair, prepared, halves, points)
        gamma = jnp.exp(points)
        power = delta.map(lambda x: x + gamma * alpha)
        best = jnp.argmin(power.estimate)
        left, right = jnp.maximum(best - 1, 0), jnp.minimum(best + 1, points.size - 1)
        cells = delta.lower[1:] + gamma[:-1] * alpha
        beyond = jnp.minimum(delta.lower[0], gamma[-1] * alpha)
        least = jnp.min(cells)
        least = jnp.where(first, jnp.minimum(least, beyond), least)
        found = Interval(
            jnp.where(certain, least, -jnp.inf),
            power.estimate[best],
            jnp.min(power.upper),
        )
        # Convex in gamma: the minimum lies between neighbors that are certainly higher.
        low, high = power.lower[left], power.lower[right]
        here = power.upper[best]
        certain = certain & (best > 0) & (best < points.size - 1)
        certain = certain & (low > here) & (high > here)
        nearer = points[left] + (points[right] - points[left]) * share_of
        points = jnp.concatenate([nearer, jnp.full(points.size - ROUND, nearer[-1])])
        return (points, certain, jnp.zeros((), bool)), found

    true = jnp.ones((), bool)
    _, found = lax.scan(step, (start, true, true), None, length=_SEARCHES)
    lower = jnp.clip(jnp.max(found.lower) - 1e-15, alpha, 1)
    upper = jnp.clip(jnp.min(found.upper) * (1 + 1e-15), alpha, 1)
    return stop_gradient(
        Interval(lower, jnp.clip(jnp.min(found.estimate), lower, upper), upper)
    )


def _join_delta(
    pair: Pair, prepared: tuple, halves: int, points: Float[Array, " n"]
) -> Interval:
    """The larger delta at real thresholds."""
    distance = jnp.abs(points)
    at = jnp.broadcast_to(distance, (halves, points.size))
    one, other = pair.deficits(prepared, at)
    worse = jax.tree.map(jnp.maximum, one, other)
    q = share(distance)
    negative = points < 0
    # delta(-e) = 1 - (q - T) / (1 - q) with T of the left half-axis.
    right = worse.map(lambda x: jnp.minimum(x[0] / q, 1.0))
    left = worse.map(lambda x: 1 - (q - x[-1]) / (1 - q))
    return jax.tree.map(lambda x, y: jnp.where(negative, x, y), left, right)
