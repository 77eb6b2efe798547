"""Epochs whose batches are a random partition of the records."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks, _draws
from .._internal._special import log1mexp, log_ndtr
from ..losses import AtomicLoss, ComposedLoss
from ..mechanisms import (
    COUNT,
    REPLACE_ONE,
    AbstractMechanism,
    AbstractSampling,
    AbstractWrapped,
    Composition,
    Gaussian,
    NeighboringRelation,
    Sampling,
    as_float,
    as_known,
    as_number,
    parameter,
)
from ._poisson import whole_rounds

_BINS = 256
_REACH = 9.0


class ShuffledEpochs(AbstractSampling):
    """The batches of an epoch are a random partition of all records into equal parts.

    That is what a data loader with `shuffle=True` does.  No amplification by shuffling
    is proved, so none is claimed: the guarantee is that of every record taking part
    once in an epoch.  What certain data sets do leak is the other end of `bounds`,
    which shows how far it is at least from Poisson sampling.  A published bound (van
    Dijk and Ertan 2026, arXiv:2605.06259) is not used: by the Berry-Esseen theorem it
    is a delta of .01 at every epsilon for an epoch of 1.1 million batches with noise
    1, and a larger one with fewer.

    Args:
        num_batches: Batches of an epoch, whole, at least 1.

    Raises:
        ValueError: If it is no such number.

    Example:
        >>> import fdp_jax as fdp
        >>> scheme = fdp.sampling.ShuffledEpochs(num_batches=100)
        >>> run = fdp.DPSGD(
        ...     noise_multiplier=1.0, sampling=scheme, num_steps=100,
        ...     relation="zero_out",
        ... )
        >>> found = run.bounds(delta=1e-5)
        >>> print(f"{found.lower:.2f} to {found.upper:.2f}")
        4.06 to 4.38

    References:
        Chua et al. (2024), arXiv:2411.04205: the largest of all batches' sums, where
        all other records are opposite to the one in question.  Here it is cut into
        bins, of which any test is one of that largest sum.
    """

    num_batches: Real[ArrayLike, ""] | None = parameter(
        "num_batches", _checks.positive_count, COUNT, default=None
    )
    scheme: ClassVar[Sampling] = Sampling.SHUFFLED
    # Nothing is claimed for the shuffling: whatever partition is given, a record is in
    # at most ceil(n / num_batches) of n steps on end, each with noise of its own, and
    # in no fewer than the finished epochs among them from below.
    shared: ClassVar = frozenset()
    refused: ClassVar[dict[NeighboringRelation, str]] = {
        NeighboringRelation.ADD_OR_REMOVE_ONE: (
            "without the record the records are shared out to batches in another way"
        )
    }

    def run(self, release, num_steps):
        fields = {"mechanism": release, "num_batches": self.num_batches}
        epoch, begun = _Epoch.unchecked(**fields), _BegunEpoch.unchecked(**fields)
        if num_steps is None or self.num_batches is None:
            return Composition.unchecked(parts=(epoch,), num_steps=(None,))
        counts = whole_rounds(num_steps, self.num_batches)
        each = zip((epoch, begun), counts, strict=True)
        made = [(part, count) for part, count in each if as_known(count) != 0]
        parts, counts = zip(*made or [(epoch, np.float64(0))], strict=True)
        return Composition.unchecked(parts=parts, num_steps=counts)

    def one_round(self):
        return self.num_batches

    def participants(self, key, step, *, num_records):
        batches = int(as_number(self.num_batches))
        _checks.require(
            not num_records % batches,
            f"num_records must be a multiple of num_batches = {batches}",
            num_records,
        )
        place = jax.random.permutation(_draws.at(key, step // batches), num_records)
        return place % batches == step % batches

    def expected_size(self, num_records):
        return num_records / as_number(self.num_batches)


class _Epoch(AbstractWrapped):
    """One epoch: whatever is released, a record enters it once."""

    mechanism: AbstractMechanism
    num_batches: Any
    _scheme: ClassVar = Sampling.SHUFFLED

    def attained(self) -> AbstractMechanism | None:
        return _LargestBatch.unchecked(
            mechanism=self.mechanism, num_batches=self.num_batches
        )

    def has_fractional_powers(self) -> bool:
        return self.mechanism.has_fractional_powers()

    def _group(self, size):
        _checks.require(
            isinstance(self.mechanism, Gaussian),
            f"size must be 1 for shuffled epochs of {type(self.mechanism).__name__}",
            f"{size}: of records in different batches it is known for "
            "Gaussian noise alone what they leak together",
        )
        # Of a known partition: farthest apart with all of the group in one batch.
        return _GroupEpoch.unchecked(
            mechanism=self.mechanism.group(size), num_batches=self.num_batches
        )

    def loss(self) -> ComposedLoss:
        return self.mechanism.loss()


class _BegunEpoch(_Epoch):
    """Some batches of an epoch."""

    def attained(self) -> AbstractMechanism | None:
        return _Nothing.unchecked(
            mechanism=self.mechanism, num_batches=self.num_batches
        )


class _GroupEpoch(_BegunEpoch):
    """An epoch for a group of records, of which no lower bound is known."""

    def _group(self, size):
        raise ValueError(f"size must be 1 for groups of a group, got {size}")


class _Nothing(_Epoch):
    """The lower bound of an epoch where nothing else is known: no leak."""

    def attained(self) -> AbstractMechanism | None:
        return None

    def has_fractional_powers(self) -> bool:
        return False

    def loss(self) -> ComposedLoss:
        nothing = jnp.zeros(1, as_float(self.num_batches).dtype)
        return ComposedLoss((AtomicLoss(nothing, nothing),), (nothing[0],))


class _LargestBatch(_Nothing):
    """A lower bound of an epoch: its largest sum alone, of certain data sets."""

    def loss(self) -> ComposedLoss:
        if not isinstance(self.mechanism, Gaussian):
            return super().loss()
        noise = as_float(self.mechanism.noise_multiplier)
        batches = as_float(self.num_batches)
        released = noise != jnp.inf
        noise = jnp.where(released, noise, 1.0)
        # From the sum of other records alone, all opposite; over the sensitivity.
        shifts = (0.0, 1.0) if self.relation is REPLACE_ONE else (1.0, 2.0)
        low, high = -_REACH * noise, shifts[1] + _REACH * noise
        cuts = low + jnp.arange(1, _BINS) / _BINS * (high - low)
        # Of no sum being above a cut; one of them is shifted.
        others = (batches - 1) * log_ndtr(cuts / noise)
        log_p, log_q = (_bins(log_ndtr((cuts - x) / noise) + others) for x in shifts)
        count = jnp.where(released, 1.0, 0.0)
        return ComposedLoss((AtomicLoss(log_p, log_q),), (count,), single=True)


def _bins(log_below: Array) -> Array:
    """Logarithms of the masses between cuts."""
    ends = jnp.full_like(log_below[:1], -jnp.inf), jnp.zeros_like(log_below[:1])
    logs = jnp.concatenate([ends[0], log_below, ends[1]])
    first = jnp.isneginf(logs[:-1])
    gap = jnp.where(first, 1.0, logs[1:] - logs[:-1])
    return logs[1:] + jnp.where(first, 0.0, log1mexp(gap))
