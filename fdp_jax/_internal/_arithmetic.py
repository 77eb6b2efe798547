"""The unit of rounding, arguments of one type, polynomials, and exact products."""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

ULP = 2.0**-52
"""A unit in the last place of 1: privacy is accounted for in float64 everywhere."""


def promote(*args: ArrayLike) -> tuple[jax.Array, ...]:
    """Broadcasts the arguments against each other in one floating dtype."""
    dtype = jnp.result_type(*args)
    if not jnp.issubdtype(dtype, jnp.floating):
        dtype = jnp.result_type(float)
    return tuple(jnp.broadcast_arrays(*(jnp.asarray(a, dtype) for a in args)))


def polynomial(coefficients: Iterable[Any], x: jax.Array) -> jax.Array:
    """Horner's rule, from the coefficient of the highest power on."""
    return functools.reduce(lambda value, c: value * x + c, coefficients)


def two_product(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns `(p, e)` with `p = fl(a b)` and `p + e = a b` exactly (Dekker).

    Exact as long as nothing overflows or is subnormal; also exact when the compiler
    contracts a product and a sum into a fused operation.
    """
    bits = jnp.finfo(a.dtype).nmant + 1
    factor = jnp.asarray(2.0 ** ((bits + 1) // 2) + 1.0, a.dtype)

    def split(x):
        c = factor * x
        high = c - (c - x)
        return high, x - high

    (a_high, a_low), (b_high, b_low) = split(a), split(b)
    product = a * b
    error = a_high * b_high - product
    error = (error + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error
