"""What audits ask of a guarantee: certified answers, in batches of one shape."""

from typing import Any

import numpy as np

from .. import mechanisms
from .._internal import _checks
from .._internal._record import refuse
from ..curves import GridCurve
from ..mechanisms import AbstractMechanism, View
from ..tradeoff import AbstractTradeOff

_BATCH = 256
"""The most points at once; queries share their programs between fewer."""
# Asked instead of smaller rates, at which curves know nothing: f does not increase.
_LEAST_RATE = 1e-12
_MOST_EPSILON = 500.0
_Lines = tuple[np.ndarray, np.ndarray]


def require_queries(guarantee: Any) -> None:
    """Refuse what is no guarantee."""
    if not (hasattr(guarantee, "beta") or hasattr(guarantee, "tpr")):
        wanted = "a mechanism, or another answer to beta(alpha=...) or tpr(fpr=...)"
        refuse("guarantee", guarantee, wanted, mechanisms, mechanisms.DPSGD)


def largest_power(guarantee: Any, fpr: np.ndarray) -> np.ndarray:
    """Upper bounds of the true positive rate, 1 - f(fpr), at a vector of rates."""
    fpr = np.maximum(fpr, _LEAST_RATE)
    if hasattr(guarantee, "tpr"):
        return _in_batches(lambda x: guarantee.tpr(fpr=x), fpr)
    return 1.0 - _in_batches(lambda x: guarantee.beta(alpha=x), fpr)


def least_beta(guarantee: Any, alpha: np.ndarray) -> np.ndarray:
    """Lower bounds of f at a vector of false positive rates."""
    alpha = np.maximum(alpha, _LEAST_RATE)
    if hasattr(guarantee, "beta"):
        return _in_batches(lambda x: guarantee.beta(alpha=x), alpha)
    return 1.0 - _in_batches(lambda x: guarantee.tpr(fpr=x), alpha)


def _in_batches(ask: Any, values: np.ndarray) -> np.ndarray:
    parts = np.split(values, range(_BATCH, values.size, _BATCH))
    return np.concatenate([np.asarray(ask(part), np.float64) for part in parts])


def has_profile(guarantee: Any) -> bool:
    """Whether it answers for epsilon and delta, as all of this package do."""
    return all(callable(getattr(guarantee, x, None)) for x in ("epsilon", "delta"))


def of_both_orders(guarantee: Any) -> Any:
    """The guarantee whichever of two neighbors has the record.

    Raises:
        ValueError: If it is known for one direction alone.
    """
    if isinstance(guarantee, AbstractTradeOff):
        return guarantee.symmetrized()
    one = isinstance(guarantee, View) and guarantee.direction != "both"
    _checks.require(
        not one and not (isinstance(guarantee, GridCurve) and not guarantee.symmetric),
        "guarantee must hold in both directions where canaries are added and "
        "removed in one run (a mechanism or its curve)",
        f"one direction of {type(guarantee).__name__}",
    )
    return guarantee


def dp_pairs(guarantee: Any) -> _Lines:
    """Pairs (epsilon, delta) that a guarantee implies, dense enough to replace it.

    Returns:
        Two vectors; the epsilons are finite, negative ones included.
    """
    pure = np.inf
    if isinstance(guarantee, AbstractMechanism) and guarantee.exact() is None:
        pure = np.asarray(guarantee.epsilon(delta=0.0), np.float64)
        # Twenty times as quick as so many questions, and 4e-4 apart.
        guarantee = guarantee.curve()
    deltas = np.concatenate([[0.0], np.geomspace(1e-15, 0.999, 2 * _BATCH - 1)])
    steep = _in_batches(lambda x: guarantee.epsilon(delta=x), deltas)
    steep[:1] = np.minimum(steep[:1], pure)
    finite = np.abs(steep) < _MOST_EPSILON
    reach = np.abs(steep[finite]).max(initial=1.0)
    even = np.linspace(-reach, reach, 4 * _BATCH)
    flat = _in_batches(lambda x: guarantee.delta(epsilon=x), even)
    return (
        np.concatenate([steep[finite], even]),
        np.concatenate([deltas[finite], flat]),
    )
