"""Random allocation: every record in one of t batches of an epoch."""

from typing import Any, ClassVar, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Real

from .._internal import _checks
from .._internal._concrete import ahead_of_time
from .._internal._logs import times
from .._internal._precision import in_float64
from ..losses import ComposedLoss, RandomAllocationLoss
from ._base import AbstractMechanism, AbstractWrapped, one_release
from ._fields import NOISE, Search, as_float, as_known, is_number, is_one, parameter
from ._joint import Shared
from ._relations import (
    ADD_OR_REMOVE_ONE,
    ZERO_OUT,
    NeighboringRelation,
    relation_field,
)
from ._sampling import Sampling

_BATCHES = Search(-1, 1.0, 1e6, 100.0)


_at_least_one = _checks.numbers_that_are("in [1, 1e6]", lambda x: (x >= 1) & (x <= 1e6))


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
    _scheme: ClassVar = Sampling.RANDOM_ALLOCATION

    def __check_init__(self):
        _checks.require(
            self.relation in (ADD_OR_REMOVE_ONE, ZERO_OUT),
            "relation must be ADD_OR_REMOVE_ONE or ZERO_OUT",
            f"{NeighboringRelation(self.relation).name}: a replaced "
            "record is in one batch with either value, and no pair is "
            "known that dominates that",
        )

    def simplified(self) -> AbstractMechanism:
        from ._additive import Gaussian

        if is_one(self.num_batches):
            return Gaussian(self.noise_multiplier, relation=self.relation)
        return self

    def loss(self) -> ComposedLoss:
        noise = as_float(self.noise_multiplier)
        return one_release(RandomAllocationLoss(noise, as_float(self.num_batches)))


def nothing(relation: NeighboringRelation) -> AbstractMechanism:
    """The mechanism that is a lower bound where nothing else is known."""
    from ._additive import Gaussian

    return Gaussian.unchecked(noise_multiplier=np.inf, relation=relation)


class BegunEpoch(AbstractWrapped):
    """An epoch that may be cut short, and go on later: the pair only dominates."""

    epoch: AbstractMechanism

    def shares(self) -> frozenset[Shared]:
        return frozenset({Shared.BEGUN_EPOCH})

    def releases_once(self) -> bool:
        return self.epoch.releases_once()

    def known_steps(self):
        return self.epoch.known_steps()

    def attained(self) -> AbstractMechanism:
        # Of a begun epoch it is not known what is leaked at least.
        return nothing(self.relation)

    def loss(self) -> ComposedLoss:
        return self.epoch.loss()

    def _group(self, size):
        return self.epoch.group(size)


class SameBatchEpochs(AbstractWrapped):
    """All epochs together, where a record's batch is the same in each of them.

    Sums of a batch over the epochs, weighted by the noise, are sufficient.

    Several runs together are at most one run of all their epochs, whether it is the
    same batch in each run or drawn anew.  *Proof.*  With t batches in both, let a
    public shift K of the batches' numbers, uniform mod t, be applied to the second run.
    The law without the record does not change, and with it both batches are
    independent: runs that are drawn anew are what a channel makes of those that are
    not.  An epoch of t batches put into random places of one of t' > t is an epoch of
    t': the smaller number stands for both.  Of n steps on end no batch has more than
    ceil(n / t), wherever they begin.
    """

    mechanism: Any
    num_batches: Any
    num_epochs: Any
    whole: bool = eqx.field(static=True, default=True)
    _scheme: ClassVar = Sampling.RANDOM_ALLOCATION

    def shares(self) -> frozenset[Shared]:
        return frozenset({Shared.SAME_BATCH})

    def attained(self) -> AbstractMechanism | None:
        return None if self.whole else nothing(self.relation)

    def loss(self) -> ComposedLoss:
        from ._additive import Gaussian

        epochs = as_float(self.num_epochs)
        some = epochs > 0
        noise = as_float(self.mechanism.noise_multiplier)
        noise = noise / jnp.sqrt(jnp.where(some, epochs, 1.0))
        release = Gaussian.unchecked(noise_multiplier=noise, relation=self.relation)
        found = gaussian_epoch(release, self.num_batches).loss()
        counts = tuple(times(jnp.where(some, 1.0, 0.0), n) for n in found.counts)
        return ComposedLoss(found.terms, counts, single=found.single)

    @classmethod
    def together(cls, runs: list[tuple[Self, Any]]) -> Self:
        """Several runs, each so many times, as one that goes on."""
        from ._additive import Gaussian

        numbers = [
            (run.mechanism.noise_multiplier, run.num_epochs, count, run.num_batches)
            for run, count in runs
        ]
        noise, epochs, batches = _together(numbers)
        first, *others = (row[3] for row in numbers)
        same = all(x is first or is_number(x, as_known(first)) for x in others)
        relation = runs[0][0].relation
        return cls.unchecked(
            mechanism=Gaussian.unchecked(noise_multiplier=noise, relation=relation),
            num_batches=batches,
            num_epochs=epochs,
            whole=same and all(run.whole for run, _ in runs),
        )


def gaussian_epoch(release: Any, num_batches: Any) -> RandomAllocationEpoch:
    """One epoch of noisy sums, of which one has the record."""
    return RandomAllocationEpoch.unchecked(
        noise_multiplier=release.noise_multiplier,
        num_batches=num_batches,
        relation=release.relation,
    )


@ahead_of_time
@in_float64(cast_out=False)
def _together(numbers: Any) -> tuple[Any, Any, Any]:
    """The smallest noise, epochs with that, and the smallest number of batches."""
    rows = [jnp.stack([jnp.asarray(x) for x in row]) for row in numbers]
    noise, epochs, counts, batches = jnp.stack(rows).astype(float).T
    least = jnp.min(noise)
    finite = jnp.isfinite(noise)
    # Equal noise has the quotient 1, without rounding.
    share = jnp.where(finite, least / jnp.where(finite, noise, 1.0), 0.0)
    share = jnp.where(jnp.isfinite(share), share, 0.0)
    return least, jnp.sum(epochs * counts * share**2), jnp.min(batches)
