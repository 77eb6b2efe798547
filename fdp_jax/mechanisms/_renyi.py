"""Black boxes of which only Rényi divergences are known."""

import abc
import dataclasses
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks
from .._internal._logs import times
from .._internal._precision import in_float64
from .._internal._special import safe_log
from ..curves import (
    EPSILON,
    Bounds,
    ProfilePoint,
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
from ._fields import (
    RHO,
    as_float,
    at_full_precision,
    parameter,
    product,
    require_set,
)
from ._joint import Shared, require_alone

_METHOD = "renyi"
"""The name of this route among those of engines."""


class AbstractRenyi(AbstractPointwise):
    """A guarantee by Rényi divergences, for every ordered pair of neighbors.

    The pessimistic end of every query is a theorem's; the optimistic one says nothing,
    because a mechanism that releases nothing has the guarantee too.  The estimate is
    the pessimistic end, and the status never better than `Status.LOOSE`.
    """

    shared: eqx.AbstractVar[frozenset[Shared] | None]
    """What later releases may share with it, as those of the run that it is of."""

    def shares(self) -> frozenset[Shared]:
        """What later releases may share with it, beside the data.

        See `AbstractMechanism.shares`.
        """
        return self.shared or frozenset()

    def require_complete(self) -> None:
        """Raises `ValueError` if a number was left open, for `calibrate` to find."""
        require_set(self)

    @abc.abstractmethod
    def divergence(self, order: Real[Array, "..."]) -> Real[Array, "..."]:
        """The bound of D_t that holds at given orders; inf where none is known."""

    @abc.abstractmethod
    def _log_delta(self, epsilon: Array) -> tuple[Array, Array]:
        """Bound of log delta at epsilon >= 0, and the size of what was added up."""

    @abc.abstractmethod
    def _epsilon(self, log_delta: Array) -> tuple[Array, Array]:
        """Bound of epsilon at a finite log_delta < 0, and the size of its terms."""

    @abc.abstractmethod
    def _kl(self) -> Array:
        """Bound of the Kullback-Leibler divergence in either direction; may be inf."""

    @abc.abstractmethod
    def _logit(self, log_alpha: Array, log_rest: Array) -> Array:
        """Logit of the largest power at an alpha inside (0, 1)."""

    @abc.abstractmethod
    def _largest_impossible(self) -> Array:
        """Bound of log(1 - power) at alpha = 0: no less than this."""

    @abc.abstractmethod
    def _excesses(self) -> Array:
        """The t - 1 > 0 of orders at which alone something is known."""

    @abc.abstractmethod
    def _times(self, count: Any) -> Any:
        """This mechanism, run so often with independent randomness."""

    def repeat(self, num_steps: Any) -> Self:
        """This mechanism, run a whole number of times on the same data.

        Raises:
            ValueError: If the number is not whole, or releases share randomness.
        """
        self.require_complete()
        count = _checks.scalar("num_steps", _checks.count("num_steps", num_steps))
        require_alone((self,), (count,))
        return self._times(count)

    def _solve(self, delta: Any) -> Bounds:
        self.require_complete()
        return _epsilon_bounds(self, delta)

    def _profile(self, epsilon: Any) -> ProfilePoint:
        self.require_complete()
        return dataclasses.replace(super()._profile(epsilon), method=_METHOD)

    def _error_rate_bounds(self, alpha: Any) -> tuple[Bounds, Bounds]:
        self.require_complete()
        beta, tpr = super()._error_rate_bounds(alpha)
        return (
            dataclasses.replace(beta, method=_METHOD),
            dataclasses.replace(tpr, method=_METHOD),
        )

    def _point(self, epsilon):
        # Both directions alike.
        forward, size = self._log_delta(jnp.abs(epsilon))
        total = theorems.log_total_variation(self._kl())
        less = total < forward
        forward = jnp.where(less, total, forward)
        slack = _slack(forward, jnp.where(less, jnp.abs(total), size))
        none = jnp.full_like(forward, -jnp.inf)
        found = Interval(none, forward, forward + slack).map(at_most_zero)
        rest = found.map_down(log_complement).widened(lambda x: _slack(x, jnp.abs(x)))
        return point_beside(epsilon, epsilon < 0, found, rest.map(at_most_zero))

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

    def divergence(self, order):
        return as_float(self.rho) * jnp.maximum(order, 1.0)

    def _times(self, count):
        return ZCDP(product(self.rho, count), shared=self.shared)

    def _log_delta(self, epsilon):
        return theorems.zcdp_log_delta(as_float(self.rho), epsilon)

    def _epsilon(self, log_delta):
        return theorems.zcdp_epsilon(as_float(self.rho), log_delta)

    def _kl(self):
        return as_float(self.rho)

    def _logit(self, log_alpha, log_rest):
        return theorems.zcdp_logit(as_float(self.rho), log_alpha, log_rest)

    def _largest_impossible(self):
        return 0 * as_float(self.rho)

    def _excesses(self):
        return jnp.zeros(0)


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

    orders: Real[ArrayLike, " k"]
    divergences: Real[ArrayLike, " k"]
    shared: frozenset[Shared] | None = eqx.field(
        static=True, kw_only=True, default=None
    )

    def __init__(
        self,
        orders: Any,
        divergences: Any,
        *,
        shared: frozenset[Shared] | None = None,
    ):
        orders = _checks.finite_positive("orders", _vector(orders))
        divergences = _checks.nonnegative_or_inf("divergences", _vector(divergences))
        if orders.ndim != 1 or orders.shape != divergences.shape or orders.size == 0:
            raise ValueError(
                "orders and divergences must be vectors of one length, at least 1, got "
                f"shapes {orders.shape} and {divergences.shape}"
            )
        self.orders, self.divergences = orders, divergences
        self.shared = shared

    def divergence(self, order):
        known, at = as_float(self.orders), as_float(order)[..., None]
        # D_t increases with t, so the next larger order bounds it.
        larger = jnp.where(known >= at, as_float(self.divergences), jnp.inf)
        return jnp.min(larger, axis=-1)

    def _times(self, count):
        found = _times(self.divergences, count)
        return RenyiDP(self.orders, found, shared=self.shared)

    def _above_one(self) -> tuple[Array, Array, Array]:
        orders, values = as_float(self.orders), as_float(self.divergences)
        usable = (orders > 1) & jnp.isfinite(values)
        excess = jnp.where(usable, orders - 1, 1.0)
        return usable, excess, jnp.where(usable, values, 0.0)

    def _log_delta(self, epsilon):
        usable, excess, values = self._above_one()
        found = theorems.log_delta_at(excess, values, epsilon)
        found = jnp.where(usable, found, jnp.inf)
        size = excess * (values + jnp.abs(epsilon)) - theorems.gap(excess)
        best = jnp.argmin(found)
        return jnp.where(usable[best], found[best], 0.0), size[best]

    def _epsilon(self, log_delta):
        usable, excess, values = self._above_one()
        found = theorems.epsilon_at(excess, values, log_delta)
        found = jnp.where(usable, found, jnp.inf)
        best = jnp.argmin(found)
        return found[best], theorems.epsilon_size(excess, values, log_delta)[best]

    def _excesses(self):
        return self._above_one()[1]

    def _kl(self):
        return self.divergence(jnp.ones(()))

    def _logit(self, log_alpha, log_rest):
        known = as_float(self.orders), as_float(self.divergences)
        return theorems.listed_logit(*known, log_alpha, log_rest)

    def _largest_impossible(self):
        orders, values = as_float(self.orders), as_float(self.divergences)
        # D_t(p||0) is infinite from order 1 on, else (1 - p)^t >= e^(-(1 - t) D).
        below = orders < 1
        finite = jnp.where(jnp.isfinite(values), values, 0.0)
        rate = jnp.where(below, (1 - orders) / orders, 0.0)
        found = jnp.where(jnp.isfinite(values), -rate * finite, -jnp.inf)
        return jnp.max(found)


def _vector(values: Any) -> Any:
    return values if eqx.is_array(values) else np.asarray(values, np.float64)


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
    zcdp = [part for part in parts if isinstance(part, ZCDP)]
    listed = [part for part in parts if isinstance(part, RenyiDP)]
    if not listed:
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
        total = theorems.log_total_variation(subject._kl())
        none = jnp.log1p(-jnp.where(delta < 1, delta, 0.0))

        def least(found: Array, needed: Array) -> Array:
            found = jnp.where(log_delta >= needed, jnp.minimum(found, 0), found)
            # Nearer to 0 than log(1 - delta) is by its rounding.
            return jnp.where(inside, jnp.maximum(found, none * (1 - 1e-15)), jnp.inf)

        needed = total + _slack(total, jnp.abs(total))
        upper = least(value + 1e-14 * size, needed)
        interval = Interval(none, least(value, total), upper)
        interval = interval.map(lambda x: jnp.where(delta >= 1, -jnp.inf, x))
        return bounds_of(interval, jnp.isposinf(interval.upper), EPSILON, _METHOD)

    return elementwise(one, delta)


def _slack(value: Array, size: Array) -> Array:
    """Bound of the rounding of a logarithm from terms of a size."""
    slack = 32 * jnp.finfo(value.dtype).eps * (1 + size)
    return jnp.where(jnp.isfinite(slack), slack, 0.0)
