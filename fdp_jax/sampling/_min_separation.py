"""Sampling with a least separation: take part, wait, then be drawn again."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax, random
from jaxtyping import ArrayLike, Real

from .._internal import _checks, _draws
from ..mechanisms import (
    RATE,
    REPLACE_ONE,
    AbstractSampling,
    NeighboringRelation,
    Sampling,
    Shared,
    as_known,
    option,
    parameter,
    raise_not_proved,
)
from .participation import Participation, Separated

_MOST = 1 << 20
_BEFORE = 0xFFFF_FFFF
"""The step for what is drawn before the first one."""


class MinSeparation(AbstractSampling):
    """Whoever takes part waits b - 1 steps, then takes part with probability p a step.

    Also called b-min-sep sampling.  Records are drawn independently of each other; on
    average one takes part in every (b - 1 + 1 / p)-th step.  No closed pair is known,
    so that the queries of a run refuse to answer: `fdp_jax.monte_carlo` has bounds that
    hold with a stated probability.

    Args:
        prob: p, the probability that a record that need not wait enters a step, in
            [0, 1].
        min_separation: b, the least distance of two participations, at least 1.  With
            1 it is Poisson sampling; with p = 1 and a warm start every record keeps
            one batch of b in every epoch (`RandomAllocation`, `same_every_epoch`).
        warm_start: Whether the first steps are as all others: a record may enter the
            first step with probability 1 / (1 + (b - 1) p), and is free from the j-th
            of the next b - 1 steps on with probability p / (1 + (b - 1) p) each.
            Otherwise all records are free to enter the first step.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> scheme = fdp.sampling.MinSeparation(0.1, min_separation=10)
        >>> print(f"{scheme.rate():.6f}")
        0.052632

    References:
        Dong and Ganesh (2026), arXiv:2602.09338.
    """

    prob: Real[ArrayLike, ""] | None = parameter(
        "prob", _checks.probability, RATE, default=None
    )
    min_separation: int = option(
        "min_separation", _checks.whole, 1, _MOST, kw_only=True
    )
    warm_start: bool = option("warm_start", _checks.flag, default=True, kw_only=True)
    scheme: ClassVar[Sampling] = Sampling.MIN_SEPARATION
    shared: ClassVar = frozenset({Shared.WAITING})
    refused: ClassVar[dict[NeighboringRelation, str]] = {
        REPLACE_ONE: "no pair is known that dominates a replaced record"
    }

    def run(self, release, num_steps):
        raise_not_proved(self)

    def participation(self, num_steps: int) -> Participation:
        return Separated(self.prob, self.min_separation, self.warm_start)

    draws_independently: ClassVar[bool] = True

    def participants(self, key, step, *, num_records):
        """Goes through all steps before; `next_participants` remembers them."""

        def one(number: Any, found: Any) -> Any:
            return self.next_participants(
                key, number, found[1], num_records=num_records
            )

        start = jnp.zeros(num_records, bool), self.memory(num_records)
        return lax.fori_loop(0, jnp.asarray(step, jnp.int32) + 1, one, start)[0]

    def memory(self, num_records):
        return jnp.zeros(num_records, jnp.int32)

    def next_participants(self, key, step, memory, *, num_records):
        waits = memory
        if self.warm_start:
            first = self._first_waits(key, num_records)
            waits = jnp.where(jnp.asarray(step) == 0, first, memory)
        drawn = _draws.with_prob(_draws.at(key, step), self.prob, num_records)
        inside = drawn & (waits == 0)
        least = self.min_separation - 1
        return inside, jnp.where(inside, least, jnp.maximum(waits - 1, 0))

    def _first_waits(self, key: Any, num_records: int) -> Any:
        """For how many steps records are not free yet when the run begins.

        Any number from 1 to b - 1 with probability p / (1 + (b - 1) p), else none.
        """
        if self.min_separation == 1:
            return jnp.zeros(num_records, jnp.int32)
        first, second = random.split(_draws.at(key, _BEFORE))
        shift = self.min_separation - 1
        begun = _draws.with_prob(first, shift * self.rate(), num_records)
        wait = 1 + _draws.one_of(second, shift, num_records)
        return jnp.where(begun, wait, 0).astype(jnp.int32)

    def expected_size(self, num_records):
        """Expected size of every step with a warm start, else its limit."""
        return self.rate() * num_records

    def rate(self) -> Any:
        """The share of steps in which a record takes part in the long run."""
        if self.prob is None:
            self.require_complete()
        prob = self.prob if as_known(self.prob) is None else as_known(self.prob)
        return prob / (1 + (self.min_separation - 1) * prob)  # pyright: ignore
