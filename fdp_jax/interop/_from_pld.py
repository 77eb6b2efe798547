"""Mechanisms from dp_accounting's privacy loss distributions."""

from typing import Any

import numpy as np
from jaxtyping import Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._hull import hull_below
from ..mechanisms import (
    ADD_OR_REMOVE_ONE,
    AbstractMechanism,
    FromProbabilities,
)
from ._library import relation_of

_LEAST = 1e-15
"""Of delta: what dp_accounting truncates when it composes."""
_MOST = 500.0
"""Of epsilon."""


@explained(num_points=_checks.whole_in(2, 100000))
def from_pld(
    pld: Any, *, num_points: int = 1000, relation: Any = ADD_OR_REMOVE_ONE
) -> AbstractMechanism:
    """A mechanism that a privacy loss distribution of dp_accounting bounds.

    The PLD is asked for delta at many epsilon >= 0, of its worse direction.  The lines
    beta = 1 - delta - e^epsilon alpha, and these with alpha and beta exchanged, lie
    below the trade-off functions of both directions; the mechanism's is their upper
    envelope.  So it bounds the privacy loss wherever the PLD does (as it does by
    default, with `pessimistic_estimate`): its delta is the PLD's at these epsilon, and
    in between its epsilon is larger by about 1e-4 relative.  It composes like
    any other mechanism; what that costs is that the worse direction counts everywhere.

    Args:
        pld: A `dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution`.
        num_points: How many epsilon, from 2 to 100,000: half of them equally far
            apart, the others at equal steps of log delta.
        relation: The neighboring relation of the PLD, of this package or of
            dp_accounting.

    Returns:
        A mechanism with finitely many outputs, both directions alike.

    Raises:
        TypeError: If it is no such distribution.
        ValueError: If num_points is out of range.
    """
    relation = relation_of(relation)
    for name in ("get_delta_for_epsilon", "get_epsilon_for_delta"):
        _checks.require(
            callable(getattr(pld, name, None)),
            "pld must be a PrivacyLossDistribution",
            f"{pld!r}",
            TypeError,
        )
    epsilons = _thresholds(pld, num_points)
    deltas = np.clip(pld.get_delta_for_epsilon(list(epsilons)), 0.0, 1.0)
    x, delta = hull_below(np.exp(epsilons), deltas)
    # As far as delta falls.
    falls = np.append(True, np.diff(delta) < 0)
    p, q = _pair(x[falls], delta[falls])
    return FromProbabilities(p, q, relation=relation)


def _thresholds(pld: Any, num_points: int) -> Float[np.ndarray, " k"]:
    """The thresholds of delta: sorted, at least 0, at most 500."""
    beyond = float(pld.get_delta_for_epsilon(_MOST))
    last = float(pld.get_epsilon_for_delta(max(beyond * (1 + 1e-6), _LEAST)))
    even = np.linspace(0.0, min(max(last, 0.0), _MOST), 4 * num_points)
    # Where delta falls by equal factors; to find that is slow in its own way.
    deltas = np.asarray(pld.get_delta_for_epsilon(list(even)), np.float64)
    logs = -np.log(np.maximum(np.maximum.accumulate(deltas[::-1])[::-1], _LEAST))
    levels = np.linspace(logs[0], logs[-1], num_points // 2)
    found = np.interp(levels, logs, even)
    return np.unique(np.concatenate([even[::8], even[-1:], found]))


def _pair(
    x: Float[np.ndarray, " n"], delta: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """The symmetric pair of the envelope of lines with slopes -x and -1 / x.

    Two lines meet where alpha is the slope of delta between them; a line has the
    likelihood ratio x between its ends.
    """
    meet = -np.diff(delta) / np.diff(x)
    # From the steepest line on, which begins at alpha = 0.
    p = np.maximum(meet - np.append(meet[1:], 0.0), 0.0)[::-1]
    q = p * x[:0:-1]
    lost = delta[-1]
    rest = max(1 - p.sum() - q.sum() - lost, 0.0)
    head_p, head_q = np.append(0.0, p), np.append(lost, q)
    return (
        np.concatenate([head_p, [rest], head_q[::-1]]),
        np.concatenate([head_q, [rest], head_p[::-1]]),
    )
