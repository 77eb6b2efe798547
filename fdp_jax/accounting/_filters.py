"""Filters: budgets for steps that are chosen in view of earlier results.

An `Accountant` composes steps that were fixed beforehand.  Where the settings of a step
(not only its question) depend on what was released before, the composition is fully
adaptive, and few guarantees survive that (Rogers, Roth, Ullman, Vadhan 2016).  Those
here do: with a budget that is never exceeded, whatever was chosen, everything released
together has the guarantee of the budget.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Real

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import is_traced, known
from .._internal._precision import float_dtype, in_float64
from .._internal._record import Record, described
from .._internal._show import Call
from ..divergences import gdp, renyi_dp, zcdp
from ..mechanisms import (
    ADD_OR_REMOVE_ONE,
    ZCDP,
    AbstractMechanism,
    AbstractRenyi,
    Family,
    Gaussian,
    NeighboringRelation,
    RenyiDP,
    at_full_precision,
    relation_field,
    require_alone,
)
from ._digits import LEAST, joined, split

ROUNDING = {np.dtype(np.float64): (1e-14, 4e-9), np.dtype(np.float32): (1e-6, 1e-5)}
"""Relative errors of costs to allow for, and by how much a budget may be exceeded so
that costs may fill it; by the precision of the user's program."""


class AbstractFilter(Record):
    """A budget, and what of it has been spent.

    Both keep their digits in programs of any precision.  Costs are rounded upward, and
    may exceed the budget by 4e-9 of it (1e-5 in programs without 64-bit numbers), so
    that rounding does not refuse what just fills it: `guarantee` includes that.
    Releases must be independent of earlier ones, given the data and the results: a run
    that shares randomness with what comes later is entered as a whole, and no other.
    """

    _room: ClassVar[str] = "accounting."

    _one_shares: Any = eqx.field(init=False, repr=False, default=None)
    """A mark, once such a run was entered: an array without entries.

    The first leaf, so that what was saved is not read into a filter without it.
    """
    _budget: eqx.AbstractVar[tuple[Any, ...]]
    _spent: eqx.AbstractVar[tuple[Any, ...]]
    relation: eqx.AbstractVar[Any]
    """The `NeighboringRelation` of the budget and of all releases."""

    def __check_init__(self):
        object.__setattr__(self, "_one_shares", None)

    def _shown(self, parent: Any) -> Call:
        shown = super()._shown(parent)
        sums = ("budget", joined(self._budget)), ("spent", joined(self._spent))
        return Call(shown.name, [*sums, *shown.entries])

    @abc.abstractmethod
    def _cost(self, mechanism: Any) -> Any:
        """The cost of one release in units of the budget, rounded upward or exact."""

    @property
    @abc.abstractmethod
    def guarantee(self) -> Any:
        """The guarantee of all releases together."""

    @property
    def spent(self) -> Float[Array, "..."]:
        """The part of the budget that is spent, in its units."""
        return jnp.asarray(joined(self._spent), float_dtype())

    def fits(self, mechanism: Any, count: Real[ArrayLike, ""] = 1) -> Bool[Array, ""]:
        """Whether so many more releases stay within the budget.

        Args:
            mechanism: What is to be released; see the filter for what it takes.
            count: How often, a whole number.

        Returns:
            A truth value; it may decide what is done next.
        """
        return self._after(mechanism, count)[1]

    def step(self, mechanism: Any, count: Real[ArrayLike, ""] = 1) -> Any:
        """The filter after some more releases.

        Args:
            mechanism: What is released.
            count: How often, a whole number.

        Returns:
            The new filter.

        Raises:
            ValueError: If that exceeds the budget (inside of `jax.jit` a run-time
                error): ask `fits` before.  Or if it shares randomness with others (see
                `fdp_jax.compose`), more often than once.
        """
        spent, fits = self._after(mechanism, count)
        message = "releases must not exceed the budget: ask fits() before"
        if not is_traced(fits):
            if not bool(fits):
                ends = (described(joined(x)) for x in (spent, self._budget))
                raise ValueError(
                    f"{message}, got count = {count}, which makes {' of '.join(ends)}"
                )
        else:
            spent = _checks.error_if(
                spent, lambda _: ~fits, message, lambda _: count, kind="count ="
            )
        return self._with(mechanism, spent)

    def _with(self, mechanism: Any, spent: tuple[Any, ...]) -> Any:
        """With what has been spent after a release."""
        after = eqx.tree_at(lambda f: f._spent, self, spent)
        if _shares(mechanism):
            mark = np.zeros((0, 1), np.float32)
            after = eqx.tree_at(
                lambda f: f._one_shares, after, mark, is_leaf=lambda x: x is None
            )
        return after

    def _after(self, mechanism: Any, count: Any) -> tuple[tuple[Any, ...], Any]:
        count = _checks.checked_scalar("count", _checks.count, count)
        if _shares(mechanism):
            # In view of earlier results no part of a run is what its law says.
            after_one = self._one_shares is not None
            require_alone((mechanism,), (count,), after_one=after_one)
        stated = getattr(mechanism, "relation", self.relation)
        _checks.require(
            stated is self.relation,
            f"releases must have the relation {self.relation.value!r} of the filter",
            f"{stated.value!r}",
        )
        return _spend(self, self._cost(mechanism), count)


