"""Privacy loss of the Gaussian mechanism: Gaussian, with mean and variance tied."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ._base import FREQUENCY_BLOCK, AbstractLoss, CharacteristicBlock


class _Plan(eqx.Module):
    order: Float[Array, ""]
    center: Float[Array, ""]


class GaussianLoss(AbstractLoss):
    """P = N(0, s^2), Q = N(1, s^2): Lambda(w) = w (w - 1) / (2 s^2), exactly."""

    noise_multiplier: Float[Array, ""]

    symmetric: ClassVar[bool] = True
    decays: ClassVar[bool] = True

    def precision(self) -> Float[Array, ""]:
        """1 / s^2 = mu^2, which adds under composition."""
        return 1 / jnp.square(self.noise_multiplier)

    def moments(self, order):
        precision = self.precision()
        value = 0.5 * order * (order - 1) * precision
        return (
            value,
            (order - 0.5) * precision,
            jnp.broadcast_to(precision, order.shape),
        )

    def locate(self, order):
        return _Plan(order, stop_gradient((order - 0.5) * self.precision()))

    def prepare(self, located, frequency, log_tolerance):
        del frequency, log_tolerance
        return located

    def relative_error(self, plan):
        return jnp.zeros_like(plan.order)

    def log_mgf(self, plan):
        value = 0.5 * plan.order * (plan.order - 1) * self.precision()
        return value, stop_gradient(4 * jnp.finfo(value.dtype).eps * jnp.abs(value))

    def log_characteristic(self, plan, start, step):
        tau = start + step * jnp.arange(FREQUENCY_BLOCK, dtype=start.dtype)
        precision = self.precision()
        drift = (plan.order - 0.5) * precision - plan.center
        real = -0.5 * jnp.square(tau) * precision
        # Exact up to rounding: the drift is zero but for its derivative.
        error = (
            4
            * jnp.finfo(start.dtype).eps
            * (jnp.abs(real) + tau * jnp.abs(plan.center))
        )
        return CharacteristicBlock(real, tau * drift, stop_gradient(error))

    def center(self, plan):
        return plan.center

    def log_envelope(self, located, frequency):
        del located
        return -0.5 * jnp.square(frequency) * self.precision()

    def loss_range(self):
        infinity = jnp.full_like(self.noise_multiplier, jnp.inf)
        return -infinity, infinity

    def log_finite_mass(self):
        return jnp.zeros_like(self.noise_multiplier)
