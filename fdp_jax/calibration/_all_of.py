"""Several targets at once."""

from typing import Any

import jax
import jax.numpy as jnp

from .._internal import _checks
from ..curves import AbstractGuarantee
from ..engines import Interval
from ..losses import ComposedLoss
from ._require import require_target
from ._targets import AbstractTarget, Margin


class AllOf(AbstractTarget):
    """Several targets at once.

    `binding["active"]` of a calibration is the index of the one that decides.  The
    solution has a kink where another one takes over; its derivative there is that of
    the active one, a subgradient.

    Args:
        *targets: At least one.

    Raises:
        ValueError: If there is none.
        TypeError: If one is not a target.
    """

    targets: tuple[AbstractTarget, ...]
    binds = ("active",)

    def __init__(self, *targets: AbstractTarget):
        _checks.require(targets, "AllOf needs at least one target", "none")
        self.targets = tuple(map(require_target, targets))

    @property
    def of_profile(self):
        return all(target.of_profile for target in self.targets)

    def margin(self, loss: ComposedLoss | AbstractGuarantee) -> Margin:
        each = [target.margin(loss).excess for target in self.targets]
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *each)
        # What cannot be evaluated counts as worst.
        value = jnp.where(jnp.isnan(stacked.estimate), jnp.inf, stacked.estimate)
        active = jnp.argmax(value)
        excess = Interval(
            jnp.max(stacked.lower), stacked.estimate[active], jnp.max(stacked.upper)
        )
        return Margin(excess, (active,))

    def proxy(self):
        epsilons, logs = zip(*(t.proxy() for t in self.targets), strict=True)
        return jnp.concatenate(epsilons), jnp.concatenate(logs)

    def reachable(self):
        inside, allowed = zip(*(t.reachable() for t in self.targets), strict=True)
        return jnp.stack([jnp.asarray(x) for x in inside]).all(), "; ".join(allowed)

    def describe(self) -> str:
        return " and ".join(target.describe() for target in self.targets)

    def require_relation(self, relation: Any) -> None:
        for target in self.targets:
            target.require_relation(relation)
