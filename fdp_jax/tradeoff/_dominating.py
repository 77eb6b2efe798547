"""A pair of finitely many outputs for guarantees that are no mechanisms."""

from typing import Any

from .._internal import _checks
from .._internal._calls import explained
from ..curves import Bound, GridCurve
from ..mechanisms import (
    ADD_OR_REMOVE_ONE,
    FromProbabilities,
    NeighboringRelation,
    PerfectPrivacy,
)
from ._bracket import one_side
from ._views import BayesError, PrivacyProfile, TradeOff


class DominatingPair(FromProbabilities):
    """A pair that is only known to dominate: maybe nothing is leaked."""

    def attained(self) -> PerfectPrivacy:
        return PerfectPrivacy(relation=self.relation)


@explained(relation=_checks.member_of(NeighboringRelation))
def dominating_pair(
    guarantee: Any, *, epsilons: Any = None, relation: Any = ADD_OR_REMOVE_ONE
) -> DominatingPair:
    """A mechanism that leaks at least as much as a guarantee allows, to be composed.

    Whatever satisfies the guarantee is dominated by the pair of its pessimistic curve
    (`TradeOff.of`), and so is every composition with it (Zhu, Dong, Wang 2022,
    Theorem 10), also where later releases are chosen in view of earlier ones.

    Args:
        guarantee: A curve, a guarantee by Renyi divergences, a `SelectBest`, a
            trade-off function or a mechanism; of what has two directions the remove
            one, which tells the other, too.
        epsilons: Thresholds of the grid, a vector of finite numbers, as in
            `TradeOff.of`: the finer, the tighter.  A curve's own are the default.
        relation: The neighboring relation of the guarantee.

    Returns:
        A mechanism with finitely many outputs; both of its directions hold.

    Guarantee:
        Upper bounds of what is leaked.

    Raises:
        TypeError: If the argument is no guarantee.
        ValueError: If a threshold is not finite.

    Example:
        >>> import fdp_jax as fdp
        >>> run = fdp.DPSGD(noise_multiplier=1.1, sampling_prob=0.01, num_steps=1000)
        >>> other = fdp.tradeoff.dominating_pair(fdp.ZCDP(0.02))
        >>> print(f"{fdp.compose(run, other).epsilon(delta=1e-5):.4f}")
        1.7853
    """
    one_way = getattr(guarantee, "remove", guarantee)
    if isinstance(one_way, GridCurve) and epsilons is None:
        epsilons = one_way.epsilon_grid
    if isinstance(one_way, BayesError | PrivacyProfile | TradeOff) and epsilons is None:
        pessimistic = one_way.knots
    else:
        pessimistic = one_side(one_way, Bound.PESSIMISTIC, epsilons=epsilons)
    masses: Any = TradeOff(pessimistic).as_mechanism().mechanism
    return DominatingPair(masses.without_record, masses.with_record, relation=relation)