@in_float64(cast_out=False)
def _spend(
    budget: AbstractFilter, cost: Array, count: Array
) -> tuple[tuple[Array, ...], Bool[Array, ""]]:
    """The new total, rounded upward, and whether it is within the budget."""
    dtype = _precision(budget)
    error, _ = ROUNDING[dtype]
    before = joined(budget._spent)
    more = jnp.where(count > 0, count * cost, 0.0) * (1 + error)
    # Adding nothing does not round.
    rounded = (before + more) * (1 + 2 * jnp.finfo(more.dtype).eps)
    # In several parts nothing smaller than the least number would be left.
    least = LEAST if dtype == np.float32 else 0.0
    total = jnp.where(more > 0, jnp.maximum(rounded, least), before)
    return split(total, dtype), jnp.all(total <= _allowed(budget))


@in_float64(cast_out=False)
def _allowed(budget: AbstractFilter) -> Array:
    """The budget, with what may exceed it."""
    return joined(budget._budget) * (1 + ROUNDING[_precision(budget)][1])


def _precision(budget: AbstractFilter) -> np.dtype:
    """The precision of the program that the budget was made in."""
    return np.dtype(np.float32 if len(budget._budget) > 1 else np.float64)


def _shares(mechanism: Any) -> bool:
    known = isinstance(mechanism, AbstractMechanism | AbstractRenyi)
    return known and bool(mechanism.shares())


def _parts(value: Any, name: str = "spent") -> tuple[Any, ...]:
    if is_traced(value):
        return split(jnp.asarray(value, float_dtype()), float_dtype())
    return split(np.asarray(value, np.float64), float_dtype(), name)


def _require(holds: bool, taken: str, mechanism: Any) -> None:
    _checks.require(
        holds,
        f"filters and odometers take {taken}",
        f"{type(mechanism).__name__}: for trade-off functions in general there is no "
        "filter, composing them until a given one is reached is not valid if they are "
        "chosen in view of earlier results",
        TypeError,
    )


class GaussianFilter(AbstractFilter):
    """A budget of Gaussian differential privacy: the squares of mu add up.

    Args:
        mu: All releases together are mu-GDP, in [1e-150, 1e150]; in [2^-38, 2^63] in
            programs without 64-bit numbers.
        relation: The neighboring relation of all releases; numbers and Renyi
            guarantees that are given as such must refer to it.

    `step` and `fits` take a mechanism, whose smallest mu counts (exact for Gaussian
    noise; a search for others, see `divergences.gdp`), or the mu itself.  Poisson
    sampling does not lower the mu of a step.

    Raises:
        ValueError: If mu is out of range, or (from `step` and `fits`) a
            mechanism has another relation.

    Example:
        >>> import fdp_jax as fdp
        >>> budget = fdp.accounting.GaussianFilter(mu=1.0)
        >>> budget = budget.step(fdp.Gaussian(2.0), count=3)
        >>> bool(budget.fits(fdp.Gaussian(2.0))), bool(budget.fits(fdp.Gaussian(1.5)))
        (True, False)

    References:
        Smith and Thakurta (2022), "Fully Adaptive Composition for Gaussian
        Differential Privacy": a filter with the parameters of known compositions.
        Why f-DP in general has none: "f-Differential Privacy Filters: Validity and
        Approximate Solutions" (2026).
    """

    _budget: tuple[Any, ...]
    _spent: tuple[Any, ...]
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def __init__(self, mu: Real[ArrayLike, ""], *, relation: Any = ADD_OR_REMOVE_ONE):
        self.relation = relation
        mu = _checks.checked_scalar(
            "mu", _WIDE if float_dtype() == np.float64 else _NARROW, mu
        )
        self._budget = _parts(mu * mu, "mu * mu")
        self._spent = _parts(0.0)

    def _cost(self, mechanism: Any) -> Any:
        if isinstance(mechanism, AbstractMechanism):
            exact = mechanism.exact()
            if exact is not None and exact.family is Family.GAUSSIAN:
                return _square(exact.parameters[0])
            return _square(gdp(mechanism).mu)
        _require(_is_number(mechanism), "mechanisms or numbers mu", mechanism)
        return _square(_checks.nonnegative("mu", mechanism))

    @property
    def guarantee(self) -> Gaussian:
        """Gaussian noise, which leaks as much as all releases together may."""
        return Gaussian(_noise_of(_allowed(self)), relation=self.relation)


