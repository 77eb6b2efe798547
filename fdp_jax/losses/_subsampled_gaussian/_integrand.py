"""The integrand of everything: e^{l(x)}, l(x) = log N(x; 0, s^2) + w X(x).

P = N(0, s^2), Q = (1 - q) N(0, s^2) + q N(1, s^2), X(x) = log(1 - q + q e^u) with
u = (2 x - 1) / (2 s^2).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import optimization_barrier
from jaxtyping import Array, Float

from ..._internal._elementary import log_within
from ..._internal._linking import apart
from ..._internal._logs import LOG_SQRT_2PI


@jax.jit
def log_ratio(u: Array, q: Array) -> Array:
    """log(1 - q + q e^u) with full relative accuracy, for q in [0, 1]."""
    return _log_ratio_of(u, q)


@jax.custom_jvp
@apart
def _log_ratio_of(u: Array, q: Array) -> Array:
    change = q * jnp.expm1(jnp.minimum(u, 80))  # finite in float32 too
    small = (jnp.abs(change) < 0.5) & (u < 80)
    near = optimization_barrier(1 + change)
    # Elsewhere over e^max(u, 0), where nothing cancels or overflows.
    least = jnp.exp(-jnp.abs(u))
    far = jnp.where(u < 0, (1 - q) + q * least, (1 - q) * least + q)
    lost = jnp.where(small, change - (near - 1), 0) / jnp.where(small, near, 1)
    top = jnp.where(small, 0, jnp.maximum(u, 0))
    value = top + log_within(jnp.where(small, near, far)) + lost
    return jnp.where(q < 1, value, u)  # where e^u underflows


@_log_ratio_of.defjvp
def _log_ratio_jvp(primals, tangents):
    u, q = primals
    du, dq = tangents
    value = _log_ratio_of(u, q)
    # d/dq = (e^u - 1) / (1 - q + q e^u): finite at q = 0 and q = 1, where the
    # formula above is not.
    top = jnp.maximum(u, 0)
    slope = (jnp.exp(u - top) - jnp.exp(-top)) * jnp.exp(top - value)
    return value, inclusion(u, q) * du + slope * dq


@jax.jit
def inclusion(u: Array, q: Array) -> Array:
    """Posterior probability that the record was sampled; dX/du."""
    return q * jnp.exp(u - log_ratio(u, q))


class Integrand(eqx.Module):
    """See the module's docstring; `sampling_prob` is in (0, 1]."""

    noise_multiplier: Float[Array, ""]
    sampling_prob: Float[Array, ""]

    def u(self, x: Array) -> Array:
        """Log of the likelihood ratio of a record that is sampled."""
        return (x - 0.5) / jnp.square(self.noise_multiplier)

    def loss_at(self, x: Array) -> Array:
        """X(x)."""
        return log_ratio(self.u(x), self.sampling_prob)

    def log_base(self, x: Array) -> Array:
        """Log N(x; 0, s^2)."""
        s = self.noise_multiplier
        return -0.5 * jnp.square(x / s) - jnp.log(s) - LOG_SQRT_2PI

    def log_integrand(self, x: Array, order: Array) -> Array:
        """l(x)."""
        return self.log_base(x) + order * self.loss_at(x)

    def narrowest(self, order: Array) -> Array:
        """The least standard deviation: -l'' <= 1 / s^2 + max(-w, 0) / (4 s^4)."""
        s = self.noise_multiplier
        return s / jnp.sqrt(1 + 0.25 * jnp.maximum(-order, 0) / jnp.square(s))


def growth_of(log_base: Array, exponent: Array) -> tuple[Array, Array]:
    """e^base (e^exponent - 1) and e^(base + exponent), without overflow.

    A sum of the first that is small has no term above the cap.
    """
    base = jnp.exp(log_base)
    lifted = jnp.exp(jnp.minimum(log_base + exponent, 60))
    big = exponent > 1
    change = base * jnp.expm1(jnp.where(big, 0, exponent))
    return jnp.where(big, lifted - base, change), lifted
