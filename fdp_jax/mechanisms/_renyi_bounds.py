"""What Rényi divergences imply, by theorems only: delta, epsilon and error rates.

For an order t = 1 + h > 1 with D_t(Q||P) <= D, and any real eps,

    delta(eps) <= exp(h (D - eps)) h^h / (1 + h)^(1 + h)

(Canonne, Kamath and Steinke 2020, Proposition 12).  Any order gives a valid bound, so
a search over orders need not find the best one.

That is weak where delta is large, but D_t >= D_1 for t > 1, and of the Kullback-Leibler
divergence in both directions the total variation v, which bounds delta(eps) for
eps >= 0, is bounded as well: if neither exceeds D, then

    v log((1 + v) / (1 - v)) <= D

(Gilardoni 2006, for the sum of the two).  Proof: by data processing it is enough to
look at the indicator of an event, with p = Q(S), q = P(S) and p - q = v.
Both divergences of these coins add up to v (logit p - logit q) <= 2 D.  As logit is odd
about 1/2 and convex above, the difference of logits is least for given v where
p + q = 1, and there it is 2 log((1 + v) / (1 - v)).  Randomized response attains it.
"""

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._internal._divided import exp_divided, is_small, log_moment_ratio
from .._internal._implicit import implicit_root
from .._internal._roots import bisect
from .._internal._special import log1mexp

LAST_LOGIT = 740.0


def gap(excess: Array) -> Array:
    """log(h^h / (1 + h)^(1 + h)) <= 0, for h > 0."""
    return -excess * jnp.log1p(1 / excess) - jnp.log1p(excess)


def log_delta_at(
    excess: Array, divergence: Array, epsilon: Array
) -> tuple[Array, Array]:
    """Proposition 12 at one order 1 + h, and the size of its terms."""
    found = excess * (divergence - epsilon) + gap(excess)
    return found, excess * (divergence + jnp.abs(epsilon)) - gap(excess)


def epsilon_at(
    excess: Array, divergence: Array, log_delta: Array
) -> tuple[Array, Array]:
    """Proposition 12 at one order, solved for epsilon, and the size of its terms."""
    found = divergence + (gap(excess) - log_delta) / excess
    return found, divergence - (gap(excess) + log_delta) / excess


def _excess_divergence(y: Array, divergence: Array, aux: tuple) -> Array:
    del aux
    return y * jnp.tanh(0.5 * y) - divergence


def log_total_variation(divergence: Array) -> Array:
    """Log of the largest v for the larger of both Kullback-Leibler divergences.

    With y = log((1 + v) / (1 - v)) it is y tanh(y / 2) = D, and tanh(x) lies between
    x / (1 + x) and the lesser of x and 1.
    """
    some = (divergence > 0) & jnp.isfinite(divergence)
    safe = jnp.where(some, divergence, 1.0)
    fixed = stop_gradient(safe)
    root = jnp.sqrt(2 * fixed)
    over = lambda y: _excess_divergence(y, fixed, ())
    y = bisect(over, jnp.maximum(fixed, root), fixed + root)[1]
    y = implicit_root(_excess_divergence, y, safe, ())
    found = log1mexp(y) - jnp.log1p(jnp.exp(-y))
    return jnp.where(some, found, jnp.where(divergence > 0, 0.0, -jnp.inf))


# ----------------------------------------------------------------------- error rates


def binary_divergences(
    order: Array, logit: Array, log_alpha: Array, log_rest: Array
) -> tuple[Array, Array]:
    """D_t between coins of heads p = sigmoid(logit) and alpha, both ways.

    Args:
        order: Positive, 1 included.
        logit: Of the coin with the record; p >= alpha.
        log_alpha: log alpha.
        log_rest: log(1 - alpha).
    """
    log_power, log_beta = -jax.nn.softplus(-logit), -jax.nn.softplus(logit)
    up, down = log_power - log_alpha, log_beta - log_rest

    def one(w: Array) -> Array:
        direct = jnp.logaddexp(log_alpha + w * up, log_rest + w * down)
        safe = is_small(direct)
        x, y = (jnp.where(safe, v, 0.0) for v in (up, down))
        excess = jnp.square(x) * exp_divided(x, w * x, log_alpha)
        excess = excess + jnp.square(y) * exp_divided(y, w * y, log_rest)
        return order * log_moment_ratio(w, direct, excess)

    return one(order), one(1 - order)


def _over(logit: Array, args: tuple, aux: tuple) -> Array:
    """The excess of the larger of the two divergences over what is allowed."""
    del aux
    order, divergence, log_alpha, log_rest = args
    return (
        jnp.maximum(*binary_divergences(order, logit, log_alpha, log_rest)) - divergence
    )


def largest_logit(
    order: Array, divergence: Array, log_alpha: Array, log_rest: Array
) -> Array:
    """Logit of the largest power p that both divergences at one order allow.

    The two-point region of Balle et al. (2020), Section 4, and Riess et al. (2026).
    Rounded up; no derivative.
    """
    args = order, divergence * (1 + 1e-12) + 1e-16, log_alpha, log_rest
    least = log_alpha - log_rest
    most = jnp.maximum(least, 0.0) + LAST_LOGIT
    return bisect(lambda y: _over(y, args, ()), least, most)[1]


def attach(
    logit: Array, order: Array, divergence: Array, log_alpha: Array, log_rest: Array
) -> Array:
    """The logit with its derivative in the order, in the divergence and in alpha."""
    return implicit_root(_over, logit, (order, divergence, log_alpha, log_rest), ())
