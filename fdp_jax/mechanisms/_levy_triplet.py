"""An infinitely divisible privacy loss with a Gaussian part and jumps."""

from typing import Any, ClassVar

import equinox as eqx
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Real

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import is_traced, known
from .._internal._precision import in_float64
from ..losses import (
    ComposedLoss,
    CompoundPoissonLoss,
    GaussianLoss,
    PoissonLoss,
    normalized_jumps,
)
from ._base import AbstractMechanism, AbstractWrapped
from ._fields import (
    STEPS,
    as_float,
    parameter,
    product,
)
from ._relations import ADD_OR_REMOVE_ONE, NeighboringRelation, relation_field

_FEW = 6
"""Sizes of jumps that are losses of their own: more are one loss together."""


_nonzero = _checks.numbers_that_are(
    "finite numbers other than 0", lambda x: (abs(x) < np.inf) & (x != 0)
)


_LARGE = 700.0
"""Jumps whose factor e^x may overflow, and the largest log(r e^x)."""


def _within_reach(jumps: Any, rates: Any) -> Any:
    """Rates, which must be numbers under Q as well."""

    def beyond(rates: Any, jumps: Any, module: Any) -> Any:
        some = rates > 0
        return some & (module.log(module.where(some, rates, 1.0)) + jumps > _LARGE)

    return _checks.beside(
        rates,
        jumps,
        beyond,
        "rates must be small enough that rates * exp(jumps), those with the record, "
        "are numbers: below e^700",
    )


