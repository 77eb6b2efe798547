"""A trade-off function by its vertices."""

from typing import Any

from jaxtyping import Array, Float

from .._internal._picture import Lines
from .._internal._precision import in_float64
from ..mechanisms import (
    as_float,
)
from . import _construct
from ._base import AbstractPolygon, AbstractTradeOff
from ._views import TradeOff
from .knots import Knots


class PiecewiseLinear(AbstractPolygon):
    """A trade-off function by its vertices, which are differentiable leaves.

    Args:
        alpha: Increasing, from 0 to 1, known in length.
        beta: f there: decreasing to 0 and convex, at most 1 - alpha.

    Raises:
        ValueError: If this is no trade-off function; it says why.

    Example:
        >>> import fdp_jax as fdp
        >>> f = fdp.tradeoff.PiecewiseLinear([0.0, 0.2, 1.0], [1.0, 0.5, 0.0])
        >>> print(f"{f.beta(alpha=0.1):.4f} {f.delta(epsilon=0.0):.4f}")
        0.7500 0.3000
    """

    alpha_grid: Float[Array, " k"]
    beta_grid: Float[Array, " k"]

    def __init__(self, alpha: Any, beta: Any):
        self.alpha_grid, self.beta_grid = _construct.checked_vertices(alpha, beta)

    def _drawn(self) -> Lines:
        return ((self.alpha_grid, self.beta_grid),)

    def _knots(self) -> Knots:
        alpha, beta = as_float(self.alpha_grid[::-1]), as_float(self.beta_grid[::-1])
        return _construct.knots_of_vertices(alpha, 1 - alpha, beta, 1 - beta)

    def inverse(self) -> AbstractTradeOff:
        """f^-1 as a `TradeOff`."""
        return self.to_tradeoff().inverse()

    def to_tradeoff(self, epsilons: Any = None) -> TradeOff:
        """This function as a view, without loss.

        Args:
            epsilons: Not needed here: the slopes are the grid.

        Returns:
            An exact `TradeOff`.
        """
        return TradeOff.of(TradeOff(_knots_of(self)), epsilons=epsilons)

    def as_mechanism(self):
        """The remove direction of a mechanism with these vertices."""
        return self.to_tradeoff().as_mechanism()


@in_float64(cast_out=False)
def _knots_of(tradeoff: PiecewiseLinear) -> Knots:
    return tradeoff._knots()
