"""What every privacy loss offers to the engines.

A dominating pair is (P, Q): the output's law without and with the record.  Its
privacy loss is X = log dQ/dP under P and Y = log dQ/dP under Q.  All the engines
need is the log-moment function of the pair,

    Lambda(w) = log E_P[(dQ/dP)^w],    w in C

(Lambda(0) = Lambda(1) = 0 for a pair without infinite losses), on vertical lines of
the complex plane.  K(z) = Lambda(1 + z) is the cumulant generating function of Y;
exchanging P and Q replaces w by 1 - w.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

FREQUENCY_ROWS = 8
FREQUENCY_COLUMNS = 8
FREQUENCY_BLOCK = FREQUENCY_ROWS * FREQUENCY_COLUMNS
"""Frequencies evaluated together; a square, because a product of two short tables of
rotations gives all of them."""


class CharacteristicBlock(eqx.Module):
    """log E_w[exp(i tau (X - center))] for one block of frequencies.

    E_w is the expectation under P tilted by (dQ/dP)^w.
    """

    real: Float[Array, " block"]
    imag: Float[Array, " block"]
    error: Float[Array, " block"]
    """Bound on the absolute error of the complex logarithm (no derivative)."""


class Cells(eqx.Module):
    """The part of a loss without point masses, over some intervals."""

    log_mass: Float[Array, " n"]
    """Log P(X in the interval); -inf where that is empty."""
    loss: Float[Array, " n"]
    """Log of Q's mass over P's, inside the interval; any finite number if empty."""
    error: Float[Array, " n"]
    """Bound on the error of either logarithm of a mass, without derivative."""

    def exchanged(self) -> "Cells":
        """The same for the exchanged pair and the negated intervals."""
        return Cells(self.log_mass + self.loss, -self.loss, self.error)


class Atoms(eqx.Module):
    """The finite point masses of a loss."""

    loss: Float[Array, " atoms"]
    log_mass: Float[Array, " atoms"]
    """Log P(X = loss)."""

    def exchanged(self) -> "Atoms":
        """The same for the exchanged pair."""
        return Atoms(-self.loss, self.log_mass + self.loss)


class AbstractLoss(eqx.Module):
    """The privacy loss of one release, as an analytic function."""

    symmetric: eqx.AbstractClassVar[bool]
    """Whether (P, Q) and (Q, P) have the same trade-off function."""

    decays: eqx.AbstractClassVar[bool]
    """Whether the characteristic function tends to zero (no point masses)."""

    @abc.abstractmethod
    def moments(
        self, order: Float[Array, " k"]
    ) -> tuple[Float[Array, " k"], Float[Array, " k"], Float[Array, " k"]]:
        """Lambda, Lambda' and Lambda'' at real orders.

        Lambda is an upper bound up to rounding (it enters Chernoff bounds); the
        derivatives steer choices that need no precision.
        """

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
    def relative_error(self, plan: PyTree) -> Float[Array, ""]:
        """Largest relative error of E_P[(dQ/dP)^z] under a plan, but for rounding."""

    @abc.abstractmethod
    def log_mgf(self, plan: PyTree) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Lambda(order), differentiable, and a bound on its absolute error."""

    @abc.abstractmethod
    def log_characteristic(
        self, plan: PyTree, start: Float[Array, ""], step: Float[Array, ""]
    ) -> CharacteristicBlock:
        """The centred log-characteristic function at `start + k step`.

        `k = 0, ..., FREQUENCY_BLOCK - 1`.  The center is `center(plan)`.
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

    @abc.abstractmethod
    def cells(self, low: Float[Array, " n"], high: Float[Array, " n"]) -> Cells:
        """Masses of intervals (low, high], accurate in both tails; differentiable.

        The ends may be infinite; low <= high.
        """

    def atoms(self) -> Atoms:
        """The finite point masses: none, unless a loss says otherwise."""
        none = jnp.zeros(0, self.log_finite_mass().dtype)
        return Atoms(none, none)

    @abc.abstractmethod
    def loss_range(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Essential infimum and supremum of the finite part of X."""

    @abc.abstractmethod
    def log_finite_mass(self) -> Float[Array, ""]:
        """Log Q(Y < inf), which is also log P(X > -inf)."""
