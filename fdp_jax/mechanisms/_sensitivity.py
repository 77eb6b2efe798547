"""How far a record moves the steps that a strategy makes of its contributions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array

from .._internal._concrete import ahead_of_time
from .._internal._precision import Outward, in_float64
from .._internal._shapes import as_matrix
from ._pattern import Pattern
from ._tree import Tree

_MOST_LAGS = 1 << 12
"""Bands up to which products of columns are looked at, lag by lag."""
Strategy = Array | Tree


@in_float64(cast_out=False)
def noise_over(noise: Any, *unit: Any) -> Array:
    """The noise over a distance (see `distance`)."""
    return noise / distance(*unit)


@in_float64(cast_out=False)
def quotient_attained(noise: Any, strategy: Strategy, pattern: Pattern, times: float):
    """The noise over a distance that some neighbors have, rounded down."""
    found = times * attained_sensitivity(strategy, pattern)
    return noise / jnp.maximum(found - _rounding(strategy, pattern, times), 0)


@in_float64(cast_out=False)
def distance(strategy: Strategy, pattern: Pattern, times: float) -> Array:
    """So many times the sensitivity, rounded up."""
    found = times * sensitivity(strategy, pattern)
    return found + _rounding(strategy, pattern, times)


@in_float64
def rounded_up(strategy: Strategy, pattern: Pattern) -> Outward:
    """The sensitivity, of which the upper end is no less in float32 either."""
    found = distance(strategy, pattern, 1.0)
    return Outward(found, found)


def _rounding(strategy: Strategy, pattern: Pattern, times: float) -> Array:
    """Error of sums of a column's squares, or of products of a pattern's columns."""
    terms, size = 4, strategy
    if not isinstance(strategy, Tree):
        terms = pattern.num_steps + strategy.shape[0] + pattern.most**2 + 8
        # That of cancelling products is over a root of what they leave.
        terms *= 1 if strategy.ndim == 1 else pattern.most
        size = jnp.abs(strategy)  # as if no product of columns were negative
    size = stop_gradient(sensitivity(size, pattern))
    return times * terms * jnp.finfo(size.dtype).eps * size


@in_float64
def sensitivity(strategy: Strategy, pattern: Pattern) -> Array:
    """The largest Euclidean norm of C x over all patterns, or an upper bound of it."""
    most, apart = pattern.most, pattern.apart
    if isinstance(strategy, Tree):
        return jnp.sqrt(float(strategy.squares(pattern)[1]))
    if strategy.ndim == 1 and most == 1:
        return jnp.linalg.norm(strategy)  # of the first column, the longest
    if strategy.ndim == 1 and not pattern.cyclic:
        return (_of_column if pattern.meets else _as_close)(strategy, pattern)
    columns = as_matrix(strategy, pattern.num_steps)
    squares = jnp.sum(jnp.square(columns), axis=0)
    if most == 1:
        return jnp.sqrt(jnp.max(squares))
    if pattern.cyclic:
        return jnp.sqrt(_fixed_distance(columns, pattern, jnp.abs))
    if pattern.meets:
        squares = _of_products(jnp.abs(columns.T @ columns), pattern)
    return jnp.sqrt(_separated(squares, most, apart))


@ahead_of_time
@in_float64(cast_out=False)
def is_attained(strategy: Strategy, pattern: Pattern) -> Array:
    """Whether the sensitivity is, but for rounding, that of a pattern looked at."""
    least = attained_sensitivity(strategy, pattern)
    rounding = _rounding(strategy, pattern, 1.0)
    return least + rounding >= sensitivity(strategy, pattern)


@in_float64
def attained_sensitivity(strategy: Strategy, pattern: Pattern) -> Array:
    """The Euclidean norm of C x for one of the patterns, and contributions to it.

    These are all the same, or orthogonal to each other.
    """
    if isinstance(strategy, Tree):
        return jnp.sqrt(float(strategy.squares(pattern)[0]))
    if strategy.ndim == 1 and not pattern.cyclic:
        apart = jnp.sum(_first_columns(jnp.square(strategy), pattern))
        return jnp.maximum(_as_close(strategy, pattern), jnp.sqrt(apart))
    columns = as_matrix(strategy, pattern.num_steps)
    squares = jnp.sum(jnp.square(columns), axis=0)
    most, apart = pattern.most, pattern.apart
    same = _fixed_distance(columns, pattern, lambda x: x)
    if pattern.cyclic:
        orthogonal = _fixed_distance(columns, pattern, lambda x: jnp.diag(jnp.diag(x)))
    else:
        orthogonal = _separated(squares, most, apart)
    return jnp.sqrt(jnp.maximum(same, orthogonal))


def _as_close(first: Array, pattern: Pattern) -> Array:
    """The norm of the sum of the first columns, as close together as they may be."""
    return jnp.linalg.norm(_first_columns(first, pattern))


def _of_column(first: Array, pattern: Pattern) -> Array:
    """An upper bound by a first column; attained if it falls and is not negative.

    Products of columns are at most those of a column that is larger, entry by entry,
    and falls; or at most what any of their lag have, by their order in the pattern.
    """
    falls = jnp.all(first[1:] <= first[:-1]) & (first[-1] >= 0)
    size = jnp.abs(first)
    falling = lax.cummax(size, reverse=True)
    found = _as_close(jnp.where(falls, first, falling), pattern)
    if first.size > _MOST_LAGS:
        return found
    products = jnp.correlate(size, size, "full")[first.size - 1 :]
    following = jnp.arange(1, pattern.most)
    place = jnp.minimum(following * pattern.apart, first.size)
    most_from = jnp.append(lax.cummax(products, reverse=True), 0.0)[place]
    pairs = jnp.dot(pattern.most - following, most_from)
    by_lag = jnp.sqrt(pattern.most * products[0] + 2 * pairs)
    return jnp.where(falls, found, jnp.minimum(found, by_lag))


def _first_columns(first: Array, pattern: Pattern) -> Array:
    """The sum of the first columns, as close together as they may be."""
    n = pattern.num_steps
    column = jnp.zeros(2 * n, first.dtype).at[n : n + first.size].set(first)

    def add(index: Array, total: Array) -> Array:
        return total + lax.dynamic_slice(column, (n - index * pattern.apart,), (n,))

    return lax.fori_loop(0, pattern.most, add, jnp.zeros(n, first.dtype))


def _fixed_distance(
    columns: Array, pattern: Pattern, of: Callable[[Array], Array]
) -> Array:
    """The largest sum of something of the products, over patterns with one distance.

    Where products of columns are negative, contributions may turn them around: then
    the sum of their absolute values is an upper bound.
    """
    n = columns.shape[1]

    def one(start: Array) -> Array:
        index = start + pattern.apart * jnp.arange(pattern.most)
        chosen = jnp.where(index < n, columns[:, jnp.minimum(index, n - 1)], 0.0)
        return jnp.sum(of(chosen.T @ chosen))

    return jnp.max(lax.map(one, jnp.arange(n)))


def _of_products(products: Array, pattern: Pattern) -> Array:
    """The most that a step's products with those of a pattern around it sum to."""
    place = jnp.arange(pattern.num_steps)
    far = jnp.abs(place[:, None] - place) >= pattern.apart
    others = lambda row: _separated(row, pattern.most - 1, pattern.apart)
    return jnp.diag(products) + jax.vmap(others)(jnp.where(far, products, 0.0))


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
