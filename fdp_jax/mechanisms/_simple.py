"""Mechanisms with one release and a closed form."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks
from ..losses import ComposedLoss, GaussianLoss, LaplaceLoss, TwoPointLoss
from ._base import AbstractMechanism, NeighboringRelation
from ._fields import as_float, parameter


class Gaussian(AbstractMechanism):
    """Adds Gaussian noise to a statistic; mu-GDP with mu = 1 / noise_multiplier.

    Args:
        noise_multiplier: Standard deviation of the noise over the L2 sensitivity under
            the stated relation, in (0, inf].

    Raises:
        ValueError: If it is not positive.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.Gaussian(1.0).epsilon(delta=1e-5):.6f}")
        4.377178

    References:
        Dong, Roth, Su (2022); Balle and Wang (2018).
    """

    noise_multiplier: Real[ArrayLike, ""] | None = parameter(
        "noise_multiplier", _checks.positive, default=None
    )

    relation: ClassVar[NeighboringRelation] = NeighboringRelation.ADD_OR_REMOVE_ONE

    def loss(self) -> ComposedLoss:
        noise = as_float(self.noise_multiplier)
        return _one(GaussianLoss, noise)


class Laplace(AbstractMechanism):
    """Adds Laplace noise to a statistic.

    Args:
        noise_multiplier: Scale of the noise over the L1 sensitivity under the stated
            relation, in (0, inf]; pure epsilon = 1 / noise_multiplier.

    Raises:
        ValueError: If it is not positive.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.Laplace(1.0).delta(epsilon=0.5):.6f}")
        0.221199

    References:
        Dong, Roth, Su (2022), Section 2.
    """

    noise_multiplier: Real[ArrayLike, ""] | None = parameter(
        "noise_multiplier", _checks.positive, default=None
    )

    relation: ClassVar[NeighboringRelation] = NeighboringRelation.ADD_OR_REMOVE_ONE

    def loss(self) -> ComposedLoss:
        return _one(LaplaceLoss, as_float(self.noise_multiplier))


def _one(kind, noise: Array) -> ComposedLoss:
    """One release, or none where the noise is infinite."""
    released = jnp.isfinite(noise)
    safe = jnp.where(released, noise, 1.0)
    return ComposedLoss((kind(safe),), (jnp.where(released, 1.0, 0.0),), single=True)


class ApproxDP(AbstractMechanism):
    """Any mechanism of which only (epsilon, delta)-DP is known: the worst such pair.

    Args:
        epsilon: In [0, inf).
        delta: In [0, 1].

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.ApproxDP(epsilon=1.0, delta=0.05).beta(alpha=0.1):.6f}")
        0.678172

    References:
        Kairouz, Oh, Viswanath (2015), Theorem 3.3.
    """

    epsilon0: Real[ArrayLike, ""]
    delta0: Real[ArrayLike, ""]

    relation: ClassVar[NeighboringRelation] = NeighboringRelation.ADD_OR_REMOVE_ONE

    def __init__(self, *, epsilon: Any, delta: Any):
        checked = _checks.nonnegative("epsilon", epsilon)
        self.epsilon0 = _checks.scalar("epsilon", checked)
        self.delta0 = _checks.scalar("delta", _checks.probability("delta", delta))

    def loss(self) -> ComposedLoss:
        term = TwoPointLoss(as_float(self.epsilon0), as_float(self.delta0))
        return ComposedLoss((term,), (jnp.ones_like(term.epsilon),))


class RandomizedResponse(AbstractMechanism):
    """Reports a bit truthfully with odds e^epsilon: pure epsilon-DP, and tight.

    Args:
        epsilon: In [0, inf).

    Raises:
        ValueError: If it is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.RandomizedResponse(1.0).repeat(2).advantage():.6f}")
        0.462117

    References:
        Warner (1965); Kairouz, Oh, Viswanath (2015).
    """

    epsilon0: Real[ArrayLike, ""]

    relation: ClassVar[NeighboringRelation] = NeighboringRelation.ADD_OR_REMOVE_ONE

    def __init__(self, epsilon: Any):
        checked = _checks.nonnegative("epsilon", epsilon)
        self.epsilon0 = _checks.scalar("epsilon", checked)

    def loss(self) -> ComposedLoss:
        epsilon = as_float(self.epsilon0)
        term = TwoPointLoss(epsilon, jnp.zeros_like(epsilon))
        return ComposedLoss((term,), (jnp.ones_like(epsilon),))
