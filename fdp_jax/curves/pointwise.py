"""A guarantee whose curve is known point by point: a formula, or a table of numbers.

All questions are answered from the profile at one threshold, from the error rates at
one level and from the infinite losses, in float64 whatever the caller's precision.
"""

import abc
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._implicit import implicit_root
from .._internal._logs import LOG_HALF
from .._internal._precision import in_float64
from .._internal._roots import threshold_between
from .._internal._special import safe_log
from ..engines import Interval, log_complement, select
from ._bounds import DELTA, EPSILON, LOGARITHM, Bounds, Range, beta_range, tpr_range
from ._guarantee import AbstractGuarantee
from ._queries import BATCH, ProfilePoint, at_any_length, bounds_of, elementwise
from .logs import Ends, Point, Rates, exact

_FARTHEST = 2.0**60
"""The largest threshold looked at."""


class AbstractPointwise(AbstractGuarantee):
    """A guarantee with certified numbers at every threshold and level."""

    _method: ClassVar[Any] = ""
    """Its route, among the names of engines."""
    _at_once: ClassVar[int] = BATCH
    """Thresholds or levels that are looked at together."""

    @abc.abstractmethod
    def _point(self, epsilon: Float[Array, ""]) -> Point:
        """The profile at a finite threshold."""

    @abc.abstractmethod
    def _rates(self, log_alpha: Float[Array, ""], log_tnr: Float[Array, ""]) -> Rates:
        """The curve at an interior type I error, given with its complement."""

    @abc.abstractmethod
    def _ends(self) -> Ends:
        """Infinite losses."""

    def _solve(self, delta: Any) -> Bounds:
        return epsilon_bounds(self, delta)

    def _profile(self, epsilon: Any) -> ProfilePoint:
        return profile(self, epsilon)

    def _error_rate_bounds(self, alpha: Any) -> tuple[Bounds, Bounds]:
        return error_rate_bounds(self, alpha)


def point_at(curve: AbstractPointwise, epsilon: Float[Array, ""]) -> Point:
    """The profile at any real threshold, infinite ones included."""
    # So far left delta is one, and exponents would overflow.
    infinite = jnp.isinf(epsilon) | (epsilon < -1e250)
    found = curve._point(jnp.where(infinite, 0.0, epsilon))
    ends = curve._ends()
    up = epsilon > 0
    one, none = exact(jnp.zeros_like(epsilon)), exact(jnp.full_like(epsilon, -jnp.inf))
    limit = Point(
        select(up, ends.log_end, one),
        select(up, one, ends.log_reverse_end),
        select(up, ends.log_start, none),
    )
    return jax.tree.map(lambda a, b: jnp.where(infinite, a, b), limit, found)


def rates_at(
    curve: AbstractPointwise, log_alpha: Float[Array, ""], log_tnr: Float[Array, ""]
) -> Rates:
    """The curve at any type I error, 0 and 1 included."""
    first, last = jnp.isneginf(log_alpha), jnp.isneginf(log_tnr)
    edge = first | last
    half = jnp.full_like(log_alpha, LOG_HALF)
    found = curve._rates(
        jnp.where(edge, half, log_alpha), jnp.where(edge, half, log_tnr)
    )
    ends = curve._ends()
    one, none = exact(jnp.zeros_like(half)), exact(jnp.full_like(half, -jnp.inf))
    beta, tpr = select(first, ends.log_start, none), select(first, ends.log_end, one)
    return Rates(select(edge, beta, found.log_beta), select(edge, tpr, found.log_tpr))


def both_logs(share: Array) -> tuple[Array, Array]:
    """Log x and log(1 - x), for x in [0, 1]."""
    one = share >= 1
    return safe_log(share), jnp.where(
        one, -jnp.inf, jnp.log1p(-jnp.where(one, 0.0, share))
    )


@at_any_length
@in_float64(cast_out=False)
def profile(curve: Any, epsilon: Array) -> ProfilePoint:
    """The privacy profile at any real thresholds."""

    def one(epsilon: Array) -> ProfilePoint:
        found = point_at(curve, epsilon)
        return ProfilePoint(found.log_delta, found.log_rest, curve._method)

    return elementwise(one, epsilon, curve._at_once)


def _of_rate(found: Interval, vacuous: Array, known: Range, method: str) -> Bounds:
    """Bounds of an error rate, within what is known of it anyway."""
    lower, upper = (
        jnp.clip(x, known.least, known.most) for x in (found.lower, found.upper)
    )
    return bounds_of(Interval(lower, found.estimate, upper), vacuous, known, method)


