r"""Odometers: what has been leaked so far, with no budget set in advance.

A filter answers for a budget that was fixed before the first release.  An odometer
answers at any time for what has been released until then, although settings, and when
to ask, depend on earlier results (Rogers, Roth, Ullman, Vadhan 2016).  Those here are
filters for a grid of budgets b_i = unit 2^{i/2}, each with a share of delta:

Theorem.  Let every release's cost be a function of the results before it, and let a
filter with budget b be valid: whoever stops before the sum of the costs exceeds b has
delta_b(e) <= d for e = e(b, d).  Let w_i > 0 be fixed in advance with sum w_i <= 1, and
let I be the least i for which what has been spent is within b_i.  Then for neighboring
data sets with laws P and Q of all results up to a stopping time,

    \int (dP - e^{E} dQ)_+ <= delta,    E = e(b_I, w_I delta),

where E depends on the results.

Proof.  Let F_i be the run that stops there, or before b_i would be exceeded.  Where
I = i nothing was cut off, since costs are not negative: both runs have the same results
there, and the same P and Q.  That part of the integral is at most that of F_i over all
results, which is at most w_i delta, for F_i stays within b_i.  Sum over i.

For a constant E that is (E, delta)-DP.  It is a statement for every stopping time,
which may look at the odometer; bounds of the largest loss over all times are stronger,
and larger (Whitehouse, Ramdas, Rogers, Wu 2023).  What settings fixed in advance would
have leaked is no valid E: something has to be lost (Rogers et al. 2016).
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Real

from .._internal import _checks
from .._internal._calls import explained
from .._internal._precision import in_float64
from .._internal._record import Record
from .._internal._show import Call
from ..mechanisms import ADD_OR_REMOVE_ONE, RenyiDP
from ._digits import joined, split
from ._filters import (
    ROUNDING,
    AbstractFilter,
    GaussianFilter,
    RenyiFilter,
    ZCDPFilter,
)

_REACH = 64
"""How many budgets there are on either side of the unit: up to 2^32 times as much."""
_INDEX = np.arange(-_REACH, _REACH + 1)
_SCALES = 2.0 ** (0.5 * _INDEX)
_SHARES = 1.0 / (1 + np.abs(_INDEX)) ** 2
# Less than one in all, whatever is rounded.
_SHARES = _SHARES / np.sum(_SHARES) * (1 - 1e-6)


class AbstractOdometer(Record):
    """The cost of all releases so far, and its guarantee, at any stopping time.

    Costs are rounded upward, as those of a filter.
    """

    _room: ClassVar[str] = "accounting."

    _unit: eqx.AbstractVar[AbstractFilter]
    """A filter whose budget is the unit; it may be exceeded here."""

    def _shown(self, parent: Any) -> Call:
        shown, unit = super()._shown(parent), self._unit._shown(self)
        return Call(shown.name, [*shown.entries, *unit.entries])

    @property
    def relation(self) -> Any:
        """The `NeighboringRelation` of all releases."""
        return self._unit.relation

    @property
    def spent(self) -> Float[Array, "..."]:
        """The cost so far, in the units of the filter's budget."""
        return self._unit.spent

    def step(self, mechanism: Any, count: Real[ArrayLike, ""] = 1) -> Any:
        """The odometer after some more releases.

        Args:
            mechanism: What is released, chosen in view of earlier results; see the
                odometer for what it takes.
            count: How often, a whole number, chosen likewise.

        Returns:
            The new odometer.

        Raises:
            TypeError: If it is of a kind that has no odometer.
            ValueError: If it has another relation, or `count` is not whole.
        """
        spent, _ = self._unit._after(mechanism, count)
        return eqx.tree_at(lambda o: o._unit, self, self._unit._with(mechanism, spent))

    @explained(delta=_checks.rate)
    def epsilon(self, delta: Real[ArrayLike, "..."]) -> Float[Array, "..."]:
        """An epsilon that covers everything released so far.

        Whatever was chosen in view of the results, and whenever it is asked in view of
        them: see the module's theorem.  A step function of what has been spent, which
        at most doubles in two steps; its derivative in that is zero.

        Args:
            delta: In [0, 1].

        Returns:
            An upper bound; 0 where nothing has been spent, inf beyond 2^32 units.

        Raises:
            ValueError: If delta is not in its range.
        """
        budget, share, within = _level(self._unit)
        level = eqx.tree_at(lambda f: f._budget, self._unit, budget)
        found = level.guarantee.epsilon(delta=_product(delta, share))
        found = jnp.where(within, jnp.maximum(found, 0), jnp.inf)
        return jnp.where(jnp.all(self.spent == 0), 0, found)


