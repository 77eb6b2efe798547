"""The guarantee for data sets at a distance: group curves, also of real size."""

from typing import Any

import numpy as np

from .. import tradeoff
from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import known
from ..curves import AbstractGuarantee
from ..mechanisms import (
    AbstractMechanism,
    is_zero,
    product,
    require_guarantee,
)
from ..tradeoff import AbstractLocation, AbstractTradeOff
from ..tradeoff.closed import closed_form

_MOST = 64


@explained(distance=_checks.one(_checks.nonnegative_or_inf), f=require_guarantee)
def group_guarantee(f: AbstractGuarantee, distance: Any) -> AbstractGuarantee:
    """f^(k), what f promises for data sets k steps apart.

    For pure epsilon-DP that is the curve of Tulap noise moved by k: piecewise linear
    with k kinks, and above f_{k eps, 0} wherever k > 1.  The latter, which holds for
    all pairs at distance k too, stands in for it where k is real, traced or above 64.

    Args:
        f: A guarantee for every ordered pair of neighbors: a mechanism, or a
            symmetric trade-off function.
        distance: k >= 0.  Any real number for pure epsilon-DP, `Gaussian` and
            `Laplace`; otherwise a whole number up to 64, known; inf stands for data
            sets that no path of neighbors joins.

    Returns:
        A guarantee.

    Raises:
        ValueError: If the distance is out of range or not whole where it must be.
        TypeError: If f is not a guarantee.

    References:
        Dong, Roth, Su (2022), Theorem 2.14.
    """
    number = known(distance)
    if number is not None and np.isinf(number):
        return tradeoff.BlatantNonPrivacy()
    if number is not None and number == 0:
        return tradeoff.Identity()
    scaled, one = _scaled(f, distance), closed_form(f)
    size = _size(number)
    if isinstance(scaled, tradeoff.ApproxDP) and size and one is not None:
        return _group(one, size)
    if scaled is not None:
        return scaled
    if not size:
        raise ValueError(
            f"distance must be a known whole number in [0, {_MOST}] for "
            f"{type(f).__name__}, got {distance if number else 'a traced one'}"
        )
    if isinstance(f, AbstractMechanism):
        return f.group(size)
    return _group(
        f if isinstance(f, AbstractTradeOff) else tradeoff.TradeOff.of(f), size
    )


def _size(number: np.ndarray | None) -> int | None:
    """A distance, if it is known to be one that groups can have."""
    if number is None or number != round(float(number)) or number > _MOST:
        return None
    return int(number)


def _group(f: AbstractTradeOff, size: int) -> AbstractTradeOff:
    return f if size == 1 else tradeoff.Group(f, size)


def _scaled(f: AbstractGuarantee, distance: Any) -> AbstractTradeOff | None:
    """Guarantees for any real distance: the same family with a larger parameter.

    It is f^(k) for shifts; for pure DP, where k > 1, a weaker one.
    """
    found = closed_form(f)
    if isinstance(found, AbstractLocation):
        return found.moved(distance)
    if isinstance(found, tradeoff.ApproxDP) and is_zero(found.delta0):
        epsilon = product(found.epsilon0, distance)
        return tradeoff.ApproxDP(epsilon=epsilon, delta=0.0)
    return None


def pure_epsilon(f: AbstractGuarantee) -> Any:
    """The epsilon of a guarantee that is known to be pure epsilon-DP, else None."""
    one = _scaled(f, 1.0)
    return one.epsilon0 if isinstance(one, tradeoff.ApproxDP) else None
