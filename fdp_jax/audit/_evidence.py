"""What is asked of all evidence, whatever was counted."""

import abc
import dataclasses
from typing import Any

import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from ._asked import require_queries
from ._limits import ROUNDING, confidence_of, last_true
from ._points import TradeOffPoints

# The least p-value that is searched for by levels of confidence.
_LEAST_LEVEL = 1e-12
_ANY = "Counts, Scores or OneRun"


class AbstractEvidence(abc.ABC):
    """Observations of an attack on a mechanism."""

    @abc.abstractmethod
    def p_value(self, guarantee: Any) -> float:
        """An upper bound of the p-value of "this run has this guarantee"."""

    @abc.abstractmethod
    def epsilon(self, delta: float, confidence: float) -> float:
        """A lower confidence bound of epsilon at delta."""

    @abc.abstractmethod
    def mu(self, confidence: float) -> float:
        """A lower confidence bound of the mu of Gaussian DP."""


class PointEvidence(AbstractEvidence):
    """Evidence about error rates, which gives points above the trade-off function."""

    @abc.abstractmethod
    def points_at(self, level: float) -> TradeOffPoints:
        """Points all of which hold, but with probability `level`.

        A small level has digits that one minus it has not.
        """

    def points(self, confidence: float) -> TradeOffPoints:
        """Points that hold together with this confidence."""
        return self.points_at(1.0 - confidence)

    def epsilon(self, delta: float, confidence: float) -> float:
        return self.points(confidence).epsilon(delta=delta)

    def mu(self, confidence: float) -> float:
        return self.points(confidence).mu()


def level_of_exclusion(evidence: PointEvidence, guarantee: Any) -> float:
    """The least level at which points exclude a guarantee, rounded up; 1 if none does.

    Points move inward as the confidence falls, so that there is one such level.
    """
    level = lambda log: float(np.exp(log))
    holds = lambda log: not evidence.points_at(level(log)).exclude(guarantee)
    _, least = last_true(holds, np.log(_LEAST_LEVEL), 0.0)
    return min(level(least) * (1 + ROUNDING), 1.0)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of a test whose hypothesis is that a guarantee holds.

    Attributes:
        p_value: At most this, if the guarantee holds, is the probability of evidence
            as strong as that which was found; rounded up.
        level: Of the test.
    """

    p_value: float
    level: float

    @property
    def falsified(self) -> bool:
        """Whether the guarantee is rejected at the level."""
        return self.p_value <= self.level

    def __bool__(self) -> bool:
        return self.falsified


@explained(
    evidence=_checks.instance_of(AbstractEvidence, _ANY),
    level=_checks.number(_checks.open_share),
)
def falsifies(guarantee: Any, evidence: Any, *, level: float = 0.05) -> Verdict:
    """Test whether a run has a guarantee, whatever its trade-off function.

    The hypothesis is that no attack gets below the guarantee's certified trade-off
    function: tpr <= 1 - f(fpr).  A rejection is a defect of the mechanism, its
    implementation or its accounting (or of the attack's assumptions, see there); no
    rejection says nothing.

    Args:
        guarantee: A mechanism, curve, trade-off function, or any object that answers
            `beta(alpha=...)` from below or `tpr(fpr=...)` from above.  A curve answers
            faster than a mechanism.  One direction of it (`remove`: tested against data
            without the canary) is a sharper hypothesis than both.
        evidence: `Counts`, `Scores` or `OneRun`.
        level: In (0, 1).

    Returns:
        `Verdict(p_value, level)`, which is true if the guarantee is falsified.

    Guarantee:
        If the guarantee holds, the verdict is "falsified" with probability at most
        `level`, for every sample size.

    Raises:
        TypeError: If the guarantee answers neither query, or evidence is none of these.
        ValueError: If the level is out of range, or `OneRun` is asked about one
            direction.

    Example:
        >>> import fdp_jax as fdp
        >>> counts = fdp.audit.Counts(
        ...     true_positives=90,
        ...     false_negatives=10,
        ...     false_positives=20,
        ...     true_negatives=80,
        ... )
        >>> verdict = fdp.audit.falsifies(fdp.tradeoff.Gaussian(1.0), counts)
        >>> print(verdict.falsified, f"{verdict.p_value:.1g}")
        True 1e-07
    """
    require_queries(guarantee)
    return Verdict(min(float(evidence.p_value(guarantee)), 1.0), level)


@explained(
    evidence=_checks.instance_of(AbstractEvidence, _ANY),
    delta=_checks.number(_checks.probability),
)
def epsilon_lower_bound(
    evidence: Any, *, delta: Any, confidence: float = 0.95
) -> float:
    """A lower confidence bound of the epsilon of a mechanism that was attacked.

    Of `Counts` and `Scores` both directions are used: guesses "in" and guesses "out"
    may be the telling ones.  The two error rates share the level equally, and one pair
    of limits serves both directions.

    Args:
        evidence: `Counts`, `Scores` or `OneRun`.
        delta: In [0, 1].
        confidence: In (0, 1).

    Returns:
        Epsilon in nats, at least 0.

    Guarantee:
        With this confidence the mechanism is (epsilon', delta)-DP for no epsilon' below
        the bound.

    Raises:
        TypeError: If evidence is none of these.
        ValueError: If an argument is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> counts = fdp.audit.Counts(
        ...     true_positives=90,
        ...     false_negatives=10,
        ...     false_positives=20,
        ...     true_negatives=80,
        ... )
        >>> print(f"{fdp.audit.epsilon_lower_bound(counts, delta=1e-5):.4f}")
        1.3909
    """
    return evidence.epsilon(delta, confidence_of(confidence))


@explained(evidence=_checks.instance_of(AbstractEvidence, _ANY))
def mu_lower_bound(evidence: Any, *, confidence: float = 0.95) -> float:
    """A lower confidence bound of the mu at which a mechanism can be mu-Gaussian DP.

    Args:
        evidence: `Counts`, `Scores` or `OneRun`.
        confidence: In (0, 1).

    Returns:
        mu, at least 0; `fdp.tradeoff.Gaussian(mu)` answers for other quantities, if it
        is known that the mechanism is Gaussian.

    Guarantee:
        With this confidence the mechanism is mu'-Gaussian DP for no mu' below the
        bound.

    Raises:
        TypeError: If evidence is none of these.
        ValueError: If the confidence is out of range.
    """
    return evidence.mu(confidence_of(confidence))


@explained(evidence=_checks.instance_of(PointEvidence, "Counts or Scores"))
def tradeoff_points(evidence: Any, *, confidence: float = 0.95) -> TradeOffPoints:
    """Points that the true trade-off function lies below, all at once.

    Args:
        evidence: `Counts` or `Scores`.
        confidence: In (0, 1).

    Returns:
        `TradeOffPoints(alpha, beta, confidence)`: one point of `Counts`, one for every
        threshold of `Scores`.

    Guarantee:
        With this confidence f(alpha) <= beta at all points.

    Raises:
        TypeError: If evidence is none of these.
        ValueError: If the confidence is out of range.
    """
    return evidence.points(confidence_of(confidence))
