"""Many steps with noise so small that outputs tell who took part.

With s the noise, let every standard normal variable z of the N steps have
|z| <= 1 / (2 s) - s (40 + |logit q|), which fails with probability at most T, N times a
tail.  Then the loss log(1 - q + q e^((2 x - 1) / (2 s^2))) of a step exceeds log(1 - q)
without the record, and log q + (2 x - 1) / (2 s^2) with it, by at most e^-40; it is
never less than either.  So the sum of the losses, given that the record took part k
times, is log w_k = (N - k) log(1 - q) + k log q more than that of k Gaussian releases,
and

    delta_remove(eps) = sum_k Bin(k; N, q) delta_gauss(eps - log w_k; sqrt(k) / s),
    delta_add(eps) = (1 - e^(eps + N log(1 - q)))_+,

up to N e^-40 in eps and T in delta, for whole N.  Of the counts, those of the rarer
kind are told apart: of steps with the record, or of steps without it where q > 1/2.
"""

import math
from typing import ClassVar

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from ..._internal._precision import in_float64
from ..._internal._special import log1p, log_ndtr
from .._gaussian import GaussianForm
from .._mixed_form import Components, MixedForm
from ._loss import SubsampledGaussianLoss

_COUNTS = 256
"""Numbers of the rarer steps that are told apart."""
_MOST = 60.0
"""Expected rarer steps, up to which others have at most e^-175 of the mass."""
_OTHERS = -175.0
_APART = 40.0
_TAIL = 7.0
"""Standard deviations of noise between the outputs with the record and without."""


class SeparatedGaussianLoss(SubsampledGaussianLoss):
    """A subsampled Gaussian of so little noise that compositions have a closed form."""

    in_closed_form: ClassVar[str] = "one kind"

    def log_truncated_masses(self):
        gap = _gap(self.noise_multiplier, self.sampling_prob)
        found = stop_gradient(jnp.logaddexp(log_ndtr(-gap), _OTHERS))
        return found, found

    @classmethod
    def closed_form(cls, terms, counts, sign):
        (term,), (count,) = terms, counts
        s, q = term.noise_multiplier, term.sampling_prob
        rare = jnp.arange(float(_COUNTS))
        with_it = q <= 0.5
        p = jnp.where(with_it, q, 1 - q)
        # Binomial, by its ratios: so is it for any real count, of which those above the
        # count tell the derivative at a whole one.
        ratios = (count - rare[:-1]) / rare[1:] * (p / (1 - p))
        weights = jnp.cumprod(jnp.append(jnp.exp(count * log1p(-p)), ratios))
        k = jnp.where(with_it, rare, jnp.maximum(count - rare, 0))
        # Without the record nobody takes part.
        weights = jnp.where(sign > 0, weights, jnp.where(rare == 0, 1.0, 0.0))
        k = jnp.where(sign > 0, k, 0.0)
        shift = (count - k) * log1p(-q) + k * jnp.log(q)
        missing, _ = term.log_truncated_masses()
        # The root's slope at zero is infinite, and of a weight that is next to nothing.
        deviations = jnp.where(k > 0, jnp.sqrt(jnp.where(k > 0, k, 1.0)), 0.0)
        apart = Components(GaussianForm(deviations / s), weights, sign * shift)
        missing = stop_gradient(count) * jnp.exp(missing)
        slip = stop_gradient(count * math.exp(-_APART))
        return MixedForm((apart,), 0 * missing, missing, excess=missing, slip=slip)


@in_float64(cast_out=False)
def separated(
    loss: SubsampledGaussianLoss, count: Array
) -> tuple[Array, SeparatedGaussianLoss]:
    """Whether noise and number of steps are such, and the loss with its closed form."""
    s, q = loss.noise_multiplier, loss.sampling_prob
    expected = count * jnp.minimum(q, 1 - q)
    some = (count > 1) & (count == jnp.round(count)) & (expected <= _MOST)
    return some & (_gap(s, q) > _TAIL), SeparatedGaussianLoss(s, q)


def _gap(s: Array, q: Array) -> Array:
    """The bound of all standard normal variables, but for the probability T."""
    return 1 / (2 * s) - s * (_APART + jnp.abs(jnp.log(q) - log1p(-q)))
