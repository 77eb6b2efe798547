"""Certified logarithms of probabilities, their sums, and one curve in terms of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike

from .._internal._interval import exactly
from .._internal._logs import LOG_2, log_add
from .._internal._special import safe_log
from .._internal._tolerances import CLOSED_FORM, LOG_OPERATIONS
from ..engines import Interval, log_complement, select

_BLOCK = 64


class Point(eqx.Module):
    """The profile at one threshold eps, from both sides."""

    log_delta: Interval
    """log delta(eps)."""
    log_reverse: Interval
    """log delta_rev(-eps), the profile of the inverse: delta's complement in e^-eps.

    1 - delta = e^eps (1 - delta_rev(-eps)): small where delta is close to 1 only
    because eps is negative.
    """
    log_rest: Interval
    """log(1 - delta(eps))."""


class Rates(eqx.Module):
    """One point of the curve, at a given type I error."""

    log_beta: Interval
    log_tpr: Interval


class Ends(eqx.Module):
    """Infinite losses: where the curve meets the axes."""

    log_end: Interval
    """log delta(inf) = log(1 - f(0))."""
    log_start: Interval
    """log f(0)."""
    log_reverse_end: Interval
    """log delta_rev(inf) = log(1 - f^-1(0))."""
    log_reverse_start: Interval
    """log f^-1(0), where f reaches zero."""

    def exchanged(self) -> "Ends":
        """The ends of the inverse."""
        return Ends(
            self.log_reverse_end,
            self.log_reverse_start,
            self.log_end,
            self.log_start,
        )


def symmetric_ends(log_end: Interval, log_start: Interval) -> Ends:
    """The ends of a symmetric function."""
    return Ends(log_end, log_start, log_end, log_start)


def no_ends(like: Array) -> Ends:
    """No infinite losses."""
    zero = jnp.zeros((), jnp.result_type(like))
    return symmetric_ends(exact(zero - jnp.inf), exact(zero))


def at_most_zero(x: Array) -> Array:
    """min(x, 0), with the derivative of x also at 0."""
    return jnp.where(x > 0, 0.0, x)


def closed(value: Array) -> Interval:
    """A closed form's logarithm of a probability."""
    return exactly(value, CLOSED_FORM).map(at_most_zero)


def exact(value: ArrayLike) -> Interval:
    """A number without error."""
    value = jnp.asarray(value)
    return Interval(stop_gradient(value), value, stop_gradient(value))


def widened(interval: Interval, unit: ArrayLike) -> Interval:
    """Room for the rounding of a few operations on logarithms of probabilities."""
    unit = jnp.asarray(unit)
    found = interval.widened(lambda x: unit * (1 + jnp.abs(x)))
    return Interval(found.lower, found.estimate, jnp.minimum(found.upper, 0))


@jax.jit
def log_subtract(a: ArrayLike, b: ArrayLike) -> Array:
    """log(e^a - e^b), -inf unless that is positive."""
    a, b = jnp.broadcast_arrays(jnp.asarray(a), jnp.asarray(b))
    positive = a > b
    none = positive & jnp.isneginf(b)
    inner = positive & ~none
    high, low = jnp.where(inner, a, 0.0), jnp.where(inner, b, -1.0)
    value = high + log_complement(low - high)
    return jnp.where(inner, value, jnp.where(none, a, -jnp.inf))


def times(interval: Interval, log_factor: ArrayLike) -> Interval:
    """A probability times a nonnegative number, in logarithms."""
    return interval.map(lambda x: plus(x, log_factor))


@jax.jit
def plus(x: ArrayLike, y: ArrayLike) -> Array:
    """X + y, -inf (without NaN in derivatives) if either is."""
    x, y = jnp.broadcast_arrays(jnp.asarray(x), jnp.asarray(y))
    none = jnp.isneginf(x) | jnp.isneginf(y)
    return jnp.where(none, -jnp.inf, jnp.where(none, 0, x) + jnp.where(none, 0, y))


def add(one: Interval, other: Interval) -> Interval:
    """The sum of two positive numbers, in logarithms."""
    return Interval(
        log_add(one.lower, other.lower),
        log_add(one.estimate, other.estimate),
        log_add(one.upper, other.upper),
    )


