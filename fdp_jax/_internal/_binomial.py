"""Tails of binomial laws to nearly all digits, however many trials there are.

The incomplete beta function of `jax.scipy.special` loses digits with their number, and
all of them beyond some millions.
"""

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.typing import ArrayLike
from jaxtyping import Array

from ._counts import log_binomial
from ._quadrature import unit_rule
from ._roots import bisect
from ._special import log1mexp
from ._tolerances import BINOMIAL_TAIL

_NODES = 80
_DEPTH = 45.0
"""Where the integrand is e^-45 of its largest value, the integral ends."""


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
    slope = jnp.log(n) + log_binomial(k - 1, n - 1, safe)
    none = jnp.isneginf(value) | ~inside
    slope = jnp.where(none, 0, jnp.exp(jnp.where(none, 0, slope - value)))
    return value, slope * tangents[2]


def _log_light_tail(k: Array, n: Array, p: Array) -> Array:
    rest = n - k
    end = _end(k, rest, p)
    shape = (-1,) + (1,) * k.ndim
    share, weights = (jnp.asarray(x.reshape(shape)) for x in unit_rule(_NODES))
    integral = end * jnp.sum(weights * jnp.exp(_exponent(share * end, k, rest, p)), 0)
    return jnp.log(k) + log_binomial(k, n, p) + jnp.log(integral)


def _exponent(t: Array, k: Array, rest: Array, p: Array) -> Array:
    return -k * t + rest * jnp.log1p(-p * jnp.expm1(-t) / (1 - p))


def _end(k: Array, rest: Array, p: Array) -> Array:
    """The place where the exponent has fallen by `_DEPTH`: by bisection."""
    ends = jnp.full_like(p, -50.0), jnp.full_like(p, 12.0)
    fallen = lambda log_t: -_DEPTH - _exponent(jnp.exp(log_t), k, rest, p)
    return jnp.exp(bisect(fallen, *ends, 30)[1])
