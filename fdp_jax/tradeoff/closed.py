"""Which guarantees are a trade-off function of a family with a name."""

from typing import Any

from ..mechanisms import AbstractMechanism, Family
from ._base import AbstractSymmetric
from ._derived import Group
from ._families import (
    AbstractLocation,
    ApproxDP,
    BlatantNonPrivacy,
    Gaussian,
    Identity,
    Laplace,
    Logistic,
)

_NAMED = AbstractLocation | ApproxDP
_FAMILIES: dict[Family, Any] = {
    Family.GAUSSIAN: Gaussian,
    Family.LAPLACE: Laplace,
    Family.LOGISTIC: Logistic,
    Family.APPROX_DP: lambda epsilon, delta: ApproxDP(epsilon=epsilon, delta=delta),
}


def closed_form(guarantee: Any) -> AbstractSymmetric | None:
    """The trade-off function in closed form, equal to that of a guarantee.

    One of `Gaussian`, `Laplace`, `Logistic` and `ApproxDP` (which perfect privacy and
    none at all are cases of); None if it is not known to be one of them.
    """
    if isinstance(guarantee, AbstractMechanism):
        exact = guarantee.exact()
        return None if exact is None else _FAMILIES[exact.family](*exact.parameters)
    if isinstance(guarantee, Group) and isinstance(
        guarantee.tradeoff, AbstractLocation
    ):
        return guarantee.tradeoff.moved(guarantee.size)
    if isinstance(guarantee, Identity | BlatantNonPrivacy):
        all_lost = isinstance(guarantee, BlatantNonPrivacy)
        return ApproxDP(epsilon=0.0, delta=float(all_lost))
    return guarantee if isinstance(guarantee, _NAMED) else None