def subtract(one: Interval, other: Interval) -> Interval:
    """The difference of two positive numbers, in logarithms, if it is positive."""
    return Interval(
        log_subtract(one.lower, other.upper),
        log_subtract(one.estimate, other.estimate),
        log_subtract(one.upper, other.lower),
    )


def log_room(log_value: Array) -> Array:
    """The rounding of a few operations on the logarithm of a probability."""
    return LOG_OPERATIONS * (1 + jnp.abs(log_value))


def complement(log_value: Interval) -> Interval:
    """log(1 - p) from log p, with its rounding: relative, also next to zero."""
    rest = log_value.map_down(lambda x: log_complement(at_most_zero(x)))
    return rest.widened(lambda x: LOG_OPERATIONS * jnp.abs(x))


def product(log_value: ArrayLike, other: ArrayLike) -> Interval:
    """The product of two known numbers, in logarithms, with its rounding."""
    size = jnp.abs(stop_gradient(log_value)) + jnp.abs(stop_gradient(other))
    room = 4 * jnp.finfo(size.dtype).eps * jnp.where(jnp.isfinite(size), size, 0.0)
    return exact(plus(log_value, other)).widened(lambda x: room)


@jax.jit
def point_beside(
    epsilon: Array, negative: Array, log_delta: Interval, log_rest: Interval
) -> Point:
    """The profile at eps, from delta and 1 - delta at |eps| >= 0.

    They are those of the pair itself where eps >= 0, and of the exchanged one where it
    is `negative`: at -e the two errors of a test change places.
    """
    size = jnp.where(negative, -epsilon, epsilon)
    other = log_delta.reflected(size)
    return Point(
        select(negative, other, log_delta),
        select(negative, log_delta, other),
        select(negative, log_rest.shifted(-size), log_rest),
    )


def larger(one: Interval, other: Interval) -> Interval:
    """The larger of two numbers."""
    return Interval(
        jnp.maximum(one.lower, other.lower),
        jnp.where(one.estimate >= other.estimate, one.estimate, other.estimate),
        jnp.maximum(one.upper, other.upper),
    )


def smaller(one: Interval, other: Interval) -> Interval:
    """The smaller of two numbers."""
    flip = lambda x: x.map_down(jnp.negative)
    return flip(larger(flip(one), flip(other)))


def reflect(log_value: Array, epsilon: Array) -> Array:
    """log((1 - e^-eps) + e^-eps d) for eps >= 0: one profile from the other one."""
    return safe_log(-jnp.expm1(-epsilon) + jnp.exp(log_value - epsilon))


def capped(interval: Interval) -> Interval:
    """Logarithms of probabilities, in order."""
    cap = at_most_zero
    lower, upper = cap(interval.lower), cap(interval.upper)
    estimate = cap(interval.estimate)
    inside = jnp.where(estimate < lower, lower, jnp.where(estimate > upper, upper, 0))
    kept = (estimate >= lower) & (estimate <= upper)
    return Interval(lower, jnp.where(kept, estimate, inside), upper)


def halfway(lower: Interval, upper: Interval) -> Interval:
    """From the lower end of one to the upper end of the other."""
    # In the middle of two convex functions, so convex.
    safe = jnp.where(jnp.isneginf(upper.estimate), 0.0, upper.estimate)
    ratio = jnp.exp(jnp.minimum(lower.estimate - safe, 0.0))
    middle = safe + jnp.log1p(ratio) - LOG_2
    middle = jnp.where(jnp.isneginf(upper.estimate), -jnp.inf, middle)
    return Interval(lower.lower, middle, upper.upper)


def log_cumsum(logs: Array) -> Array:
    """Logarithms of cumulative sums."""
    if logs.size <= _BLOCK:
        return jax.lax.associative_scan(log_add, logs)
    # Within blocks side by side, then over the blocks: loops compile fast.
    blocks = -(-logs.size // _BLOCK)
    padding = (0, blocks * _BLOCK - logs.size)
    table = jnp.pad(logs, padding, constant_values=-jnp.inf).reshape(blocks, _BLOCK)
    none = jnp.full(blocks, -jnp.inf, logs.dtype)
    twice = lambda x: (x, x)
    inner = jax.lax.scan(lambda a, b: twice(log_add(a, b)), none, table.T)[1]
    before = jax.lax.scan(lambda a, b: (log_add(a, b), a), none[0], inner[-1])[1]
    return log_add(inner, before).T.ravel()[: logs.size]
