"""What compiled programs are asked about: a composed loss in a direction.

The signs of directions are arguments of programs, so that "remove" and "add" share
them.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import engines
from .._internal._precision import in_float64
from ..losses import ComposedLoss
from ._bounds import Bounds
from ._guarantee import AbstractGuarantee
from ._queries import ProfilePoint, at_infinity, epsilon_bounds, signs_of
from ._tradeoff import searched_rates
from .logs import Rates, point_beside, symmetric_ends
from .pointwise import AbstractPointwise


class Directed(AbstractPointwise):
    """The worst of some directions of a composed loss, point by point."""

    loss: ComposedLoss
    signs: Float[Array, " s"]

    @classmethod
    def of(cls, loss: ComposedLoss, direction: str) -> "Directed":
        """The guarantee in a direction, or in both."""
        return cls(loss, signs_of(loss, direction))

    @property
    def _method(self) -> str:
        return engines.route(self.loss)

    def _point(self, epsilon):
        negative, distance = epsilon < 0, jnp.abs(epsilon)
        # What the plan and the profile both need of it is calculated once.
        _, safe = engines.neutral(self.loss)
        seen = jnp.where(negative, -self.signs, self.signs)
        local = engines.plan(safe, seen, distance)
        found, _ = engines.profile(safe, local, distance[None])
        log_delta, log_rest = jax.tree.map(
            lambda x: x[0], (found.log_delta, found.log_rest)
        )
        return point_beside(epsilon, negative, log_delta, log_rest)

    def _rates(self, log_alpha, log_tnr):
        _, safe = engines.neutral(self.loss)
        logs = log_alpha, log_tnr
        found = engines.exact_rates(safe, self.signs, *logs)
        return (
            searched_rates(safe, self.signs, *logs) if found is None else Rates(*found)
        )

    def _ends(self):
        return symmetric_ends(*at_infinity(self.loss, self.signs))

    def _solve(self, delta: Any) -> Bounds:
        return epsilon_bounds(self.loss, delta, signs=self.signs)


@in_float64(cast_out=False)
def profiles(loss: ComposedLoss, signs: Array, epsilon: Array) -> ProfilePoint:
    """The profiles of some directions, each at a threshold of its own."""
    one = lambda sign, e: Directed(loss, sign[None])._profile(e)
    return jax.vmap(one)(signs, epsilon)


class Subject(AbstractGuarantee):
    """The guarantee of a composed loss, by the engine that its method names.

    Mechanisms are resolved into subjects before anything is compiled.  The leaves are
    float64 in any program.
    """

    composed: ComposedLoss
    direction: str = eqx.field(static=True, default="both")

    def loss(self) -> ComposedLoss:
        """The privacy loss, direction "remove"."""
        return self.composed

    def _directed(self) -> Directed:
        return Directed.of(self.composed, self.direction)

    def _solve(self, delta: Any) -> Bounds:
        return self._directed()._solve(delta)

    def _profile(self, epsilon: Any) -> ProfilePoint:
        return self._directed()._profile(epsilon)

    def _error_rate_bounds(self, alpha: Any) -> tuple[Bounds, Bounds]:
        return self._directed()._error_rate_bounds(alpha)
