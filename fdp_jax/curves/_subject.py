"""What compiled programs are asked about: a composed loss in a direction."""

from typing import Any

import equinox as eqx

from ..losses import ComposedLoss
from ._bounds import Bounds
from ._guarantee import AbstractGuarantee
from ._queries import ProfilePoint, epsilon_bounds, profile, traced_direction
from ._tradeoff import error_rate_bounds


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

    @property
    def _asked(self) -> str | float:
        """The direction in a form whose two ways share programs."""
        return traced_direction(self.direction)

    def _solve(self, delta: Any) -> Bounds:
        return epsilon_bounds(self.composed, delta, direction=self._asked)

    def _profile(self, epsilon: Any) -> ProfilePoint:
        return profile(self.composed, epsilon, direction=self._asked)

    def _error_rate_bounds(self, alpha: Any) -> tuple[Bounds, Bounds]:
        return error_rate_bounds(self.composed, alpha, direction=self._asked)
