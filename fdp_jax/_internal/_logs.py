"""Constants and elementary operations on logarithms of probabilities."""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

LOG_2 = math.log(2)
LOG_HALF = -LOG_2
LOG_SQRT_2PI = 0.9189385332046727  # log(2 pi) / 2, of the normal density


@jax.jit
def log_add(a: ArrayLike, b: ArrayLike) -> jax.Array:
    """log(e^a + e^b), with finite derivatives also where either is -inf."""
    a, b = jnp.broadcast_arrays(jnp.asarray(a), jnp.asarray(b))
    high, low = jnp.maximum(a, b), jnp.minimum(a, b)
    none = jnp.isneginf(low)
    gap = jnp.where(none, 0, low) - jnp.where(none, 0, high)
    both = jnp.where(none, 0, high) + jnp.log1p(jnp.exp(gap))
    return jnp.where(none, jnp.where(b > a, b, a), both)


def log_cosh(x: jax.Array) -> jax.Array:
    """Log cosh x for every x, with the absolute error of |x|."""
    x = jnp.abs(x)
    return x + jnp.log1p(jnp.exp(-2 * x)) - LOG_2


def times(count: ArrayLike, value: ArrayLike) -> jax.Array:
    """Product of a count and a value, with 0 inf = 0 and no NaN in the derivative."""
    finite = jnp.isfinite(value)
    product = count * jnp.where(finite, value, 0)
    return jnp.where(finite | jnp.equal(count, 0), product, value)
