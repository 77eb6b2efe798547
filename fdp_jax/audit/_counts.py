"""Right and wrong guesses about members and non-members."""

import dataclasses
from typing import Any

import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from ._evidence import PointEvidence
from ._exact import binomial_pair_p_value
from ._limits import upper_limit
from ._points import TradeOffPoints

_MOST = 2**31


@explained
@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts(PointEvidence):
    """Outcomes of an attack whose rule was fixed before these observations.

    Positive is the guess that the canary was in the data.  Observations must be
    independent: one canary each in runs of their own, say.  For many canaries in one
    run that is not so; see `OneRun`.

    They go by name alone: scikit-learn's `confusion_matrix(...).ravel()`, for one, has
    another order (tn, fp, fn, tp).

    Attributes:
        true_positives: Canaries in the data that the attack took for such.
        false_negatives: Canaries in the data that it did not.
        false_positives: Canaries left out that it took for members.
        true_negatives: Canaries left out that it did not.

    Raises:
        ValueError: If one is no whole number, at least 0, or no canary was in or none
            was out.
        TypeError: If they are not given by name.

    Example:
        >>> import fdp_jax as fdp
        >>> counts = fdp.audit.Counts(
        ...     true_positives=90,
        ...     false_negatives=10,
        ...     false_positives=20,
        ...     true_negatives=80,
        ... )
        >>> counts.tpr, counts.fpr
        (0.9, 0.2)
    """

    true_positives: int
    false_negatives: int
    false_positives: int
    true_negatives: int

    def __new__(cls, *args: Any, **options: Any) -> "Counts":
        _checks.require(
            not args,
            "Counts takes true_positives, false_negatives, false_positives and "
            "true_negatives by name",
            f"{len(args)} without (scikit-learn's confusion_matrix(...).ravel() is "
            "tn, fp, fn, tp)",
            TypeError,
        )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = _checks.whole(field.name, getattr(self, field.name), 0, _MOST)
            object.__setattr__(self, field.name, value)
        _checks.require(
            self.num_in != 0 and self.num_out != 0,
            "true_positives + false_negatives and false_positives + "
            "true_negatives must be at least 1",
            f"{self.num_in} and {self.num_out}",
        )

    @classmethod
    @explained(threshold=_checks.one(_checks.real))
    def from_scores(
        cls, in_scores: Any, out_scores: Any, *, threshold: Any
    ) -> "Counts":
        """Count scores on either side of a threshold.

        Args:
            in_scores: Scores of canaries in the data, a vector without NaN; larger ones
                speak for membership.
            out_scores: Scores of canaries that were left out, likewise.
            threshold: Scores at or above it are guesses "in".  It must not come from
                these scores; `Scores` chooses one without breaking the level.

        Returns:
            `Counts`.

        Raises:
            ValueError: If scores are no vector of numbers or the threshold is NaN.
        """
        inside = scores_of("in_scores", in_scores) >= float(threshold)
        outside = scores_of("out_scores", out_scores) >= float(threshold)
        hits, alarms = int(inside.sum()), int(outside.sum())
        return cls(
            true_positives=hits,
            false_negatives=inside.size - hits,
            false_positives=alarms,
            true_negatives=outside.size - alarms,
        )

    @property
    def num_in(self) -> int:
        """Canaries in the data."""
        return self.true_positives + self.false_negatives

    @property
    def num_out(self) -> int:
        """Canaries left out."""
        return self.false_positives + self.true_negatives

    @property
    def tpr(self) -> float:
        """The observed true positive rate; an estimate."""
        return self.true_positives / self.num_in

    @property
    def fpr(self) -> float:
        """The observed false positive rate; an estimate."""
        return self.false_positives / self.num_out

    def points_at(self, level: float) -> TradeOffPoints:
        """The upper limits of both error rates; each has half of the level."""
        tail = 0.5 * level
        alpha = upper_limit(self.false_positives, self.num_out, tail)
        beta = upper_limit(self.false_negatives, self.num_in, tail)
        return TradeOffPoints(np.atleast_1d(alpha), np.atleast_1d(beta), 1.0 - level)

    def p_value(self, guarantee: Any) -> float:
        """The exact p-value, with the unknown false positive rate at its worst."""
        return binomial_pair_p_value(self, guarantee)


def scores_of(name: str, value: Any) -> np.ndarray:
    """A nonempty NumPy vector of numbers; infinite ones are allowed."""
    return np.asarray(_checks.vector(name, _checks.real, value), np.float64)
