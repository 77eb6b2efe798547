"""Many canaries in one run, each in the data or not by a fair coin of its own."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy  # its parts load when they are used

from .._internal import _checks
from .._internal._calls import explained
from .._internal._hull import hull_below
from ._asked import dp_pairs, has_profile, least_beta, of_both_orders
from ._counts import scores_of
from ._evidence import AbstractEvidence
from ._limits import ROUNDING, at_least, last_true

_MOST = 2**31
_AT_A_TIME = 1 << 22
# Rates of either half at which a guarantee without a profile is asked.
_NODES = 4096
_Floor = Callable[[np.ndarray], np.ndarray]


@explained
@dataclasses.dataclass(frozen=True)
class OneRun(AbstractEvidence):
    """Guesses about the canaries of one run, some of which the attack leaves open.

    Every canary must have been put into the data by a fair coin of its own, and the
    attack must make this number of guesses whatever comes out.  Nothing is assumed of
    how canaries influence each other.

    A guarantee bounds the number of right guesses: for (epsilon, delta)-DP by Steinke,
    Nasr and Jagielski, for any trade-off function by Mahloujifar, Melis and Chaudhuri.
    The p-value is the smaller of both bounds of that one tail.

    Attributes:
        correct: Right guesses.
        guesses: All guesses, "in" and "out".
        canaries: All canaries, those without a guess included.

    Raises:
        ValueError: Unless 0 <= correct <= guesses <= canaries and guesses >= 1.

    Example:
        >>> import fdp_jax as fdp
        >>> run = fdp.audit.OneRun(correct=75, guesses=100, canaries=1000)
        >>> print(f"{fdp.audit.epsilon_lower_bound(run, delta=1e-4):.4f}")
        0.6802

    References:
        Steinke, Nasr, Jagielski (2023), arXiv:2305.08846, Corollary 5.4, Appendix D;
        Mahloujifar, Melis, Chaudhuri (2024), arXiv:2410.22235, the recursion with a cap
        of the guesses.
    """

    correct: int
    guesses: int
    canaries: int

    def __post_init__(self) -> None:
        ends = {
            "canaries": (1, _MOST),
            "guesses": (1, self.canaries),
            "correct": (0, self.guesses),
        }
        for name, (least, most) in ends.items():
            value = _checks.whole(name, getattr(self, name), least, most)
            object.__setattr__(self, name, value)

    @classmethod
    @explained
    def from_scores(
        cls,
        in_scores: Any,
        out_scores: Any,
        *,
        positive_guesses: int,
        negative_guesses: int,
    ) -> "OneRun":
        """Guess "in" for the largest scores and "out" for the smallest ones.

        Args:
            in_scores: Scores of the canaries that the coins put into the data, a vector
                without NaN; larger ones speak for membership.
            out_scores: Scores of all others, likewise.
            positive_guesses: How many guesses "in", fixed before the scores were seen.
            negative_guesses: How many guesses "out", likewise; both together at least 1
                and at most the number of canaries.

        Returns:
            `OneRun`; of equal scores at the edge of a group those are guessed that make
            fewer guesses right.

        Raises:
            ValueError: If an argument is out of range.
        """
        inside = scores_of("in_scores", in_scores)
        outside = scores_of("out_scores", out_scores)
        total = inside.size + outside.size
        top = _checks.whole("positive_guesses", positive_guesses, 0, total)
        rest = _checks.whole("negative_guesses", negative_guesses, 0, total - top)
        right = _right_at_top(inside, outside, top)
        right += _right_at_top(-outside, -inside, rest)
        return cls(right, top + rest, total)

    def p_value(self, guarantee: Any) -> float:
        """A bound of the probability of as many right guesses under the guarantee."""
        guarantee = of_both_orders(guarantee)
        if not has_profile(guarantee):
            return self._by_recursion(_tradeoff_floor(guarantee))
        epsilon, delta = dp_pairs(guarantee)
        by_pairs = float(np.min(self._by_pairs(epsilon, delta)))
        return min(by_pairs, self._by_recursion(_pairs_floor(epsilon, delta)))

    def epsilon(self, delta: float, confidence: float) -> float:
        """The largest epsilon whose hypothesis is rejected.

        Every (epsilon', delta) with epsilon' above the truth is true as well, and all
        these hypotheses bound one and the same number: whichever is rejected, the truth
        is not below it with this confidence.
        """
        level = 1.0 - confidence

        def rejected(epsilon: float) -> bool:
            pair = np.array([epsilon]), np.array([delta])
            if self._by_pairs(*pair)[0] <= level:
                return True
            if delta == 0.0:
                return False  # The tail above is the largest there is.
            # The function of one pair has two lines; the other is 1 - delta - e^eps a.
            other = np.array([-epsilon]), -np.expm1(-epsilon) + np.exp(-epsilon) * delta
            lines = (np.append(x, y) for x, y in zip(pair, other, strict=True))
            return self._cannot_be(level, _pairs_floor(*lines))

        return _largest(rejected)

    def mu(self, confidence: float) -> float:
        """The largest mu whose hypothesis is rejected."""
        level, ndtr, ndtri = 1.0 - confidence, scipy.special.ndtr, scipy.special.ndtri
        return _largest(
            lambda mu: self._cannot_be(level, lambda mass: ndtr(ndtri(mass) - mu))
        )

    def _by_pairs(self, epsilon: np.ndarray, delta: np.ndarray) -> np.ndarray:
        """P(W >= v) + 2 m delta max_i P(v > W >= v - i) / i, W ~ Bin(r, expit(eps)).

        Steinke, Nasr, Jagielski (2023), Corollary 5.4; 1 for negative epsilon.
        """
        prob = scipy.special.expit(epsilon)
        tail = at_least(self.correct, self.guesses, prob)
        most = np.zeros_like(tail)
        some = np.flatnonzero((delta > 0) & (epsilon >= 0))
        if self.correct > 0:
            # So many pairs at a time as memory takes.
            parts = -(-some.size * self.correct // _AT_A_TIME)
            for part in np.array_split(some, max(parts, 1)):
                most[part] = self._most(prob[part])
        found = (tail + 2 * self.canaries * delta * most) * (1 + ROUNDING)
        return np.where(epsilon >= 0, np.minimum(found, 1.0), 1.0)

    def _most(self, prob: np.ndarray) -> np.ndarray:
        """max_i P(v > W >= v - i) / i, W ~ Bin(r, prob)."""
        fewer = np.arange(self.correct)[::-1]
        below = scipy.stats.binom.pmf(fewer, self.guesses, prob[:, None])
        sums = np.cumsum(below, axis=1) / np.arange(1, self.correct + 1)
        return sums.max(axis=1)

    def _by_recursion(self, floor: _Floor) -> float:
        """The least tail probability that cannot be, from above."""
        low, high = -700.0, 0.0
        for _ in range(5):
            logs = np.linspace(low, high, 33)
            excluded = self._excluded(np.exp(logs), floor)
            if not excluded[-1]:
                return float(np.exp(logs[-1]))
            first = int(np.argmax(excluded))
            low, high = logs[max(first - 1, 0)], logs[first]
        return float(np.exp(high))

    def _cannot_be(self, level: float, floor: _Floor) -> bool:
        return bool(self._excluded(np.array([level]), floor)[0])

    def _excluded(self, tail: np.ndarray, floor: _Floor) -> np.ndarray:
        """Whether as many right guesses cannot have these probabilities.

        With N right guesses of g, and m canaries, let r_i = E[N; N >= i] / m and
        h_i = E[g - N; N >= i] / m: masses of right and of wrong guesses.  To flip the
        coin of one canary makes its right guess a wrong one, so that under f-DP, by
        convexity, h_i >= f(1 - r_{i+1}).  Together they are g P(N >= i) / m.  The least
        masses that obey this, from P(N >= v) down to i = 0, must not exceed g / m: with
        all of P(N >= v) at v, and no more added at each i than is demanded, r_0 and h_0
        are least, since the right guesses that come with each wrong one, i / (g - i),
        are fewer for smaller i.
        """
        v, g, m = self.correct, self.guesses, self.canaries
        # Later masses grow faster than this one: less of it makes up for all roundings.
        tail = tail * (1 - ROUNDING)
        right, wrong = tail * v / m, tail * (g - v) / m
        most = g / m * (1 + ROUNDING)
        for i in range(v - 1, -1, -1):
            more = np.maximum(floor(np.minimum(right, 1.0)) - wrong, 0.0)
            right, wrong = right + more * i / (g - i), wrong + more
            # Masses that no inequality raises stay as they are in all further ones.
            if np.all((more == 0.0) | (right + wrong > most)):
                break
        return right + wrong > most


def _right_at_top(members: np.ndarray, others: np.ndarray, count: int) -> int:
    """Members among the largest scores, those of others first among equal ones."""
    if count == 0:
        return 0
    edge = np.sort(np.concatenate([members, others]))[-count]
    above, wrong = int(np.sum(members > edge)), int(np.sum(others >= edge))
    return max(above, count - wrong)


def _pairs_floor(epsilon: np.ndarray, delta: np.ndarray) -> _Floor:
    """The least h with r <= e^eps h + delta for all pairs, as a function of r."""
    mass = np.concatenate([np.linspace(0.0, 1.0, 513), np.geomspace(1e-16, 1.0, 512)])
    lines = lambda x, e, d: np.exp(-e) * (x[:, None] - d)
    # Lines that are the largest nowhere could only be in the way.
    used = np.unique(np.argmax(lines(mass, epsilon, delta), axis=1))
    epsilon, delta = epsilon[used], delta[used]
    return lambda x: np.maximum(lines(x, epsilon, delta).max(axis=1), 0.0)


def _tradeoff_floor(guarantee: Any) -> _Floor:
    """The floor for a guarantee that answers for error rates alone.

    A convex function below it, and below its inverse: both orders of neighbors occur,
    and the masses are means.  Between two rates it is at least what it is at the larger
    one, and below all corners of these stairs lies their convex hull.
    """
    even = np.linspace(0.0, 0.5, 8 * _NODES + 1)[1:]
    small = np.unique(np.append(np.geomspace(1e-12, 0.5, _NODES), even))
    rates = np.concatenate([small, 1.0 - small[-2::-1], [1.0]])
    least = least_beta(guarantee, rates)
    least = np.where(least > 0, least, 0.0).clip(0.0, 1.0)
    stairs = np.maximum.accumulate(least[::-1])[::-1]
    corners = np.append(0.0, rates[:-1]), stairs
    alpha, beta = hull_below(
        np.concatenate([*corners, [0.0, 1.0]]),
        np.concatenate([*corners[::-1], [1.0, 0.0]]),
    )
    at = lambda x: np.minimum(np.nextafter(1.0 - x, 2.0), 1.0)
    return lambda x: np.interp(at(x), alpha, beta) * (1 - ROUNDING)


def _largest(rejected: Callable[[float], bool]) -> float:
    """A number at which the answer is yes, just below one where it is no; 0 if none."""
    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high) and high < 700.0:
        low, high = high, 2 * high
    return last_true(rejected, low, high)[0]