class LevyTriplet(AbstractMechanism):
    r"""The infinitely divisible privacy loss of a Levy triplet.

    Under P the loss is a Gaussian of variance s^2, plus jumps of size x_j, as many as a
    Poisson variable of mean r_j, plus the drift that makes E_P e^X = 1:

        log E_P e^{wX} = s^2 w (w - 1) / 2
                         + sum_j r_j (e^{w x_j} - 1 - w (e^{x_j} - 1)).

    Under Q the rates are r_j e^{x_j}.  Triplets add under composition, and
    `repeat(t)` takes every real t >= 0 for the number of releases (not to be confused
    with the group-composition of canonical noise).  The trade-off function is symmetric
    if and only if the jump -x has the rate r e^x of the jump x.

    With a Gaussian part contour integrals answer (with jumps and s^2 below about 1e-6
    beta's bounds are up to 3e-5 wide, and LOOSE).  Without one the counts are listed, a
    closed form, where their rates are known and the list is short (one size to rates of
    4e7, two to 400 each, three to 10, four to 0.5, five to 0.05); otherwise, and where
    rates are traced, the grid, which is LOOSE at rates above about 1e5, and for error
    rates (one size has a closed form then too).  A part that is exactly 0 is left out:
    derivatives in it are 0.

    Args:
        gaussian_variance: s^2, in [0, inf).
        jumps: Sizes x_j, a vector of finite numbers other than 0; none if not given.
        rates: Mean numbers r_j under P, a vector of numbers in [0, inf).
        num_steps: The time t by which s^2 and all rates are multiplied, in [0, inf).
        relation: The neighboring relation of the pair.

    Raises:
        ValueError: If a parameter is out of range, a rate r_j e^{x_j} is not below
            e^700, or the lengths differ.

    Example:
        >>> import fdp_jax as fdp
        >>> loss = fdp.LevyTriplet(0.5, jumps=[0.8, -0.5], rates=[0.7, 0.3])
        >>> print(f"{loss.drift():.6f} {loss.remove.delta(epsilon=1.0):.6f}")
        -0.989838 0.189475

    References:
        Pandey, Maleki, Kulkarni (2025); Sato (1999), Theorem 8.1.
    """

    gaussian_variance: Real[ArrayLike, ""] = eqx.field(
        converter=lambda x: _checks.checked_scalar(
            "gaussian_variance", _checks.nonnegative, x
        )
    )
    jumps: Real[Array, " k"]
    rates: Real[Array, " k"]
    num_steps: Real[ArrayLike, ""] | None = parameter(
        "num_steps", _checks.nonnegative, STEPS
    )
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)
    _one_release: ClassVar = False
    _divisible: ClassVar = True

    def __init__(
        self,
        gaussian_variance: Any = 0.0,
        *,
        jumps: Any = (),
        rates: Any = (),
        num_steps: Any = 1.0,
        relation: NeighboringRelation = ADD_OR_REMOVE_ONE,
    ):
        jumps, rates = _checks.numbers("jumps", jumps), _checks.numbers("rates", rates)
        if jumps.shape == (0,):
            jumps = np.zeros(0)
        else:
            jumps = _checks.vector("jumps", _nonzero, jumps)
            rates = _checks.vector("rates", _checks.nonnegative, rates)
        _checks.same_length("jumps", jumps, "rates", rates)
        self.jumps, self.rates = jumps, _within_reach(jumps, rates)
        self.gaussian_variance, self.num_steps = gaussian_variance, num_steps
        self.relation = relation

    # ------------------------------------------------------------------ as a mechanism

    def takes_fractions(self, index: int = 0) -> bool:
        return True

    def simplified(self) -> AbstractMechanism:
        return _JumpsAlone(self) if self._only_jumps() else self

    def _only_jumps(self) -> bool:
        """Known without a Gaussian part."""
        variance = known(self.gaussian_variance)
        return variance is not None and bool(variance == 0) and self.jumps.size > 0

    def loss(self) -> ComposedLoss:
        return self._loss(with_gaussian=not self._only_jumps())

    def _loss(self, *, with_gaussian: bool) -> ComposedLoss:
        time = as_float(self.num_steps)
        terms, counts = [], []
        if with_gaussian:
            variance = as_float(self.gaussian_variance)
            some = variance > 0
            noise = 1 / jnp.sqrt(jnp.where(some, variance, 1.0))
            terms.append(GaussianLoss(noise))
            counts.append(jnp.where(some, time, 0.0))
        jumps, rates = as_float(self.jumps), as_float(self.rates)
        some = rates > 0
        safe = PoissonLoss.of_jump(
            jnp.where(some, jumps, 0.0), jnp.where(some, rates, 1.0)
        )
        if self.jumps.size > _FEW:
            terms.append(CompoundPoissonLoss(safe, jnp.where(some, 1.0, 0.0)))
            counts.append(time)
        else:
            for j in range(self.jumps.size):
                terms.append(jax.tree.map(lambda x, j=j: x[j], safe))
                counts.append(jnp.where(some[j], time, 0.0))
        return ComposedLoss(tuple(terms), tuple(counts))

    def repeat(self, num_steps: Any) -> "LevyTriplet":
        """The triplet at a later (or earlier) time: all of it times `num_steps`.

        Args:
            num_steps: Any real number, at least 0.

        Returns:
            A triplet.

        Raises:
            ValueError: If it is negative or not finite.
        """
        times = _checks.checked_scalar("num_steps", _checks.nonnegative, num_steps)
        if self.num_steps is not None:
            times = product(times, self.num_steps)
        return self._with(num_steps=times)

    def _with(self, **numbers: Any) -> "LevyTriplet":
        """A triplet with other numbers, which are in range unless they overflow."""
        found = {name: _checks.finite(name, value) for name, value in numbers.items()}
        return self.unchecked(**vars(self) | found)

    def __add__(self, other: "LevyTriplet") -> "LevyTriplet":
        """The composition of two triplets, a triplet; `sum` takes any number of them.

        Raises:
            ValueError: If the relations differ or num_steps is not set.
        """
        if not isinstance(other, LevyTriplet):
            return NotImplemented
        _checks.require(
            self.relation is other.relation,
            "triplets must share one neighboring relation",
            f"{self.relation.name} and {other.relation.name}",
        )
        variance, jumps, rates = _added(self, other)
        return self._with(
            gaussian_variance=variance, jumps=jumps, rates=rates, num_steps=np.ones(())
        )

    def __radd__(self, other: Any) -> "LevyTriplet":
        # What `sum` begins with.
        return self if isinstance(other, int) and other == 0 else NotImplemented

    # ------------------------------------------------------------------- closed forms

    def drift(self) -> Float[Array, ""]:
        """The drift b of the truncation-free form, derived from E_P e^X = 1.

        Returns:
            -s^2 / 2 - sum_j r_j (e^{x_j} - 1).

        Raises:
            ValueError: If num_steps is not set.
        """
        return _drift(self)

    def kl(self) -> Float[Array, ""]:
        """KL(P||Q) = -E_P X = s^2 / 2 + sum_j r_j (e^{x_j} - 1 - x_j).

        Returns:
            The divergence of the direction remove; `exchanged().kl()` is KL(Q||P).

        Raises:
            ValueError: If num_steps is not set.
        """
        return _normalized(self, 0.0)

    @explained(order=_checks.one(_checks.finite_positive))
    def renyi(self, *, order: Any) -> Float[Array, ""]:
        """The Rényi divergence D_t(Q||P), always finite.

        Args:
            order: t > 0; at 1 it is KL(Q||P).

        Returns:
            [t (t - 1) s^2 / 2 + sum_j r_j (e^{t x_j} - 1 - t (e^{x_j} - 1))] / (t - 1).

        Raises:
            ValueError: If the order is not positive and finite.
        """
        return order * _normalized(self, order)

    def variance(self) -> Float[Array, ""]:
        """Var_P X = s^2 + sum_j r_j x_j^2.

        Returns:
            The variance of the loss without the record.

        Raises:
            ValueError: If num_steps is not set.
        """
        return _variance(self)

    def exchanged(self) -> "LevyTriplet":
        """The triplet of the pair (Q, P): jumps -x_j with rates r_j e^{x_j}.

        Returns:
            A triplet whose direction remove is this one's add.

        Raises:
            ValueError: If a rate r_j e^{x_j} is beyond the largest number.
        """
        jumps, rates = _reflected(self)
        return self._with(jumps=jumps, rates=rates)

    @explained(tolerance=_checks.tolerance)
    def is_symmetric(self, *, tolerance: float = 1e-12) -> bool:
        """Whether nu(-A) = int_A e^x nu(dx) for all A: both directions are one.

        Args:
            tolerance: Relative error of sizes and rates that counts as rounding.

        Returns:
            True if every jump has its mirror image.

        Raises:
            ValueError: If the tolerance is negative or not finite.
            TypeError: If jumps or rates are traced.
        """
        if is_traced(self.jumps, self.rates):
            raise TypeError("jumps and rates must be concrete, got traced arrays")
        jumps, rates = (np.asarray(x, np.float64) for x in (self.jumps, self.rates))
        with np.errstate(divide="ignore"):
            # Half of every jump's factor e^x, which alone may overflow.
            logs = np.log(rates) + 0.5 * jumps
        sizes = np.unique(np.round(np.abs(jumps), 12))
        for size in sizes:
            near = np.abs(np.abs(jumps) - size) <= 1e-11 * (1 + size)
            up = np.logaddexp.reduce(logs[near & (jumps > 0)], initial=-np.inf)
            down = np.logaddexp.reduce(logs[near & (jumps < 0)], initial=-np.inf)
            if up != down and -np.expm1(-abs(up - down)) > tolerance:
                return False
        return True


