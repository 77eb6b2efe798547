"""Questions put to a trade-off function, in float64 whatever the caller's precision."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._implicit import implicit_root
from .._internal._logs import LOG_HALF
from .._internal._precision import in_float64
from .._internal._roots import bisect, root_between
from .._internal._special import safe_log
from ..curves import (
    DELTA,
    EPSILON,
    LOGARITHM,
    Bounds,
    ProfilePoint,
    Range,
    at_any_length,
    bayes_error_range,
    bounds_of,
    elementwise,
)
from ..engines import Interval, log_complement
from .intervals import Point, Rates, choose, exact

if TYPE_CHECKING:
    from ._base import AbstractTradeOff

_GROWTH, _STEPS = 60, 110


def point_at(tradeoff: "AbstractTradeOff", epsilon: Float[Array, ""]) -> Point:
    """The profile at any real threshold, infinite ones included."""
    infinite = jnp.isinf(epsilon)
    found = tradeoff._point(jnp.where(infinite, 0.0, epsilon))
    ends = tradeoff._ends()
    up = epsilon > 0
    one, none = exact(jnp.zeros_like(epsilon)), exact(jnp.full_like(epsilon, -jnp.inf))
    limit = Point(
        choose(up, ends.log_end, one),
        choose(up, one, ends.log_reverse_end),
        choose(up, ends.log_start, none),
    )
    return jax.tree.map(lambda a, b: jnp.where(infinite, a, b), limit, found)


def rates_at(
    tradeoff: "AbstractTradeOff", log_alpha: Float[Array, ""], log_tnr: Float[Array, ""]
) -> Rates:
    """The curve at any type I error, 0 and 1 included."""
    first, last = jnp.isneginf(log_alpha), jnp.isneginf(log_tnr)
    edge = first | last
    half = jnp.full_like(log_alpha, LOG_HALF)
    found = tradeoff._rates(
        jnp.where(edge, half, log_alpha), jnp.where(edge, half, log_tnr)
    )
    ends = tradeoff._ends()
    one, none = exact(jnp.zeros_like(half)), exact(jnp.full_like(half, -jnp.inf))
    beta, tpr = choose(first, ends.log_start, none), choose(first, ends.log_end, one)
    return Rates(choose(edge, beta, found.log_beta), choose(edge, tpr, found.log_tpr))


def both_logs(share: Array) -> tuple[Array, Array]:
    """Log x and log(1 - x), for x in [0, 1]."""
    one = share >= 1
    return safe_log(share), jnp.where(
        one, -jnp.inf, jnp.log1p(-jnp.where(one, 0.0, share))
    )


@at_any_length
@in_float64(cast_out=False)
def profile(tradeoff: Any, epsilon: Array) -> ProfilePoint:
    """The privacy profile at any real thresholds."""

    def one(epsilon: Array) -> ProfilePoint:
        found = point_at(tradeoff, epsilon)
        return ProfilePoint(found.log_delta, found.log_rest)

    return elementwise(one, epsilon)


@at_any_length
@in_float64
def error_rate_bounds(
    tradeoff: Any, share: Array, *, complement: bool = False, log: bool = False
) -> tuple[Bounds, Bounds]:
    """Bounds of beta and of the power, at alpha = share or at alpha = 1 - share."""

    def one(share: Array) -> tuple[Bounds, Bounds]:
        logs = both_logs(share)
        log_alpha, log_tnr = logs[::-1] if complement else logs
        found = rates_at(tradeoff, log_alpha, log_tnr)
        beta, tpr = found.log_beta, found.log_tpr
        inner = (share > 0) & (share < 1)
        vacuous = inner & jnp.isneginf(beta.lower), inner & (tpr.upper >= 0)
        if not log:
            beta, tpr = beta.exponential(), tpr.exponential()
        # Both are known to be relatively accurate, unlike differences of masses.
        known = LOGARITHM if log else DELTA
        return (
            bounds_of(beta, vacuous[0], known),
            bounds_of(tpr, vacuous[1], known),
        )

    return elementwise(one, share)


@at_any_length
@in_float64
def slope(tradeoff: Any, alpha: Array) -> Array:
    """log|f'(alpha)|, the threshold of the best test."""

    def one(alpha: Array) -> Array:
        edge = (alpha <= 0) | (alpha >= 1)
        found = tradeoff._log_slope(*both_logs(jnp.where(edge, 0.5, alpha)))
        nearly = jnp.where(alpha <= 0, -700.0, 700.0)
        limit = tradeoff._log_slope(
            -jnp.logaddexp(0, -nearly), -jnp.logaddexp(0, nearly)
        )
        return jnp.where(edge, stop_gradient(limit), found)

    return elementwise(one, alpha)


