"""The losses behind what the divergences are asked about."""

from typing import Any

from .._internal import _checks
from ..losses import ComposedLoss
from ..mechanisms import AbstractMechanism, Resolved, Shared, View, resolve
from ..tradeoff import AbstractTradeOff


def resolved(mechanism: Any, name: str) -> Resolved:
    """The losses behind a mechanism or view, for the function of a name."""
    mechanism = mechanism_of(mechanism)
    wanted = "a mechanism, or its .remove or .add, or a trade-off function"
    kinds, argument = AbstractMechanism | View, f"the argument of {name}"
    return resolve(_checks.instance(argument, mechanism, kinds, wanted))


def mechanism_of(value: Any) -> Any:
    """A trade-off function's mechanism; anything else as it is.

    All divergences with a data processing inequality are functionals of f (Blackwell
    1953), so whichever pair has this f will do.
    """
    return value.as_mechanism() if isinstance(value, AbstractTradeOff) else value


def loss_and_direction(mechanism: Any, name: str) -> tuple[ComposedLoss, str]:
    """The privacy loss behind a mechanism or view, and the direction asked for."""
    subject = resolved(mechanism, name).whole
    return subject.composed, subject.direction


def shared_by(mechanism: Any) -> frozenset[Shared] | None:
    """The randomness that later releases share with a mechanism or view, or None."""
    mechanism = mechanism_of(mechanism)
    whole = mechanism.mechanism if isinstance(mechanism, View) else mechanism
    return whole.shares() or None
