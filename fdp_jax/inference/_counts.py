"""Probabilities of counts, with digits in all tails, for n up to a million and beyond.

References:
    C. Loader, "Fast and accurate computation of binomial probabilities" (2000): the
    difference of two log-gamma functions of 10^6 has lost nine digits.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal import _checks

_SPREADS = 40.0
"""Half width of a window in standard deviations; what is beyond is below e^-800."""
_LARGEST = 2**24
_DEFAULT = 2**16
_LARGEST_TRACED = int(((_DEFAULT - 2) / _SPREADS) ** 2)
"""The most records whose spread a window of that length holds."""
_LOG_2PI = math.log(2 * math.pi)
_STIRLING = tuple(
    math.lgamma(k + 1) - ((k + 0.5) * math.log(k) - k + 0.5 * _LOG_2PI)
    for k in range(1, 16)
)
"""log k! minus Stirling's formula; for larger k there is a series."""


class Window(NamedTuple):
    """Values of a count that matter, with their probabilities."""

    values: Float[Array, " length"]
    probs: Float[Array, " length"]


def window_length(n: Any) -> int:
    """A power of two that holds 40 standard deviations on each side, or all of 0..n."""
    if isinstance(n, jax.core.Tracer):
        return _DEFAULT
    largest = float(np.max(np.asarray(n)))
    needed = min(largest + 1, _SPREADS * math.sqrt(largest) + 2)
    return max(16, 1 << math.ceil(math.log2(needed)))


def record_count(name: str, n: Any) -> Any:
    """A number of records: whole and positive."""
    n = _checks.positive(name, _checks.checked_scalar(name, _checks.whole_number, n))
    number = _checks.known(n)
    if number is None:
        allowed = f"{name} must be at most {_LARGEST_TRACED} where it is traced"
        return eqx.error_if(n, n > _LARGEST_TRACED, allowed)
    if number > _LARGEST:
        raise ValueError(f"{name} must be at most {_LARGEST}, got {number:g}")
    return n


def success_count(name: str, count: Any, records_name: str, n: Any) -> Any:
    """A number of successes among n records."""
    count = _checks.checked_scalar(name, _checks.whole_number, count)
    count = _checks.nonnegative(name, count)
    number, most = _checks.known(count), _checks.known(n)
    allowed = f"{name} must be at most {records_name}"
    if number is None or most is None:
        count = jnp.asarray(count)
        return eqx.error_if(count, count > jnp.asarray(n), allowed)
    if number > most:
        raise ValueError(f"{allowed}, {most:g}, got {number:g}")
    return count


def binomial_window(n: Array, prob: Array, length: int) -> Window:
    """Bin(n, prob) around its mean."""
    first = jnp.round(n * stop_gradient(prob)) - length // 2
    first = jnp.clip(first, 0, jnp.maximum(n + 1 - length, 0))
    values = first + jnp.arange(length, dtype=n.dtype)
    return Window(values, _binomial(values, n, prob))


@jax.custom_jvp
def _binomial(x: Array, n: Array, prob: Array) -> Array:
    """The binomial probability of any whole x; differentiable in prob, also at 0, 1."""
    inside = (x >= 0) & (x <= n)
    return jnp.where(
        inside, jnp.exp(log_binomial(jnp.where(inside, x, 0.0), n, prob)), 0
    )


@_binomial.defjvp
def _binomial_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    x, n, prob = primals
    value = _binomial(x, n, prob)
    slope = n * (_binomial(x - 1, n - 1, prob) - _binomial(x, n - 1, prob))
    return value, slope * tangents[2]


def hypergeometric_window(m: Array, n: Array, total: Array, length: int) -> Window:
    """The second group's successes (of m), given the total of both groups (m + n)."""
    low, high = jnp.maximum(total - n, 0.0), jnp.minimum(total, m)
    first = jnp.round(total * m / (n + m)) - length // 2
    first = jnp.clip(first, low, jnp.maximum(high + 1 - length, low))
    values = first + jnp.arange(length, dtype=m.dtype)
    inside = values <= high
    y = jnp.where(inside, values, low)
    share = total / (n + m)
    logs = log_binomial(y, m, share) + log_binomial(total - y, n, share)
    logs = logs - log_binomial(total, n + m, share)
    return Window(values, jnp.where(inside, jnp.exp(logs), 0.0))


def log_binomial(x: Array, n: Array, prob: Array) -> Array:
    """Log of the binomial probability of x in 0..n; -inf where it is 0."""
    rest = n - x
    inner = (x > 0) & (rest > 0) & (prob > 0) & (prob < 1)
    p = jnp.where((prob > 0) & (prob < 1), prob, 0.5)
    a, b = jnp.where(inner, x, 1.0), jnp.where(inner, rest, 1.0)
    count = jnp.where(inner, n, 2.0)
    value = _stirling(count) - _stirling(a) - _stirling(b)
    value = value - _deviance(a, count * p) - _deviance(b, count * (1 - p))
    value = value - 0.5 * (_LOG_2PI + jnp.log(a) + jnp.log(b) - jnp.log(count))
    none, all_ = n * jnp.log1p(-p), n * jnp.log(p)
    edge = jnp.where(x > 0, all_, none)
    # A certain outcome.
    sure = jnp.where(prob <= 0, x <= 0, rest <= 0)
    point = jnp.where(sure, 0.0, -jnp.inf)
    edge = jnp.where((prob <= 0) | (prob >= 1), point, edge)
    edge = jnp.where(n <= 0, 0.0, edge)
    return jnp.where(inner, value, edge)


def _stirling(k: Array) -> Array:
    """Log k! minus Stirling's formula, for whole k >= 1."""
    fixed = stop_gradient(k)
    index = jnp.clip(fixed, 1, len(_STIRLING)).astype(jnp.int32) - 1
    inverse = 1 / jnp.square(jnp.maximum(fixed, 10.0))
    terms = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
    series = jnp.zeros_like(inverse)
    for term in reversed(terms):
        series = series * inverse + term
    series = series / jnp.maximum(fixed, 10.0)
    return jnp.where(fixed > len(_STIRLING), series, jnp.asarray(_STIRLING)[index])


def _deviance(x: Array, mean: Array) -> Array:
    """X log(x / mean) + mean - x, without cancellation where x is close to mean."""
    v = (x - mean) / (x + mean)
    near = jnp.abs(v) < 0.1
    small = jnp.where(near, v, 0.0)
    square = small * small
    series = jnp.zeros_like(square)
    for k in range(9, 0, -1):
        series = (series + 1 / (2 * k + 1)) * square
    close = (x - mean) * small + 2 * x * small * series
    far = x * jnp.log(x / mean) + mean - x
    return jnp.where(near, close, far)
