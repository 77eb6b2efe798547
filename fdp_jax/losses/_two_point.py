"""Privacy loss of (epsilon, delta)-DP itself: two finite values and infinity."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._logs import log_cosh
from .._internal._special import safe_log
from ._base import FREQUENCY_BLOCK, AnalyticLoss, Atoms, Cells, CharacteristicBlock


class _Plan(eqx.Module):
    order: Float[Array, ""]
    center: Float[Array, ""]


class TwoPointLoss(AnalyticLoss):
    """The worst pair of an (epsilon, delta)-DP mechanism (Kairouz, Oh, Viswanath 2015).

    Y is infinite with probability delta, else epsilon or -epsilon with odds e^epsilon.
    Lambda(w) = log(1 - delta) + log cosh((w - 1/2) epsilon) - log cosh(epsilon / 2),
    over the finite losses.  Randomized response is the case delta = 0.
    """

    epsilon: Float[Array, ""]
    delta: Float[Array, ""]

    symmetric: ClassVar[bool] = True
    decays: ClassVar[bool] = False

    def _log_moment(self, order: Array) -> Array:
        tilted = log_cosh((order - 0.5) * self.epsilon)
        return self._log_finite_mass() + tilted - log_cosh(0.5 * self.epsilon)

    def moments(self, order):
        slope = jnp.tanh((order - 0.5) * self.epsilon)
        curvature = jnp.square(self.epsilon) * (1 - jnp.square(slope))
        return self._log_moment(order), self.epsilon * slope, curvature

    def locate(self, order):
        return _Plan(order, stop_gradient(self.moments(order)[1]))

    def prepare(self, located, frequency, log_tolerance):
        del frequency, log_tolerance
        return located

    def relative_error(self, plan):
        return jnp.zeros_like(plan.order)

    def log_mgf(self, plan):
        value = self._log_moment(plan.order)
        scale = 8 + (jnp.abs(plan.order) + 1) * self.epsilon
        return value, stop_gradient(4 * jnp.finfo(value.dtype).eps * scale)

    def log_characteristic(self, plan, start, step, count=FREQUENCY_BLOCK):
        tau = start + step * jnp.arange(count, dtype=start.dtype)
        angle = tau * self.epsilon
        real, slope = jnp.cos(angle), jnp.tanh((plan.order - 0.5) * self.epsilon)
        imag = slope * jnp.sin(angle)
        modulus = jnp.square(real) + jnp.square(imag)
        small = modulus < 1e-30
        modulus = jnp.where(small, 1e-30, modulus)
        turned = (
            jnp.arctan2(jnp.where(small, 0, imag), jnp.where(small, 1, real))
            - tau * plan.center
        )
        whole = stop_gradient(2 * jnp.pi * jnp.round(turned / (2 * jnp.pi)))
        error = (
            16
            * jnp.finfo(start.dtype).eps
            * ((1 + angle) / jnp.sqrt(modulus) + tau * jnp.abs(plan.center))
        )
        return CharacteristicBlock(
            0.5 * jnp.log(modulus), turned - whole, stop_gradient(error)
        )

    def center(self, plan):
        return plan.center

    def log_envelope(self, located, frequency):
        del located
        return jnp.zeros_like(frequency)

    def cells(self, low, high):
        inside = jnp.clip(jnp.zeros_like(low), low, high)
        return Cells(jnp.full_like(low, -jnp.inf), inside, jnp.zeros_like(low))

    def atoms(self):
        loss = jnp.stack([-self.epsilon, self.epsilon])
        # Probabilities e^eps / (1 + e^eps) and 1 / (1 + e^eps) under P.
        log_mass = -jnp.log1p(jnp.exp(-self.epsilon)) - jnp.maximum(loss, 0)
        return Atoms(loss, self._log_finite_mass() + log_mass)

    def loss_range(self):
        return -self.epsilon, self.epsilon

    def log_finite_masses(self):
        mass = self._log_finite_mass()
        return mass, mass

    def log_infinite_masses(self):
        mass = safe_log(self.delta)
        return mass, mass

    def _log_finite_mass(self) -> Array:
        return jnp.log1p(-self.delta)
