"""What dp-accounting says, where it is installed."""

from .. import interop
from ..mechanisms import DPSGD, NeighboringRelation
from ._claims import Claim


def peer_epsilon(claim: Claim, mechanism: DPSGD) -> float | str | None:
    """Its epsilon, or why there is none; None for other questions.

    It is near a bound for usual deltas, and too small or infinite for small ones.
    """
    if not (claim.upper and claim.direction == "both" and "delta" in claim.query):
        return None
    try:
        import dp_accounting
    except ImportError:
        return "not installed"
    try:
        if mechanism.relation is NeighboringRelation.ZERO_OUT:
            return "has no zero-out relation"
        theirs = dp_accounting.NeighboringRelation[mechanism.relation.name]
        accountant = dp_accounting.pld.PLDAccountant(theirs)
        accountant.compose(interop.to_dp_event(mechanism))
        return float(accountant.get_epsilon(claim.query["delta"]))
    except (NotImplementedError, ValueError, TypeError, KeyError) as error:
        return f"no answer for this run ({' '.join(str(error).split())})"
