"""Exact confidence limits of a proportion that is counted without noise."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy  # its parts load when they are used

from .._internal import _checks
from .._internal._calls import explained

ALTERNATIVES = ("two-sided", "greater", "less")
# Limits and p-values of SciPy are right to 1e-12 or so; they are moved outward by this.
ROUNDING = 1e-9


@explained(alternative=_checks.one_of(ALTERNATIVES))
def clopper_pearson(
    count: Any,
    num_trials: Any,
    *,
    confidence: float = 0.95,
    alternative: str = "two-sided",
) -> tuple[np.ndarray, np.ndarray]:
    """Confidence limits of a success probability, from a number of successes.

    They invert the two binomial tails, so that coverage is at least nominal whatever
    the probability; both are moved outward by the rounding errors of the quantiles.

    Args:
        count: Successes, whole numbers from 0 to `num_trials`; an array.
        num_trials: At least 1; an array that broadcasts with `count`.
        confidence: In (0, 1).  A two-sided interval gives either end half of the rest.
        alternative: "two-sided"; "greater" for a lower limit (and 1); "less" for an
            upper one (and 0).

    Returns:
        Lower and upper limits, NumPy arrays.

    Guarantee:
        With this confidence, for each entry by itself, the probability is between them.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> low, high = fdp.audit.clopper_pearson(7, 20)
        >>> print(f"{low:.4f} {high:.4f}")
        0.1539 0.5922

    References:
        Clopper and Pearson (1934).
    """
    num_trials = np.asarray(_checks.positive_count("num_trials", num_trials))
    count = np.asarray(_checks.checked("count", count, *_COUNT))
    if np.any(count > num_trials):
        worst = np.broadcast_arrays(count, num_trials)
        first = int(np.argmax(worst[0] > worst[1]))
        raise ValueError(
            f"count must be at most num_trials, got {worst[0].flat[first]:g} of "
            f"{worst[1].flat[first]:g}"
        )
    rest = 1.0 - confidence_of(confidence)
    tail = rest / 2 if alternative == "two-sided" else rest
    low, high = (
        lower_limit(count, num_trials, tail),
        upper_limit(count, num_trials, tail),
    )
    return (
        np.zeros_like(low) if alternative == "less" else low,
        np.ones_like(high) if alternative == "greater" else high,
    )


_COUNT = "a whole number, at least 0", lambda x: (x >= 0) & (x == x.round())


def confidence_of(confidence: Any) -> float:
    """One number in (0, 1)."""
    found = _checks.checked_scalar("confidence", _checks.open_share, confidence)
    return float(found)


def upper_limit(count: Any, num_trials: Any, tail: Any) -> np.ndarray:
    """The p at which at most `count` successes have probability `tail`."""
    count, num_trials = np.asarray(count, float), np.asarray(num_trials, float)
    rest = num_trials - count
    found = scipy.special.betainccinv(count + 1, np.maximum(rest, 1), tail)
    return np.where(rest > 0, np.minimum(found * (1 + ROUNDING), 1.0), 1.0)


def lower_limit(count: Any, num_trials: Any, tail: Any) -> np.ndarray:
    """The p at which at least `count` successes have probability `tail`."""
    count, num_trials = np.asarray(count, float), np.asarray(num_trials, float)
    found = scipy.special.betaincinv(np.maximum(count, 1), num_trials - count + 1, tail)
    return np.where(count > 0, found * (1 - ROUNDING), 0.0)


def at_least(count: Any, num_trials: Any, prob: Any) -> np.ndarray:
    """P(Bin(num_trials, prob) >= count), for counts from 0 to num_trials + 1."""
    count = np.asarray(count, float)
    inside = np.clip(count, 1, num_trials)
    found = scipy.special.betainc(inside, num_trials - inside + 1, prob)
    return np.where(count < 1, 1.0, np.where(count > num_trials, 0.0, found))


def last_true(
    holds: Callable[[float], bool], low: float, high: float
) -> tuple[float, float]:
    """Two points around the place from which on something does not hold any more."""
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high
