r"""Probabilities of binomial and Poisson counts, to rounding error in both tails.

The difference of two log-gamma functions of 10^6 has lost nine digits. Loader takes
Stirling's formula out of the factorials, with its error s(k) known by itself, and the
rest is the deviance D(k, m) = k log(k / m) + m - k, which is not negative:

    Poisson(m):   log P(k) = -D(k, m) - s(k) - log(2 pi k) / 2,
    Bin(n, p):    log P(k) = -D(k, n p) - D(n - k, n (1 - p))
                             + s(n) - s(k) - s(n - k) - log(2 pi k (n - k) / n) / 2.

Everything works in the dtype of the arguments. Counts are whole numbers in floating
point and have no derivative.

References:
    C. Loader, "Fast and accurate computation of binomial probabilities" (2000).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jax.scipy.special import expit
from jax.typing import ArrayLike

from ._arithmetic import polynomial, promote
from ._special import log1p

# log k! minus Stirling's formula without its series, k = 1..15 (index 0 is unused).
_STIRLING_ERROR = (
    0.0,
    0.08106146679532726,
    0.0413406959554093,
    0.027677925684998338,
    0.020790672103765093,
    0.016644691189821193,
    0.013876128823070748,
    0.01189670994589177,
    0.010411265261972096,
    0.009255462182712733,
    0.00833056343336287,
    0.007573675487951841,
    0.006942840107209530,
    0.006408994188004207,
    0.005951370112758848,
    0.005554733551962801,
)
_STIRLING_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
"""Coefficients of the odd powers of 1 / k; all digits but the last from k = 16 on."""
_NEAR, _TERMS = 0.35, 20
"""Up to |k - m| / (k + m) = 0.35 the logarithm is a series, of 20 terms: beyond it the
difference of larger numbers costs at most two bits of a deviance."""


def stirling_error(k: jax.Array) -> jax.Array:
    """Error s(k) of Stirling's formula for log k!, for whole k >= 1."""
    table = jnp.asarray(np.asarray(_STIRLING_ERROR, k.dtype))
    small = table[jnp.clip(k, 0, 15).astype(jnp.int32)]
    large = jnp.maximum(k, 16.0)
    v = 1.0 / (large * large)
    series = polynomial(_STIRLING_SERIES[::-1], v)
    # A division at the end of either series: XLA repeats sums and products in each of
    # their uses.
    return stop_gradient(jnp.where(k < 15.5, small, series / large))


@jax.custom_jvp
def _deviance(k: jax.Array, mean: jax.Array, log_mean: jax.Array) -> jax.Array:
    gap = k - mean
    v = gap / (k + mean)
    near = jnp.abs(v) < _NEAR
    # log(k / mean) = 2 artanh(v).
    w = jnp.where(near, v * v, 0.0)
    series = w * polynomial([1 / (2 * j + 1) for j in range(_TERMS, 0, -1)], w)
    close = gap * ((gap + 2.0 * k * series) / (k + mean))
    # Of no count at all only the mean is left, and some quotients overflow.
    some = jnp.where(k > 0, k, 1.0)
    normal = mean > jnp.finfo(k.dtype).tiny * jnp.maximum(some, 1.0)
    log_ratio = jnp.log(jnp.where(normal, some / jnp.where(normal, mean, 1.0), some))
    log_ratio = log_ratio - jnp.where(normal, 0.0, log_mean)
    return jnp.where(near, close, k * log_ratio - gap)


@_deviance.defjvp
def _deviance_jvp(primals, tangents):
    (k, mean, _), dmean = primals, tangents[1]
    least = jnp.finfo(k.dtype).tiny * jnp.maximum(k, 1.0)
    return _deviance(*primals), (mean - k) / jnp.maximum(mean, least) * dmean


