"""Windows of counts that matter, with their probabilities, for n up to a million."""

import math
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._concrete import is_traced, known
from .._internal._counts import log_binomial

_SPREADS = 40.0
"""Half width of a window in standard deviations; what is beyond is below e^-800."""
LARGEST = 2**24
_DEFAULT = 2**16
_LARGEST_TRACED = int(((_DEFAULT - 2) / _SPREADS) ** 2)
"""The most records whose spread a window of that length holds."""


class Window(NamedTuple):
    """Values of a count that matter, with their probabilities."""

    values: Float[Array, " length"]
    probs: Float[Array, " length"]


def window_length(n: Any) -> int:
    """A power of two that holds 40 standard deviations on each side, or all of 0..n."""
    if is_traced(n):
        return _DEFAULT
    largest = float(np.max(np.asarray(n)))
    needed = min(largest + 1, _SPREADS * math.sqrt(largest) + 2)
    return max(16, 1 << math.ceil(math.log2(needed)))


def record_count(name: str, n: Any) -> Any:
    """A number of records: whole and positive."""
    n = _checks.positive(name, _checks.checked_scalar(name, _checks.whole_number, n))
    traced = is_traced(n)
    most = _LARGEST_TRACED if traced else LARGEST
    where = " where it is traced" if traced else ""
    message = f"{name} must be at most {most}{where}"
    return _checks.error_if(n, lambda x: x > most, message)


def success_count(name: str, count: Any, records_name: str, n: Any) -> Any:
    """A number of successes among n records."""
    count = _checks.checked_scalar(name, _checks.whole_number, count)
    count = _checks.nonnegative(name, count)
    most = known(n)
    shown = "" if most is None else f", {most:g}"
    message = f"{name} must be at most {records_name}{shown}"
    return _checks.error_if(count, lambda x: x > n, message)


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