@at_any_length
@in_float64
def bayes_gain_bounds(tradeoff: Any, prior: Array) -> Bounds:
    """Bounds of min(pi, 1 - pi) - R(pi)."""

    def one(prior: Array) -> Bounds:
        certain = (prior <= 0) | (prior >= 1)
        safe = jnp.where(certain, 0.5, prior)
        log_prior, log_other = jnp.log(safe), jnp.log1p(-safe)
        point = tradeoff._point(log_prior - log_other)
        most = jnp.minimum(safe, 1 - safe)
        logs = choose(
            safe >= 0.5,
            point.log_delta.shifted(log_other),
            point.log_reverse.shifted(log_prior),
        )
        value = logs.exponential().map(lambda x: jnp.minimum(x, most))
        value = value.map(lambda x: jnp.where(certain, 0.0, x))
        trivial = value.upper >= most
        return bounds_of(value, trivial & ~certain, bayes_error_range(prior))

    return elementwise(one, prior)


@at_any_length
@in_float64
def epsilon_bounds(tradeoff: Any, delta: Array) -> Bounds:
    """Bounds of the least real epsilon with delta(epsilon) <= delta."""

    def one(delta: Array) -> Bounds:
        value = _solve_epsilon(tradeoff, *both_logs(delta))
        value = choose(delta >= 1, exact(jnp.full_like(delta, -jnp.inf)), value)
        return bounds_of(value, jnp.isposinf(value.upper), EPSILON)

    return elementwise(one, delta)


def _solve_epsilon(tradeoff: Any, log_delta: Array, log_rest: Array) -> Interval:
    """The root in (log(1 - delta), inf); inf where none is found below 2^60."""
    fixed = stop_gradient(tradeoff)
    inner = log_rest > -jnp.inf
    log_delta = jnp.where(inner, log_delta, -1.0)
    log_rest = jnp.where(inner, log_rest, log_complement(jnp.asarray(-1.0)))
    # 1 - e^eps <= delta(eps), so no root is smaller.
    target, least = stop_gradient((log_delta, log_rest))

    small = target < LOG_HALF

    def missing(epsilon: Array) -> Array:
        """Signs that increase in eps, for the three ends of delta."""
        points = jax.vmap(fixed._point)(epsilon)
        by_delta = target - _three(points.log_delta)
        by_rest = -_three(points.log_rest.map_down(jnp.negative)) - least
        gap = jnp.where(small, by_delta, by_rest)
        # At delta = 0, say, the target is met where delta(eps) = 0 as well.
        return jnp.where(jnp.isnan(gap) | (gap >= 0), 1.0, -1.0)

    def grow(_: Array, size: Array) -> Array:
        return jnp.where(missing(least + size) > 0, size, 2 * size)

    size = jax.lax.fori_loop(0, _GROWTH, grow, jnp.ones(3, least.dtype))
    below, above = bisect(missing, jnp.full_like(size, least), least + size, _STEPS)
    low, middle, high = below[0], above[1], above[2]
    never = lambda x: x >= 2.0 ** (_GROWTH - 1)
    middle_ok = ~never(middle) & jnp.isfinite(log_delta)
    safe = jnp.where(middle_ok, middle, 0.0)
    args = tradeoff, jnp.where(middle_ok, log_delta, -1.0)
    estimate = implicit_root(_residual, safe, args, ())
    estimate = jnp.where(middle_ok, estimate, jnp.where(never(middle), jnp.inf, middle))
    low, high = (jnp.where(never(x), jnp.inf, x) for x in (low, high))
    low, high = (
        jnp.minimum(low, stop_gradient(estimate)),
        jnp.maximum(high, stop_gradient(estimate)),
    )
    return Interval(low, estimate, high)


def _residual(epsilon: Array, args: tuple, aux: tuple[()]) -> Array:
    tradeoff, log_delta = args
    found = tradeoff._point(epsilon).log_delta.estimate
    alive = jnp.isfinite(found)
    return jnp.where(alive, found, 0.0) - jnp.where(alive, log_delta, 0.0)


@in_float64
def fixed_point_bounds(tradeoff: Any, like: Any) -> Bounds:
    """Bounds of the alpha with f(alpha) = alpha."""
    fixed = stop_gradient(tradeoff)

    def excess(alpha: Array) -> Array:
        log_alpha, log_tnr = both_logs(alpha)
        return log_alpha - _three(jax.vmap(fixed._rates)(log_alpha, log_tnr).log_beta)

    zero = jnp.zeros_like(like, shape=3)
    below, above = root_between(excess, zero, zero + 0.5)
    low, middle, high = below[0], above[1], above[2]
    # Identical distributions: f(1/2) = 1/2, and a rounding error decides.
    tiny = jnp.finfo(middle.dtype).tiny
    none = middle <= 10 * tiny
    safe = jnp.where(none, 0.25, middle)
    estimate = jnp.where(none, 0.0, implicit_root(_crossing, safe, tradeoff, ()))
    found = Interval(low, jnp.clip(estimate, low, high), high)
    return bounds_of(found, (low <= 0) & ~none, Range(0.0, 0.5, 0.0))


def _three(ends: Interval) -> Array:
    """The lower end, the estimate and the upper end, each at its own argument."""
    return jnp.stack([ends.lower[0], ends.estimate[1], ends.upper[2]])


def _crossing(alpha: Array, tradeoff: Any, aux: tuple[()]) -> Array:
    log_alpha, log_tnr = both_logs(alpha)
    return log_alpha - tradeoff._rates(log_alpha, log_tnr).log_beta.estimate
