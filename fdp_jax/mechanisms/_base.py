"""What is released: mechanisms, their neighbors and their two directions."""

import abc
import enum
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._internal._precision import float_dtype
from ..curves import AbstractGuarantee, Bounds, Curve
from ..curves._curve import make_curve
from ..curves._queries import (
    bayes_error_bounds,
    delta_bounds,
    epsilon_bounds,
    log_delta_bounds,
)
from ..curves._tradeoff import error_rate_bounds
from ..losses import ComposedLoss


class NeighboringRelation(enum.Enum):
    """Which data sets count as neighbors."""

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    """One has a record that the other lacks."""
    REPLACE_ONE = "replace_one"
    """One record differs."""
    ZERO_OUT = "zero_out"
    """One record is replaced by an empty one."""


class _Query(AbstractGuarantee):
    """Answers by the engines, for the direction of the concrete class."""

    @abc.abstractmethod
    def _subject(self) -> tuple["AbstractMechanism", str]:
        """The mechanism and the direction to ask for."""

    def _ask(self, query, value: Any) -> Any:
        mechanism, direction = self._subject()
        mechanism.require_complete()
        mechanism = mechanism.simplified()
        narrow = float_dtype() == jnp.float32
        return query(mechanism, value, direction=direction, narrow=narrow)

    def _epsilon_bounds(self, delta: Any) -> Bounds:
        return self._ask(epsilon_bounds, delta)

    def _delta_bounds(self, epsilon: Any) -> Bounds:
        return self._ask(delta_bounds, epsilon)

    def _log_delta_bounds(self, epsilon: Any) -> Bounds:
        return self._ask(log_delta_bounds, epsilon)

    def _error_rate_bounds(self, alpha: Any) -> tuple[Bounds, Bounds]:
        return self._ask(error_rate_bounds, alpha)

    def _bayes_error_bounds(self, prior: Any) -> Bounds:
        return self._ask(bayes_error_bounds, prior)


class AbstractMechanism(_Query):
    """A mechanism under a stated neighboring relation.

    Queries on the mechanism itself hold for both directions of the relation;
    `.remove` and `.add` look at one each.  Numeric parameters are leaves: they may be
    traced, differentiated and batched with `jax.vmap`.
    """

    relation: eqx.AbstractClassVar[NeighboringRelation]

    @abc.abstractmethod
    def loss(self) -> ComposedLoss:
        """The privacy loss of the dominating pair, direction "remove"."""

    def require_complete(self) -> None:
        """Raises `ValueError` if a parameter was left open, for `calibrate` to find."""
        for name, value in vars(self).items():
            if value is None:
                raise ValueError(
                    f"{name} of {type(self).__name__} is not set: give it a value, or "
                    f"find one with calibrate(..., solve_for={name!r})"
                )

    def simplified(self) -> "AbstractMechanism":
        """An equal mechanism with the simplest structure that concrete counts allow.

        A single release often has a closed form; whether there is one must be known
        before the numbers are traced.
        """
        return self

    def _subject(self):
        return self, "both"

    @property
    def remove(self) -> "Direction":
        """With the record (Q) against without (P): dp-accounting's pmf_remove."""
        return Direction(self, "remove")

    @property
    def add(self) -> "Direction":
        """Without the record against with it: the pair exchanged."""
        return Direction(self, "add")

    def repeat(self, num_steps: Any) -> "AbstractMechanism":
        """This mechanism, run `num_steps` times on the same data.

        Args:
            num_steps: Number of independent releases, at least 0.  Real numbers are
                allowed for Gaussian and Poisson-subsampled Gaussian mechanisms, where
                they interpolate the guarantee smoothly; others take whole numbers.

        Returns:
            The composition, a mechanism.

        Raises:
            ValueError: If num_steps is negative or NaN.
        """
        from ._composed import Composition

        return Composition((self,), (num_steps,))

    def curve(self, *, num_points: int = 129) -> Curve:
        """The whole guarantee on a shared grid, as certified data.

        Args:
            num_points: Thresholds eps >= 0 in each direction (static, at least 8);
                there are as many negative ones.

        Returns:
            A `Curve`, with the queries of a mechanism.

        Raises:
            ValueError: If num_points is too small or a parameter is not set.
        """
        if num_points < 8:
            raise ValueError(f"num_points must be at least 8, got {num_points}")
        self.require_complete()
        return make_curve(self.simplified(), np.linspace(0.0, 1.0, num_points))


class Direction(_Query):
    """One direction of a mechanism's guarantee, with the same queries."""

    mechanism: AbstractMechanism
    direction: str = eqx.field(static=True)

    def _subject(self):
        return self.mechanism, self.direction
