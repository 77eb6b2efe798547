"""The loss of jumps of a few sizes whose counts can be listed."""

import functools
import math
from collections.abc import Callable

import equinox as eqx
import numpy as np
import scipy  # its parts load when they are used
from jaxtyping import Bool, Float, Int

from ..._internal._logs import LOG_2
from ..._internal._tolerances import LISTED_DEVIANCE

_DEEP = 700.0, 400.0, 250.0, 160.0, 100.0
_SHALLOW = 80.0, 60.0, 45.0
"""Counts rarer than about e^-depth are left out; the largest that fits is taken."""
_SHORT = 1 << 10, 1 << 12, 1 << 12
_LONG = 1 << 13, 1 << 17, 1 << 20
"""The most rows, columns, and columns of a single size, for deep and shallow lists."""
_MANY, _LONG_OF_MANY = 1e4, (1 << 16, *_LONG[1:])
"""Rates beyond which the grid has no room, and the most columns for these."""
_COLUMNS_PER_ROW = 50
"""A row is looked at for every threshold, a column is sorted once."""
_MOST_SIZES = 16
_LOG_UNDERFLOW = -690.0
"""Log of what masses may add up to that are each too small for a number."""
_LEAST, _FARTHEST = 1e-300, 2.0**50
"""Rates and counts that are looked at; smaller rates lose digits."""


class Counts(eqx.Module):
    """The counts of some sizes together that matter, by rising losses.

    Arrays of NumPy.
    """

    values: Float[np.ndarray, "w k"]
    """Counts of every size; some at the end may occur nowhere."""
    places: Int[np.ndarray, "k n"]
    """In `values`, of all sizes together; the last one again for padding."""
    used: Bool[np.ndarray, " n"]
    """Which of them are no padding."""
    log_missing: Float[np.ndarray, ""]
    """Log of a bound of what is left out, under P and under Q."""


class Listing(eqx.Module):
    """Which counts matter: of two groups of sizes, in all pairs.  Arrays of NumPy."""

    order: Int[np.ndarray, " k"]
    """The sizes, those of the rows first."""
    rows: Counts
    columns: Counts
    """The likely counts of the group that has more of them."""

    @classmethod
    def of(
        cls, rates: Float[np.ndarray, "2 k"], sizes: Float[np.ndarray, " k"]
    ) -> "Listing | None":
        """From the rates under P and under Q, or None if there are too many counts."""
        if not (np.all(np.isfinite(rates)) and np.any(rates)):
            return None
        # Of a rate that is there under one law alone there is no finite loss.
        gone = (rates < _LEAST) & (rates[::-1] >= _LEAST)
        if rates.shape[1] > _MOST_SIZES or np.any(gone):
            return None
        long = _LONG_OF_MANY if np.any(rates > _MANY) else _LONG
        plans = [(depth, _SHORT) for depth in _DEEP]
        plans += [(depth, long) for depth in _SHALLOW]
        for columns_per_row in (_COLUMNS_PER_ROW, 1):
            to = functools.partial(cls.to, rates, sizes, columns_per_row)
            found = _first(to, plans)
            if found is not None:
                return found
        return None

    @classmethod
    def to(
        cls,
        rates: Float[np.ndarray, "2 k"],
        sizes: Float[np.ndarray, " k"],
        columns_per_row: int,
        depth: float,
        most: tuple[int, int, int],
    ) -> "Listing | None":
        """All counts of a group whose deviances add up to `depth`, under P or Q."""
        low, high = _window(rates, depth)
        low, high = np.min(low, axis=0), np.max(high, axis=0)
        few, many = _split(high - low + 1, columns_per_row)
        listed = lambda j, most: _counts(
            depth, rates[:, j], sizes[j], low[j], high[j], most
        )
        columns = listed(many, most[2] if len(many) == 1 else most[1])
        rows = listed(few, most[0]) if columns is not None else None
        if columns is None or rows is None:
            return None
        return cls(np.concatenate([few, many]), rows, columns)


def _first(find: Callable[..., Listing | None], plans: list[tuple]) -> Listing | None:
    """The list of the first plan that has one; all later ones have one, too."""
    best, low, high = None, 0, len(plans)
    while low < high:
        middle = (low + high) // 2
        found = find(*plans[middle])
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle
    return best


def _split(
    widths: Float[np.ndarray, " k"], columns_per_row: int
) -> tuple[Int[np.ndarray, " j"], Int[np.ndarray, " k-j"]]:
    """The sizes of the rows and of the columns, so that both take about as long."""
    groups: tuple[list[int], list[int]] = ([], [])
    lengths = np.asarray([np.log(columns_per_row), 0.0])
    for j in np.argsort(-widths, kind="stable").tolist():
        shorter = int(np.argmin(lengths))
        groups[shorter].append(j)
        lengths[shorter] += np.log(widths[j])
    rows, columns = groups
    return np.asarray(rows, int), np.asarray(columns, int)


