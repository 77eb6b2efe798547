"""Scores of canaries, with thresholds that leave the level as it is."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from ._counts import Counts, scores_of
from ._evidence import PointEvidence, level_of_exclusion
from ._limits import upper_limit
from ._points import TradeOffPoints

BANDS = ("ranks", "dkw")
# Confidence of the limits by which a threshold is chosen on the first part of a split.
_CHOICE = 0.95


@explained
@dataclasses.dataclass(frozen=True)
class Split:
    """Choose the threshold on one random part of the scores, and count the others.

    Attributes:
        fraction: In (0, 1), of either kind of scores, for the choice.
        seed: Of NumPy's random generator, a whole number.

    Raises:
        ValueError: If one is out of range.
    """

    fraction: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        _checks.checked_scalar("fraction", _checks.open_share, self.fraction)
        _checks.whole("seed", self.seed, 0, 2**63 - 1)


@explained
class Scores(PointEvidence):
    """Scores of canaries in the data and of canaries that were left out.

    Scores must be independent, those of each kind from one law (one canary each in
    runs of their own, say); for many canaries in one run see `OneRun`.

    A threshold picked by a look at the scores would make bounds too large.  Here are
    the ways that do not:

    - a number, fixed beforehand: all of the level for one pair of counts;
    - a list of numbers, fixed beforehand: the level is shared equally (Bonferroni);
    - `Split(fraction, seed)`: chosen on some scores, counted on the others;
    - "ranks": all thresholds at once.  The k-th largest of n independent uniform
      variables is below the quantile 1 - g of its beta law with probability 1 - g, so
      that the upper limits of Clopper and Pearson hold at all thresholds together, with
      level g for each of the ranks that are looked at (about sixty, fixed by n);
    - "dkw": all thresholds at once, by the one-sided inequality of Massart (1990),
      P(sup (F_n - F) > t) <= exp(-2 n t^2): one margin for all rates, which is wide
      for small ones.

    The last two give half of the level to either kind of scores.

    Args:
        in_scores: Scores of canaries in the data, a vector without NaN; larger ones
            speak for membership.
        out_scores: Scores of canaries that were left out, likewise.
        threshold: One of these; scores at or above a threshold are guesses "in".

    Raises:
        ValueError: If an argument is none of these, or too few scores are there to be
            split.

    Example:
        >>> import numpy as np
        >>> import fdp_jax as fdp
        >>> rng = np.random.default_rng(0)
        >>> scores = fdp.audit.Scores(rng.normal(2, 1, 500), rng.normal(0, 1, 500))
        >>> fdp.audit.falsifies(fdp.tradeoff.Gaussian(1.0), scores).falsified
        True

    References:
        Clopper and Pearson (1934); Massart (1990).
    """

    in_scores: np.ndarray
    out_scores: np.ndarray
    threshold: Any

    def __init__(self, in_scores: Any, out_scores: Any, *, threshold: Any = "ranks"):
        self.in_scores = scores_of("in_scores", in_scores)
        self.out_scores = scores_of("out_scores", out_scores)
        if isinstance(threshold, str):
            _checks.require(
                threshold in BANDS,
                "threshold must be 'ranks', 'dkw', a number, a vector of numbers "
                "or a Split",
                f"{threshold!r}",
            )
        elif not isinstance(threshold, Split):
            values = _checks.real("threshold", _checks.numbers("threshold", threshold))
            threshold = np.asarray(values, np.float64)
            _checks.require(
                threshold.ndim <= 1 and threshold.size != 0,
                "threshold must be a number or a vector of some",
                f"an array of {threshold.shape}",
            )
        self.threshold = threshold

    def __repr__(self) -> str:
        sizes = self.in_scores.size, self.out_scores.size
        return "Scores({} in, {} out, threshold={!r})".format(*sizes, self.threshold)

    def counts(self) -> list[Counts]:
        """The counts at every stated threshold, or those after the split.

        Raises:
            ValueError: If the thresholds are a band ("ranks" or "dkw").
        """
        _checks.require(
            not isinstance(self.threshold, str),
            "counts needs thresholds that are stated or chosen by Split",
            f"threshold={self.threshold!r}",
        )
        if isinstance(self.threshold, Split):
            return [_after_split(self.in_scores, self.out_scores, self.threshold)]
        return [
            Counts.from_scores(self.in_scores, self.out_scores, threshold=x)
            for x in np.atleast_1d(self.threshold)
        ]

    def points_at(self, level: float) -> TradeOffPoints:
        """One point for every threshold, all of them together at this level."""
        if isinstance(self.threshold, str):
            return self._band(level)
        counts = self.counts()
        found = [x.points_at(level / len(counts)) for x in counts]
        alpha, beta = (
            np.concatenate([getattr(x, name) for x in found])
            for name in ("alpha", "beta")
        )
        return TradeOffPoints(alpha, beta, 1.0 - level)

    def p_value(self, guarantee: Any) -> float:
        """The smallest p-value times their number, or a band's level of exclusion."""
        if isinstance(self.threshold, str):
            return level_of_exclusion(self, guarantee)
        counts = self.counts()
        return min(len(counts) * min(x.p_value(guarantee) for x in counts), 1.0)

    def _band(self, level: float) -> TradeOffPoints:
        limits = _rank_limits if self.threshold == "ranks" else _dkw_limits
        tail = 0.5 * level
        _, missed, alarms = _cuts(self.in_scores, self.out_scores)
        alpha = limits(self.out_scores.size, tail)(alarms)
        beta = limits(self.in_scores.size, tail)(missed)
        return TradeOffPoints(alpha, beta, 1.0 - level)


