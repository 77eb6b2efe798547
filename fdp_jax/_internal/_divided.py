"""Divided differences of the exponential function, positive and without cancellation.

    exp[0, x, y] = (psi(x) - psi(y)) / (x - y),    psi(x) = (e^x - 1) / x,

is the mean of e^{a x + b y} over the triangle a, b >= 0, a + b <= 1, times 1/2.
"""

import functools
from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ._arithmetic import polynomial, promote

_TERMS = 19
"""Number of terms of power series on |x| <= 1; the next one is below 1e-18."""
_CAP = 300.0
"""Largest exponent; callers discard what would be larger."""


def _series(x: Array, y: Array) -> Array:
    """exp[0, x, y] for |x|, |y| <= 1: complete homogeneous polynomials over n!."""
    power = homogeneous = jnp.ones_like(x)
    total, factorial = 0.5 * homogeneous, 2.0
    for n in range(1, _TERMS):
        power = power * y
        homogeneous = x * homogeneous + power
        factorial *= n + 2
        total = total + homogeneous / factorial
    return total


_PSI = range(_TERMS, 1, -1)
"""Divisors of the series of (e^x - 1) / x, for |x| <= 1."""
_COSH, _SINHC = ([n * (n - 1) for n in range(k + 12, k - 1, -2)] for k in (2, 3))
"""Those of cosh(d) and sinh(d) / d, as functions of d^2 <= 1/16."""


def _nested(x: Array, divisors: Iterable[int]) -> Array:
    """1 + x / d_1 (1 + x / d_2 (1 + ...)), from the last divisor on."""
    return functools.reduce(lambda y, n: 1 + y * x / n, divisors, jnp.ones_like(x))


def _scaled_psi(x: Array, log_scale: Array) -> Array:
    """e^s (e^x - 1) / x, where the product may be moderate if its factors are not."""
    large = jnp.abs(x) > 1
    safe = jnp.where(large, x, 1.0)
    far = jnp.exp(jnp.minimum(log_scale + safe, _CAP)) - jnp.exp(log_scale)
    near = jnp.exp(log_scale) * _nested(jnp.where(large, 0.0, x), _PSI)
    return jnp.where(large, far / safe, near)


@jax.jit
def exp_divided(
    x: ArrayLike, y: ArrayLike, log_scale: ArrayLike = 0.0
) -> Float[Array, "..."]:
    """e^log_scale exp[0, x, y], to rounding error for all real x and y.

    Args:
        x: Any real number.
        y: Any real number.
        log_scale: At most 300; log_scale + max(x, y) counts as at most 300 too.
    """
    x, y, log_scale = promote(x, y, log_scale)
    small = (jnp.abs(x) <= 1) & (jnp.abs(y) <= 1)
    close = ~small & (jnp.abs(x - y) < 0.5)
    wide = ~small & ~close

    series = _series(jnp.where(small, x, 0.0), jnp.where(small, y, 0.0))
    # x and y have one sign and lie close together: with c and d half their sum and
    # difference, (1 + e^c (c sinh(d) / d - cosh d)) / (x y).
    a, b = jnp.where(close, x, 2.0), jnp.where(close, y, 2.0)
    c, square = 0.5 * (a + b), jnp.square(0.5 * (a - b))
    sinhc, cosh = _nested(square, _SINHC), _nested(square, _COSH)
    lifted = jnp.exp(jnp.minimum(log_scale + c, _CAP)) * (c * sinhc - cosh)
    beside = (jnp.exp(log_scale) + lifted) / (a * b)

    a, b = jnp.where(wide, x, 1.0), jnp.where(wide, y, 0.0)
    apart = (_scaled_psi(a, log_scale) - _scaled_psi(b, log_scale)) / (a - b)
    return jnp.where(
        small, jnp.exp(log_scale) * series, jnp.where(close, beside, apart)
    )


@jax.jit
def psi(x: ArrayLike) -> Float[Array, "..."]:
    """(e^x - 1) / x for x <= 300, with derivatives that are right at zero."""
    (x,) = promote(x)
    return _scaled_psi(x, jnp.zeros_like(x))


@jax.jit
def sinhc(x: ArrayLike) -> Float[Array, "..."]:
    """sinh(x) / x, with derivatives that are right at zero."""
    (x,) = promote(x)
    small = jnp.abs(x) < 0.25
    safe = jnp.where(small, 1.0, x)
    near = _nested(jnp.square(jnp.where(small, x, 0.0)), _SINHC)
    return jnp.where(small, near, jnp.sinh(safe) / safe)


@jax.jit
def log1p_ratio(u: ArrayLike) -> Float[Array, "..."]:
    """log(1 + u) / u for -1/2 <= u <= 1, with derivatives that are right at zero."""
    (u,) = promote(u)
    # 2 artanh(z) / u with z = u / (2 + u), |z| <= 1/3.
    square = jnp.square(u / (2 + u))
    total = polynomial([1 / (2 * n + 1) for n in range(18, -1, -1)], square)
    return 2 * total / (2 + u)


@jax.jit
def log_moment_ratio(
    order: ArrayLike, log_moment: ArrayLike, excess: ArrayLike
) -> Float[Array, "..."]:
    """Lambda / (w (w - 1)) with full relative accuracy, for any real w.

    Args:
        order: The order w.
        log_moment: Lambda = log E[r^w], accurate if it is not small.
        excess: (E[r^w] - 1) / (w (w - 1)), used where Lambda is small; finite.
    """
    order, log_moment, excess = promote(order, log_moment, excess)
    small = is_small(log_moment)
    product = order * (order - 1)
    # The clip acts only where the other branch is taken.
    near = excess * log1p_ratio(jnp.clip(product * excess, -0.6, 1.0))
    return jnp.where(small, near, log_moment / jnp.where(small, 1.0, product))


def is_small(log_moment: Array) -> Array:
    """The mask of the arguments at which `log_moment_ratio` uses the excess."""
    return jnp.abs(log_moment) < 0.5
