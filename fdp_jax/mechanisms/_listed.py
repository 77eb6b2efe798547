"""Poisson counts of a few kinds, for queries by a closed form."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..losses import (
    AbstractLoss,
    ComposedLoss,
    CompoundPoissonLoss,
    ListedPoissonLoss,
    Listing,
    PoissonLoss,
)

if TYPE_CHECKING:
    from ._base import AbstractMechanism

LISTING_METHODS = "auto", "closed_form"
"""Names of methods that use lists."""


class Listed(eqx.Module):
    """A mechanism with a list of the counts that matter, as a query takes it."""

    mechanism: "AbstractMechanism"
    listing: Listing

    def loss(self) -> ComposedLoss:
        """The same loss as one term."""
        found = self.mechanism.loss().absorbed()
        parts = [_sizes(*x) for x in zip(found.terms, found.counts, strict=True)]
        steps, counts = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
        term = ListedPoissonLoss(steps, counts, self.listing)
        return ComposedLoss((term,), (jnp.ones_like(found.counts[0]),))


def _sizes(
    term: AbstractLoss, count: Float[Array, ""]
) -> tuple[PoissonLoss, Float[Array, " k"]]:
    """The losses of one size that a term consists of, and how many of each."""
    if isinstance(term, CompoundPoissonLoss):
        return term.steps, count * term.counts
    assert isinstance(term, PoissonLoss)
    return jax.tree.map(lambda x: x[None], (term, count))


def listed(mechanism: "AbstractMechanism") -> "AbstractMechanism | Listed":
    """With a list, if the mechanism is a few kinds of counts and the list is short.

    Its length is static, so the rates must be known.
    """
    found = mechanism.known_counts()
    if found is None:
        return mechanism
    listing = Listing.of(found[:2], found[2])
    return mechanism if listing is None else Listed(mechanism, listing)