@at_any_length
@in_float64
def error_rate_bounds(
    curve: Any, share: Array, *, complement: bool = False, log: bool = False
) -> tuple[Bounds, Bounds]:
    """Bounds of beta and of the power, at alpha = share or at alpha = 1 - share."""

    def one(share: Array) -> tuple[Bounds, Bounds]:
        logs = both_logs(share)
        log_alpha, log_tnr = logs[::-1] if complement else logs
        found = rates_at(curve, log_alpha, log_tnr)
        beta, tpr = found.log_beta, found.log_tpr
        ranges = LOGARITHM, LOGARITHM
        if not log:
            beta, tpr = beta.exponential(), tpr.exponential()
            rates = beta_range(share), tpr_range(share)
            ranges = (DELTA, DELTA) if complement else rates
        inner = (share > 0) & (share < 1)
        least, most = ranges[0].least, ranges[1].most
        return (
            _of_rate(beta, inner & (beta.lower <= least), ranges[0], curve._method),
            _of_rate(tpr, inner & (tpr.upper >= most), ranges[1], curve._method),
        )

    return elementwise(one, share, curve._at_once)


@at_any_length
@in_float64
def epsilon_bounds(curve: Any, delta: Array) -> Bounds:
    """Bounds of the least real epsilon with delta(epsilon) <= delta."""

    def one(delta: Array) -> Bounds:
        value = _solve_epsilon(curve, *both_logs(delta))
        value = select(delta >= 1, exact(jnp.full_like(delta, -jnp.inf)), value)
        return bounds_of(value, jnp.isposinf(value.upper), EPSILON)

    return elementwise(one, delta, curve._at_once)


def _solve_epsilon(curve: Any, log_delta: Array, log_rest: Array) -> Interval:
    """The root in (log(1 - delta), inf); inf where none is found."""
    fixed = stop_gradient(curve)
    inner = log_rest > -jnp.inf
    log_delta = jnp.where(inner, log_delta, -1.0)
    log_rest = jnp.where(inner, log_rest, log_complement(jnp.asarray(-1.0)))
    # 1 - e^eps <= delta(eps), so no root is smaller.
    target, least = stop_gradient((log_delta, log_rest))

    small = target < LOG_HALF

    def missing(size: Array) -> Array:
        """Log of the target over delta, or nearly, for each of its three ends."""
        points = jax.vmap(fixed._point)(least + size)
        by_delta = target - three(points.log_delta)
        by_rest = -three(points.log_rest.map_down(jnp.negative)) - least
        gap = jnp.where(small, by_delta, by_rest)
        # At delta = 0, say, the target is met where delta(eps) = 0 as well.  That is
        # infinitely far below others, which would stop all interpolation.
        met = jnp.isnan(gap) | (gap == 0)
        least_gap = jnp.finfo(gap.dtype).tiny
        return jnp.where(met, least_gap, jnp.where(gap > 0, -jnp.expm1(-gap), gap))

    none = jnp.zeros(3, least.dtype)
    below, above = threshold_between(
        lambda x: -missing(x), none, none + _FARTHEST, jnp.abs(least)
    )
    low, middle, high = least + below[0], least + above[1], least + above[2]
    never = lambda x: x >= _FARTHEST
    middle_ok = ~never(middle) & jnp.isfinite(log_delta)
    safe = jnp.where(middle_ok, middle, 0.0)
    args = curve, jnp.where(middle_ok, log_delta, -1.0)
    estimate = implicit_root(_residual, safe, args, ())
    estimate = jnp.where(middle_ok, estimate, jnp.where(never(middle), jnp.inf, middle))
    low, high = (jnp.where(never(x), jnp.inf, x) for x in (low, high))
    low, high = (
        jnp.minimum(low, stop_gradient(estimate)),
        jnp.maximum(high, stop_gradient(estimate)),
    )
    return Interval(low, estimate, high)


def _residual(epsilon: Array, args: tuple, aux: tuple[()]) -> Array:
    curve, log_delta = args
    found = curve._point(epsilon).log_delta.estimate
    alive = jnp.isfinite(found)
    return jnp.where(alive, found, 0.0) - jnp.where(alive, log_delta, 0.0)


def three(ends: Interval) -> Array:
    """The lower end, the estimate and the upper end, each at its own argument."""
    return jnp.stack([ends.lower[0], ends.estimate[1], ends.upper[2]])
