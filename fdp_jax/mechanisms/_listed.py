"""Poisson counts of a few kinds, for queries by a closed form."""

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._internal._concrete import is_traced
from .._internal._precision import in_float64
from ..losses import (
    AbstractLoss,
    ComposedLoss,
    CompoundPoissonLoss,
    ListedPoissonLoss,
    Listing,
    PoissonLoss,
)

LISTING_METHODS = "auto", "closed_form"
"""Names of methods that use lists."""


def listed(composed: ComposedLoss) -> ComposedLoss:
    """With a list, if the loss is a few kinds of counts and the list is short.

    Its length is static, so the rates must be known: otherwise the loss as it is.
    """
    found = _known_counts(composed)
    listing = None if found is None else Listing.of(found[:2], found[2])
    return composed if listing is None else with_list(composed, listing)


@in_float64(cast_out=False)
def with_list(composed: ComposedLoss, listing: Listing) -> ComposedLoss:
    """The loss as one term."""
    steps, counts = _sizes(composed)
    term = ListedPoissonLoss(steps, counts, listing)
    one = jnp.ones_like(composed.counts[0])
    return ComposedLoss((term,), (one,), method=composed.method)


def _known_counts(composed: ComposedLoss) -> Float[np.ndarray, "3 k"] | None:
    """The rates under P and under Q and the sizes of jumps, if these are all known.

    One column for each size, in the order of `_sizes`; None for other losses.
    """
    if any(type(term) not in _COUNTS for term in composed.terms):
        return None
    if is_traced(composed):
        return None
    with jax.ensure_compile_time_eval():
        return np.asarray(_rates_and_jumps(composed))


_COUNTS = PoissonLoss, CompoundPoissonLoss


@in_float64(cast_out=False)
def _rates_and_jumps(composed: ComposedLoss) -> Float[Array, "3 k"]:
    steps, counts = _sizes(composed)
    without, with_record = counts * steps.rate_without, counts * steps.rate_with
    jumps = jax.vmap(lambda step: step.jump())(steps)
    return jnp.stack([without, with_record, jnp.where(counts > 0, jumps, 0)])


def _sizes(composed: ComposedLoss) -> tuple[PoissonLoss, Float[Array, " k"]]:
    """The losses of one size that a loss consists of, and how many of each."""
    found = composed.absorbed()
    parts = [_parts(*x) for x in zip(found.terms, found.counts, strict=True)]
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


def _parts(
    term: AbstractLoss, count: Float[Array, ""]
) -> tuple[PoissonLoss, Float[Array, " k"]]:
    if isinstance(term, CompoundPoissonLoss):
        return term.steps, count * term.counts
    assert isinstance(term, PoissonLoss)
    return jax.tree.map(lambda x: x[None], (term, count))