class _JumpsAlone(AbstractWrapped):
    """A triplet whose Gaussian part is known to be none before numbers are traced."""

    triplet: LevyTriplet
    _one_release: ClassVar = False
    _divisible: ClassVar = True

    def loss(self) -> ComposedLoss:
        return self.triplet._loss(with_gaussian=False)


def _parts(triplet: LevyTriplet) -> tuple[Array, Array, Array]:
    """s^2, jumps and rates at the triplet's time, which must be known."""
    triplet.require_complete()
    time = as_float(triplet.num_steps)
    variance, jumps, rates = (
        as_float(x) for x in (triplet.gaussian_variance, triplet.jumps, triplet.rates)
    )
    return time * variance, jumps, time * rates


@in_float64(cast_out=False)
def _added(one: LevyTriplet, other: LevyTriplet) -> tuple[Array, Array, Array]:
    first, second = _parts(one), _parts(other)
    join = lambda i: jnp.concatenate([first[i], second[i]])
    return first[0] + second[0], join(1), join(2)


@in_float64(cast_out=False)
def _reflected(triplet: LevyTriplet) -> tuple[Array, Array]:
    jumps, rates = as_float(triplet.jumps), as_float(triplet.rates)
    # In two steps, where e^x may overflow while r e^x does not.
    large = jnp.abs(jumps) > _LARGE
    half = jnp.exp(jnp.where(large, 0.5 * jumps, 0.0))
    return -jumps, rates * jnp.exp(jnp.where(large, 0.0, jumps)) * half * half


@in_float64
def _drift(triplet: LevyTriplet) -> Array:
    variance, jumps, rates = _parts(triplet)
    return -0.5 * variance - jnp.sum(rates * jnp.expm1(jumps))


@in_float64
def _variance(triplet: LevyTriplet) -> Array:
    variance, jumps, rates = _parts(triplet)
    return variance + jnp.sum(rates * jnp.square(jumps))


@in_float64
def _normalized(triplet: LevyTriplet, order: Any) -> Array:
    """Lambda(w) / (w (w - 1))."""
    variance, jumps, rates = _parts(triplet)
    some = rates > 0
    logs = jnp.log(jnp.where(some, rates, 1.0))
    each = normalized_jumps(jnp.where(some, jumps, 0.0), logs, order)
    return 0.5 * variance + jnp.sum(jnp.where(some, each, 0.0))
