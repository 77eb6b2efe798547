"""Run-length history: settings of one kind of step, and how often each was used.

A table has a fixed number of rows, so that stepping changes no shape.  A row holds the
numbers of a step.  In programs without 64-bit numbers each is the sum of three float32
ones, which together have all digits: the accounting itself is in float64.
"""

import dataclasses
import functools
import math
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, PyTree

from .._internal import _checks
from .._internal._concrete import is_traced, outside_transformations
from .._internal._precision import float_dtype
from ..losses import ComposedLoss
from ..mechanisms import (
    AbstractMechanism,
    AbstractRenyi,
    Shared,
    can_be_stacked,
    stacked_loss,
)
from ._digits import joined, split

MOST = 2**31 - 1
_MANY = 1024
"""Rows from which on programs for less than twice as many are worth their number."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """The common part of the steps of a table: all but their numbers."""

    structure: Any
    """A PyTree definition."""
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, step: Any) -> "Kind":
        """The kind of a step."""
        leaves, structure = jax.tree.flatten(step)
        return cls(structure, tuple(np.shape(leaf) for leaf in leaves))

    def __reduce__(self) -> tuple[Any, ...]:
        # As a step: pickled definitions of modules' structures are not whole.
        return Kind.of, (self.step(np.zeros(sum(map(math.prod, self.shapes)))),)

    def step(self, numbers: Any) -> Any:
        """The step with the numbers of a row."""
        leaves, start = [], 0
        for shape in self.shapes:
            end = start + math.prod(shape)
            leaf = numbers[..., start:end].reshape((*numbers.shape[:-1], *shape))
            leaves.append(leaf if leaf.ndim or is_traced(leaf) else leaf[()])
            start = end
        return jax.tree.unflatten(self.structure, leaves)


class Table(eqx.Module):
    """Steps of one kind; rows without a count are free."""

    rows: tuple[Any, ...]
    """Arrays of capacity and width whose sum is the numbers of the steps."""
    counts: Any
    """Of int32, one for each row."""
    kind: Kind = eqx.field(static=True)

    @classmethod
    def empty(cls, step: AbstractMechanism, capacity: int) -> "Table":
        """A table for steps like this one, whose numbers fill its free rows."""
        row = split(_numbers(step), float_dtype())
        module = jnp if is_traced(row) else np
        capacity = capacity if row[0].size else 1  # steps without numbers are all equal
        rows = tuple(module.tile(part, (capacity, 1)) for part in row)
        return cls(rows, np.zeros(capacity, np.int32), Kind.of(step))

    @property
    def capacity(self) -> int:
        """The number of different steps that there is room for."""
        return self.counts.shape[0]

    @property
    def known(self) -> bool:
        """Whether all its numbers are."""
        return not is_traced(self.rows, self.counts)

    def is_unused(self) -> bool:
        """Whether it is known that no step was taken."""
        return self.known and not np.any(np.asarray(self.counts))

    def shares(self) -> frozenset[Shared]:
        """The randomness that later steps may share with its own, if any."""
        return frozenset() if self.is_unused() else self.example().shares()

    def example(self) -> Any:
        """A step of the kind, about the first one."""
        return self.kind.step(self.rows[0][0])

    @property
    def renyi(self) -> bool:
        """Whether only Renyi divergences of its steps are known."""
        return isinstance(self.example(), AbstractRenyi)

    def steps(self) -> list[Any]:
        """The steps of all rows."""
        return [self.kind.step(x) for x in jnp.asarray(self.numbers())]

    def numbers(self) -> Any:
        """The numbers of all rows, in float64 where that is to be had."""
        return joined(self.rows)

    def entries(self) -> list[tuple[Any, int]]:
        """The steps that were taken, and how often; needs known numbers."""
        numbers, counts = self.numbers(), np.asarray(self.counts)
        return [
            (self.kind.step(numbers[i]), int(counts[i])) for i in np.flatnonzero(counts)
        ]

    def trimmed(self) -> "Table":
        """Without most free rows: of few sizes, each of which is a program."""
        used = np.flatnonzero(np.asarray(self.counts))
        size = 1 << max(used.size - 1, 0).bit_length()
        if size > _MANY:
            # Every row takes time.
            size = -(-used.size // (size // 8)) * (size // 8)
        kept = np.append(used, np.zeros(size - used.size, used.dtype))
        counts = np.asarray(self.counts)[kept]
        counts[used.size :] = 0
        rows = tuple(np.asarray(part)[kept] for part in self.rows)
        return Table(rows, counts, self.kind)

    def added(self, step: AbstractMechanism, count: Any) -> "Table":
        """With so many more steps; equal ones share a row.

        Raises:
            ValueError: If there is no free row (inside of a transformation), or there
                are more than 2^31 equal steps.
        """
        double = len(self.rows) == 1
        row = split(_numbers(step), np.float64 if double else np.float32)
        known = self.known and not is_traced(row, count)
        _checks.require(
            known or not double or float_dtype() == np.float64,
            "this accountant was made with 64-bit numbers, which it loses in "
            "programs without: make it inside jax.enable_x64(False)",
        )
        module, width = (np, np.int64) if known else (jnp, np.int32)
        rows, counts = jax.tree.map(module.asarray, (self.rows, self.counts))
        count = module.asarray(count).astype(width)
        same, free = _row_equals(rows, row), counts == 0
        some, room = same.any(), free.any()
        full = ~some & ~room & (count > 0)
        if known and full and outside_transformations():
            return self.widened(2 * self.capacity).added(step, count)
        count = _checks.error_if(
            count, lambda _: full, self._full, kind="another one, count ="
        )
        at = module.where(some, same.argmax(), free.argmax())
        total = _checks.error_if(
            counts[at] + count,
            lambda x: (x < 0) | (x > MOST),
            f"the number of equal steps must be at most {MOST}",
            lambda _: count,
            kind="too many and another",
        )
        # A full table takes nothing, and so no step that does not happen.
        here = (np.arange(self.capacity) == at) & (some | room)
        share = count / module.maximum(total, 1)
        mean = lambda old, new: new if known else _mean(old, new, share, some)
        rows = tuple(
            module.where(here[:, None], mean(part[at], new), part)
            for part, new in zip(rows, row, strict=True)
        )
        counts = module.where(here, total, counts).astype(np.int32)
        return Table(rows, counts, self.kind)

    @property
    def _full(self) -> str:
        """The message where there is no room."""
        return (
            f"an accountant for {self.capacity} different steps (of each kind) is "
            "full: make it Accountant(capacity=...)"
        )

    def widened(self, capacity: int) -> "Table":
        """With more free rows."""
        more = capacity - self.capacity
        rows = tuple(
            np.concatenate([part, np.repeat(np.asarray(part)[:1], more, axis=0)])
            for part in self.rows
        )
        counts = np.concatenate([self.counts, np.zeros(more, np.int32)])
        return Table(rows, counts, self.kind)

    def joined(self, other: "Table") -> "Table":
        """With the steps of another table of this kind."""
        if self.known and other.known:
            found = self
            for step, count in other.entries():
                found = found.added(step, count)
            return found
        numbers = other.numbers()

        def add(table: Table, one: tuple[Array, Array]) -> tuple[Table, None]:
            return table.added(self.kind.step(one[0]), one[1]), None

        start = jax.tree.map(jnp.asarray, self)
        return lax.scan(add, start, (numbers, jnp.asarray(other.counts)))[0]

    def attained(self) -> "Table | None":
        """The table of what its steps attain, whose numbers are the same."""
        step = self.kind.step(jnp.asarray(self.numbers())[0])
        found = step.attained()
        if found is None:
            return None
        kind = Kind.of(found)
        _checks.require(
            kind.shapes == self.kind.shapes,
            f"what {type(step).__name__} attains must have the same numbers",
        )
        return Table(self.rows, self.counts, kind)

    def losses(self) -> list[ComposedLoss]:
        """The privacy loss of all steps, in one part if it can be."""
        numbers = jnp.asarray(self.numbers())
        counts = jnp.asarray(self.counts, numbers.dtype)
        each = [self.kind.step(numbers[0]).loss()]
        if counts.size > 1 and can_be_stacked(each[0]):
            return [stacked_loss(self.kind.step(numbers), counts)]
        each += [self.kind.step(x).loss() for x in numbers[1:]]
        return [
            dataclasses.replace(
                loss, counts=tuple(n * counts[i] for n in loss.counts), single=False
            )
            for i, loss in enumerate(each)
        ]


def _row_equals(rows: tuple, row: tuple) -> Any:
    """Which rows are a given one."""
    pairs = zip(rows, row, strict=True)
    equal: list[Any] = [(all_ == new).all(axis=1) for all_, new in pairs]
    return functools.reduce(operator.and_, equal)


def _mean(old: Array, new: Array, share: Array, same: Array) -> Array:
    """The old numbers if they are the same, with the derivative of the mean."""
    finite = jnp.isfinite(stop_gradient(new - old))
    moved = jnp.where(finite, new - old, 0)
    return jnp.where(same, old + share.astype(old.dtype) * moved, new)


def _numbers(step: AbstractMechanism) -> Any:
    """All numbers of a step in a row."""
    leaves: list[PyTree] = jax.tree.leaves(step)
    if not is_traced(leaves):
        return np.concatenate(
            [np.zeros(0), *(np.asarray(leaf, np.float64).ravel() for leaf in leaves)]
        )
    return jnp.concatenate(
        [jnp.asarray(leaf, float_dtype()).ravel() for leaf in leaves]
    )