def _counts(
    depth: float,
    rates: Float[np.ndarray, "2 k"],
    sizes: Float[np.ndarray, " k"],
    low: Float[np.ndarray, " k"],
    high: Float[np.ndarray, " k"],
    longest: int,
) -> Counts | None:
    """All between `low` and `high` whose deviances add up to at most `depth`."""
    width = int(np.max(high - low + 1, initial=1))
    if width > longest:
        return None
    values = low + np.arange(_padded(width))[:, None]
    places, deviances = np.zeros((0, 1), np.int32), np.zeros((2, 1))
    for j in range(len(sizes)):
        own = values[: int(high[j] - low[j]) + 1, j]
        more = scipy.special.kl_div(own, rates[:, j, None])
        # Counted first: all pairs might not fit into memory.
        if max(map(_pairs, depth - deviances, more)) > longest:
            return None
        total = deviances[:, :, None] + more[:, None]
        row, column = np.nonzero(np.min(total, axis=0) <= depth)
        if row.size > longest:
            return None
        places = np.vstack([places[:, row], column.astype(np.int32)])
        deviances = total[:, row, column]
    losses = np.sum(np.take_along_axis((values * sizes).T, places, axis=1), axis=0)
    spare = _padded(losses.size) - losses.size
    places = np.pad(places[:, np.argsort(losses)], ((0, 0), (0, spare)), mode="edge")
    used = np.arange(losses.size + spare) < losses.size
    return Counts(values, places, used, np.asarray(_log_missing(depth, rates, values)))


def _pairs(left: Float[np.ndarray, " m"], more: Float[np.ndarray, " n"]) -> int:
    """How many pairs there are with `more` at most `left`."""
    return int(np.sum(np.searchsorted(np.sort(more), left, side="right")))


def _padded(size: float) -> int:
    """A power of 2 from 256 on, so that few programs serve for all lists."""
    return max(256, 1 << (int(size) - 1).bit_length())


def _window(
    rates: Float[np.ndarray, "2 k"], depth: float
) -> tuple[Float[np.ndarray, "2 k"], Float[np.ndarray, "2 k"]]:
    """The counts whose deviance reaches a depth, on both sides of their rates.

    With u = count / rate, u log u + 1 - u = depth / rate, which u = e^(1 + W) solves,
    W being Lambert's function of (depth / rate - 1) / e.
    """
    # A larger rate than the smallest ones: more counts.
    rates = np.clip(rates, 1e-100, _FARTHEST)
    share = depth / rates
    place = (share - 1) / np.e
    above = np.exp(1 + scipy.special.lambertw(place).real)
    inside = np.clip(place, -1 / np.e, -1e-300)
    below = np.exp(1 + scipy.special.lambertw(inside, -1).real)
    below = np.where(share < 1, below, 0.0)
    # One count more on each side for rounding.
    low, high = np.floor(rates * below) - 1, np.ceil(rates * above) + 1
    return np.clip(low, 0, _FARTHEST), np.clip(high, 0, _FARTHEST)


def _log_missing(
    depth: float, rates: Float[np.ndarray, "2 k"], values: Float[np.ndarray, "w k"]
) -> float:
    """Log of a bound on the probability that deviances add up to more, or one does.

    One is t or more with probability at most 2 e^-t (Chernoff), so what is beyond the
    depth adds at most 2 e^(-s depth) / s to the mean of e to (1 - s) times it, 0 < s <
    1.  The bound is Markov's inequality for the sum, with the best of a few s.
    """
    size = values.shape[1]
    if size == 0:
        return -math.inf
    depth *= 1 - LISTED_DEVIANCE
    if size == 1:
        return float(np.logaddexp(LOG_2 - depth, _LOG_UNDERFLOW))
    s = np.minimum(size / depth * np.linspace(0.1, 1, 10), 0.99)[:, None, None]
    deviances = scipy.special.kl_div(values, rates[:, None])  # laws, counts, sizes
    # e^deviance times the probability is at most that, by Stirling's formula.
    most = -0.5 * np.log(np.maximum(2 * np.pi * values, 1))
    terms = most - s[..., None] * deviances
    beyond = np.log(2 / s) - s * depth
    means = np.logaddexp(scipy.special.logsumexp(terms, axis=2), beyond)
    bounds = np.sum(means, axis=2) - (1 - s[..., 0]) * depth
    return float(np.logaddexp(np.min(np.max(bounds, axis=1)), _LOG_UNDERFLOW))