@in_float64(cast_out=False)
def _level(
    unit: AbstractFilter,
) -> tuple[tuple[Array, ...], Float[Array, ""], Bool[Array, ""]]:
    """The least budget of the grid that holds, its share, and whether there is one."""
    dtype = np.dtype(np.float32 if len(unit._budget) > 1 else np.float64)
    scales = _SCALES.reshape(-1, *[1] * jnp.ndim(joined(unit._spent)))
    error, excess = ROUNDING[dtype]
    budgets = joined(unit._budget) * scales
    # The guarantee includes what may exceed a budget; more than two programs differ by.
    holds = joined(unit._spent) <= budgets * (1 + excess)
    holds = jnp.all(holds.reshape(_INDEX.size, -1), axis=1)
    index = jnp.where(jnp.any(holds), jnp.argmax(holds), _INDEX.size - 1)
    budget = budgets[index] * (1 + error)
    return split(budget, dtype), jnp.asarray(_SHARES)[index], jnp.any(holds)


@in_float64
def _product(delta: Any, share: Array) -> Array:
    return delta * share


class GaussianOdometer(AbstractOdometer):
    """The odometer of releases that are Gaussian differentially private.

    Args:
        mu: The unit: what is spent in all is about mu-GDP, in (0, inf).  Any choice is
            valid; one that is wrong by a factor of 1000 makes an epsilon of 4.6 one of
            7.1 (delta = 1e-5).
        relation: The neighboring relation of all releases.

    `step` takes what `GaussianFilter` takes.

    Raises:
        ValueError: If mu is not positive and finite.

    Example:
        >>> import fdp_jax as fdp
        >>> odometer = fdp.accounting.GaussianOdometer(mu=1.0)
        >>> odometer = odometer.step(fdp.Gaussian(2.0), count=3)
        >>> print(f"{odometer.epsilon(delta=1e-5):.2f}")
        4.56

    References:
        The module's theorem, with the filter of Smith and Thakurta (2022).
    """

    _unit: GaussianFilter

    def __init__(
        self, mu: Real[ArrayLike, ""] = 1.0, *, relation: Any = ADD_OR_REMOVE_ONE
    ):
        self._unit = GaussianFilter(mu, relation=relation)


class ZCDPOdometer(AbstractOdometer):
    """The odometer of releases with zero-concentrated differential privacy.

    Args:
        rho: The unit: what is spent in all is about rho-zCDP, in (0, inf).  Any choice
            is valid; bounds are closest near it.
        relation: The neighboring relation of all releases.

    `step` takes what `ZCDPFilter` takes.

    Raises:
        ValueError: If rho is not positive and finite.

    Example:
        >>> import fdp_jax as fdp
        >>> odometer = fdp.accounting.ZCDPOdometer(rho=0.5)
        >>> odometer = odometer.step(0.3).step(fdp.ZCDP(0.1))
        >>> print(f"{odometer.epsilon(delta=1e-5):.2f}")
        4.91

    References:
        The module's theorem, with the filter of Feldman and Zrnic (2021).
    """

    _unit: ZCDPFilter

    def __init__(
        self, rho: Real[ArrayLike, ""] = 0.5, *, relation: Any = ADD_OR_REMOVE_ONE
    ):
        self._unit = ZCDPFilter(rho, relation=relation)


class RenyiOdometer(AbstractOdometer):
    """The odometer of releases with bounded Renyi divergences.

    Args:
        budget: The unit: divergences of about the same shape as what is spent in all.
            Any choice is valid; the bound is that of a multiple of it which holds at
            every order.
        relation: The neighboring relation of all releases.

    `step` takes what `RenyiFilter` takes: a mechanism, or a `RenyiDP` of the same
    orders.

    Raises:
        TypeError: If the budget is no `RenyiDP`.

    Example:
        >>> import fdp_jax as fdp
        >>> noisy = fdp.Gaussian(10.0)
        >>> unit = fdp.divergences.renyi_dp(noisy.repeat(50), orders=[2.0, 8.0, 32.0])
        >>> odometer = fdp.accounting.RenyiOdometer(unit).step(noisy, count=49)
        >>> print(f"{odometer.epsilon(delta=1e-5):.2f}")
        3.33

    References:
        The module's theorem, with the filter of Feldman and Zrnic (2021) at every order
        of the budget.
    """

    _unit: RenyiFilter

    def __init__(self, budget: RenyiDP, *, relation: Any = ADD_OR_REMOVE_ONE):
        self._unit = RenyiFilter(budget, relation=relation)