class ZCDPFilter(AbstractFilter):
    """A budget of zero-concentrated differential privacy: rho adds up.

    Args:
        rho: All releases together are rho-zCDP, in (0, inf).
        relation: The neighboring relation of all releases; numbers and Renyi
            guarantees that are given as such must refer to it.

    `step` and `fits` take a mechanism, whose smallest rho counts (`divergences.zcdp`),
    a `ZCDP`, or rho itself.

    Raises:
        ValueError: If rho is not positive and finite.

    Example:
        >>> import fdp_jax as fdp
        >>> budget = fdp.accounting.ZCDPFilter(rho=0.5)
        >>> bool(budget.step(0.3).fits(fdp.ZCDP(0.25)))
        False

    References:
        Feldman and Zrnic (2021), "Individual Privacy Accounting via a Rényi Filter":
        Rényi divergences of one order add up if their sum is bounded in advance.
    """

    _budget: tuple[Any, ...]
    _spent: tuple[Any, ...]
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    @explained(rho=_checks.one(_checks.finite_positive))
    def __init__(self, rho: Real[ArrayLike, ""], *, relation: Any = ADD_OR_REMOVE_ONE):
        self.relation = relation
        self._budget = _parts(rho, "rho")
        self._spent = _parts(0.0)

    def _cost(self, mechanism: Any) -> Any:
        if isinstance(mechanism, ZCDP):
            return mechanism.rho
        if isinstance(mechanism, AbstractMechanism):
            return zcdp(mechanism)
        _require(_is_number(mechanism), "mechanisms, ZCDP or numbers rho", mechanism)
        return _checks.nonnegative("rho", mechanism)

    @property
    def guarantee(self) -> ZCDP:
        """The budget, as a guarantee."""
        return ZCDP(_allowed(self))


class RenyiFilter(AbstractFilter):
    """A budget of Rényi divergences: at each order they add up.

    Args:
        budget: All releases together have at most these divergences.
        relation: The neighboring relation of all releases; numbers and Renyi
            guarantees that are given as such must refer to it.

    `step` and `fits` take a mechanism, or a `RenyiDP` of the same orders.  Where its
    orders are traced, it counts at each order with what it says at the next larger one:
    a divergence rises with the order.

    Raises:
        TypeError: If the budget is no `RenyiDP`.

    Example:
        >>> import fdp_jax as fdp
        >>> noisy = fdp.Gaussian(10.0)
        >>> budget = fdp.divergences.renyi_dp(noisy.repeat(50), orders=[2.0, 8.0, 32.0])
        >>> spending = fdp.accounting.RenyiFilter(budget).step(noisy, count=49)
        >>> bool(spending.fits(noisy)), bool(spending.fits(noisy, count=2))
        (True, False)

    References:
        Feldman and Zrnic (2021), at every order of the budget.
    """

    _budget: tuple[Any, ...]
    _spent: tuple[Any, ...]
    orders: tuple[float, ...] = eqx.field(static=True)
    """Orders t of the budget."""
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    @explained(
        relation=_checks.member_of(NeighboringRelation),
        budget=_checks.instance_of(RenyiDP, "a RenyiDP"),
    )
    def __init__(self, budget: RenyiDP, *, relation: Any = ADD_OR_REMOVE_ONE):
        self.relation = relation
        self.orders = tuple(float(order) for order in np.asarray(budget.orders))
        self._budget = _parts(budget.divergences, "divergences")
        self._spent = _parts(np.zeros(len(self.orders)))

    def _cost(self, mechanism: Any) -> Any:
        orders = np.asarray(self.orders)
        if isinstance(mechanism, AbstractMechanism):
            return renyi_dp(mechanism, orders=orders).divergences
        _require(isinstance(mechanism, RenyiDP), "mechanisms or RenyiDP", mechanism)
        own = known(mechanism.orders)
        if own is None:  # of a program's argument: at the next larger order
            return mechanism.divergence(orders)
        _checks.require(
            np.array_equal(own, orders), "orders must be those of the filter's budget"
        )
        return mechanism.divergences

    @property
    def guarantee(self) -> RenyiDP:
        """The budget, as a guarantee."""
        return RenyiDP(np.asarray(self.orders), _allowed(self))


def _is_number(value: Any) -> bool:
    return (
        not isinstance(value, str | bool)
        and np.ndim(value) == 0
        and (
            isinstance(value, int | float | np.generic | np.ndarray)
            or eqx.is_array(value)
        )
    )


_WIDE = _checks.numbers_that_are(
    "in [1e-150, 1e150]", lambda x: (x >= 1e-150) & (x <= 1e150)
)
_NARROW = _checks.numbers_that_are(
    "in [2^-38, 2^63]", lambda x: (x >= 2.0**-38) & (x <= 2.0**63)
)
"""Numbers whose squares can be stored, in the parts of a program."""


_noise_of = at_full_precision(lambda square: square**-0.5)


@in_float64(cast_out=False)
def _square(mu: Array) -> Array:
    mu = jnp.asarray(mu)
    # Rounded up where it underflows.
    return jnp.where(mu > 0, jnp.maximum(jnp.square(mu), 1e-300), 0.0)
