"""What a record adds to the releases: sums of columns, in units of the noise.

All arrays of a batch have the samples last.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

MOST_BANDS = 48
"""Bands up to which sums of shifts are used, and not a matrix."""


class AbstractColumns(eqx.Module):
    """The columns A that a pattern x of 0 and 1 picks: A x is released with noise."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of columns."""

    @abc.abstractmethod
    def moved(self, patterns: Array) -> Array:
        """A x, of shape (rows, samples)."""

    @abc.abstractmethod
    def inner(self, releases: Array) -> Array:
        """The inner products of all columns with releases y: A^T y."""

    @abc.abstractmethod
    def products(self, bands: int) -> Array:
        """K[d, i], the inner product of the columns i and i - d, 0 for i < d."""


class Banded(AbstractColumns):
    """Lower triangular Toeplitz columns with few bands, of which the last are cut."""

    first: Array
    count: int = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, int]:
        return self.count, self.count

    def moved(self, patterns: Array) -> Array:
        total = self.first[0] * patterns
        for j in range(1, self.first.size):
            total = total.at[j:].add(self.first[j] * patterns[:-j])
        return total

    def inner(self, releases: Array) -> Array:
        total = self.first[0] * releases
        for j in range(1, self.first.size):
            total = total.at[:-j].add(self.first[j] * releases[j:])
        return total

    def products(self, bands: int) -> Array:
        first, place = jnp.pad(self.first, (0, bands)), jnp.arange(self.count)

        def row(d: int) -> Array:
            pairs = jnp.cumsum(first[d:] * first[: first.size - d])
            left = jnp.minimum(self.count - place, pairs.size)  # entries of column i
            return jnp.where(place >= d, pairs[left - 1], 0.0)

        return jnp.stack([row(d) for d in range(bands)])


class Dense(AbstractColumns):
    """Any columns, as a matrix."""

    matrix: Array

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.matrix.shape
        return rows, columns

    def moved(self, patterns: Array) -> Array:
        return self.matrix @ patterns

    def inner(self, releases: Array) -> Array:
        return self.matrix.T @ releases

    def products(self, bands: int) -> Array:
        gram = self.matrix.T @ self.matrix
        place = jnp.arange(self.shape[1])
        before = place - jnp.arange(bands)[:, None]
        return jnp.where(before >= 0, gram[place, jnp.maximum(before, 0)], 0.0)


def reduced(matrix: Array) -> Dense:
    """Columns with the same inner products, and no more rows than columns."""
    if matrix.shape[0] <= matrix.shape[1]:
        return Dense(matrix)
    return Dense(jnp.linalg.qr(matrix, mode="r"))
