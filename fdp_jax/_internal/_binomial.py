"""Tails of binomial laws to nearly all digits, however many trials there are.

The incomplete beta function of `jax.scipy.special` loses digits with their number, and
all of them beyond some millions.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import fori_loop, stop_gradient
from jax.typing import ArrayLike
from jaxtyping import Array

from ._special import log1mexp
from ._tolerances import BINOMIAL_TAIL

_NODES = 80
_DEPTH = 45.0
"""Where the integrand is e^-45 of its largest value, the integral ends."""
_NEAR = 0.02
"""From here on a deviance does not cancel."""
_DIRECT = 16
"""From here on Stirling's series has all digits."""


def log_binomial_tail(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """Log P(Bin(n, p) >= k) for 1 <= k <= n, differentiable in p.

    With B = k: the tail is B P(Bin = B) times the integral over t > 0 of
    (x / p)^B ((1 - x) / (1 - p))^(n - B) at x = p e^-t, whose logarithm is concave and,
    where the tail is the lighter one, decreasing.
    """
    k, n, p = jnp.broadcast_arrays(*(jnp.asarray(x, float) for x in (k, n, p)))
    return _log_tail(k, n, p)


def log_tail_error(log_tail: Array, k: Array, n: Array, p: Array) -> Array:
    """Bound on the error of such a logarithm, without derivative."""
    size = 1 + jnp.abs(log_tail) + jnp.abs(k - n * p)
    return stop_gradient(BINOMIAL_TAIL * size)


@jax.custom_jvp
def _log_tail(k: Array, n: Array, p: Array) -> Array:
    other = k < n * p
    count, prob = jnp.where(other, n - k + 1, k), jnp.where(other, 1 - p, p)
    some = (prob > 0) & (count <= n)
    light = _log_light_tail(count, n, jnp.where(some, prob, 0.5 / (n + 1)))
    light = jnp.where(some, light, -jnp.inf)
    heavy = jnp.where(some, log1mexp(jnp.where(some, -light, 1.0)), 0.0)
    return jnp.where(other, heavy, light)


@_log_tail.defjvp
def _log_tail_jvp(primals: tuple, tangents: tuple) -> tuple:
    k, n, p = primals
    value = _log_tail(k, n, p)
    inside = (p > 0) & (p < 1)
    safe = jnp.where(inside, p, 0.5)
    slope = jnp.log(n) + log_binomial_mass(k - 1, n - 1, safe)
    none = jnp.isneginf(value) | ~inside
    slope = jnp.where(none, 0, jnp.exp(jnp.where(none, 0, slope - value)))
    return value, slope * tangents[2]


def _log_light_tail(k: Array, n: Array, p: Array) -> Array:
    rest = n - k
    end = stop_gradient(_end(k, rest, p))
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    shape = (-1,) + (1,) * k.ndim
    share, weights = (
        jnp.asarray(x.reshape(shape)) for x in (0.5 * (nodes + 1), 0.5 * weights)
    )
    integral = end * jnp.sum(weights * jnp.exp(_exponent(share * end, k, rest, p)), 0)
    return jnp.log(k) + log_binomial_mass(k, n, p) + jnp.log(integral)


def _exponent(t: Array, k: Array, rest: Array, p: Array) -> Array:
    return -k * t + rest * jnp.log1p(-p * jnp.expm1(-t) / (1 - p))


def _end(k: Array, rest: Array, p: Array) -> Array:
    """The place where the exponent has fallen by `_DEPTH`: by bisection."""

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        beyond = _exponent(jnp.exp(middle), k, rest, p) < -_DEPTH
        return jnp.where(beyond, low, middle), jnp.where(beyond, middle, high)

    start = jnp.full_like(p, -50.0), jnp.full_like(p, 12.0)
    return jnp.exp(fori_loop(0, 30, halve, start)[1])


def log_binomial_mass(k: Array, n: Array, p: Array | float) -> Array:
    """Log P(Bin(n, p) = k) for 0 < p < 1, by Loader's formula."""
    rest, q = n - k, 1 - p
    inside = (k > 0) & (rest > 0)
    x, y = jnp.where(inside, k, 0.5 * n + 1), jnp.where(inside, rest, 0.5 * n + 1)
    m = x + y
    total, *parts = _stirling(jnp.stack([m, x, y]))
    means = jnp.stack(jnp.broadcast_arrays(m * p, m * q))
    apart = _deviance(jnp.stack([x, y]), means)
    found = total - sum(parts) - jnp.sum(apart, axis=0)
    found = found + 0.5 * jnp.log(m / (2 * math.pi * x * y))
    ends = jnp.where(k > 0, n * jnp.log(p), n * jnp.log1p(-p))
    return jnp.where(inside, found, ends)


def _deviance(x: Array, mean: Array) -> Array:
    """X log(x / mean) + mean - x."""
    gap = (x - mean) / mean
    near = jnp.abs(gap) < _NEAR
    small = jnp.where(near, gap, 0.0)
    series = functools.reduce(
        lambda rest, j: 1 / (j * (j - 1)) - small * rest, range(10, 1, -1), 0.0
    )
    direct = (1 + gap) * jnp.log1p(gap) - gap
    return mean * jnp.where(near, jnp.square(small) * series, direct)


def _stirling(x: Array) -> Array:
    """Log x! less Stirling's formula, for x > 0."""
    large = jnp.maximum(x, _DIRECT)
    u = 1 / jnp.square(large)
    series = 1 / 12 - u * (1 / 360 - u * (1 / 1260 - u * (1 / 1680 - u / 1188)))
    small = jnp.minimum(x, _DIRECT)
    direct = jax.scipy.special.gammaln(small + 1) - (small + 0.5) * jnp.log(small)
    direct = direct + small - 0.5 * math.log(2 * math.pi)
    return jnp.where(x > _DIRECT, series / large, direct)
