"""Guarantees by Rényi divergences, composed with mechanisms of which all is known."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.lax import fori_loop, stop_gradient
from jaxtyping import Array

from .._internal._implicit import optimal_value
from .._internal._special import log1mexp
from ..curves import elementwise, over_signs, signs_of
from ..engines import log_complement
from ..losses import ComposedLoss
from ..losses.log_moment import (
    divergence,
    divergence_error,
    finite_divergence,
    finite_mass,
)
from . import _renyi_bounds as theorems
from ._base import AbstractMechanism
from ._joint import require_alone
from ._renyi import AbstractRenyi

_MIDDLE, _REACH = -1.5, 14.0
"""The log(t - 1) searched: to 14, where `divergences.zcdp` ends too."""
_POINTS, _ROUNDS = 21, 8


class RenyiComposition(AbstractRenyi):
    """A guarantee by Rényi divergences and a mechanism, on the same data.

    Made by `compose`.  The divergences of the mechanism are added at every order, and
    the best order answers.  Outputs that tell the record are kept apart: they have a
    probability d, at most, and given any others the divergences are finite, so that

        delta(eps) <= d + (1 - d) delta'(eps + log((1 - d') / (1 - d)))

    where d' is their probability without the record, and delta' follows from the
    divergences of the rest.  So (rho, d)-zCDP is `ZCDP(rho)` composed with
    `ApproxDP(epsilon=0, delta=d)`.

    Proof, with releases that are chosen in view of earlier ones: what the mechanism
    releases is made of a draw z from its pair (P, Q) without looking at the data again
    (Blackwell 1953).  For z that both can produce the expectations of the powers of
    dQ/dP multiply, whatever the other releases make of z.

    References:
        Mironov (2017), Proposition 1; Bun and Steinke (2016), Section 8, for the
        probability kept apart.
    """

    known: AbstractRenyi
    mechanism: AbstractMechanism

    def __init__(self, known: AbstractRenyi, mechanism: AbstractMechanism):
        require_alone((known, mechanism), (1, 1))
        self.known, self.mechanism = known, mechanism

    @property
    def relation(self) -> Any:
        """The neighboring relation, which is that of the mechanism."""
        return self.mechanism.relation

    @property
    def shared(self):
        return (self.known.shares() | self.mechanism.shares()) or None

    def divergence(self, order):
        loss = self._loss()
        signs = signs_of(loss, "both")
        slack = 1 + divergence_error(loss)

        def one(order: Array) -> Array:
            found = over_signs(lambda s: divergence(loss, s, order), signs)
            return jnp.max(found) * slack + self.known.divergence(order)

        return elementwise(one, jnp.asarray(order, float))

    def _times(self, count):
        return RenyiComposition(self.known._times(count), self.mechanism.repeat(count))

    def _loss(self) -> ComposedLoss:
        return self.mechanism.simplified().loss().with_moving_ends()

    def _excesses(self):
        return self.known._excesses()

    def _lowest(self, objective: Callable, argument: Array) -> Array:
        """The least of an objective(h, D, argument) over the orders 1 + h."""
        fixed, at_rest = stop_gradient((self, argument))
        place, value = self._best(lambda h: objective(h, fixed._rest(1 + h), at_rest))
        numbers, others = eqx.partition((self, argument), eqx.is_inexact_array)
        arrays, static = eqx.partition(others, eqx.is_array)

        def whole(h: Array, numbers: Any, arrays: Any) -> Array:
            box, argument = eqx.combine(numbers, arrays, static)
            return objective(h, box._rest(1 + h), argument)

        return optimal_value(whole, value, place, numbers, arrays)

    def _best(self, objective: Callable[[Array], Array]) -> tuple[Array, Array]:
        """The t - 1 at which an objective is least, about, and its value there.

        All evaluations are in one loop, of which a program holds one.
        """

        def at(h: Array) -> Array:
            found = objective(h)
            return jnp.where(jnp.isnan(found), jnp.inf, found)

        def narrower(_: int, state: tuple) -> tuple:
            middle, reach, _ = state
            grid = middle + reach * jnp.linspace(-1.0, 1.0, _POINTS)
            values = elementwise(lambda s: at(jnp.exp(s)), grid)
            index = jnp.argmin(values)
            return grid[index], 2 * reach / (_POINTS - 1), values[index]

        start = jnp.asarray(_MIDDLE), jnp.asarray(_REACH), jnp.asarray(jnp.inf)
        place, _, value = fori_loop(0, _ROUNDS, narrower, start)
        place, listed = jnp.exp(place), self.known._excesses()
        if listed.size:
            # Of divergences known at some orders the bound has corners there.
            listed = stop_gradient(listed)
            values = elementwise(at, listed)
            index = jnp.argmin(values)
            less = values[index] < value
            place = jnp.where(less, listed[index], place)
            value = jnp.where(less, values[index], value)
        return place, value

    def _masses(self) -> tuple[Array, Array]:
        """The worse direction's log(1 - d) and log((1 - d') / (1 - d))."""
        loss = self._loss()
        kept, base = over_signs(lambda s: finite_mass(loss, s), signs_of(loss, "both"))
        return jnp.min(kept), jnp.min(base - kept)

    def _rest(self, order: Array) -> Array:
        """Divergence at one order > 1 given outputs that do not tell the record."""
        loss = self._loss()
        one = lambda sign: finite_divergence(loss, sign, order)
        found = jnp.max(over_signs(one, signs_of(loss, "both")))
        return found * (1 + divergence_error(loss)) + self.known.divergence(order)

    def _log_delta(self, epsilon):
        kept, shift = self._masses()
        value = self._lowest(theorems.log_delta_at, epsilon + shift)
        value = jnp.logaddexp(kept + jnp.minimum(value, 0.0), log_complement(kept))
        return value, stop_gradient(jnp.abs(value))

    def _epsilon(self, log_delta):
        kept, shift = self._masses()
        lost = log_complement(kept)
        enough = log_delta > lost
        gone = jnp.where(enough, log_delta - lost, 1.0)
        left = log_delta + log1mexp(gone) - kept
        value = self._lowest(theorems.epsilon_at, left) - shift
        value = jnp.where(enough, value, jnp.inf)
        return value, stop_gradient(jnp.where(enough, jnp.abs(value), 0.0))

    def _kl(self):
        return self.divergence(jnp.ones(()))

    def _logit(self, log_alpha, log_rest):
        # Given outputs that do not tell, alpha / (1 - d) is a bound of alpha.
        kept = self._largest_impossible()
        inside = log_alpha < kept
        first = jnp.where(inside, log_alpha - kept, -1.0)
        second = jnp.where(kept < 0, log1mexp(-first), log_rest)
        fixed, rates = stop_gradient((self, (first, second)))

        def at(h: Array) -> Array:
            most = fixed._rest(1 + h)
            finite = jnp.isfinite(most)
            safe = jnp.where(finite, most, 1.0)
            found = theorems.largest_logit(1 + h, safe, *rates)
            return jnp.where(finite, found, jnp.inf)

        h, found = self._best(at)
        inside = inside & jnp.isfinite(found)
        found = jnp.where(inside, found, theorems.LAST_LOGIT)
        logit = theorems.attach(found, 1 + h, self._rest(1 + h), first, second)
        log_beta = kept - jnp.logaddexp(0.0, logit)
        with_mass = log1mexp(-log_beta) - log_beta
        return jnp.where(
            inside & (kept < 0), with_mass, jnp.where(inside, logit, found)
        )

    def _largest_impossible(self):
        return self._masses()[0]
