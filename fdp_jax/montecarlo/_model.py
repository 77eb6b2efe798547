"""The pair of a run: P = law of A x + Z with a random pattern x, Q = law of Z.

With nonnegative strategies it dominates whatever a record contributes, clipped and
chosen in view of the earlier releases; see `monte_carlo`.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array

from .._internal._concrete import known
from .._internal._shapes import as_matrix
from ..sampling.participation import Dealt, Participation, Separated
from ._columns import MOST_BANDS, AbstractColumns, Banded, reduced
from ._laws import AbstractLaw, OneOf, Renewal
from ._overlaps import AbstractOverlaps, Chained, windows


class Model(eqx.Module):
    """Columns, a law of patterns, and how columns of one pattern overlap."""

    columns: AbstractColumns
    law: AbstractLaw
    overlaps: AbstractOverlaps | None
    norms: Array
    """Squared norms of the columns, (N,)."""
    most: Array
    """g[i], the largest inner product of column i with A x, over all patterns x."""

    def log_sum(self, field: Array, factor: Array | float) -> Array:
        """The log of sum_x w_x exp(field . x - factor |A x|^2 / 2)."""
        field = field - 0.5 * factor * self.norms[:, None]
        if self.overlaps is None:
            return self.law.log_sum(field)
        return self.overlaps.log_sum(field, jnp.asarray(factor, field.dtype))

    def log_ratio(self, inner: Array) -> Array:
        """The log of dP/dQ at releases, from their inner products with the columns."""
        return self.log_sum(inner, 1.0)

    def tilted_mass(self, factor: Array) -> Array:
        """The log of E exp(factor g . x), at least log E exp(factor |A x|^2)."""
        return self.law.log_sum(factor * self.most[:, None])[0]

    def most_mass(self, factor: Array) -> Array:
        """An upper bound of log E_x exp(factor <A x, A x'>) over all patterns x'."""
        if not isinstance(self.law, OneOf):
            return self.tilted_mass(factor)
        return _most_of_one(self, self.law, factor)


def _most_of_one(model: Model, law: OneOf, factor: Array) -> Array:
    """Places of one epoch: the worst x' of each, with all that others may add."""
    gram = _by_epoch(model.columns, law)
    own = jnp.diagonal(gram, axis1=1, axis2=2)
    extra = jnp.max(model.most.reshape(own.shape) - own, axis=1)
    each = jnp.max(logsumexp(factor * gram, axis=1), axis=1) - jnp.log(law.places)
    return jnp.sum(each + factor * extra)


def _by_epoch(columns: AbstractColumns, law: OneOf) -> Array:
    """Products of the places of an epoch, (epochs, places, places)."""
    products = columns.products(law.places)
    place = jnp.arange(law.places)
    start = law.places * jnp.arange(law.epochs)[:, None, None]
    later = jnp.maximum(place[:, None], place)
    return products[jnp.abs(place[:, None] - place), start + later]


def make_model(
    strategy: Any, noise: Array, num_steps: int, how: Participation, bands: int
) -> Model:
    """The model of a run.

    Args:
        strategy: C, a matrix, or the first column of a Toeplitz one.
        noise: The noise's standard deviation, over the clipping norm.
        num_steps: n.
        how: How a record takes part.
        bands: Bands of C^T C, the diagonal included, at most.
    """
    scaled = jnp.asarray(strategy, noise.dtype) / noise
    if isinstance(how, Separated):
        return _separated(scaled, num_steps, how, bands)
    assert isinstance(how, Dealt)
    return _dealt(scaled, num_steps, how, bands)


def _separated(strategy: Array, num_steps: int, how: Separated, bands: int) -> Model:
    few = strategy.ndim == 1 and strategy.size <= MOST_BANDS and how.stride == 1
    if few:
        columns = Banded(strategy, num_steps)
    else:
        columns = reduced(as_matrix(strategy, num_steps)[:, :: how.stride])
        bands = min((bands - 1) // how.stride + 1, columns.shape[1])
    prob = jnp.asarray(how.prob, strategy.dtype)
    law = Renewal(prob, how.min_separation, how.warm_start)
    products = columns.products(bands)
    overlaps = None if bands <= how.min_separation else windows(law, products)
    most = _most_of_separated(products, how.min_separation)
    return Model(columns, law, overlaps, products[0], most)


def _dealt(strategy: Array, num_steps: int, how: Dealt, bands: int) -> Model:
    matrix = as_matrix(strategy, num_steps)
    batches = how.num_batches
    epochs = -(-num_steps // batches)
    padding = jnp.zeros((matrix.shape[0], epochs * batches - num_steps), matrix.dtype)
    matrix = jnp.concatenate([matrix, padding], axis=1)
    if how.same_every_epoch:
        summed = matrix.reshape(matrix.shape[0], epochs, batches).sum(axis=1)
        columns = reduced(summed)
        norms = jnp.sum(jnp.square(columns.matrix), axis=0)
        return Model(columns, OneOf(batches), None, norms, norms)
    columns, law = reduced(matrix), OneOf(batches, epochs)
    gram = columns.matrix.T @ columns.matrix
    blocks = gram.reshape(epochs, batches, epochs, batches)
    most = _most_of_epochs(blocks)
    overlaps = None
    if bands > 1:
        index = jnp.arange(epochs - 1)
        overlaps = Chained(blocks[index, :, index + 1])
    return Model(columns, law, overlaps, jnp.diagonal(gram), most)


def _most_of_separated(products: Array, separation: int) -> Array:
    """The most that a pattern adds to a column: one step in every stretch of b.

    Of the two ways to begin stretches, at a step or around it, the better one.
    """
    bands = products.shape[0]
    after = [
        jnp.concatenate([products[d, d:], jnp.zeros(d, products.dtype)])
        for d in range(1, bands)
    ]
    every = jnp.stack([*products[::-1], *after])
    size = min(separation, 2 * bands - 1)
    return jnp.minimum(
        *(_stretches(every, size, bands - 1 - h) for h in (0, size // 2))
    )


def _stretches(values: Array, size: int, start: int) -> Array:
    """The sum of the largest values of stretches, one of which begins at a place."""
    before = -start % size
    behind = -(values.shape[0] + before) % size
    filled = jnp.pad(values, ((before, behind), (0, 0)))
    return jnp.sum(jnp.max(filled.reshape(-1, size, values.shape[1]), axis=1), axis=0)


def _most_of_epochs(blocks: Array) -> Array:
    """Norm of a place, and the largest product with each other epoch's."""
    epochs, batches = blocks.shape[:2]
    best = jnp.max(blocks, axis=3)
    other = ~jnp.eye(epochs, dtype=bool)[:, None]
    own = jnp.diagonal(jnp.diagonal(blocks, axis1=0, axis2=2), axis1=0, axis2=1)
    return (own.reshape(epochs, batches) + jnp.sum(best * other, axis=2)).reshape(-1)


def least_bounds(model: Model, orders: int, shifts: np.ndarray) -> tuple:
    """Parts of the bounds of `_proposals`: most and tilted masses."""
    dtype = model.norms.dtype
    steps = jnp.arange(1, orders, dtype=dtype)
    most = lax.map(model.most_mass, steps)
    tilts = jnp.asarray(0.5 * (shifts**2 + shifts), dtype)
    return most, lax.map(model.tilted_mass, tilts)


def bands_of(strategy: Any, num_steps: int) -> int:
    """Bands of C^T C, the diagonal included; of a traced matrix all there may be."""
    if strategy.ndim == 1:
        return min(strategy.shape[0], num_steps)
    entries = known(strategy)
    if entries is None:
        return num_steps
    row, column = np.nonzero(entries.T @ entries)
    return int(np.max(np.abs(row - column), initial=0)) + 1
