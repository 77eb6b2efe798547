"""Losses whose log-moment function is known at complex orders."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, PyTree

from ._base import AbstractLoss

FREQUENCY_BLOCK = 64
"""Frequencies evaluated together; a square, because products of two short tables of
rotations give all of them."""
_MOST = 600.0
"""Of a logarithm's error, so that no number overflows."""


class CharacteristicBlock(eqx.Module):
    """log E_w[exp(i tau (X - center))] for one block of frequencies.

    E_w is the expectation under P tilted by (dQ/dP)^w.
    """

    real: Float[Array, " block"]
    imag: Float[Array, " block"]
    error: Float[Array, " block"]
    """Bound e on the relative error of the number itself (no derivative).  Where it
    exceeds one half, that is at most 3 + 2 e times what is given in modulus."""
    turned: Bool[Array, " block"] | bool = False
    """Where the angle may be off by a fraction of a turn; the real part is known."""


class AnalyticLoss(AbstractLoss):
    """A privacy loss as an analytic function, for the contour engine as well."""

    transforms: ClassVar[Any] = True
    """Whether the methods below are to be used, by static facts."""
    stacks: ClassVar[bool] = True
    """Whether many of its kind make one `ScheduleLoss`."""
    together: ClassVar[int] = FREQUENCY_BLOCK
    """Frequencies of a table that are evaluated together, where more of them cost less
    each: the square of a multiple of 8."""
    most_blocks: ClassVar[int] = 512
    """Blocks of frequencies at most; beyond, an integral is given up."""

    @staticmethod
    def decays_soon(sampling_prob: float, num_steps: float) -> bool:
        """Whether so many steps need no splitting, whatever the noise.

        For numbers that are known before anything is compiled: the program is a third
        as large then.  A wrong answer costs tightness and no more.
        """
        return False

    def effort(self) -> Float[Array, ""] | None:
        """A number that orders losses by how long they take, where that differs."""

    @abc.abstractmethod
    def locate(self, order: Float[Array, ""]) -> PyTree:
        """Finds where the tilted loss lives, for the methods that follow.

        Args:
            order: Real part of the orders w = order + i tau to be evaluated.

        Returns:
            A PyTree of numbers without derivative.
        """

    @abc.abstractmethod
    def prepare(
        self,
        located: PyTree,
        frequency: Float[Array, ""],
        log_tolerance: Float[Array, ""],
    ) -> PyTree:
        """Chooses how to evaluate the loss at complex orders.

        Args:
            located: From `locate`.
            frequency: Largest |tau| of interest.
            log_tolerance: Logarithm of the relative error aimed at.

        Returns:
            A plan without derivative, for `log_mgf`, `center` and
            `log_characteristic`.
        """

    @abc.abstractmethod
    def log_mgf(self, plan: PyTree) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Lambda(order), differentiable, and a bound on its absolute error."""

    @abc.abstractmethod
    def log_characteristic(
        self,
        plan: PyTree,
        start: Float[Array, ""],
        step: Float[Array, ""],
        count: int = FREQUENCY_BLOCK,
    ) -> CharacteristicBlock:
        """The centred log-characteristic function at `start + k step`.

        `k = 0, ..., count - 1`, with `count` a square.  The center is `center(plan)`.
        """

    def fastest_turn(self, plan: PyTree) -> Float[Array, ""] | None:
        """Bound on the derivative of the characteristic function, centred, in tau.

        Of losses whose angles are known up to whole turns only, as principal values
        are; None for those with continuous ones.
        """

    @abc.abstractmethod
    def center(self, plan: PyTree) -> Float[Array, ""]:
        """A number near the tilted mean of X, without derivative."""

    @abc.abstractmethod
    def log_envelope(
        self, located: PyTree, frequency: Float[Array, ""]
    ) -> Float[Array, ""]:
        """Log of a bound on |characteristic function| at every tau >= `frequency`.

        At most zero.
        """


def relative(log_error: Float[Array, "..."]) -> Float[Array, "..."]:
    """The relative error of a number, from a bound on that of its logarithm."""
    return stop_gradient(jnp.expm1(jnp.minimum(log_error, _MOST)))


def is_analytic(loss: AbstractLoss) -> bool:
    """Whether the contour engine can handle a loss."""
    return isinstance(loss, AnalyticLoss) and loss.transforms


def every_other_of(
    moments: Callable[[Array], tuple[Array, ...]], order: Float[Array, " k"]
) -> tuple[Array, ...]:
    """Rough moments from costly ones, at every other order: the rest are infinite."""
    found, none = moments(order[::2]), jnp.full_like(order, jnp.inf)
    value, slope, curvature = (none.at[::2].set(x) for x in found)
    return value, value, slope, curvature
