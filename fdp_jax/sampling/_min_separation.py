"""Sampling with a least separation: take part, wait, then be drawn again."""

from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import ArrayLike, Real

from .._internal import _checks
from ..mechanisms import (
    OPTION,
    RATE,
    REPLACE_ONE,
    AbstractSampling,
    NeighboringRelation,
    Sampling,
    as_known,
    parameter,
    raise_not_proved,
)
from .participation import Participation, Separated

_MOST = 1 << 20


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
    min_separation: int = eqx.field(static=True, kw_only=True, metadata=OPTION)
    warm_start: bool = eqx.field(
        static=True, default=True, kw_only=True, metadata=OPTION
    )
    scheme: ClassVar[Sampling] = Sampling.MIN_SEPARATION
    refused: ClassVar[dict[NeighboringRelation, str]] = {
        REPLACE_ONE: "no pair is known that dominates a replaced record"
    }

    def __check_init__(self):
        _checks.whole("min_separation", self.min_separation, 1, _MOST)
        _checks.flag("warm_start", self.warm_start)

    def run(self, release, num_steps):
        del release, num_steps
        raise_not_proved(self)

    def participation(self, num_steps: int) -> Participation:
        del num_steps
        return Separated(self.prob, self.min_separation, self.warm_start)

    def rate(self) -> Any:
        """The share of steps in which a record takes part in the long run."""
        if self.prob is None:
            self.require_complete()
        prob = self.prob if as_known(self.prob) is None else as_known(self.prob)
        return prob / (1 + (self.min_separation - 1) * prob)  # pyright: ignore
