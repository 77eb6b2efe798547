"""Poisson subsampling, and DP-SGD as its composition."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks
from ..losses import ComposedLoss, SubsampledGaussianLoss
from ._base import AbstractMechanism, NeighboringRelation
from ._fields import as_float, is_one, parameter
from ._simple import Gaussian


class PoissonSubsampled(AbstractMechanism):
    """A mechanism on a random subset in which each record is included independently.

    Args:
        mechanism: What is run on the subset: a `Gaussian`.
        sampling_prob: Probability of inclusion, in [0, 1].

    Raises:
        ValueError: If sampling_prob is outside [0, 1].
        TypeError: If the mechanism cannot be subsampled exactly.

    Example:
        >>> import fdp_jax as fdp
        >>> step = fdp.PoissonSubsampled(fdp.Gaussian(1.0), sampling_prob=0.1)
        >>> print(f"{step.add.delta(epsilon=0.05):.9f}")
        0.010572581

    References:
        Dong, Roth, Su (2022), Section 4; Zhu, Dong, Wang (2022) for the pair.
    """

    mechanism: Gaussian
    sampling_prob: Real[ArrayLike, ""] | None = parameter(
        "sampling_prob", _checks.probability, default=None
    )

    relation: ClassVar[NeighboringRelation] = NeighboringRelation.ADD_OR_REMOVE_ONE

    def __check_init__(self):
        if not isinstance(self.mechanism, Gaussian):
            raise TypeError(
                "mechanism must be a Gaussian, got "
                f"{type(self.mechanism).__name__}: its subsampling is not available"
            )

    def require_complete(self) -> None:
        super().require_complete()
        self.mechanism.require_complete()

    def loss(self) -> ComposedLoss:
        noise = as_float(self.mechanism.noise_multiplier)
        prob = as_float(self.sampling_prob)
        return _subsampled(noise, prob, jnp.ones_like(noise), single=True)


class DPSGD(AbstractMechanism):
    """DP-SGD with Poisson sampling: `num_steps` noisy sums of clipped gradients.

    A parameter may be left out, for `calibrate` to find.

    Args:
        noise_multiplier: Standard deviation of the noise over the clipping norm, in
            (0, inf].
        sampling_prob: Probability that a record enters a step, in [0, 1]; expected
            batch size over data set size.
        num_steps: Number of steps, real, in [0, inf).

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> run = fdp.DPSGD(
        ...     noise_multiplier=1.1, sampling_prob=256 / 60_000, num_steps=14_062
        ... )
        >>> print(f"{run.epsilon(delta=1e-5):.4f}")
        2.3816

    References:
        Abadi et al. (2016).
    """

    noise_multiplier: Real[ArrayLike, ""] | None = parameter(
        "noise_multiplier", _checks.positive, default=None, kw_only=True
    )
    sampling_prob: Real[ArrayLike, ""] | None = parameter(
        "sampling_prob", _checks.probability, default=None, kw_only=True
    )
    num_steps: Real[ArrayLike, ""] | None = parameter(
        "num_steps", _checks.nonnegative, default=None, kw_only=True
    )

    relation: ClassVar[NeighboringRelation] = NeighboringRelation.ADD_OR_REMOVE_ONE

    def loss(self) -> ComposedLoss:
        noise, prob = as_float(self.noise_multiplier), as_float(self.sampling_prob)
        return _subsampled(noise, prob, as_float(self.num_steps), single=False)

    def simplified(self) -> AbstractMechanism:
        if is_one(self.num_steps):
            inner = Gaussian(self.noise_multiplier)
            return PoissonSubsampled(inner, self.sampling_prob)
        return self


def _subsampled(
    noise: Array, prob: Array, count: Array, *, single: bool
) -> ComposedLoss:
    """The composed loss; nothing is released without noise or without sampling."""
    released = jnp.isfinite(noise) & (prob > 0)
    noise = jnp.where(released, noise, 1.0)
    prob = jnp.where(released, prob, 0.5)
    term = SubsampledGaussianLoss(noise, prob)
    return ComposedLoss((term,), (jnp.where(released, count, 0.0),), single)
