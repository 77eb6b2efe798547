"""Poisson probabilities, to rounding error in both tails."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

_SMALL = 16
_TABLE = np.asarray(
    [
        math.lgamma(k + 1) - (k + 0.5) * math.log(k) + k - 0.5 * math.log(2 * math.pi)
        if k
        else 0.0
        for k in range(_SMALL)
    ]
)
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
"""Of log k! minus Stirling's formula, in odd powers of 1 / k."""
_NEAR, _TERMS = 0.35, 20


@jax.jit
def deviance(k: ArrayLike, mean: ArrayLike) -> Float[Array, "..."]:
    """The number k log(k / mean) + mean - k >= 0, without cancellation.

    Chernoff: the probability of k or more (k > mean), or of k or fewer (k < mean), is
    at most e^-deviance.

    Args:
        k: At least 0.
        mean: Greater than 0.
    """
    k, mean = jnp.broadcast_arrays(jnp.asarray(k, float), jnp.asarray(mean, float))
    ratio = (k - mean) / (k + mean)
    near = jnp.abs(ratio) < _NEAR
    # log(k / mean) = 2 artanh(ratio).
    v = jnp.where(near, ratio, 0.0)
    square, total = jnp.square(v), jnp.zeros_like(v)
    for j in range(_TERMS, 0, -1):
        total = (total + 1 / (2 * j + 1)) * square
    close = (k - mean) * v + 2 * k * v * total
    some = k > 0
    safe = jnp.where(some & ~near, k, 1.0)
    log_ratio = jnp.where(some, jnp.log(safe) - jnp.log(mean), 0.0)
    return jnp.where(near, close, k * log_ratio + mean - k)


@jax.jit
def log_poisson(k: ArrayLike, mean: ArrayLike) -> Float[Array, "..."]:
    """Log P(N = k) of a Poisson variable (Loader 2000), for whole k >= 0, mean > 0."""
    k = jnp.asarray(k, float)
    some = k > 0
    safe = jnp.where(some, k, 1.0)
    tabled = jnp.asarray(_TABLE)[jnp.clip(safe, 0, _SMALL - 1).astype(int)]
    inverse = 1 / jnp.maximum(safe, _SMALL)
    series = jnp.zeros_like(safe)
    for coefficient in _SERIES[::-1]:
        series = series * jnp.square(inverse) + coefficient
    excess = jnp.where(safe < _SMALL, tabled, series * inverse)
    inner = -excess - deviance(safe, mean) - 0.5 * jnp.log(2 * math.pi * safe)
    return jnp.where(some, inner, -jnp.asarray(mean, float))
