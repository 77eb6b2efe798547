"""Robustness against reconstruction of a record, from the trade-off function."""

from typing import Any

from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from ..curves import (
    AbstractGuarantee,
    Bound,
)
from .sources import request


@explained(bound=_checks.member_of(Bound), kappa=_checks.probability)
def reconstruction_bound(
    mechanism: Any, *, kappa: Any, bound: Bound | str = Bound.PESSIMISTIC
) -> Float[Array, "..."]:
    """Largest probability with which an attack reconstructs a record.

    gamma = sup{Q(E) : P(E) <= kappa} = 1 - f(kappa): the power at level kappa of the
    best test of "with the record" (Q) against "without it" (P), direction "remove",
    of all steps together.  Hayes et al. sample it; here it is computed.

    Args:
        mechanism: A mechanism or curve, of which the direction "remove" counts, or one
            direction of it.
        kappa: In [0, 1], the largest probability of success of an attack that sees
            nothing: 1 / k for one of k equally likely records.
        bound: Which end of the certified interval.

    Returns:
        gamma, in [kappa, 1]; at kappa = 0 the probability of an output that is
        impossible without the record.

    Guarantee:
        Upper bound by default.

    Differentiable in:
        kappa and all parameters.

    Raises:
        ValueError: If kappa is outside [0, 1].
        TypeError: If `mechanism` is not a guarantee.

    Example:
        >>> import fdp_jax as fdp
        >>> bound = fdp.comparison.reconstruction_bound
        >>> print(f"{bound(fdp.Gaussian(1.0), kappa=0.1):.6f}")
        0.389144

    References:
        Hayes, Mahloujifar, Balle (2023), the bound by the blow-up function; Kaissis et
        al. (2024), Figure 7.
    """
    request("mechanism", mechanism)
    side = getattr(mechanism, "remove", mechanism)
    assert isinstance(side, AbstractGuarantee)
    return side.tpr(fpr=kappa, bound=bound)
