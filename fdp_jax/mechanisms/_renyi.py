"""Black boxes of which only Rényi divergences are known."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks
from .._internal._calls import explained
from .._internal._implicit import optimal_value
from .._internal._logs import times
from .._internal._precision import in_float64
from .._internal._search import zoomed
from .._internal._special import log1mexp, safe_log
from ..curves import (
    EPSILON,
    Bounds,
    at_any_length,
    bounds_of,
    elementwise,
)
from ..curves.logs import (
    Rates,
    at_most_zero,
    complement,
    point_beside,
    symmetric_ends,
)
from ..curves.pointwise import AbstractPointwise
from ..engines import Interval, log_complement
from . import _renyi_bounds as theorems
from ._arithmetic import NoArithmetic
from ._fields import (
    RHO,
    Declared,
    as_float,
    at_full_precision,
    parameter,
    product,
    several,
)
from ._joint import Shared, require_alone


class AbstractRenyi(Declared, NoArithmetic, AbstractPointwise):
    """A guarantee by Rényi divergences, for every ordered pair of neighbors.

    The pessimistic end of every query is a theorem's; the optimistic one says nothing,
    because a mechanism that releases nothing has the guarantee too.  The estimate is
    the pessimistic end, and the status never better than `Status.LOOSE`.
    """

    _method: ClassVar[str] = "renyi"
    shared: eqx.AbstractVar[frozenset[Shared] | None]
    """What later releases may share with it, as those of the run that it is of."""

    def shares(self) -> frozenset[Shared]:
        """What later releases may share with it, beside the data.

        See `AbstractMechanism.shares`.
        """
        return self.shared or frozenset()

    @abc.abstractmethod
    def divergence(self, order: Real[Array, "..."]) -> Real[Array, "..."]:
        """The bound of D_t that holds at given orders; inf where none is known."""

    _search: ClassVar[tuple[float, float, int] | None] = None
    """Middle and half of the range of log(t - 1) searched, and rounds; None if orders
    are listed alone."""

    def _listed(self) -> Array:
        """Orders at which alone something is known."""
        return jnp.zeros(0)

    def _masses(self) -> tuple[Array, Array]:
        """Log(1 - d) and log((1 - d') / (1 - d)), d of outputs that tell the record.

        With the record they have the probability d, at most, and without it d'.
        """
        return jnp.zeros(()), jnp.zeros(())

    def _rest(self, order: Array) -> Array:
        """The divergence at one order given outputs that do not tell the record."""
        return self.divergence(order)

    def _largest_impossible(self) -> Array:
        """Bound of log(1 - power) at alpha = 0: no less than this."""
        return self._masses()[0]

    @abc.abstractmethod
    def _times(self, count: Any) -> Any:
        """This mechanism, run so often with independent randomness."""

    @explained(num_steps=_checks.one(_checks.count))
    def repeat(self, num_steps: Any) -> Self:
        """This mechanism, run a whole number of times on the same data.

        Raises:
            ValueError: If the number is not whole, or releases share randomness.
        """
        self.require_complete()
        require_alone((self,), (num_steps,))
        return self._times(num_steps)

    def _settled(self, ask, known, **sides):
        self.require_complete()
        return super()._settled(ask, known, **sides)

    def _solve(self, delta: Any) -> Bounds:
        return _epsilon_bounds(self, delta)

    def _best(self, objective: Callable[[Array], Array]) -> tuple[Array, Array]:
        """The order at which an objective is least, about, and its value there.

        Any order gives a valid bound.  A listed one moves with the list.
        """
        order, value = jnp.asarray(2.0), jnp.asarray(jnp.inf)
        if self._search is not None:
            middle, reach, rounds = self._search
            at = lambda s: elementwise(objective, 1 + jnp.exp(s))
            place, value = zoomed(at, middle, reach, points=21, rounds=rounds)
            order = 1 + jnp.exp(place)
        listed = self._listed()
        if listed.size:
            # Of divergences known at some orders the bound has corners there.
            values = elementwise(objective, stop_gradient(listed))
            index = jnp.argmin(values)
            less = values[index] < value
            order = jnp.where(less, listed[index], order)
            value = jnp.where(less, values[index], value)
        return order, value

    def _lowest(self, theorem: Callable, argument: Array) -> tuple[Array, Array]:
        """The least of a theorem(h, D, argument) over orders 1 + h, and its size."""

        def at(order: Array, subject: AbstractRenyi, argument: Array) -> Array:
            most = subject._rest(order)
            usable = (order > 1) & jnp.isfinite(most)
            excess = jnp.where(usable, order - 1, 1.0)
            found = jnp.stack(theorem(excess, jnp.where(usable, most, 0.0), argument))
            return jnp.where(usable & ~jnp.isnan(found), found, jnp.inf)

        fixed = stop_gradient((self, argument))
        order, value = self._best(lambda order: at(order, *fixed)[0])
        size = at(stop_gradient(order), *fixed)[1]
        if self._search is None:
            return at(order, self, argument)[0], size
        numbers, others = eqx.partition((self, argument), eqx.is_inexact_array)
        arrays, static = eqx.partition(others, eqx.is_array)

        def whole(order: Array, numbers: Any, arrays: Any) -> Array:
            return at(order, *eqx.combine(numbers, arrays, static))[0]

        order = stop_gradient(order)
        return optimal_value(whole, value, order, numbers, arrays), size

    def _log_delta(self, epsilon: Array) -> tuple[Array, Array]:
        """Bound of log delta at epsilon >= 0, and the size of what was added up."""
        kept, shift = self._masses()
        value, size = self._lowest(theorems.log_delta_at, epsilon + shift)
        part = kept + jnp.minimum(value, 0.0)
        value = jnp.logaddexp(part, log_complement(kept))
        total = self._log_total_variation()
        less = total < value
        size = jnp.where(less, 0.0, size * jnp.exp(part - value))
        value = jnp.where(less, total, value)
        return value, stop_gradient(size + jnp.abs(value))

    def _epsilon(self, log_delta: Array) -> tuple[Array, Array]:
        """Bound of epsilon at a finite log_delta < 0, and the size of its terms."""
        kept, shift = self._masses()
        lost = log_complement(kept)
        enough = log_delta > lost
        gone = jnp.where(enough, log_delta - lost, 1.0)
        left = log_delta + log1mexp(gone) - kept
        value, size = self._lowest(theorems.epsilon_at, left)
        value = jnp.where(enough, value - shift, jnp.inf)
        return value, stop_gradient(size + jnp.abs(value))

    def _log_total_variation(self) -> Array:
        return theorems.log_total_variation(self.divergence(jnp.ones(())))

    def _logit(self, log_alpha: Array, log_rest: Array) -> Array:
        """Logit of the largest power at an alpha inside (0, 1)."""
        # Given outputs that do not tell, alpha / (1 - d) is a bound of alpha.
        kept, _ = self._masses()
        inside = log_alpha < kept
        first = jnp.where(inside, log_alpha - kept, -1.0)
        second = jnp.where(kept < 0, log1mexp(-first), log_rest)
        fixed, rates = stop_gradient((self, (first, second)))

        def at(order: Array) -> Array:
            most = fixed._rest(order)
            finite = jnp.isfinite(most)
            safe = jnp.where(finite, most, 1.0)
            found = theorems.largest_logit(order, safe, *rates)
            return jnp.where(finite & ~jnp.isnan(found), found, jnp.inf)

        order, found = self._best(at)
        inside = inside & jnp.isfinite(found)
        found = jnp.where(inside, found, theorems.LAST_LOGIT)
        # The best order is without derivative: by the envelope theorem it needs none.
        logit = theorems.attach(found, order, self._rest(order), first, second)
        log_beta = kept - jnp.logaddexp(0.0, logit)
        with_mass = log1mexp(-log_beta) - log_beta
        return jnp.where(
            inside & (kept < 0), with_mass, jnp.where(inside, logit, found)
        )

    def _point(self, epsilon):
        # Both directions alike.
        value, size = self._log_delta(jnp.abs(epsilon))
        none = jnp.full_like(value, -jnp.inf)
        upper = value + _slack(value, size)
        found = Interval(none, value, upper).map(at_most_zero)
        rest = found.map_down(log_complement)
        rest = rest.widened(lambda x: _slack(x, x)).map(at_most_zero)
        return point_beside(epsilon, epsilon < 0, found, rest)

    def _rates(self, log_alpha, log_tnr):
        logit = self._logit(log_alpha, log_tnr)
        slack = 1e-14 * (1 + jnp.abs(logit))
        log_beta, log_tpr = -jax.nn.softplus(logit), -jax.nn.softplus(-logit)
        return Rates(
            Interval(log_beta - slack, log_beta, log_tnr),
            Interval(log_alpha, log_tpr, at_most_zero(log_tpr + slack)),
        )

    def _ends(self):
        kept = self._largest_impossible()
        start = Interval(kept, kept, jnp.zeros_like(kept))
        return symmetric_ends(complement(start), start)


class ZCDP(AbstractRenyi):
    """Any mechanism of which only rho-zCDP is known: D_t <= rho t for all t > 1.

    Args:
        rho: In [0, inf), or None for `calibrate` to find.
        shared: What its releases share with later ones, if it is of a run that goes on
            (`AbstractMechanism.shares`): then it is composed at most once.

    Raises:
        ValueError: If it is negative, infinite or NaN.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.ZCDP(0.5).delta(epsilon=4.0):.9f}")
        0.000195795

    References:
        Bun and Steinke (2016), Definition 1.1 and Lemma 1.7 (composition); Canonne,
        Kamath and Steinke (2020), Proposition 12 (delta and epsilon); Riess et al.
        (2026) for the trade-off function.
    """

    rho: Real[ArrayLike, ""] | None = parameter("rho", _checks.nonnegative, RHO)
    shared: frozenset[Shared] | None = eqx.field(
        static=True, kw_only=True, default=None
    )

    _search: ClassVar = (10.0, 50.0, 10)

    def divergence(self, order):
        return as_float(self.rho) * jnp.maximum(order, 1.0)

    def _times(self, count):
        return ZCDP(product(self.rho, count), shared=self.shared)


class RenyiDP(AbstractRenyi):
    """Any mechanism of which only some Rényi divergences are known: D_t <= D.

    Args:
        orders: Orders t in (0, inf), a vector; those up to 1 serve error rates only.
        divergences: As many numbers in [0, inf], each a bound for both directions.
        shared: What its releases share with later ones, if it is of a run that goes on,
            as `divergences.renyi_dp` says: then it is composed at most once.

    Raises:
        ValueError: If a number is out of range or the shapes differ.

    Example:
        >>> import fdp_jax as fdp
        >>> known = fdp.RenyiDP(orders=[2.0], divergences=[1.0])
        >>> print(f"{known.beta(alpha=0.1):.6f}")
        0.506750

    References:
        Mironov (2017), Definition 4 and Proposition 1 (composition); Canonne, Kamath
        and Steinke (2020), Proposition 12 (delta and epsilon); Balle et al. (2020),
        Section 4, and Riess et al. (2026) for the trade-off function.
    """

    orders: Any = several("orders", _checks.finite_positive)
    divergences: Any = several("divergences", _checks.nonnegative_or_inf)
    shared: frozenset[Shared] | None = eqx.field(
        static=True, kw_only=True, default=None
    )

    def __check_init__(self):
        _checks.same_length("orders", self.orders, "divergences", self.divergences)

    def divergence(self, order):
        known, at = as_float(self.orders), as_float(order)[..., None]
        # D_t increases with t, so the next larger order bounds it.
        larger = jnp.where(known >= at, as_float(self.divergences), jnp.inf)
        return jnp.min(larger, axis=-1)

    def _times(self, count):
        found = _times(self.divergences, count)
        return RenyiDP(self.orders, found, shared=self.shared)

    def _listed(self):
        return as_float(self.orders)

    def _largest_impossible(self):
        orders, values = as_float(self.orders), as_float(self.divergences)
        # D_t(p||0) is infinite from order 1 on, else (1 - p)^t >= e^(-(1 - t) D).
        below = orders < 1
        finite = jnp.where(jnp.isfinite(values), values, 0.0)
        rate = jnp.where(below, (1 - orders) / orders, 0.0)
        return jnp.max(jnp.where(jnp.isfinite(values), -rate * finite, -jnp.inf))


@in_float64(cast_out=False)
def _times(values: Any, count: Any) -> Array:
    """Divergences times a count, with 0 inf = 0 (nothing is released)."""
    return times(count, values)


def compose_renyi(*parts: AbstractRenyi) -> AbstractRenyi:
    """Rényi divergences add, order by order (Mironov 2017, Proposition 1).

    Raises:
        ValueError: If more than one of them shares randomness with later releases.
    """
    require_alone(parts, [1] * len(parts))
    if len(parts) == 1:
        return parts[0]
    for part in parts:
        part.require_complete()
    shared = next((part.shared for part in parts if part.shared), None)
    listed: Any = [part for part in parts if not isinstance(part, ZCDP)]
    if not listed:
        zcdp = [part for part in parts if isinstance(part, ZCDP)]
        return ZCDP(_total(*(part.rho for part in zcdp)), shared=shared)
    orders = listed[0].orders
    return RenyiDP(orders, _sum_at(parts, orders), shared=shared)


_total = at_full_precision(lambda *numbers: sum(numbers))


@in_float64(cast_out=False)
def _sum_at(parts: tuple[AbstractRenyi, ...], orders: Any) -> Array:
    return sum((part.divergence(orders) for part in parts), start=jnp.zeros(()))


# -------------------------------------------------------------------------- queries


@at_any_length
@in_float64
def _epsilon_bounds(subject: AbstractRenyi, delta: Array) -> Bounds:
    def one(delta: Array) -> Bounds:
        inside = (delta > 0) & (delta < 1)
        log_delta = safe_log(jnp.where(inside, delta, 0.5))
        value, size = subject._epsilon(log_delta)
        total = subject._log_total_variation()
        none = jnp.log1p(-jnp.where(delta < 1, delta, 0.0))

        def least(found: Array, needed: Array) -> Array:
            found = jnp.where(log_delta >= needed, jnp.minimum(found, 0), found)
            # Nearer to 0 than log(1 - delta) is by its rounding.
            return jnp.where(inside, jnp.maximum(found, none * (1 - 1e-15)), jnp.inf)

        upper = least(value + 1e-14 * size, total + _slack(total, total))
        interval = Interval(none, least(value, total), upper)
        interval = interval.map(lambda x: jnp.where(delta >= 1, -jnp.inf, x))
        return bounds_of(
            interval, jnp.isposinf(interval.upper), EPSILON, subject._method
        )

    return elementwise(one, delta)


def _slack(value: Array, size: Array) -> Array:
    """Bound of the rounding of a number from terms of a size."""
    slack = 32 * jnp.finfo(value.dtype).eps * (1 + jnp.abs(size))
    return jnp.where(jnp.isfinite(slack), slack, 0.0)
