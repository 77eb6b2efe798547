"""Random allocation: every record in one of t batches of an epoch."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import ArrayLike, Real

from .._internal import _checks
from ..losses import ComposedLoss, RandomAllocationLoss
from ._base import AbstractMechanism
from ._fields import NOISE, Search, as_float, is_one, parameter
from ._relations import (
    ADD_OR_REMOVE_ONE,
    ZERO_OUT,
    NeighboringRelation,
    relation_field,
)
from ._sampling import Sampling

_BATCHES = Search(-1, 1.0, 1e6, 100.0)


def _at_least_one(name: str, value: Any) -> Any:
    return _checks.checked(name, value, "in [1, 1e6]", lambda x: (x >= 1) & (x <= 1e6))


class RandomAllocationEpoch(AbstractMechanism):
    """One epoch in which every record is in one of t batches, each with noise.

    Records are dealt into the batches independently and uniformly ("balls in bins"),
    and the noisy sum of every batch is released, one after the other.  Epochs with a
    fresh allocation each are its repetitions: `epoch.repeat(num_epochs)`.

    With P = N(0, s^2 I_t) without the record and Q = (1/t) sum_i N(e_i, s^2 I_t) with
    it, delta_remove(eps) = E(S/t - e^eps)_+ and delta_add(eps) = E(1 - e^eps S/t)_+, S
    the sum of t independent copies of exp(Z / s - 1 / (2 s^2)).

    Args:
        noise_multiplier: s, the noise's standard deviation over the clipping norm, in
            (0, inf).
        num_batches: t, in [1, 1e6].  Whole numbers mean something; between them the
            estimate is smooth, and bounds are those of the whole numbers next to it.
        relation: ADD_OR_REMOVE_ONE, or ZERO_OUT for records that contribute nothing.

    Raises:
        ValueError: If a parameter is out of range, or the relation is REPLACE_ONE.

    Example:
        >>> from fdp_jax.mechanisms._random_allocation import RandomAllocationEpoch
        >>> epoch = RandomAllocationEpoch(1.0, 100)
        >>> print(f"{epoch.remove.epsilon(delta=1e-6):.5f}")
        0.85799

    References:
        Chua et al. (2024), arXiv:2412.16802, for the pair; Feldman, Shenfeld (2025),
        arXiv:2502.08202.
    """

    noise_multiplier: Real[ArrayLike, ""] | None = parameter(
        "noise_multiplier", _checks.finite_positive, NOISE, default=None
    )
    num_batches: Real[ArrayLike, ""] | None = parameter(
        "num_batches", _at_least_one, _BATCHES, default=None
    )
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def __check_init__(self):
        if self.relation not in (ADD_OR_REMOVE_ONE, ZERO_OUT):
            raise ValueError(
                "relation must be ADD_OR_REMOVE_ONE or ZERO_OUT, got "
                f"{NeighboringRelation(self.relation).name}: a replaced record is in "
                "one batch with either value, and no pair is known that dominates that"
            )

    def samplings(self) -> frozenset[Sampling]:
        return frozenset({Sampling.RANDOM_ALLOCATION})

    def simplified(self) -> AbstractMechanism:
        from ._additive import Gaussian

        if is_one(self.num_batches):
            return Gaussian(self.noise_multiplier, relation=self.relation)
        return self

    def loss(self) -> ComposedLoss:
        noise = as_float(self.noise_multiplier)
        term = RandomAllocationLoss(noise, as_float(self.num_batches))
        return ComposedLoss((term,), (jnp.ones_like(noise),), single=True)
