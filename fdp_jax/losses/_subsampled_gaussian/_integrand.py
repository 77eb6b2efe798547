"""The integrand of everything: e^{l(x)}, l(x) = log N(x; 0, s^2) + w X(x).

P = N(0, s^2), Q = (1 - q) N(0, s^2) + q N(1, s^2), X(x) = log(1 - q + q e^u) with
u = (2 x - 1) / (2 s^2).
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._internal._logs import LOG_SQRT_2PI
from ..._internal._special import log_turned
from .._amplification import inclusion, log_ratio


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

    def at(self, t: Array) -> tuple[Array, Array, Array, Array, Array]:
        """See `NormalTransformLoss.at`."""
        s, half = self.noise_multiplier, 0.5 * t * t
        u = self.u(s * t)
        value = log_ratio(u, self.sampling_prob)
        slope = inclusion(u, self.sampling_prob) / s
        slip = 4 * (jnp.abs(value) + slope * (jnp.abs(t) + 1 / s))
        return value, slope, slip, -half, 4 * half

    def log_base(self, x: Array) -> Array:
        """Log N(x; 0, s^2)."""
        s = self.noise_multiplier
        return -0.5 * jnp.square(x / s) - jnp.log(s) - LOG_SQRT_2PI

    def log_integrand(self, x: Array, order: Array) -> Array:
        """l(x)."""
        return self.log_base(x) + order * self.loss_at(x)

    def turned(self, x: Array, height: Array) -> tuple[Array, Array]:
        """Log of the modulus, and argument, of R(x + i height) / R(x)."""
        angle = height / jnp.square(self.noise_multiplier)
        # Of a few values; the library's functions compile sooner than `rotation`.
        versine, sine = -2 * jnp.square(jnp.sin(0.5 * angle)), jnp.sin(angle)
        return log_turned(inclusion(self.u(x), self.sampling_prob), versine, sine)