@jax.jit
def deviance(k: ArrayLike, mean: ArrayLike) -> jax.Array:
    """Deviance k log(k / mean) + mean - k >= 0 of a count, without cancellation.

    Chernoff: the probability of k or more (k > mean), or of k or fewer (k < mean), is
    at most e^-deviance for a Poisson count.

    Args:
        k: At least 0; no derivative.
        mean: Greater than 0, and than the least normal number.
    """
    k, mean = promote(k, mean)
    return _deviance(k, mean, jnp.log(mean))


@jax.jit
def log_poisson(k: ArrayLike, mean: ArrayLike) -> jax.Array:
    """Log probability of a Poisson count, for whole k >= 0 and mean > 0.

    Accurate to a few units in the last place of 1 + |log P(k)|; differentiable in the
    mean.
    """
    k, mean = promote(k, mean)
    some = k > 0
    k = stop_gradient(jnp.where(some, k, 1.0))
    inner = -stirling_error(k) - _deviance(k, mean, jnp.log(mean))
    return jnp.where(some, inner - 0.5 * jnp.log(2.0 * math.pi * k), -mean)


def _inner_log_binomial(k, rest, p, q, log_p, log_q) -> jax.Array:
    """The log mass for 0 < k < n, from both probabilities and their logarithms."""
    k, rest, p, q, log_p, log_q = jnp.broadcast_arrays(k, rest, p, q, log_p, log_q)
    n, counts = k + rest, jnp.stack([k, rest])
    log_means = jnp.log(n) + jnp.stack([log_p, log_q])
    deviances = _deviance(counts, n * jnp.stack([p, q]), log_means)
    error, *errors = stirling_error(jnp.stack([n, k, rest]))
    parts = 0.5 * jnp.log(2.0 * math.pi * k * (rest / n)) + errors[0] + errors[1]
    return error - parts - deviances[0] - deviances[1]


def log_binomial(k: jax.Array, n: jax.Array, prob: jax.Array) -> jax.Array:
    """Log probability of k under Bin(n, prob), for whole 0 <= k <= n; -inf for none.

    Accurate to a few units in the last place of the result and of |k - n prob|, by
    which the rounding of 1 - prob counts; differentiable in the probability, with
    derivative zero where that is 0 or 1.
    """
    k, n = stop_gradient((k, n))
    rest = n - k
    open_ = (prob > 0) & (prob < 1)
    p = jnp.where(open_, prob, 0.5)
    log_p, log_q = jnp.log(p), log1p(-p)
    inner = (k > 0) & (rest > 0) & open_
    k_safe, rest_safe = jnp.where(inner, k, 1.0), jnp.where(inner, rest, 1.0)
    value = _inner_log_binomial(k_safe, rest_safe, p, 1.0 - p, log_p, log_q)
    edge = jnp.where(k > 0, n * log_p, n * log_q)
    sure = jnp.where(prob <= 0, k <= 0, rest <= 0)
    edge = jnp.where(open_, edge, jnp.where(sure, 0.0, -jnp.inf))
    edge = jnp.where(n <= 0, 0.0, edge)
    return jnp.where(inner, value, edge)


@jax.custom_jvp
def log_binomial_at_logit(logit: jax.Array, n: jax.Array, k: jax.Array) -> jax.Array:
    """Log probability of k under Bin(n, sigmoid(logit)), for whole 0 <= k <= n.

    Keeps both probabilities where one of them rounds to 1; differentiable in the logit.
    """
    log_p, log_q = jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit)
    inner = (k > 0) & (k < n)
    k_safe, rest = jnp.where(inner, k, 1.0), jnp.where(inner, n - k, 1.0)
    p, q = expit(logit), expit(-logit)
    value = _inner_log_binomial(k_safe, rest, p, q, log_p, log_q)
    return jnp.where(inner, value, n * jnp.where(k > 0, log_p, log_q))


@log_binomial_at_logit.defjvp
def _log_binomial_at_logit_jvp(primals, tangents):
    (logit, n, k), dlogit = primals, tangents[0]
    slope = k * expit(-logit) - (n - k) * expit(logit)
    return log_binomial_at_logit(logit, n, k), slope * dlogit
