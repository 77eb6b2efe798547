r"""The two ends of the order: perfect privacy and blatant non-privacy.

Perfect privacy (PP) has f = 1 - alpha and R = min(pi, 1 - pi); blatant non-privacy
(BNP) has f = 0 and R = 0.  Every M lies between them, and

    Delta(PP || M) = TV / 2 = advantage / 2 = delta(0) / 2,
    Delta(M || BNP) = max over pi of R(pi),

whose sum is 1/2 for a symmetric f and at least 1/2 for any f (Kaissis et al. 2024,
Lemmas 2 to 5, which assume symmetry for the second line's alpha* and for the sum).
"""

from typing import Any

from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from ..curves import (
    Bound,
)
from ..mechanisms import BlatantNonPrivacy
from .delta import delta_divergence
from .sources import request


@explained(bound=_checks.member_of(Bound))
def distance_from_perfect_privacy(
    guarantee: Any, *, bound: Bound | str = Bound.PESSIMISTIC
) -> Float[Array, ""]:
    """Delta(PP || M): what an attacker gains over guessing; half the advantage.

    Args:
        guarantee: A mechanism, one direction of it, a curve, or any other guarantee.
        bound: Which end of the certified interval.

    Returns:
        delta(0) / 2, in [0, 1/2].

    Guarantee:
        Upper bound by default.

    Raises:
        TypeError: If it is not a guarantee.

    Example:
        >>> import fdp_jax as fdp
        >>> far = fdp.comparison.distance_from_perfect_privacy
        >>> print(f"{far(fdp.Gaussian(1.0)):.9f}")
        0.191462461

    References:
        Kaissis et al. (2024), Lemma 3.
    """
    request("guarantee", guarantee)
    return 0.5 * guarantee.advantage(bound=bound)


@explained(bound=_checks.member_of(Bound))
def minimax_error(
    guarantee: Any, *, bound: Bound | str = Bound.PESSIMISTIC
) -> Float[Array, ""]:
    """Delta(M || BNP): the attacker's error at the prior that is worst for him.

    For a symmetric guarantee the prior is 1/2 and the value its fixed point
    alpha* = f(alpha*); otherwise it is larger than (1 - advantage) / 2.

    Args:
        guarantee: A mechanism, one direction of it, a curve, or any other guarantee.
        bound: Which end of the certified interval.

    Returns:
        max over pi of R(pi), in [0, 1/2].

    Guarantee:
        Lower bound by default (the private side).

    Raises:
        TypeError: If it is not a guarantee.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.comparison.minimax_error(fdp.Gaussian(1.0)):.9f}")
        0.308537539

    References:
        Kaissis et al. (2024), Lemmas 4 and 5 (symmetric f).
    """
    if request("guarantee", guarantee).symmetric:
        return guarantee.bayes_error(prior=0.5, bound=bound)
    found = delta_divergence(guarantee, BlatantNonPrivacy()).value
    return found.pick(bound, upper_is_pessimistic=False)
