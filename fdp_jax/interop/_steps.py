"""Steps with their numbers, equal ones together, and the mechanism that they are."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from .._internal import _checks
from .._internal._concrete import is_traced
from ..accounting import Accountant
from ..mechanisms import (
    DPSGD,
    AbstractMechanism,
    AbstractRenyi,
    BlatantNonPrivacy,
    Composition,
    Gaussian,
    NeighboringRelation,
    PerfectPrivacy,
    PoissonSubsampled,
    compose,
    identity,
    is_number,
    product,
)
from ..selection import SelectBest
from ..tradeoff import dominating_pair

Step = AbstractMechanism | AbstractRenyi | SelectBest
_FEW = 4
"""Different steps up to which each is a part of its own."""


class Steps:
    """Single releases in the order of their first occurrence, with their numbers."""

    def __init__(self, relation: NeighboringRelation):
        self.relation = relation
        self._counts: dict[Any, tuple[Step, Any]] = {}

    def add(self, steps: Iterable[tuple[Step, Any]], count: Any = 1) -> None:
        """Takes some more steps, so many times."""
        for step, times in steps:
            key, times = identity(step), times * count
            unused = not (is_traced(times) or times > 0)
            if unused or isinstance(step, PerfectPrivacy):
                continue
            if key in self._counts:
                times = self._counts[key][1] + times
            self._counts[key] = step, times

    def __iter__(self):
        return iter(self._counts.values())

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def is_private(self) -> bool:
        """Whether no step tells the record."""
        return not any(isinstance(step, BlatantNonPrivacy) for step, _ in self)

    def mechanism(self) -> Any:
        """All of them, as simply as can be."""
        if not len(self):
            return PerfectPrivacy(relation=self.relation)
        if not self.is_private:
            return BlatantNonPrivacy(relation=self.relation)
        (step, count), *more = self
        if isinstance(step, SelectBest) and not more and is_number(count, 1):
            return step
        known = [s.repeat(n) for s, n in self if isinstance(s, AbstractRenyi)]
        others = [
            (_composable(s, self.relation), n)
            for s, n in self
            if not isinstance(s, AbstractRenyi)
        ]
        whole = [self._composed(others)] if others else []
        return compose(*known, *whole) if known else whole[0]

    def _composed(self, pairs: list[tuple[Any, Any]]) -> AbstractMechanism:
        """Mechanisms together, as simply as can be."""
        steps, counts = zip(*pairs, strict=True)
        if len(steps) == 1:
            return _repeated(steps[0], counts[0])
        if len(steps) > _FEW and not is_traced(steps, counts):
            # Steps of one kind go into one program.
            found = Accountant(relation=self.relation)
            for step, count in zip(steps, counts, strict=True):
                found = found.step(step, count)
            return found
        return Composition(steps, counts)


def _composable(step: Any, relation: NeighboringRelation) -> AbstractMechanism:
    """A mechanism for a step: of a selection a pair of outputs that dominates it."""
    selected = isinstance(step, SelectBest)
    return dominating_pair(step, relation=relation) if selected else step


def _repeated(step: AbstractMechanism, count: Any) -> AbstractMechanism:
    """A step, so many times; steps of DP-SGD are a run of it."""
    if not is_traced(count) and count == 1:
        return step
    if isinstance(step, DPSGD):
        return dataclasses.replace(step, num_steps=product(step.num_steps, count))
    if isinstance(step, PoissonSubsampled) and isinstance(step.mechanism, Gaussian):
        return DPSGD(
            noise_multiplier=step.mechanism.noise_multiplier,
            sampling_prob=step.sampling_prob,
            num_steps=count,
            relation=step.relation,
        )
    return step.repeat(count)


def whole(name: str, value: Any) -> Any:
    """A number of steps: whole, and Python's own integer unless it is traced."""
    value = _checks.count(name, value)
    return value if is_traced(value) else int(np.asarray(value))
