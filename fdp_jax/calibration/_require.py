"""What `calibrate` takes for a target, and what is often given in its place."""

from typing import Any

from .._internal._record import refuse
from ..tradeoff import AbstractTradeOff
from ._targets import AbstractTarget


def require_target(value: Any) -> AbstractTarget:
    """The argument, if it is a target.

    Raises:
        TypeError: If it is not, with what was probably meant.
    """
    if isinstance(value, AbstractTarget):
        return value
    from . import targets

    is_tradeoff = isinstance(value, AbstractTradeOff)
    usual = targets.TradeOff if is_tradeoff else targets.ApproxDP
    refuse("target", value, "a target of fdp_jax.targets", targets, usual)
