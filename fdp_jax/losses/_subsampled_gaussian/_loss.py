"""Privacy loss of the Poisson-subsampled Gaussian mechanism, by quadrature.

Everything is an integral of exp(l(x)) over the line, see `_integrand.py`, by the
trapezoid rule: on what interval is in `_place.py`, how finely in `_strips.py`, at real
orders in `_moments.py`, along a contour in `_sums.py`.
"""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array

from ..._internal._arithmetic import ULP
from ..._internal._blocked_sum import blocked_sum
from ..._internal._fourier_sums import fourier_sums
from ..._internal._special import log1p, log_one_plus
from ..._internal._tolerances import DEAD_SQUARE, NODE_WEIGHT, STEP_ENVELOPE
from .._amplification import SubsampledForm, inner_loss, log_ratio
from .._analytic import FREQUENCY_BLOCK, AnalyticLoss, CharacteristicBlock
from .._base import outward
from .._closed_form import AbstractClosedForm
from .._gaussian import GaussianForm, normal_cells
from .._normal_mixtures import NormalMixtures
from . import _moments
from ._integrand import Integrand
from ._log_moment import central_moments, loss_moments, normalized_log_moment
from ._place import locate
from ._strips import certified_spacing, quadrature_error
from ._sums import (
    NODES,
    Plan,
    characteristic_sums,
    envelope_block,
    origin,
    points,
)

_MAX_BLOCKS = 1024
_SOON = 1e-3, 3.0
"""Sampling probability, and expected participations, from which on characteristic
functions decay soon: 2,500 random runs of noise .3 to 50, delta down to 1e-20."""
_TRANSFORM = 4, 300
"""Blocks of frequencies that cost as much as the nodes' part in a transform; product of
the others with the blocks of nodes from which on the transform is faster."""


