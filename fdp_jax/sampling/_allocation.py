"""Random allocation: every record is dealt into some batches of an epoch."""

from typing import Any, ClassVar

import jax
from jaxtyping import ArrayLike, Real

from .._internal import _checks, _draws
from ..mechanisms import (
    REPLACE_ONE,
    AbstractSampling,
    BegunEpoch,
    Composition,
    Gaussian,
    NeighboringRelation,
    SameBatchEpochs,
    Sampling,
    Search,
    Shared,
    as_known,
    as_number,
    gaussian_epoch,
    option,
    parameter,
)
from ._allocated import AllocatedEpoch
from ._poisson import rounds, shape_of
from .participation import Dealt

_MOST = 1000
_MOST_BATCHES = 1e6
_SAME_BATCH = "where a record's batch is the same in every epoch"


_batches = _checks.numbers_that_are(
    "a whole number from 1 to 1e6",
    lambda x: (x >= 1) & (x <= _MOST_BATCHES) & (x == x.round()),
)


class RandomAllocation(AbstractSampling):
    """Every record is dealt into one of t batches of an epoch, uniformly.

    Records are dealt independently ("balls in bins"), so that batches differ in size;
    batches of one size, as shuffling makes them, are `ShuffledEpochs`.  For any single
    release that has a pair without and with the record.  Epochs deal anew, unless the
    same batch is kept in all of them (Gaussian noise alone).  A run that ends within an
    epoch may be repeated, or entered step by step, with the same settings; with others
    it must be of whole epochs.

    Args:
        num_batches: t, whole, from 1 to 1e6.  The number of steps is that of all
            batches of all epochs.
        num_participations: Batches of an epoch that a record is dealt into, k of t,
            without repetition.  For k > 1 the pair of k epochs of about t / k batches
            is above the true one, and what a sum over all batches tells is below:
            `bounds` has both ends.
        same_every_epoch: Whether a record's batch is the same in every epoch: one
            draw, of which all epochs together tell as one with less noise.  Runs that
            are repeated or composed are taken as one that goes on with that draw, which
            leaks at least as much as if it were drawn anew.

    Raises:
        ValueError: If a number is out of range, or both options are used.

    Example:
        >>> import fdp_jax as fdp
        >>> scheme = fdp.sampling.RandomAllocation(num_batches=100)
        >>> run = fdp.DPSGD(noise_multiplier=1.0, sampling=scheme, num_steps=100)
        >>> print(f"{run.epsilon(delta=1e-6):.5f}")
        0.85799

    References:
        Chua et al. (2024), arXiv:2412.16802, and Choquette-Choo et al. (2024),
        arXiv:2410.06266, for the pair; Feldman and Shenfeld (2025), arXiv:2502.08202,
        for k of t; the same (2026), arXiv:2602.17284, for any release.
    """

    num_batches: Real[ArrayLike, ""] | None = parameter(
        "num_batches", _batches, Search(-1, 1.0, _MOST_BATCHES, 100.0), default=None
    )
    num_participations: int = option(
        "num_participations", _checks.whole, 1, _MOST, default=1, kw_only=True
    )
    same_every_epoch: bool = option(
        "same_every_epoch", _checks.flag, default=False, kw_only=True
    )
    scheme: ClassVar[Sampling] = Sampling.RANDOM_ALLOCATION
    shared: ClassVar = frozenset({Shared.BEGUN_EPOCH})
    draws_independently: ClassVar[bool] = True
    refused: ClassVar[dict[NeighboringRelation, str]] = {
        REPLACE_ONE: (
            "a replaced record is in one batch with either value, and no pair is "
            "known that dominates that"
        )
    }

    def __check_init__(self):
        batches = as_known(self.num_batches)
        if batches is not None and batches < self.num_participations:
            raise ValueError(
                f"num_participations must be at most num_batches = {batches:g}, got "
                f"{self.num_participations}"
            )
        _checks.require(
            self.num_participations <= 1 or not self.same_every_epoch,
            "same_every_epoch must be False for several participations",
            "True",
        )

    def run(self, release, num_steps):
        epochs = rounds(num_steps, self.num_batches)
        if self.same_every_epoch:
            whole = _are_whole(num_steps, self.num_batches)
            return SameBatchEpochs.unchecked(
                mechanism=release,
                num_batches=self.num_batches,
                num_epochs=epochs,
                whole=whole,
            )
        if self.num_participations == 1 and isinstance(release, Gaussian):
            epoch = gaussian_epoch(release, self.num_batches)
        else:
            epoch = AllocatedEpoch.unchecked(
                mechanism=release,
                num_batches=self.num_batches,
                participations=self.num_participations,
                evenly=_are_whole(self.num_batches, self.num_participations),
            )
        if not _are_whole(num_steps, self.num_batches):
            epoch = BegunEpoch.unchecked(epoch=epoch)
        return Composition.unchecked(parts=(epoch,), num_steps=(epochs,))

    def shares(self, num_steps):
        # Whole epochs are dealt anew.  In pieces that are none, each has at least as
        # many epochs as the steps in it would begin, and the whole run no more.
        if self.same_every_epoch:
            return frozenset({Shared.SAME_BATCH})
        whole = _are_whole(num_steps, self.num_batches)
        return frozenset() if whole else self.shared

    def participation(self, num_steps):
        batches = shape_of("num_batches", self.num_batches)
        _checks.require(
            self.num_participations <= 1,
            "num_participations must be 1 for Monte Carlo accounting",
            self.num_participations,
        )
        # Batches that the run does not come to are steps without a release.
        return Dealt(batches, self.same_every_epoch or batches >= num_steps)

    def one_round(self):
        return self.num_batches

    def participants(self, key, step, *, num_records):
        batches = int(as_number(self.num_batches))
        epoch = 0 if self.same_every_epoch else step // batches
        key, turn = _draws.at(key, epoch), step % batches
        if self.num_participations == 1:
            return _draws.one_of(key, batches, num_records) == turn
        dealt = lambda one: _draws.subset(one, self.num_participations, batches)
        return jax.vmap(dealt)(jax.random.split(key, num_records))[:, turn]

    def expected_size(self, num_records):
        return num_records * self.num_participations / as_number(self.num_batches)

    @property
    def _gaussian_alone(self) -> str:
        return _SAME_BATCH if self.same_every_epoch else ""


def _are_whole(num_steps: Any, num_batches: Any) -> bool:
    """Whether so many steps are known to be whole epochs."""
    if num_steps is num_batches:
        return True
    steps, batches = as_known(num_steps), as_known(num_batches)
    if steps is None or batches is None:
        return False
    return steps % batches == 0
