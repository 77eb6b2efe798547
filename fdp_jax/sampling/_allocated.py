"""An epoch in which every record takes part in some of t steps, of any release."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from ..losses import ComposedLoss, dominated, dominating
from ..mechanisms import (
    AbstractMechanism,
    AbstractWrapped,
    Gaussian,
    Sampling,
    as_float,
    gaussian_epoch,
    is_one,
    least_of,
)


class AllocatedEpoch(AbstractWrapped):
    """One epoch of t releases, of which k, uniformly random, have the record.

    Let (P0, Q0) dominate a step without and with the record, whatever was released
    before: one channel makes the step's two laws of P0 and Q0 (Blackwell).  Applied one
    after the other, with what was released so far, the channels make an epoch of
    (P0^t, mean of the products with Q0 at k places), which therefore dominates it, and
    is attained where the steps' laws are P0 and Q0.  For k = 1 its loss is that of
    `losses.dominating`; for k > 1 the pair of k epochs of about t / k steps each is
    above it.  Below is what is told by a sum over the steps: see `losses.dominated`.

    References:
        Feldman, Shenfeld (2026), arXiv:2602.17284, for any mechanism; Feldman, Shenfeld
        (2025), arXiv:2502.08202, for k of t.
    """

    mechanism: AbstractMechanism
    num_batches: Any
    participations: int = eqx.field(static=True, default=1)
    evenly: bool = eqx.field(static=True, default=False)
    """Whether t is known to be a multiple of k."""
    _scheme: ClassVar = Sampling.RANDOM_ALLOCATION
    _for_one_record = (
        "random allocation",
        "where the records of a group are in different batches no pair is known",
    )

    def releases_once(self) -> bool:
        return self.participations == 1

    def simplified(self) -> AbstractMechanism:
        if self.participations == 1 and is_one(self.num_batches):
            return self.mechanism.simplified()
        return self

    def attained(self) -> AbstractMechanism | None:
        return QuantizedEpoch.unchecked(
            mechanism=least_of(self.mechanism),
            num_batches=self.num_batches,
            participations=self.participations,
        )

    def loss(self) -> ComposedLoss:
        t = self._batches()
        if self.participations == 1:
            return self._one_of(t)
        if self.evenly:
            epoch = self._one_of(t / self.participations)
            return ComposedLoss(epoch.terms, (self.participations * epoch.counts[0],))
        fewer = jnp.floor(t / self.participations)
        rest = t - self.participations * fewer
        parts = [self._one_of(n) for n in (fewer, fewer + 1)]
        times = self.participations - rest, rest
        counts = [n * x.counts[0] for n, x in zip(times, parts, strict=True)]
        return ComposedLoss(tuple(x.terms[0] for x in parts), tuple(counts))

    def _batches(self) -> Any:
        """The number t; NaN where a program finds fewer batches than participations."""
        t = as_float(self.num_batches)
        return jnp.where(t >= self.participations, t, jnp.nan)

    def _one_of(self, batches: Any) -> ComposedLoss:
        if isinstance(self.mechanism, Gaussian):
            return gaussian_epoch(self.mechanism, batches).loss()
        return _of_terms(self.mechanism, lambda x: dominating(x, batches))


class QuantizedEpoch(AllocatedEpoch):
    """A lower bound of such an epoch, by a pair made of its own by quantizing."""

    def releases_once(self) -> bool:
        return True

    def attained(self) -> AbstractMechanism | None:
        return None

    def loss(self) -> ComposedLoss:
        t, k = self._batches(), self.participations
        return _of_terms(self.mechanism, lambda x: dominated(x, t, k))


def _of_terms(mechanism: AbstractMechanism, made: Any) -> ComposedLoss:
    """A single release whose loss is made of a step's."""
    inner = mechanism.loss()
    (term,), (count,) = inner.terms, inner.counts
    return ComposedLoss((made(term),), (count,), single=True)