class SubsampledGaussianLoss(Integrand, AnalyticLoss):
    """See the module's docstring.  `sampling_prob` is in (0, 1]."""

    symmetric: ClassVar[bool] = False
    fractional: ClassVar[bool] = True
    decays: ClassVar[bool] = True
    has_transform: ClassVar[bool] = True
    together: ClassVar[int] = 256
    # One in 80 of 4,000 random runs would take more; with 1,024 more were loose, since
    # quadratures fail far out, and the room alone costs a fifth of an epsilon.
    most_blocks: ClassVar[int] = 256
    splits: ClassVar[bool] = True

    @staticmethod
    def decays_soon(sampling_prob, num_steps):
        prob, times = _SOON
        return sampling_prob >= prob and sampling_prob * num_steps >= times

    def moments(self, order):
        return _moments.moments(self, order)

    def normal_mixtures(self):
        q = self.sampling_prob
        weights = jnp.stack([jnp.stack([1 + 0 * q, 0 * q]), jnp.stack([1 - q, q])])
        return NormalMixtures.alone(self.noise_multiplier, np.arange(2.0), weights)

    def log_moment_bounds(self, order, log_tolerance):
        value, error, *_ = _moments.certified(self, order, log_tolerance)
        bounds = value + error
        # Also where the mesh is too coarse: that of noise alone, rounded up.
        most = jnp.maximum(order * (order - 1), 0) * self.log_moment_ceiling(1.0)
        most = most * (1 + 8 * ULP)
        return stop_gradient(jnp.where(bounds <= most, bounds, most))

    def effort(self):
        return self.noise_multiplier

    def rough_moments(self, order):
        return _moments.rough_moments(self, order)

    def locate(self, order):
        return locate(self, order)

    def prepare(self, located, frequency, log_tolerance):
        self = stop_gradient(self)
        place = located.interval
        length = place.end - place.start
        spacing, lines = certified_spacing(self, located, frequency, log_tolerance)
        blocks = jnp.clip(jnp.ceil(length / (spacing * NODES)), 1, _MAX_BLOCKS)
        spacing = length / (blocks * NODES)
        error = quadrature_error(self, located, frequency, spacing, lines)
        return Plan(
            order=located.order,
            center=located.center,
            peak=located.peak,
            start=place.start,
            spacing=spacing,
            blocks=blocks.astype(jnp.int32),
            quadrature_error=3 * error,
            loss_deviation=located.loss_deviation,
            loss_size=located.loss_size,
        )

    def fastest_turn(self, plan):
        # E|X - center|, from nodes that are close together.
        return 1.1 * plan.loss_deviation

    def center(self, plan):
        return plan.center

    def relative_error(self, plan):
        return plan.quadrature_error

    def log_mgf(self, plan):
        value, error, *_ = _moments.certified(self, plan.order[None])
        return value[0], error[0]

    def log_characteristic(self, plan, start, step, count=FREQUENCY_BLOCK):
        total, versine, sine = characteristic_sums(count, self, plan, start, step)
        tau = start + step * jnp.arange(count, dtype=start.dtype)
        terms = plan.blocks * NODES + 16
        # See `wave_sums`; half of a unit is rounding.
        error = ULP * terms * jnp.minimum(2.5, 2 * tau * plan.loss_deviation)
        versine, sine = versine / total, sine / total
        return self._logarithm(plan, tau, versine, sine, error)

    def pays_to_transform(self, plan, blocks):
        few, most = _TRANSFORM
        return plan.blocks * (blocks - few) > most

    def transformed(self, plan, step, count):
        sums, error = fourier_sums(points, plan.blocks, count, self, (plan, step))
        versine, sine, total = (x[0] for x in sums)
        return versine / total, sine / total, error

    def log_of_transformed(self, plan, start, step, count, made):
        versine, sine, error = made
        tau = start + step * jnp.arange(count, dtype=step.dtype)
        # Of the weights, as in `log_characteristic`, of their sum, and of the origin.
        spread = jnp.minimum(2.5, 1.5 * tau * plan.loss_deviation)
        error = error + ULP * NODE_WEIGHT * spread
        error = error + ULP * (plan.blocks + NODES) * jnp.hypot(versine, sine)
        error = error + ULP * 4 * tau * jnp.abs(origin(self, plan))
        found = self._logarithm(plan, tau, versine, sine, error)
        turned = found.imag + tau * (origin(self, plan) - plan.center)
        return CharacteristicBlock(found.real, turned, found.error)

    def _logarithm(
        self,
        plan: Plan,
        tau: Array,
        versine: Array,
        sine: Array,
        error: Array,
    ) -> CharacteristicBlock:
        """From phi - 1 and a bound on the rounding of its sums."""
        real, angle, square = log_one_plus(versine, sine)
        error = error + ULP * 4 * tau * plan.loss_size
        modulus = jnp.sqrt(jnp.maximum(square, DEAD_SQUARE))
        error = (error + plan.quadrature_error) / modulus
        error = error + 4 * ULP * jnp.hypot(real, angle)
        return CharacteristicBlock(real, angle, stop_gradient(error))

    def log_envelope(self, located, frequency):
        """Bounds |phi(tau)| for all tau >= `frequency` by moving the line of x."""
        place = located.interval
        length = place.end - place.start
        s = self.noise_multiplier
        widest = jnp.minimum(0.4 * s, 0.5 * jnp.square(s))
        blocks = jnp.clip(jnp.ceil(length / (widest * NODES)), 1, _MAX_BLOCKS)
        aux = (located, frequency, length / (blocks * NODES))
        count = blocks.astype(jnp.int32)
        _, (total, moved) = blocked_sum(envelope_block, count, self, aux)
        # Rounding, and the trapezoid rule on a smooth positive function.
        bound = (jnp.min(moved) - total) / total + 64 * ULP
        found = log1p(jnp.clip(bound, -1 + 64 * ULP, 0))
        return found * (1 - STEP_ENVELOPE)

    def cells(self, low, high):
        s, q = self.noise_multiplier, self.sampling_prob
        low, high = (self._normal(t) / s for t in (low, high))
        return normal_cells(low, high, 1 / s, lambda ratio: log_ratio(ratio, q))

    def _normal(self, loss: Array) -> Array:
        """The x at which X is a given loss: 1/2 + s^2 log((e^t - (1 - q)) / q)."""
        inner = inner_loss(jnp.minimum(loss, 1e30), self.sampling_prob)
        reached = inner > -jnp.inf
        x = 0.5 + jnp.square(self.noise_multiplier) * jnp.where(reached, inner, 0)
        return jnp.where(reached, x, -1e30)

    def loss_range(self):
        s, q = self.noise_multiplier, self.sampling_prob
        # No infinite slope at q = 1.
        least = jnp.where(q >= 1, -jnp.inf, log1p(-jnp.where(q >= 1, 0.5, q)))
        return outward(least + 0 * s, jnp.full_like(s, jnp.inf), units=2)

    def has_closed_form(self, kinds, *, single):
        return kinds == 1 and single

    @classmethod
    def closed_form(cls, terms, counts, sign) -> AbstractClosedForm:
        (term,) = terms
        base = GaussianForm(1 / term.noise_multiplier)
        return SubsampledForm(base, term.sampling_prob, sign)

    def normalized_log_moment(self, order):
        return normalized_log_moment(self, order)

    def log_moment_ceiling(self, sign):
        # Quasi-convexity: a mixture with P is no further from P than its component.
        return 0.5 / jnp.square(self.noise_multiplier)

    def log_moment_limit(self, sign):
        zero = jnp.zeros_like(self.loss_range()[0])
        return 0.5 / jnp.square(self.noise_multiplier) if sign > 0 else zero

    gaussian_precision_adds: ClassVar[bool] = True

    def gaussian_precision(self):
        # With sampling as well: the slope of f at 0 is that of the Gaussian.
        return 1 / jnp.square(self.noise_multiplier)

    def cumulants(self, *, included):
        mean, (_, second, third, fourth) = central_moments(self, included)
        return jnp.stack([mean, second, third, fourth - 3 * jnp.square(second)])

    def clt_cumulants(self, sign):
        # The limit of weak sampling: both are multiples of q^2 (e^(1/s^2) - 1).
        chi2 = jnp.expm1(1 / jnp.square(self.noise_multiplier))
        chi2 = jnp.square(self.sampling_prob) * chi2
        return jnp.stack([0.5 * chi2, chi2])

    def loss_moments(self, sign):
        return loss_moments(self, sign)
