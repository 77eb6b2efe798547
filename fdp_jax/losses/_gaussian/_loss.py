"""Privacy loss of the Gaussian mechanism: Gaussian, with mean and variance tied."""

from collections.abc import Callable
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax.lax import optimization_barrier, stop_gradient
from jax.scipy.special import erf
from jaxtyping import Array, Float

from ..._internal._arithmetic import ULP
from ..._internal._special import log_ndtr_difference
from .._analytic import CharacteristicBlock, relative
from .._base import Jumps
from .._cells import Cells
from .._closed_transform import ClosedTransformLoss
from .._loss_moments import LossMoments
from .._normal_mixtures import NormalMixtures
from ._closed_form import GaussianForm


def normal_cells(
    low: Float[Array, " n"],
    high: Float[Array, " n"],
    distance: Float[Array, ""],
    loss_of: Callable[[Array], Array],
) -> Cells:
    """Cells of a loss that increases with a normal variable.

    Args:
        low: Ends of the intervals, as values of a standard normal variable under P.
        high: The other ends.
        distance: How much further right the mean lies with the record.
        loss_of: The loss for a log ratio of masses with and without the record.
    """
    # Barriers: XLA would compute these anew for each of their uses.
    low, high = optimization_barrier((low, high))
    without, error = log_ndtr_difference(low, high)
    included, other_error = log_ndtr_difference(low - distance, high - distance)
    without, included = optimization_barrier((without, included))
    empty = jnp.isneginf(without) | jnp.isneginf(included)
    ratio = jnp.where(empty, 0, included) - jnp.where(empty, 0, without)
    log_mass = jnp.where(empty, -jnp.inf, without)
    return Cells(log_mass, loss_of(ratio), jnp.maximum(error, other_error))


def total_mu(noise: Float[Array, " n"], counts: Float[Array, " n"]) -> Array:
    """Mu of Gaussian noise of several scales, each added so often.

    In the unit of the least one: the square of a large one overflows.
    """
    unit = stop_gradient(jnp.min(noise))
    unit = jnp.where(jnp.isfinite(unit), unit, 1.0)
    total = jnp.sum(counts * jnp.square(unit / noise))
    # sqrt has no derivative at zero; nothing is composed there.
    none = total == 0
    return jnp.where(none, 0.0, jnp.sqrt(jnp.where(none, 1.0, total))) / unit


class GaussianLoss(ClosedTransformLoss):
    """P = N(0, s^2), Q = N(1, s^2): Lambda(w) = w (w - 1) / (2 s^2), exactly."""

    noise_multiplier: Float[Array, ""]

    symmetric: ClassVar[bool] = True
    fractional: ClassVar[bool] = True
    decays: ClassVar[bool] = True
    pairs: ClassVar[bool] = True

    def powered(self, count):
        return GaussianLoss(self.noise_multiplier / jnp.sqrt(count))

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

    def normal_mixtures(self):
        return NormalMixtures.alone(self.noise_multiplier, np.arange(2.0), np.eye(2))

    def log_mgf(self, plan):
        value = 0.5 * plan.order * (plan.order - 1) * self.precision()
        return value, stop_gradient(4 * ULP * jnp.abs(value))

    def log_transform(self, plan, tau):
        precision = self.precision()
        drift = (plan.order - 0.5) * precision - plan.center
        real = -0.5 * jnp.square(tau) * precision
        # Exact up to rounding: the drift is zero but for its derivative.
        error = 4 * ULP * (jnp.abs(real) + tau * jnp.abs(plan.center))
        return CharacteristicBlock(real, tau * drift, relative(error))

    def log_envelope(self, located, frequency):
        return -0.5 * jnp.square(frequency) * self.precision()

    def cells(self, low, high):
        mu = 1 / self.noise_multiplier
        low, high = (jnp.clip(x, -1e30, 1e30) / mu + 0.5 * mu for x in (low, high))
        return normal_cells(low, high, mu, lambda ratio: ratio)

    def loss_range(self):
        infinity = jnp.full_like(self.noise_multiplier, jnp.inf)
        return -infinity, infinity

    in_closed_form: ClassVar[str] = "all kinds"

    @classmethod
    def closed_form(cls, terms, counts, sign):
        noise = jnp.stack([term.noise_multiplier for term in terms])
        return GaussianForm(total_mu(noise, jnp.stack(counts)))

    def normalized_log_moment(self, order):
        return 0.5 * self.precision() + 0 * order

    def log_moment_ceiling(self, sign):
        return 0.5 * self.precision()

    def log_moment_limit(self, sign):
        return 0.5 * self.precision()

    gaussian_precision_adds: ClassVar[bool] = True

    def gaussian_precision(self):
        return self.precision()

    def jumps_and_variance(self):
        none = self.noise_multiplier[None][:0]
        return Jumps(self.precision(), none, none)

    def loss_moments(self, sign):
        variance = self.precision()
        mu, mean = jnp.sqrt(variance), 0.5 * variance
        v3 = 2 * np.sqrt(2 / np.pi) * mu * variance
        # E|N(m, s^2)|^3 with m = s^2 / 2.
        bell = np.sqrt(2 / np.pi) * jnp.exp(-variance / 8) * (2 + variance / 4)
        v4 = variance * mu * bell
        v4 = v4 + mean * (mean**2 + 3 * variance) * erf(mu / np.sqrt(8))
        return LossMoments(mean, variance + mean**2, v3, v4, variance)
