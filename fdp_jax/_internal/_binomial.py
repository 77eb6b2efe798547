"""Tails of binomial laws to nearly all digits, however many trials there are.

The incomplete beta function of `jax.scipy.special` loses digits with their number, and
all of them beyond some millions.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.lax import fori_loop, stop_gradient
from jax.typing import ArrayLike
from jaxtyping import Array

from ._counts import log_binomial, log_binomial_at_logit
from ._quadrature import unit_rule
from ._special import log1p
from ._tolerances import BINOMIAL_TAIL

_NODES = 80
_DEPTH = 45.0
"""Where the integrand is e^-45 of its largest value, the integral ends."""
_STEPS = 4
"""Newton's, to where that is."""
_LARGEST = 700.0
"""Exponents from which on e^x may overflow."""


def log_binomial_tail(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """Log P(Bin(n, p) >= k) for k >= 1, differentiable in p."""
    k, n, p = jnp.broadcast_arrays(*(jnp.asarray(x, float) for x in (k, n, p)))
    some = (p > 0) & (p < 1) & (k <= n)
    sure = jnp.where((p >= 1) & (k <= n), 0.0, -jnp.inf)
    p, k = jnp.where(some, p, 0.5), jnp.where(some, k, n)
    return jnp.where(some, _log_tail(k, n, p), sure)


@jax.custom_jvp
def _log_tail(k: Array, n: Array, p: Array) -> Array:
    return jnp.minimum(log_tail_at_logit(jnp.log(p) - log1p(-p), n, k), 0.0)


@_log_tail.defjvp
def _log_tail_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    # Next to 1 nothing is left of the integral's own.
    k, n, p = primals
    value = _log_tail(k, n, p)
    return value, jnp.exp(log_binomial(k, n, p) - value) * k / p * tangents[2]


def log_tail_error(log_tail: Array, k: Array, n: Array, p: Array) -> Array:
    """Bound on the error of such a logarithm, without derivative."""
    size = 1 + jnp.abs(log_tail) + jnp.abs(k - n * p)
    return stop_gradient(BINOMIAL_TAIL * size)


def log_tail_at_logit(
    logit: Array, n: Array, k: Array, share: Callable[[Array], Array] = jnp.ones_like
) -> Array:
    """Log P(Bin(n, p) >= k) for 1 <= k <= n and p = sigmoid(logit).

    With odds o = p / (1 - p), the tail is P(Bin = k) times the integral of

        k e^(-k t) (1 + o u)^(n-k),    u = 1 - e^-t,    over t > 0.

    Its logarithm is concave, and largest where p e^-t = k / n if there is such a t.
    There the integral is split, and the first factor becomes P(Bin(n, k / n) = k).

    Args:
        logit: Differentiable.
        n: The number of trials.
        k: A whole number.
        share: A positive factor of the integrand, as a function of u that has one more
            axis: 1 less the quotient of another tail's integrand and this one's makes
            the sum their difference, without cancellation.
    """
    rest, full = n - k, k == n
    mode = jnp.log(k) - jnp.log(jnp.where(full, 1.0, rest))
    inside = (logit > mode) & ~full
    # Conditions in place of minima, which halve derivatives where both are equal.
    turn = jnp.where(inside, jax.nn.log_sigmoid(logit) - jnp.log(k / n), 0.0)
    mode = jnp.where(inside, mode, logit)
    odds = jnp.exp(jnp.minimum(mode, _LARGEST))

    def exponent(s: Array) -> Array:
        """The logarithm of the integrand at `turn` + s, less that at `turn`."""
        rise = jnp.maximum(-odds[..., None] * jnp.expm1(-s), -0.9999999999999999)
        return rest[..., None] * log1p(rise) - k[..., None] * s

    def nearer(_: Array, s: Array) -> Array:
        tilted = jnp.exp(-s) * odds
        slope = rest * tilted / (1 + odds - tilted) - k
        gap = exponent(s[..., None])[..., 0] + _DEPTH
        return s - jnp.where(left & (gap > 0), 0.0, gap / slope)

    # From where a parabola is as deep, which is too near on the right only.
    fall, bend = k - rest * odds, rest * odds * (1 + odds)
    right = 2 * _DEPTH / (fall + jnp.sqrt(jnp.square(fall) + 2 * bend * _DEPTH))
    wide = jnp.sqrt(2 * _DEPTH / jnp.where(full, 1.0, bend))
    left = jnp.asarray([True, False]).reshape(2, *(1,) * k.ndim)
    ends = stop_gradient(jnp.stack([-jnp.minimum(wide, turn), right]))
    ends = stop_gradient(fori_loop(0, _STEPS, nearer, ends))
    ends = jnp.stack([jnp.where(ends[0] > -turn, ends[0], -turn), ends[1]])
    nodes, weights = unit_rule(_NODES)
    s = ends[..., None] * nodes
    terms = jnp.exp(exponent(s)) * share(-jnp.expm1(-(turn[..., None] + s)))
    total = jnp.sum(jnp.abs(ends) * (terms @ weights), axis=0)
    return log_binomial_at_logit(mode, n, k) + jnp.log(k * total)
