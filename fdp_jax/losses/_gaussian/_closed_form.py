"""Closed forms for the Gaussian pair G_mu = T(N(0, 1), N(mu, 1)).

The privacy loss is N(-mu^2/2, mu^2) under P and N(mu^2/2, mu^2) under Q. With the
standardised thresholds a = eps/mu - mu/2 and b = a + mu,

    delta(eps)     = Phic(a) - e^eps Phic(b)
    1 - delta(eps) = Phi(a) + e^eps Phic(b)

(Balle and Wang 2018; Dong, Roth and Su 2022, for every real eps). The first line
cancels completely in the tail. Since phi(a) = e^eps phi(b), it equals
phi(a) [m(a) - m(b)] with the Mills ratio m, and everything below is arranged so that
only positive numbers are added. Derivatives follow from the envelope theorem,

    d delta / d eps = -e^eps Phic(b),      d delta / d mu = phi(a).

`log_delta` and `log_one_minus_delta` are both exact to rounding, so a caller never has
to form one from the other.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ..._internal._arithmetic import two_product
from ..._internal._logs import LOG_2, LOG_SQRT_2PI, log_add
from ..._internal._mills import mills_parts
from ..._internal._special import log1mexp, log_ndtr, ndtri_from_logs, norm_pdf
from .._closed_form import AbstractClosedForm, complements, settled

_LARGEST = 1e61
"""The largest mu, and the largest |eps / mu| that is treated as finite; the fourth
power does not overflow."""


def _threshold(mu: jax.Array, epsilon: jax.Array) -> jax.Array:
    """Threshold a = (eps - mu^2/2) / mu, exact also where the terms cancel."""
    square, error = two_product(mu, mu)
    return ((epsilon - 0.5 * square) - 0.5 * stop_gradient(error)) / mu


@jax.custom_jvp
def _profile(mu: jax.Array, epsilon: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log delta and log(1 - delta), for 0 < mu < inf and finite eps.

    For eps >= 0 and a < 0, Phic(a) = Phic(|a|) + erf(|a| / sqrt 2) leaves a Mills
    difference between |a| and b, which are 2 eps / mu apart.
    """
    size, below = jnp.abs(epsilon), jnp.minimum(epsilon, 0.0)
    a = _threshold(mu, size)
    far, inner = jnp.abs(a), a < 0
    width = jnp.where(inner, 2.0 * size / mu, mu)
    difference, near_ratio, far_ratio = mills_parts(far, width)
    log_density = -0.5 * far * far - LOG_SQRT_2PI
    direct = jax.lax.erf(far / np.sqrt(2.0)) + norm_pdf(far) * difference
    direct = jnp.log(jnp.where(inner, direct, 1.0))
    log_delta = jnp.where(inner, direct, log_density + jnp.log(difference))
    log_rest = log_density + jnp.log(near_ratio + far_ratio)
    log_delta, log_rest = complements(log_delta, log_rest)
    # delta(-e) = 1 - e^-e + e^-e delta(e); 1 - delta(-e) = e^-e (1 - delta(e)).
    log_delta = log_add(log1mexp(-below), below + log_delta)
    return complements(log_delta, below + log_rest)


@_profile.defjvp
def _profile_jvp(primals, tangents):
    (mu, epsilon), (dmu, depsilon) = primals, tangents
    values = _profile(mu, epsilon)
    a, b = _threshold(mu, epsilon), -_threshold(mu, -epsilon)
    log_density, log_tail = -0.5 * a * a - LOG_SQRT_2PI, epsilon + log_ndtr(-b)
    gain = lambda log: jnp.exp(log_density - log) * dmu
    loss = lambda log: jnp.exp(log_tail - log) * depsilon
    log_delta, log_rest = values
    return values, (gain(log_delta) - loss(log_delta), loss(log_rest) - gain(log_rest))


class GaussianForm(AbstractClosedForm):
    """Any composition of Gaussian mechanisms: mu^2 adds (Dong, Roth, Su 2022).

    For mu in [0, inf] and every eps.
    """

    mu: Float[Array, ""]

    def pair(self, epsilon):
        inside, mu, place = self._interior(epsilon)
        return settled(inside, _profile(mu, place), epsilon, epsilon < 0)

    def log_alpha(self, epsilon):
        inside, mu, place = self._interior(epsilon)
        found = log_ndtr(_threshold(mu, -place))
        return jnp.where(inside, found, jnp.where(epsilon < 0, 0.0, -jnp.inf))

    def _interior(self, epsilon: jax.Array) -> tuple[jax.Array, ...]:
        """Whether something is released and eps finite, and numbers as if it were."""
        mu = jnp.minimum(self.mu, _LARGEST)
        inside = (mu > 0) & (jnp.abs(epsilon) < _LARGEST * mu)
        return inside, jnp.where(inside, mu, 1.0), jnp.where(inside, epsilon, 0.0)

    def log_rates(self, log_alpha, log_tnr):
        # For mu = inf the value at alpha = 0 is the limit mu -> inf, one.
        none = jnp.isneginf(log_alpha)
        inside = (self.mu < jnp.inf) & ~none & (log_tnr > -jnp.inf)
        safe = (jnp.where(inside, x, -LOG_2) for x in (log_alpha, log_tnr))
        threshold = ndtri_from_logs(*safe) + jnp.where(inside, self.mu, 0.0)
        beta, power = log_ndtr(jnp.stack([-threshold, threshold]))
        edge = lambda sure: jnp.where(sure, 0.0, -jnp.inf)
        beta = jnp.where(inside, beta, edge(none))
        return beta, jnp.where(inside, power, edge(~none))
