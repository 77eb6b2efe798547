"""Guarantees by Rényi divergences, composed with mechanisms of which all is known."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from ..curves import elementwise, over_signs, signs_of
from ..losses import ComposedLoss
from ..losses.log_moment import (
    bounding,
    divergence,
    divergence_error,
    finite_divergence,
    finite_mass,
)
from ._base import AbstractMechanism
from ._joint import require_alone
from ._renyi import AbstractRenyi


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
    _search: ClassVar = (-1.5, 14.0, 8)
    """To log(t - 1) = 12.5, about where `divergences.zcdp` ends too."""

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
        return bounding(self.mechanism.simplified().loss()).with_moving_ends()

    def _listed(self):
        orders = self.known._listed()
        return jnp.where(orders > 1, orders, 2.0)

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