def _ranks(size: int) -> np.ndarray:
    """Ranks at which order statistics are looked at: dense where they are small."""
    even = size * np.sin(np.linspace(0.0, np.pi / 2, 33)) ** 2
    small = np.geomspace(1, size, 32)
    return np.unique(np.concatenate([even, small]).round().clip(1, size)).astype(int)


def _rank_limits(size: int, tail: float) -> Callable[[np.ndarray], np.ndarray]:
    """Upper limits of a rate at any threshold, from the number of scores beyond it.

    With K scores beyond, the next rank k > K has its order statistic on this side, and
    the rate is at most the k-th smallest of `size` uniform variables.
    """
    ranks = _ranks(size)
    limits = np.append(upper_limit(ranks - 1, size, tail / ranks.size), 1.0)
    return lambda beyond: limits[np.searchsorted(ranks, beyond, side="right")]


def _dkw_limits(size: int, tail: float) -> Callable[[np.ndarray], np.ndarray]:
    """The limits by Massart's inequality, which holds for tails up to 1/2."""
    margin = np.sqrt(-np.log(tail) / (2 * size))
    return lambda beyond: np.minimum(beyond / size + margin, 1.0)


def _cuts(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, ...]:
    """Thresholds just beyond the order statistics of either kind at the ranks.

    With the numbers of scores that they miss among those of canaries that are in, and
    pass among the others.
    """
    inside, outside = np.sort(inside), np.sort(outside)
    lowest, highest = inside[_ranks(inside.size) - 1], outside[-_ranks(outside.size)]
    cuts = np.unique(np.concatenate([lowest, np.nextafter(highest, np.inf)]))
    missed = np.searchsorted(inside, cuts)
    return cuts, missed, outside.size - np.searchsorted(outside, cuts)


def _after_split(in_scores: np.ndarray, out_scores: np.ndarray, split: Split) -> Counts:
    """Counts of the second part, at the threshold that serves the first one best."""
    rng = np.random.default_rng(split.seed)
    parts = []
    for name, scores in (("in_scores", in_scores), ("out_scores", out_scores)):
        size = round(split.fraction * scores.size)
        _checks.require(
            0 < size < scores.size,
            f"{name} must have scores for both parts of a split",
            f"{scores.size} and fraction={split.fraction:g}",
        )
        mixed = rng.permutation(scores)
        parts.append((mixed[:size], mixed[size:]))
    (first_in, rest_in), (first_out, rest_out) = parts
    threshold = _best_threshold(first_in, first_out)
    return Counts.from_scores(rest_in, rest_out, threshold=threshold)


def _best_threshold(in_scores: np.ndarray, out_scores: np.ndarray) -> float:
    """The cut with the largest lower limit of epsilon at delta = 0, in this sample."""
    cuts, missed, alarms = _cuts(in_scores, out_scores)
    tail = 0.5 * (1.0 - _CHOICE)
    beta = upper_limit(missed, in_scores.size, tail)
    alpha = upper_limit(alarms, out_scores.size, tail)
    with np.errstate(divide="ignore"):
        gains = np.maximum(
            np.log(1 - beta) - np.log(alpha), np.log(1 - alpha) - np.log(beta)
        )
    return float(cuts[np.argmax(gains)])
