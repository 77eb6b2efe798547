"""A Gaussian loss at a random time: variance-gamma, normal inverse Gaussian, others."""

from typing import ClassVar

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._arithmetic import ULP
from .._internal._divided import psi
from ._analytic import CharacteristicBlock, relative
from ._closed_transform import ClosedTransformLoss


class SubordinatedGaussianLoss(ClosedTransformLoss):
    r"""X ~ N(-tau / 2, tau), tau a tempered stable subordinator's value.

    With z = 1 - scale w (w - 1) / 2,

        Lambda(w) = log E e^{tau w (w - 1) / 2} = shape (1 - z^index) / index,

    -shape log z for index 0 (tau is gamma distributed) and infinite unless z > 0.  On
    vertical lines Re z > 0, so principal values are the continuous ones, and
    Re z^index >= (Re z)^index, which is the envelope.
    """

    shape: Float[Array, ""]
    scale: Float[Array, ""]
    index: Float[Array, ""]

    symmetric: ClassVar[bool] = True
    fractional: ClassVar[bool] = True
    decays: ClassVar[bool] = True

    @property
    def on_grid(self) -> bool:
        return False

    def powered(self, count):
        return SubordinatedGaussianLoss(count * self.shape, self.scale, self.index)

    def _base(self, order: Array) -> Array:
        return 1 - 0.5 * self.scale * order * (order - 1)

    def _exponent(self, log_z: Array) -> Array:
        """(1 - z^index) / index, with derivatives that are right at index 0."""
        return -log_z * psi(self.index * log_z)

    def _log_moment(self, order: Array) -> Array:
        base = self._base(order)
        inside = base > 0
        # log z without cancellation near the orders 0 and 1.
        logs = jnp.log1p(jnp.where(inside, base, 1.0) - 1)
        return jnp.where(inside, self.shape * self._exponent(logs), jnp.inf)

    def moments(self, order):
        base = self._base(order)
        inside = base > 0
        safe = jnp.where(inside, base, 1.0)
        first = self.shape * self.scale * safe ** (self.index - 1)
        second = first * self.scale * (1 - self.index) / safe
        distance = order - 0.5
        slope, bend = first * distance, first + second * jnp.square(distance)
        beyond = jnp.sign(distance) * jnp.inf
        return (
            self._log_moment(order),
            jnp.where(inside, slope, beyond),
            jnp.where(inside, bend, jnp.inf),
        )

    def log_mgf(self, plan):
        value = self._log_moment(plan.order)
        size = self.shape + jnp.abs(value)
        return value, stop_gradient(16 * ULP * size)

    def log_transform(self, plan, tau):
        base = self._base(plan.order)
        real = 0.5 * self.scale * jnp.square(tau) / base
        imag = -self.scale * tau * (plan.order - 0.5) / base
        # log(z / z_0) = log(1 + real + i imag), whose real part is not negative.
        excess = 2 * real + jnp.square(real) + jnp.square(imag)
        log_size, angle = 0.5 * jnp.log1p(excess), jnp.arctan2(imag, 1 + real)
        # (e^{index L} - 1) / index of L = log_size + i angle, also at index 0.
        lifted = log_size * psi(self.index * log_size)
        grown = jnp.exp(self.index * log_size)
        turns = self.index * angle / jnp.pi
        half = angle * jnp.sinc(0.5 * turns)
        rise = lifted - 0.5 * self.index * grown * jnp.square(half)
        turn = grown * angle * jnp.sinc(turns)
        scale = self.shape * base**self.index
        # The angle's term and the center cancel near frequency zero.
        real_part, imag_part = -scale * rise, -scale * turn - tau * plan.center
        size = jnp.abs(rise) + jnp.abs(turn) + jnp.minimum(excess, 1.0)
        size = size + jnp.where(self.index == 0, 0.0, lifted)
        error = 16 * ULP * (scale * size + tau * jnp.abs(plan.center))
        return CharacteristicBlock(real_part, imag_part, relative(error))

    def log_envelope(self, located, frequency):
        base = self._base(located.order)
        growth = jnp.log1p(0.5 * self.scale * jnp.square(frequency) / base)
        return self.shape * base**self.index * self._exponent(growth)

    def loss_range(self):
        infinity = jnp.full_like(self.shape, jnp.inf)
        return -infinity, infinity
