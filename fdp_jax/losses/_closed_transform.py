"""Losses whose log-moment function has a closed form at complex orders, too."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._arithmetic import ULP
from ._analytic import FREQUENCY_BLOCK, AnalyticLoss, CharacteristicBlock


class Tilted(eqx.Module):
    """An order, and the mean of the loss tilted by it, without derivative."""

    order: Float[Array, ""]
    center: Float[Array, ""]


class ClosedTransformLoss(AnalyticLoss):
    """A loss of which `log_mgf` and `log_transform` are formulas.

    Nothing is to be prepared, and nothing but rounding is wrong.
    """

    @abc.abstractmethod
    def log_transform(
        self, plan: Tilted, tau: Float[Array, " f"]
    ) -> CharacteristicBlock:
        """`log_characteristic` at any frequencies."""

    def log_characteristic(self, plan, start, step, count=FREQUENCY_BLOCK):
        tau = start + step * jnp.arange(count, dtype=start.dtype)
        return self.log_transform(plan, tau)

    def locate(self, order):
        return Tilted(order, stop_gradient(self.moments(order[None])[1][0]))

    def prepare(self, located, frequency, log_tolerance):
        return located

    def center(self, plan):
        return plan.center

    def log_envelope(self, located, frequency):
        return jnp.zeros_like(frequency)


def principal_logs(
    real: Float[Array, " block"],
    imag: Float[Array, " block"],
    drift: Float[Array, " block"],
    size: Float[Array, " block"],
) -> CharacteristicBlock:
    """Logarithms of complex numbers that were rounded, less a drift of their angles.

    Angles are principal values: whole turns matter to fractional counts only.

    Args:
        real: The real parts, and
        imag: the imaginary parts, of numbers of modulus at most 1.
        drift: What is subtracted from the angles.
        size: Of what the numbers are calculated from, in units of their rounding.
    """
    modulus = jnp.square(real) + jnp.square(imag)
    small = modulus < 1e-30
    modulus = jnp.where(small, 1e-30, modulus)
    angle = jnp.arctan2(jnp.where(small, 0, imag), jnp.where(small, 1, real))
    turned = angle - drift
    whole = stop_gradient(2 * jnp.pi * jnp.round(turned / (2 * jnp.pi)))
    error = 16 * ULP * (size / jnp.sqrt(modulus) + jnp.abs(drift))
    return CharacteristicBlock(
        0.5 * jnp.log(modulus), turned - whole, stop_gradient(error)
    )


def hyperbolic(a: Float[Array, ""], mu: Float[Array, ""]) -> tuple[Array, Array]:
    """e^(-|a| mu) times cosh(a mu) and sinh(a mu) / a, even in a."""
    a = jnp.abs(a)
    tiny = a * mu < 1e-150
    safe = jnp.where(tiny, 1, a)
    cosh = 0.5 * (1 + jnp.exp(-2 * a * mu))
    sinh = jnp.where(tiny, mu, -0.5 * jnp.expm1(-2 * safe * mu) / safe)
    return cosh, sinh


def turned_hyperbolic(
    a: Float[Array, ""], mu: Float[Array, ""], tau: Float[Array, " f"]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """e^(-|a| mu) times cosh(v mu) and sinh(v mu) / v, v = a + i tau, as real pairs.

    Next to v = 0 the second one is that of a; no difference has lost digits.
    """
    cosh, ratio = hyperbolic(a, mu)
    sinh, cos, sin = a * ratio, jnp.cos(tau * mu), jnp.sin(tau * mu)
    norm = jnp.square(a) + jnp.square(tau)
    tiny = norm * mu**2 < 1e-16
    safe = jnp.where(tiny, 1, norm)
    real = jnp.where(tiny, ratio, (sinh * cos * a + cosh * sin * tau) / safe)
    imag = jnp.where(tiny, 0, (cosh * sin * a - sinh * cos * tau) / safe)
    return (cosh * cos, sinh * sin), (real, imag)
