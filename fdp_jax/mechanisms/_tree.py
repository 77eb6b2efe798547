"""Tree aggregation: dyadic intervals of a run, and a record's counts in them."""

import functools
from collections.abc import Iterator

import equinox as eqx
import numpy as np

from ._pattern import Pattern

_Ways = dict[int, tuple[np.ndarray, np.ndarray]]
"""By number of participations in an interval: sums of squares of counts that they may
reach, of shape (v,), and when the next participation is allowed then, of shape (v, b +
1): in how many steps from the interval's end, if in so many from its beginning.  Where
that is b they have no place."""

_MOST_WAYS = 1 << 20
"""Most participations, squared, times the separation: a few seconds."""
_MOST_STEPS = 1 << 24
"""Most steps of the patterns with one distance that are looked at, together."""
_STEPS_AT_ONCE = 1 << 20


class Tree(eqx.Module):
    """A strategy with all complete dyadic intervals of steps as rows.

    Its squared sensitivity is the largest sum, over the intervals, of the squares of
    how often a record takes part in each.
    """

    num_steps: int = eqx.field(static=True)
    restart_every: int = eqx.field(static=True)

    @property
    def ndim(self) -> int:
        """Axes of the matrix."""
        return 2

    @property
    def shape(self) -> tuple[int, int]:
        """Intervals and steps."""
        nodes = sum(2 * length - length.bit_count() for _, length in self._trees())
        return nodes, self.num_steps

    def matrix(self) -> np.ndarray:
        """The strategy, written out."""
        begins, sizes = np.transpose(
            [
                (first + (node << level), 1 << level)
                for first, length in self._trees()
                for level in range(length.bit_length())
                for node in range(length >> level)
            ]
        )[:, :, None]
        steps = np.arange(self.num_steps)
        return ((steps >= begins) & (steps < begins + sizes)).astype(float)

    def _trees(self) -> Iterator[tuple[int, int]]:
        """First steps and lengths."""
        for first in range(0, self.num_steps, self.restart_every):
            yield first, min(self.restart_every, self.num_steps - first)

    def squares(self, pattern: Pattern) -> tuple[int, int]:
        """Bounds of the squared sensitivity; equal but for very many participations."""
        return _squares(self, pattern)


@functools.lru_cache(64)
def _squares(tree: Tree, pattern: Pattern) -> tuple[int, int]:
    if pattern.most == 1:
        depth = next(tree._trees())[1].bit_length()
        return depth, depth
    if not pattern.cyclic and pattern.most**2 * pattern.apart <= _MOST_WAYS:
        found = _separated(tree, pattern)
        return found, found
    every = -(-tree.num_steps * pattern.most // _MOST_STEPS)
    least = _evenly(tree, pattern, every)
    known = pattern.cyclic and every == 1
    return least, least if known else _by_level(tree, pattern)


def _evenly(tree: Tree, pattern: Pattern, every: int) -> int:
    """The largest sum over patterns with one distance, or over some of them."""
    n, most, best = tree.num_steps, pattern.most, 0
    at_once = every * max(1, _STEPS_AT_ONCE // most)
    for begin in range(0, n, at_once):
        start = np.arange(begin, min(begin + at_once, n), every)
        steps = start[:, None] + pattern.apart * np.arange(most)
        row, step = np.nonzero(steps < n)[0], steps[steps < n]
        of_tree, place = np.divmod(step, tree.restart_every)
        length = np.minimum(tree.restart_every, n - of_tree * tree.restart_every)
        total = np.zeros(start.size, np.int64)
        for level in range(tree.restart_every.bit_length()):
            node = place >> level
            begins = np.ones(step.size, bool)
            begins[1:] = np.any(np.diff([row, of_tree, node]) != 0, axis=0)
            index = np.flatnonzero(begins)
            counts = np.diff(np.append(index, step.size))
            complete = (node[index] + 1) << level <= length[index]
            np.add.at(total, row[index], complete * counts**2)
        best = max(best, int(total.max()))
    return best


def _by_level(tree: Tree, pattern: Pattern) -> int:
    """An upper bound: intervals of each length as full as they may be."""
    total = 0
    for level in range(tree.restart_every.bit_length()):
        nodes = sum(length >> level for _, length in tree._trees())
        most = min(pattern.most, -(-(1 << level) // pattern.apart))
        full, rest = divmod(min(pattern.most, nodes * most), most)
        total += full * most**2 + rest**2
    return total


def _separated(tree: Tree, pattern: Pattern) -> int:
    """The largest sum over patterns with a least distance, interval by interval."""
    apart = pattern.apart
    levels = [_step(apart)]
    for level in range(1, min(tree.restart_every, tree.num_steps).bit_length()):
        fits = min(pattern.most, -(-(1 << level) // apart))
        levels.append(_joined(levels[-1], levels[-1], fits, apart, squares=True))
    run: _Ways = {0: (np.zeros(1, int), np.zeros((1, 1), int))}
    for _, length in tree._trees():
        for level in reversed(range(length.bit_length())):
            if length >> level & 1:
                run = _joined(run, levels[level], pattern.most, apart, squares=False)
    return max(int(sums.max()) for sums, _ in run.values())


def _step(apart: int) -> _Ways:
    """A single step, without and with a participation."""
    later = np.maximum(np.arange(apart + 1) - 1, 0)
    later[-1] = apart
    taken = np.full(apart + 1, apart)
    taken[0] = apart - 1
    return {0: (np.zeros(1, int), later[None]), 1: (np.ones(1, int), taken[None])}


def _joined(
    left: _Ways, right: _Ways, most: int, apart: int, *, squares: bool
) -> _Ways:
    """Two intervals, one after the other, and perhaps the square of both counts."""
    found = {}
    for count in range(min(most, max(left) + max(right)) + 1):
        both = [(x, count - x) for x in left if count - x in right]
        candidates = [
            (left[x][0] + (value + squares * count**2), later[left[x][1]])
            for x, y in both
            for value, later in zip(*right[y], strict=True)
        ]
        kept = _pruned(candidates, apart)
        if kept[0].size:
            found[count] = kept
    return found


def _pruned(
    candidates: list[tuple[np.ndarray, np.ndarray]], apart: int
) -> tuple[np.ndarray, np.ndarray]:
    """The ways than which no larger sum lets the next participation be as early."""
    top = max((int(sums.max()) for sums, _ in candidates), default=0)
    width = candidates[0][1].shape[1] if candidates else 1
    earliest = np.full((top + 2, width), apart)
    for sums, later in candidates:
        earliest[sums] = np.minimum(earliest[sums], later)
    of_larger = np.minimum.accumulate(earliest[::-1])[::-1]
    kept = np.flatnonzero(np.any(earliest[:-1] < of_larger[1:], axis=1))
    return kept, earliest[kept]
