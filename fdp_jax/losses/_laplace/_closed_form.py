"""Closed forms for one Laplace release, L_mu = T(Lap(0, 1), Lap(mu, 1)).

`mu` is the sensitivity over the scale. The privacy loss lies in [-mu, mu]; under P it
has an atom 1/2 at -mu, an atom e^-mu / 2 at mu and a density in between, so that

    1 - delta(eps) = e^eps            for eps <= -mu,
                     e^((eps-mu)/2)   for -mu <= eps <= mu,
                     1                for eps >= mu

(Balle, Barthe and Gaboardi 2018 for eps >= 0). The pair is symmetric. At the two joints
the derivative is that of the middle piece.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._internal._logs import LOG_2
from ..._internal._special import log1mexp
from .._closed_form import AbstractClosedForm, settled


class LaplaceForm(AbstractClosedForm):
    """One Laplace release, for mu in [0, inf) and every eps."""

    mu: Float[Array, ""]

    def logs(self, epsilon):
        inside = (epsilon >= -self.mu) & (epsilon <= self.mu)
        place = jnp.where(inside, epsilon, 0.0)
        log_rest = 0.5 * (place - self.mu)
        # Right-continuous at the atoms.
        some = inside & (epsilon < self.mu)
        log_alpha = jnp.where(some, -0.5 * (place + self.mu) - LOG_2, -jnp.inf)
        log_delta = log1mexp(jnp.where(some, -log_rest, 0.0))
        found = log_delta, log_rest, log_alpha
        return settled(inside, found, epsilon, epsilon < -self.mu)

    def epsilon(self, log_delta):
        # mu for delta = 0 (a Laplace release is mu-DP) and -inf for delta = 1.
        inner = (log_delta < 0) & (log_delta > -jnp.inf)
        log_rest = log1mexp(-jnp.where(inner, log_delta, -1.0))
        log_rest = jnp.where(log_delta < 0, jnp.where(inner, log_rest, 0.0), -jnp.inf)
        middle = log_rest >= -self.mu
        value = self.mu + 2.0 * jnp.where(middle, log_rest, 0.0)
        value = jnp.where(middle, value, log_rest)
        return jnp.where(log_delta < 0, value, -jnp.inf)

    def log_rates(self, log_alpha, log_tnr):
        """L_mu is 1 - e^mu alpha up to e^-mu / 2, then e^-mu / (4 alpha) up to 1/2.

        It is e^-mu (1 - alpha) above.  For mu = inf the value at alpha = 0 is one.
        """
        flat, none = log_alpha >= log_tnr, jnp.isneginf(log_alpha)
        steep = none | (log_alpha < -self.mu - LOG_2)
        power = jnp.where(steep & ~none, self.mu + log_alpha, -1.0)
        middle = -jnp.where(steep | flat, -2.0, log_alpha) - 2 * LOG_2
        beta = jnp.where(flat, log_tnr, middle) - self.mu
        beta = jnp.where(steep, -1.0, beta)
        log_beta = jnp.where(none, 0.0, jnp.where(steep, log1mexp(-power), beta))
        log_power = jnp.where(none, -jnp.inf, jnp.where(steep, power, log1mexp(-beta)))
        return log_beta, log_power

    def loss_error(self, epsilon):
        # Delta falls to zero at mu.
        return self._rounding(epsilon, self.mu)
