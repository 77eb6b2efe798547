"""Closed forms for one Laplace release, L_mu = T(Lap(0, 1), Lap(mu, 1)).

`mu` is the sensitivity over the scale. The privacy loss lies in [-mu, mu]; under P it
has an atom 1/2 at -mu, an atom e^-mu / 2 at mu and a density in between, so that

    1 - delta(eps) = e^eps            for eps <= -mu,
                     e^((eps-mu)/2)   for -mu <= eps <= mu,
                     1                for eps >= mu

(Balle, Barthe and Gaboardi 2018 for eps >= 0). The pair is symmetric. At the two joints
the derivative is that of the middle piece.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ..._internal._arithmetic import promote
from ..._internal._logs import LOG_2
from ..._internal._special import log1mexp
from .._closed_form import AbstractClosedForm


def _pieces(mu: jax.Array, epsilon: jax.Array) -> tuple[jax.Array, ...]:
    """`(below, above, mu, epsilon)`: outer pieces, and arguments for the middle one."""
    above = (epsilon > mu) | (jnp.isposinf(epsilon) & jnp.isfinite(mu))
    below = ((epsilon < -mu) & ~above) | jnp.isneginf(epsilon)
    middle = ~below & ~above & jnp.isfinite(mu)
    return below, above, jnp.where(middle, mu, 1.0), jnp.where(middle, epsilon, 0.0)


def log_one_minus_delta(mu: ArrayLike, epsilon: ArrayLike) -> jax.Array:
    """Logarithm of 1 - delta(eps) of L_mu for mu in [0, inf] and every eps."""
    mu, epsilon = promote(mu, epsilon)
    below, above, safe_mu, safe_epsilon = _pieces(mu, epsilon)
    middle = jnp.where(jnp.isinf(mu), -jnp.inf, 0.5 * (safe_epsilon - safe_mu))
    return jnp.where(below, epsilon, jnp.where(above, 0.0, middle))


def log_delta(mu: ArrayLike, epsilon: ArrayLike) -> jax.Array:
    """Logarithm of delta(eps) of L_mu for mu in [0, inf] and every eps."""
    log_rest = log_one_minus_delta(mu, epsilon)
    positive = log_rest < 0
    value = log1mexp(jnp.where(positive, -log_rest, 1.0))
    return jnp.where(positive, value, -jnp.inf)


def log_alpha(mu: ArrayLike, epsilon: ArrayLike) -> jax.Array:
    """Logarithm of P(X > eps); right-continuous at the atoms -mu and mu."""
    mu, epsilon = promote(mu, epsilon)
    below, above, safe_mu, safe_epsilon = _pieces(mu, epsilon)
    above = above | (epsilon >= mu) | (jnp.isinf(mu) & ~below)
    middle = -0.5 * (safe_epsilon + safe_mu) - LOG_2
    return jnp.where(below, 0.0, jnp.where(above, -jnp.inf, middle))


def epsilon(mu: ArrayLike, log_delta: ArrayLike) -> jax.Array:
    """The least real eps with delta(eps) at most the given one.

    `mu` for delta = 0 (a Laplace release is mu-DP) and -inf for delta = 1.
    """
    mu, log_delta = promote(mu, log_delta)
    inner = (log_delta < 0) & (log_delta > -jnp.inf)
    log_rest = log1mexp(-jnp.where(inner, log_delta, -1.0))
    log_rest = jnp.where(log_delta < 0, jnp.where(inner, log_rest, 0.0), -jnp.inf)
    middle = log_rest >= -mu
    value = jnp.where(middle, mu + 2.0 * jnp.where(middle, log_rest, 0.0), log_rest)
    return jnp.where(log_delta < 0, value, -jnp.inf)


def _tradeoff_pieces(mu, log_p, log_q) -> tuple[jax.Array, ...]:
    """Indicators of the steep, the flat and the degenerate part, and safe arguments."""
    flat = log_p >= log_q
    degenerate = jnp.isinf(mu) | (jnp.isneginf(log_p) & ~flat)
    mu = jnp.where(degenerate, 1.0, mu)
    log_p = jnp.where(degenerate | flat, -2.0, log_p)
    steep = log_p < -mu - LOG_2
    return steep, flat, degenerate, mu, log_p


def log_beta(
    mu: ArrayLike, log_alpha: ArrayLike, log_one_minus_alpha: ArrayLike
) -> jax.Array:
    """Logarithm of L_mu(alpha), the trade-off function, accurate at both ends.

    L_mu is 1 - e^mu alpha up to e^-mu / 2, e^-mu / (4 alpha) up to 1/2, and
    e^-mu (1 - alpha) above. For mu = inf the value at alpha = 0 is one.
    """
    mu, log_p, log_q = promote(mu, log_alpha, log_one_minus_alpha)
    steep, flat, degenerate, safe_mu, safe_p = _tradeoff_pieces(mu, log_p, log_q)
    first = log1mexp(jnp.where(steep, -(safe_mu + safe_p), 1.0))
    second = -safe_mu - safe_p - 2.0 * LOG_2
    third = jnp.where(flat & ~degenerate, log_q, 0.0) - safe_mu
    value = jnp.where(flat, third, jnp.where(steep, first, second))
    return jnp.where(degenerate, jnp.where(jnp.isneginf(log_p), 0.0, -jnp.inf), value)


def log_one_minus_beta(
    mu: ArrayLike, log_alpha: ArrayLike, log_one_minus_alpha: ArrayLike
) -> jax.Array:
    """Logarithm of 1 - L_mu(alpha), the power, with relative accuracy as alpha -> 0."""
    mu, log_p, log_q = promote(mu, log_alpha, log_one_minus_alpha)
    steep, _, degenerate, safe_mu, safe_p = _tradeoff_pieces(mu, log_p, log_q)
    log_f = log_beta(mu, log_p, log_q)
    finite = ~degenerate & (log_f > -jnp.inf) & (log_f < 0)
    rest = log1mexp(jnp.where(finite, -log_f, 1.0))
    rest = jnp.where(log_f < 0, jnp.where(finite, rest, 0.0), -jnp.inf)
    linear = ~degenerate & (log_p < log_q) & steep
    return jnp.where(linear, safe_mu + safe_p, rest)


class LaplaceForm(AbstractClosedForm):
    """One Laplace release."""

    mu: Float[Array, ""]

    def log_delta(self, epsilon):
        return log_delta(self.mu, epsilon)

    def log_rest(self, epsilon):
        return log_one_minus_delta(self.mu, epsilon)

    def log_alpha(self, epsilon):
        return log_alpha(self.mu, epsilon)

    def epsilon(self, log_delta):
        return epsilon(self.mu, log_delta)

    def loss_error(self, epsilon):
        # Delta falls to zero at mu.
        return self._rounding(epsilon, self.mu)
