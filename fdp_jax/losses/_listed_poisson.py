"""The loss of jumps of a few sizes whose counts can be listed."""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Bool, Float, Int

from ._compound_poisson import CompoundPoissonLoss

_DEPTHS = 700.0, 400.0, 250.0, 160.0, 100.0, 80.0
"""Counts rarer than about e^-depth are left out; the largest that fits is taken."""
_SHORT = 1 << 12
"""Rows and columns for any but the least depth."""
_ROWS, _COLUMNS = 1 << 15, 1 << 20
"""The same for that one."""
_MORE_ROWS, _MANY = 1 << 16, 1e4
"""As many rows where a rate is above that, which the grid has no room for."""
_MOST_SIZES = 16
_LEAST, _FARTHEST = 1e-300, 2.0**50
"""Rates and counts that are looked at; smaller rates lose digits."""


class Listing(eqx.Module):
    """Which counts matter: of all sizes but one together, and of that one.

    Arrays of NumPy.
    """

    order: Int[np.ndarray, " k"]
    """The sizes, that with the most counts last."""
    counts: Int[np.ndarray, "rows k-1"]
    """Of all but the last size."""
    used: Bool[np.ndarray, " rows"]
    """Which rows are no padding."""
    first: Int[np.ndarray, ""]
    """The least count of the last size."""
    width: Int[np.ndarray, ""]
    """How many counts of it from there on."""
    log_missing: Float[np.ndarray, ""]
    """Log of a bound of what is left out, under P and under Q."""
    columns: int = eqx.field(static=True)
    """At least `width`."""

    @classmethod
    def of(cls, rates: Float[np.ndarray, "2 k"]) -> "Listing | None":
        """From the rates under P and under Q, or None if there are too many counts."""
        if not (np.all(np.isfinite(rates)) and np.any(rates)):
            return None
        # Of a rate that is there under one law alone there is no finite loss.
        gone = (rates < _LEAST) & (rates[::-1] >= _LEAST)
        if rates.shape[1] > _MOST_SIZES or np.any(gone):
            return None
        for depth in _DEPTHS[:-1]:
            found = cls._to(depth, rates, _SHORT, _SHORT)
            if found is not None:
                return found
        rows = _ROWS if np.all(rates < _MANY) else _MORE_ROWS
        return cls._to(_DEPTHS[-1], rates, rows, _COLUMNS)

    @classmethod
    def _to(
        cls, depth: float, rates: Float[np.ndarray, "2 k"], rows: int, columns: int
    ) -> "Listing | None":
        """All counts whose deviances add up to at most `depth`, under P or under Q."""
        low, high = _window(rates, depth)
        low, high = np.min(low, axis=0), np.max(high, axis=0)
        order = np.argsort(high - low)
        *widths, width = (high - low + 1)[order]
        if width > columns or max(widths, default=0) > rows:
            return None
        counts, deviances = np.zeros((1, 0)), np.zeros((2, 1))
        for j in order[:-1]:
            own = np.arange(low[j], high[j] + 1)
            more = scipy.special.kl_div(own, rates[:, j, None])
            # Counted first: all pairs might not fit into memory.
            if max(map(_pairs, depth - deviances, more)) > rows:
                return None
            total = deviances[:, :, None] + more[:, None]
            row, column = np.nonzero(np.min(total, axis=0) <= depth)
            if row.size > rows:
                return None
            counts = np.column_stack([counts[row], own[column]])
            deviances = total[:, row, column]
        size = _padded(len(counts))
        spare = size - len(counts)
        return cls(
            order,
            np.pad(counts, ((0, spare), (0, 0))).astype(int),
            np.arange(size) < len(counts),
            low[order[-1]].astype(int),
            np.asarray(width),
            np.asarray(_log_missing(depth, len(order) - 1)),
            columns=_padded(width),
        )


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


def _log_missing(depth: float, others: int) -> float:
    """Log of a bound on the probability that is not listed.

    A deviance is t or more with probability at most 2 e^-t (Chernoff), so e to (1 - s)
    times it is at most 2 / s in the mean; Markov's inequality for the sum of those of
    the other sizes, s < 1 being their number over the depth.
    """
    if others == 0:
        return math.log(2) - depth
    sum_of_others = others * (1 + math.log(2 * depth / others)) - depth
    return float(np.logaddexp(math.log(2) - depth, sum_of_others))


class ListedPoissonLoss(CompoundPoissonLoss):
    """The same loss, for closed forms: sums over a list of counts.

    Where counts that are not listed could matter they are taken for infinite losses.
    """

    listing: Listing

    def rates(self) -> Float[Array, "2 k"]:
        """Under P and under Q, the size with the most counts last."""
        rates = jnp.stack([self.steps.rate_without, self.steps.rate_with])
        return (self.counts * rates)[:, self.listing.order]

    def sizes(self) -> Float[Array, " k"]:
        """Of the jumps, in the same order."""
        return self._each(lambda step: step.jump())[self.listing.order]

    def changes(self) -> Float[Array, " k"]:
        """Of the rates, from P to Q, in the same order."""
        found = self.counts * self._each(lambda step: step.gap())
        return found[self.listing.order]

    def log_infinite_masses(self):
        missing = jnp.asarray(self.listing.log_missing, self.counts.dtype)
        return missing, missing

    def log_unsure_masses(self):
        return self.log_infinite_masses()
