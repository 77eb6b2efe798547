"""What every privacy loss offers to the engines.

A dominating pair is (P, Q): the output's law without and with the record.  Its
privacy loss is X = log dQ/dP under P and Y = log dQ/dP under Q.  All the engines
need is the log-moment function of the pair,

    Lambda(w) = log E_P[(dQ/dP)^w],    w in C

(Lambda(0) = Lambda(1) = 0 for a pair without infinite losses), on vertical lines of
the complex plane.  K(z) = Lambda(1 + z) is the cumulant generating function of Y;
exchanging P and Q replaces w by 1 - w.  A loss without such a function gives its masses
instead, for the grid engine.
"""

import abc
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._internal._special import log1mexp
from ._cells import Atoms, Cells, Partition, partition


def outward(
    low: Float[Array, "..."], high: Float[Array, "..."], units: float = 1.0
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Both ends of a range, moved apart by rounding of `units` last places."""

    def rounding(x: Array) -> Array:
        size = stop_gradient(jnp.where(jnp.isfinite(x), jnp.abs(x), 0))
        return units * jnp.finfo(size.dtype).eps * size

    return low - rounding(low), high + rounding(high)


FREQUENCY_BLOCK = 64
"""Frequencies evaluated together; a square, because a product of two short tables of
rotations gives all of them."""
WIDE_BLOCK = 256
"""The same where they are tabulated: for half the rotations of each."""
VOID = 40.0
"""Error of an exponent that voids a certificate, unless its term is tiny: an error
above one half counts as this much."""
_PIECES = 4096


class CharacteristicBlock(eqx.Module):
    """log E_w[exp(i tau (X - center))] for one block of frequencies.

    E_w is the expectation under P tilted by (dQ/dP)^w.
    """

    real: Float[Array, " block"]
    imag: Float[Array, " block"]
    error: Float[Array, " block"]
    """Bound on the absolute error of the complex logarithm (no derivative)."""
    turned: Bool[Array, " block"] | bool = False
    """Where the angle may be off by a fraction of a turn; the real part is known."""


class AbstractLoss(eqx.Module):
    """The privacy loss of one release: all that composition on a grid needs."""

    if TYPE_CHECKING:  # a field of this class would come before all others
        symmetric: ClassVar[Any]
        """Whether (P, Q) and (Q, P) have the same trade-off function."""

    fractional: ClassVar[bool] = False
    """Whether any real power of its characteristic function is that of a guarantee."""

    @property
    def on_grid(self) -> bool:
        """Whether it can be moved to a grid."""
        return True

    @abc.abstractmethod
    def moments(
        self, order: Float[Array, " k"]
    ) -> tuple[Float[Array, " k"], Float[Array, " k"], Float[Array, " k"]]:
        """Lambda, Lambda' and Lambda'' at real orders.

        Lambda is an upper bound up to rounding (it enters Chernoff bounds); the
        derivatives steer choices that need no precision.
        """

    def rough_moments(
        self, order: Float[Array, ""]
    ) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        """`moments` at one order to about two digits, where that is cheaper."""
        value, slope, curvature = self.moments(order[None])
        return value[0], slope[0], curvature[0]

    @abc.abstractmethod
    def cells(self, low: Float[Array, " n"], high: Float[Array, " n"]) -> Cells:
        """Masses of intervals (low, high], accurate in both tails; differentiable.

        The ends may be infinite; low <= high.
        """

    def atoms(self) -> Atoms:
        """The finite point masses: none, unless a loss says otherwise."""
        none = jnp.zeros(0, self.loss_range()[0].dtype)
        return Atoms(none, none)

    def lattice(self) -> Float[Array, ""] | None:
        """A number of which every point mass is a multiple, if there is one."""
        atoms = self.atoms().loss
        return jnp.max(jnp.abs(atoms)) if atoms.size else None

    @abc.abstractmethod
    def loss_range(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Essential infimum and supremum of the finite part of X, rounded outward."""

    def log_finite_masses(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Log Q(Y < inf) and log P(X > -inf): all, unless a loss says otherwise."""
        whole = jnp.zeros_like(self.loss_range()[0])
        return whole, whole

    def log_infinite_masses(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Log Q(Y = inf) and log P(X = -inf), also where that is tiny."""
        upper, lower = self.log_finite_masses()
        return log1mexp(-upper), log1mexp(-lower)

    def log_unsure_masses(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Bounds of masses under Q and P of outputs that were left out.

        Such an output counts with the largest loss there may be, but may as well have a
        small one: lower bounds of delta are less by its mass.
        """
        none = jnp.full_like(self.loss_range()[0], -jnp.inf)
        return none, none

    def uncut(self) -> "AbstractLoss":
        """The same loss, as its transform knows it: nothing is left out."""
        return self

    def tabulated(self) -> "AbstractLoss":
        """The same loss, prepared for many calls of `moments`."""
        return self

    def powered(self, count: Float[Array, ""]) -> "AbstractLoss | None":
        """The sum of `count` > 0 copies, if that is one loss of the same kind.

        Infinitely divisible losses have such powers, for every real number.
        """
        del count
        return None


class MassLoss(AbstractLoss):
    """A loss known by its masses alone, within finite ends."""

    def edges(self) -> Float[Array, " m+1"]:
        """Values of the loss, from end to end, between which it changes little."""
        low, high = self.loss_range()
        share = jnp.arange(_PIECES + 1, dtype=low.dtype) / _PIECES
        return low + share * (high - low)

    def partition(self) -> Partition:
        """The loss in small pieces."""
        edges = self.edges()
        return partition(edges, self.cells(edges[:-1], edges[1:]), self.atoms())

    def moments(self, order):
        return self.partition().moments(order)

    def tabulated(self) -> AbstractLoss:
        return _Tabulated(self, self.partition())


class _Tabulated(AbstractLoss):
    """A loss with its pieces at hand."""

    loss: MassLoss
    table: Partition

    @property
    def symmetric(self) -> bool:
        return self.loss.symmetric

    def moments(self, order):
        return self.table.moments(order)

    def cells(self, low, high):
        return self.loss.cells(low, high)

    def atoms(self):
        return self.loss.atoms()

    def lattice(self):
        return self.loss.lattice()

    def loss_range(self):
        return self.loss.loss_range()

    def log_finite_masses(self):
        return self.loss.log_finite_masses()

    def log_infinite_masses(self):
        return self.loss.log_infinite_masses()

    def log_unsure_masses(self):
        return self.loss.log_unsure_masses()


class AnalyticLoss(AbstractLoss):
    """A privacy loss as an analytic function, for the spectral engine as well."""

    if TYPE_CHECKING:  # a field of this class would come before all others
        decays: ClassVar[Any]
        """Whether the characteristic function tends to zero (no point masses)."""
    splits: ClassVar[bool] = False
    """Whether many steps can be split by the largest one: see `engines/_rare.py`."""
    cheap_together: ClassVar[bool] = False
    """Whether many frequencies at once cost much less than a few at a time, and all of
    them are to be had by `log_transformed`."""

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
        self,
        plan: PyTree,
        start: Float[Array, ""],
        step: Float[Array, ""],
        count: int = FREQUENCY_BLOCK,
    ) -> CharacteristicBlock:
        """The centred log-characteristic function at `start + k step`.

        `k = 0, ..., count - 1`, with `count` a square.  The center is `center(plan)`.
        """

    def pays_to_transform(
        self, plan: PyTree, blocks: Int[Array, ""]
    ) -> Bool[Array, ""]:
        """Whether `log_transformed` is faster than so many blocks of frequencies."""
        del plan, blocks
        return jnp.zeros((), bool)

    def log_transformed(
        self, plan: PyTree, step: Float[Array, ""], count: int
    ) -> CharacteristicBlock:
        """`log_characteristic` at `k step`, `k = 0, ..., count - 1`, all at once."""
        return self.log_characteristic(plan, jnp.zeros_like(step), step, count)

    def fastest_turn(self, plan: PyTree) -> Float[Array, ""] | None:
        """Bound on the derivative of the characteristic function, centred, in tau.

        Of losses whose angles are known up to whole turns only, as principal values
        are; None for those with continuous ones.
        """
        del plan

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
