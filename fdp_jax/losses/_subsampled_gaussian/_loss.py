"""Privacy loss of the Poisson-subsampled Gaussian mechanism."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._internal._special import log1p
from .._amplification import SubsampledForm, inner_loss, log_ratio
from .._base import outward
from .._closed_form import AbstractClosedForm
from .._gaussian import GaussianForm, normal_cells
from .._normal_log_moment import central_moments, normalized_log_moment
from .._normal_mixtures import NormalMixtures
from .._normal_transform import NormalTransformLoss
from ._absolute_moments import loss_moments
from ._integrand import Integrand

_SOON = 1e-3, 3.0
"""Sampling probability, and expected participations, from which on characteristic
functions decay soon: 2,500 random runs of noise .3 to 50, delta down to 1e-20."""


class SubsampledGaussianLoss(Integrand, NormalTransformLoss):
    """See the module's docstring.  `sampling_prob` is in (0, 1]."""

    fractional: ClassVar[bool] = True
    splits: ClassVar[bool] = True

    @staticmethod
    def decays_soon(sampling_prob, num_steps):
        prob, times = _SOON
        return sampling_prob >= prob and sampling_prob * num_steps >= times

    def normal_mixtures(self):
        q = self.sampling_prob
        weights = jnp.stack([jnp.stack([1 + 0 * q, 0 * q]), jnp.stack([1 - q, q])])
        return NormalMixtures.alone(self.noise_multiplier, np.arange(2.0), weights)

    def effort(self):
        return self.noise_multiplier

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

    in_closed_form: ClassVar[str] = "one release"

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
        return 0.5 / jnp.square(self.noise_multiplier) if sign > 0 else jnp.zeros(())

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
