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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

from .._internal._arithmetic import ULP
from ._cells import Atoms, Cells
from ._closed_form import AbstractClosedForm
from ._loss_moments import LossMoments
from ._normal_mixtures import NormalMixtures


@jax.jit
def outward(
    low: Float[Array, "..."], high: Float[Array, "..."], units: float = 1.0
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Both ends of a range, moved apart by rounding of `units` last places."""

    def rounding(x: Array) -> Array:
        size = stop_gradient(jnp.where(jnp.isfinite(x), jnp.abs(x), 0))
        return units * ULP * size

    return low - rounding(low), high + rounding(high)


class Jumps(NamedTuple):
    """The Levy triplet of a loss with finitely many sizes of jumps."""

    variance: Float[Array, ""]
    """Variance of the Gaussian part."""
    sizes: Float[Array, " k"]
    rates: Float[Array, " k"]
    """Under P."""


class CompoundJumps(NamedTuple):
    """A loss made of independent Poisson numbers of jumps, and a drift."""

    atoms: Atoms
    """The sizes, with the logarithms of their rates under P for masses."""
    drift: Float[Array, ""]
    """X where nothing jumps: what makes E_P e^X = 1."""


class Ends(NamedTuple):
    """A loss at its ends; of two masses, direction "remove" first."""

    loss_range: tuple[Float[Array, ""], Float[Array, ""]]
    log_finite: Float[Array, "2"]
    log_infinite: Float[Array, "2"]
    log_truncated: Float[Array, "2"]


class AbstractLoss(eqx.Module):
    """The privacy loss of one release: all that composition on a grid needs."""

    if TYPE_CHECKING:  # a field of this class would come before all others
        symmetric: ClassVar[Any]
        """Whether (P, Q) and (Q, P) have the same trade-off function."""

    pairs: ClassVar[Any] = False
    """Whether it is known as a sum of pairs of normal mixtures."""
    splits: ClassVar[bool] = False
    """Whether many steps can be split by the largest one: see `engines/_rare.py`."""
    decays: ClassVar[Any] = False
    """Whether the characteristic function is known and tends to zero."""
    by_steps: ClassVar[bool] = False
    """Whether the grid takes it step by step: `counts` times each of its `steps`."""
    fractional: ClassVar[bool] = False
    """Whether any real power of its characteristic function is that of a guarantee."""

    @property
    def on_grid(self) -> bool:
        """Whether it can be moved to a grid: with its `cells`, or as it says else."""
        return self.has_cells

    @property
    def has_cells(self) -> bool:
        """Whether masses of intervals are known."""
        return type(self).cells is not AbstractLoss.cells

    @abc.abstractmethod
    def moments(
        self, order: Float[Array, " k"]
    ) -> tuple[Float[Array, " k"], Float[Array, " k"], Float[Array, " k"]]:
        """Lambda, Lambda' and Lambda'' at real orders.

        Lambda is an upper bound up to rounding (it enters Chernoff bounds); the
        derivatives steer choices that need no precision.
        """

    def rough_moments(self, order: Float[Array, " k"]) -> tuple[Array, ...]:
        """Lambda from above and about, then Lambda' and Lambda'', at real orders.

        Chernoff's inequality and choices need few digits, where these are cheaper.
        """
        value, slope, curvature = self.moments(order)
        return value, value, slope, curvature

    def cells(self, low: Float[Array, " n"], high: Float[Array, " n"]) -> Cells:
        """Masses of intervals (low, high], accurate in both tails; differentiable.

        The ends may be infinite; low <= high.  Not every loss has them.
        """
        raise NotImplementedError(f"masses of a {type(self).__name__} are not known")

    def atoms(self) -> Atoms:
        """The finite point masses: none, unless a loss says otherwise."""
        return Atoms(jnp.zeros(0), jnp.zeros(0))

    def twice_total_variation(self) -> Float[Array, ""] | None:
        """The total variation of two runs, where a closed form is known."""

    def lattice(self) -> Float[Array, ""] | None:
        """A number of which every point mass is a multiple, if one is known."""

    def compound_jumps(self) -> CompoundJumps | None:
        """The parts of the loss, if it is nothing but jumps that add."""

    def normal_mixtures(self) -> "tuple[NormalMixtures, Float[Array, ' m']]":
        """The loss as a sum of pairs of two mixtures of normal laws.

        Stacked, and how often each of them adds.
        """
        raise NotImplementedError(f"a {type(self).__name__} is no pair of mixtures")

    def trimmed(self, count: int) -> "tuple[AbstractLoss, Bool[Array, '']] | None":
        """This loss with at most `count` outputs, and whether none is missing.

        None if it is no list, or has no more of them.
        """

    @abc.abstractmethod
    def loss_range(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Essential infimum and supremum of the finite part of X, rounded outward."""

    def range_error(self) -> Float[Array, ""]:
        """Excess of the ends over the truth, beyond a few roundings."""
        return jnp.zeros(())

    def log_finite_masses(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Log Q(Y < inf) and log P(X > -inf)."""
        return jnp.zeros(()), jnp.zeros(())

    def log_infinite_masses(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Log Q(Y = inf) and log P(X = -inf), also where that is tiny."""
        return jnp.full((), -jnp.inf), jnp.full((), -jnp.inf)

    def log_truncated_masses(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Bounds of masses under Q and P of outputs that were left out.

        Such an output counts with the largest loss there may be, but may as well have a
        small one: lower bounds of delta are less by its mass.
        """
        return jnp.full((), -jnp.inf), jnp.full((), -jnp.inf)

    def ends(self) -> Ends:
        """All of these, for callers that need more than one."""
        return Ends(
            self.loss_range(),
            jnp.stack(self.log_finite_masses()),
            jnp.stack(self.log_infinite_masses()),
            jnp.stack(self.log_truncated_masses()),
        )

    def uncut(self) -> "AbstractLoss":
        """This loss as its transform knows it, with nothing left out."""
        return self

    def tabulated(self) -> "AbstractLoss":
        """This loss, prepared for many calls of `moments`."""
        return self

    def powered(self, count: Float[Array, ""]) -> "AbstractLoss | None":
        """The sum of `count` > 0 copies, if that is one loss of the same kind.

        Infinitely divisible losses have such powers, for every real number.
        """
        return None

    # ------------------------------------------------------------------ closed forms

    in_closed_form: ClassVar[Any] = "nothing"
    """Compositions of losses of this kind that have a closed form: "nothing", "one
    release", "one kind" any number of times, or "all kinds"."""

    @classmethod
    def closed_form(
        cls,
        terms: Sequence[Any],
        counts: Sequence[Float[Array, ""]],
        sign: Float[Array, ""],
    ) -> AbstractClosedForm:
        """The closed form of a composition, where `in_closed_form` says so.

        Args:
            terms: Losses of this class.
            counts: The number of releases of each of them.
            sign: 1 for the direction "remove", -1 for "add".
        """
        raise NotImplementedError(f"compositions of {cls.__name__} have no closed form")

    # ---------------------------------------------- what divergences and limits ask for
    #
    # With Lambda(w) = log E_P[(dQ/dP)^w], of the pair conditioned on finite losses,
    # L(w) = Lambda(w) / (w (w - 1)) > 0 is smooth at every real order, and adds.

    def normalized_log_moment(self, order: Float[Array, ""]) -> Float[Array, ""]:
        """L(w), differentiable, with the accuracy of the loss's own moments."""
        return self._normalized(order, *(m[0] for m in self.moments(order[None])))

    def _normalized(
        self,
        order: Array,
        value: Array,
        slope: Array,
        curvature: Array,
        *,
        masses: tuple[Array, Array] | None = None,
    ) -> Array:
        """L(w) from Lambda(w), two of its derivatives, and Lambda(1) and Lambda(0)."""
        product = order * (order - 1)
        close = jnp.abs(product) < 1e-4
        right = order > 0.5
        gap = jnp.where(right, order - 1, -order)
        # Lambda is zero at 0 and 1 but for the masses of infinite losses.
        included, base = masses or self.log_finite_masses()
        value = value - order * included - (1 - order) * base
        slope = slope - included + base
        inner = jnp.where(right, slope, -slope) - 0.5 * gap * curvature
        near = inner / jnp.where(right, order, 1 - order)
        far = value / jnp.where(close, 1.0, product)
        return jnp.where(close, near, far)

    def log_moment_ceiling(self, sign: float) -> Float[Array, ""]:
        """A bound on L over all orders t > 1 of one direction; inf if none is known."""
        return jnp.full((), jnp.inf)

    def log_moment_limit(self, sign: float) -> Float[Array, ""]:
        """The limit of L at infinite order in one direction."""
        return jnp.zeros(())

    def gaussian_precision(self) -> Float[Array, ""]:
        """mu^2 of the tight mu-GDP of one release; inf if none is known."""
        return jnp.full((), jnp.inf)

    gaussian_precision_adds: ClassVar[bool] = False
    """Whether sums of `gaussian_precision` are the tight mu^2 of compositions."""

    def cumulants(self, *, included: bool) -> Float[Array, " 4"]:
        """The first four cumulants of X = log dQ/dP of one release, under P or Q."""
        at = jnp.full(1, 1.0 if included else 0.0)
        bends = [lambda w: self.moments(w[None])[2][0]]
        for _ in range(2):
            bends.append(jax.grad(bends[-1]))
        return jnp.stack([self.moments(at)[1][0], *(bend(at[0]) for bend in bends)])

    def clt_cumulants(self, sign: float) -> Float[Array, " 2"]:
        """-E X and Var X, as the central limit theorem for Gaussian DP takes them."""
        mean, variance = self.cumulants(included=sign < 0)[:2]
        return jnp.stack([-sign * mean, variance])

    def loss_moments(self, sign: int) -> LossMoments | None:
        """Moments of |X| of one release in one direction, if they are known."""

    def jumps_and_variance(self) -> Jumps | None:
        """The Levy triplet, if the loss has one with finitely many sizes of jumps."""
