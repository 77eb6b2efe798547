"""How far a record moves the steps that a strategy makes of its contributions."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array

from .._internal._precision import in_float64


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Rule by which a record may take part; no PyTree, since it sets shapes."""

    num_steps: int
    most: int
    apart: int
    cyclic: bool


@in_float64(cast_out=False)
def quotient(noise: Any, *unit: Any) -> Array:
    """The noise over a distance (see `distance`)."""
    return noise / distance(*unit)


@in_float64(cast_out=False)
def distance(strategy: Array, pattern: Pattern, times: float) -> Array:
    """So many times the sensitivity, rounded up."""
    found = sensitivity(strategy, pattern)
    # Sums of a column's squares, or of products of the columns of a pattern, rounded.
    terms = pattern.num_steps + strategy.shape[0] + pattern.most**2 + 8
    rounded = (
        terms * jnp.finfo(found.dtype).eps * stop_gradient(_size(strategy, pattern))
    )
    return times * (found + rounded)


def _size(strategy: Array, pattern: Pattern) -> Array:
    """The sensitivity if no product of columns were negative."""
    return sensitivity(jnp.abs(strategy), pattern)


@in_float64
def sensitivity(strategy: Array, pattern: Pattern) -> Array:
    """The largest Euclidean norm of C x over all patterns of participations."""
    most, apart = pattern.most, pattern.apart
    if strategy.ndim == 1 and most == 1:
        return jnp.linalg.norm(strategy)  # of the first column, the longest
    if strategy.ndim == 1 and not pattern.cyclic:
        return jnp.linalg.norm(_first_columns(strategy, pattern))
    columns = _columns(strategy, pattern.num_steps)
    squares = jnp.sum(jnp.square(columns), axis=0)
    if most == 1:
        return jnp.sqrt(jnp.max(squares))
    if pattern.cyclic:
        return jnp.sqrt(_fixed_distance(columns, most, apart))
    return jnp.sqrt(_separated(squares, most, apart))


def _first_columns(first: Array, pattern: Pattern) -> Array:
    """The sum of the first columns, as close together as they may be: the worst."""
    n = pattern.num_steps
    column = jnp.zeros(2 * n, first.dtype).at[n : n + first.size].set(first)

    def add(index: Array, total: Array) -> Array:
        return total + lax.dynamic_slice(column, (n - index * pattern.apart,), (n,))

    return lax.fori_loop(0, pattern.most, add, jnp.zeros(n, first.dtype))


def _columns(strategy: Array, num_steps: int) -> Array:
    """The strategy as a matrix."""
    if strategy.ndim == 2:
        return strategy
    first = jnp.zeros(num_steps, strategy.dtype).at[: strategy.size].set(strategy)
    place = jnp.arange(num_steps)
    distance = place[:, None] - place
    return jnp.where(distance >= 0, first[jnp.abs(distance)], 0.0)


def _fixed_distance(columns: Array, participations: int, apart: int) -> Array:
    """The largest squared norm over patterns with one distance.

    Where products of columns are negative, contributions may turn them around: then
    their absolute values are an upper bound.
    """
    n = columns.shape[1]

    def one(start: Array) -> Array:
        index = start + apart * jnp.arange(participations)
        chosen = jnp.where(index < n, columns[:, jnp.minimum(index, n - 1)], 0.0)
        return jnp.sum(jnp.abs(chosen.T @ chosen))

    return jnp.max(lax.map(one, jnp.arange(n)))


def _separated(squares: Array, participations: int, apart: int) -> Array:
    """The largest sum of so many entries that are at least `apart` from each other."""
    n = squares.size

    free = jnp.maximum(jnp.arange(n) + 1 - apart, 0)

    def more(best: Array, _: None) -> tuple[Array, None]:
        # best[i] is that of one entry less, of the first i ones.
        taken = lax.cummax(squares + best[free])
        return jnp.concatenate([best[:1], jnp.maximum(taken, best[1:])]), None

    best = jnp.zeros(n + 1, squares.dtype)
    best, _ = lax.scan(more, best, None, length=participations)
    return best[-1]
