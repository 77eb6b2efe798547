"""The exact test of a trade-off function by two binomial counts.

False positives are X ~ Bin(n0, a), true positives T ~ Bin(n1, b), independent, and the
hypothesis is b <= 1 - f(a) for some unknown a.  Outcomes are ordered by a statistic
that grows with T and falls with X.  Its tail probability is then largest on the
boundary b = 1 - f(a), and between two values a < a' of the boundary it is at most that
of (a, 1 - f(a')): cells of a are bounded in this way and divided until that is sharp,
so that no maximum is missed between the nodes of a grid.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts load when they are used

from ._asked import largest_power
from ._limits import ROUNDING, at_least

_MOST_NODES = 2000
_MOST_CELLS = 64
_ROUNDS = 16
# The bound of the supremum is sought to within this factor, if it is not tiny.
_SHARP = 1.01
_TINY = 1e-8


class _Region(NamedTuple):
    """Outcomes at least as extreme as the observed one."""

    needed: np.ndarray
    """Least number of true positives for each number of false positives from 0 up."""
    num_in: int
    num_out: int


def binomial_pair_p_value(counts: Any, guarantee: Any) -> float:
    """Upper bound of the p-value of "tpr <= 1 - f(fpr)", for any false positive rate.

    The statistic is the likelihood ratio against the boundary, at nodes that depend on
    the sample sizes alone.

    Args:
        counts: `Counts`.
        guarantee: Answers `tpr(fpr=...)` or `beta(alpha=...)`.

    Returns:
        In [0, 1]; within 1% or so of the supremum where that is below 1/2.
    """
    n1, n0 = counts.num_in, counts.num_out
    fpr = _nodes(n0, n1)
    tpr = largest_power(guarantee, fpr)
    observed = np.min(
        _deviance(np.array(counts.false_positives), n0, fpr, -1)
        + _deviance(np.array(counts.true_positives), n1, tpr, 1)
    )
    if not observed > 0:
        return 1.0
    needed = _needed(float(observed) * (1 - ROUNDING), n0, n1, fpr, tpr)
    # Rounding must not put the observed outcome outside of its own region.
    seen = needed[: counts.false_positives + 1]
    np.minimum(seen, counts.true_positives, out=seen)
    return _supremum(_Region(needed, n1, n0), guarantee)


def _nodes(num_out: int, num_in: int) -> np.ndarray:
    """False positive rates, closer to each other than what these samples can tell."""
    count = int(min(8 * np.sqrt(max(num_out, num_in)) + 64, _MOST_NODES))
    even = np.sin(np.linspace(0.0, np.pi / 2, count)) ** 2
    small = np.geomspace(1e-9, 1.0, 128)
    return np.unique(np.concatenate([even, small]).clip(0.0, 1.0))


def _deviance(count: np.ndarray, n: int, prob: Any, side: int) -> np.ndarray:
    """Evidence that a probability is larger (side 1), or smaller (side -1).

    The relative entropy of n coins, in nats, from 0 on the other side.
    """
    share, entropy = count / n, scipy.special.rel_entr
    found = n * (entropy(share, prob) + entropy(1.0 - share, 1.0 - prob))
    return np.where(side * (share - prob) > 0, found, 0.0)


def _needed(
    target: float, n0: int, n1: int, fpr: np.ndarray, tpr: np.ndarray
) -> np.ndarray:
    """Least true positives with a statistic of the target, n1 + 1 if none suffice.

    The statistic is the smallest of the nodes' deviances, so that every node makes its
    demand.  By Pinsker's inequality a deviance of n counts reaches the target within
    n sqrt(target / 2n) of its zero: only counts in that window are looked at.
    """
    needed = np.zeros(n0 + 1, np.int64)
    width0, width1 = (int(np.sqrt(target * n / 2)) + 2 for n in (n0, n1))
    for a, b in zip(fpr, tpr, strict=True):
        start = int(n1 * b)
        hits = np.arange(start, min(start + width1, n1) + 1)
        have = np.maximum.accumulate(_deviance(hits, n1, b, 1))
        low = int(np.ceil(n0 * a))
        alarms = np.arange(max(low - width0, 0), min(low, n0) + 1)
        want = target - _deviance(alarms, n0, a, -1)
        place = start + np.searchsorted(have, want)
        place = np.where(want > have[-1], n1 + 1, np.where(want <= 0, 0, place))
        # More false positives leave no evidence on their side.
        np.maximum.at(needed, alarms, place)
        np.maximum(needed[alarms[-1] :], place[-1], out=needed[alarms[-1] :])
    return np.maximum.accumulate(needed)


def _supremum(region: _Region, guarantee: Any) -> float:
    """Upper bound of the region's probability under the hypothesis."""
    edges = np.unique(np.concatenate([[0.0], _nodes(256, 256)]))
    tops = largest_power(guarantee, edges)
    cells = np.stack([edges[:-1], edges[1:], tops[:-1], tops[1:]])
    done, best, bounds = 0.0, 0.0, np.ones(1)
    for _ in range(_ROUNDS):
        low, _, at_low, at_high = cells
        values, bounds = _probabilities(region, low, at_low, at_high)
        best = max(best, float(values.max()))
        if best > 0.5:
            break
        order = np.argsort(bounds)[::-1]
        allowed = max(best * _SHARP, min(2 * best, _TINY))
        open_ = order[bounds[order] > allowed]
        done = max(done, float(np.delete(bounds, open_).max(initial=0.0)))
        if open_.size == 0:
            return min(1.0, done * (1 + ROUNDING))
        # The rest of many wait: their bounds stay in `cells` for the next round.
        cells = _halved(cells, open_, guarantee)
    return min(1.0, max(done, float(bounds.max())) * (1 + ROUNDING))


def _halved(cells: np.ndarray, places: np.ndarray, guarantee: Any) -> np.ndarray:
    """The open cells, the worst of them divided into four."""
    worst, others = places[:_MOST_CELLS], places[_MOST_CELLS:]
    low, high, at_low, at_high = cells[:, worst]
    cuts = low + (high - low) * np.array([0.25, 0.5, 0.75])[:, None]
    at_cuts = largest_power(guarantee, cuts.ravel()).reshape(cuts.shape)
    lows, highs = np.vstack([low, cuts]), np.vstack([cuts, high])
    tops = np.vstack([at_low, at_cuts]), np.vstack([at_cuts, at_high])
    new = np.stack([x.ravel() for x in (lows, highs, *tops)])
    return np.concatenate([new, cells[:, others]], axis=1)


def _probabilities(
    region: _Region, fpr: np.ndarray, *tprs: np.ndarray
) -> list[np.ndarray]:
    """Upper bounds of P(T >= needed(X)) at pairs of rates, for some lists of tpr.

    Numbers of false positives far from the mean (20 standard deviations or so) are not
    summed one by one: fewer count as if they were extreme, more as the last one that is
    looked at.
    """
    n0, n1 = region.num_out, region.num_in
    size = min(n0 + 1, int(10 * np.sqrt(n0)) + 40)
    start = np.clip(n0 * fpr - size / 2, 0, n0 + 1 - size).astype(np.int64)
    alarms = start[:, None] + np.arange(size)
    needed = region.needed[alarms]
    mass = scipy.stats.binom.pmf(alarms, n0, fpr[:, None])
    fewer = scipy.stats.binom.cdf(start - 1, n0, fpr)
    more = scipy.stats.binom.sf(alarms[:, -1], n0, fpr)
    tails = [at_least(needed, n1, tpr[:, None]) for tpr in tprs]
    return [np.sum(mass * x, axis=1) + fewer + more * x[:, -1] for x in tails]
