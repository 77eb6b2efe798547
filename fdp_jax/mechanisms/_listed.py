"""Poisson counts of a few kinds, for queries by a closed form."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp

from ..losses import ComposedLoss, ListedPoissonLoss, Listing

if TYPE_CHECKING:
    from ._base import AbstractMechanism


class Listed(eqx.Module):
    """A mechanism with a list of the counts that matter, as a query takes it."""

    mechanism: "AbstractMechanism"
    listing: Listing

    def loss(self) -> ComposedLoss:
        """The same loss as one term."""
        found = self.mechanism.loss().absorbed()
        steps = jax.tree.map(lambda *x: jnp.stack(x), *found.terms)
        term = ListedPoissonLoss(steps, jnp.stack(found.counts), self.listing)
        return ComposedLoss((term,), (jnp.ones_like(found.counts[0]),))


def listed(mechanism: "AbstractMechanism") -> "AbstractMechanism | Listed":
    """With a list, if the mechanism is a few kinds of counts and the list is short.

    Its length is static, so the rates must be known.
    """
    rates = mechanism.known_rates()
    if rates is None:
        return mechanism
    listing = Listing.of(rates)
    return mechanism if listing is None else Listed(mechanism, listing)
