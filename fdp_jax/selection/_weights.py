"""The largest log-ratio of two neighbors' weights of a run, by a search."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array

from .._internal._concrete import (
    ahead_of_time,
    evaluates_at_once,
    held_fixed,
    holds_anywhere,
    is_traced,
)
from .._internal._precision import in_float64
from .._internal._tolerances import LOG_OPERATIONS as _UNIT
from ..curves import AbstractGuarantee
from ..engines import Interval
from ._laws import AbstractRepetitions, Secant

_NEAR = 1e-4
"""How far beside the best threshold its derivative is looked for, relatively."""
_IN_PROGRAMS = 6
"""Thresholds looked at where a program holds all of the search."""


class Weight(NamedTuple):
    """The bound s of a direction, and its estimate."""

    most: Array
    estimate: Array


def kept(fn: Any) -> Any:
    """A function whose values are kept where all its numbers are known.

    Where they are not, its values have a first derivative and no second one.
    """

    @functools.lru_cache(256)
    def known(structure: Any, leaves: tuple[tuple[Any, ...], ...]) -> Any:
        numbers = [np.ndarray(shape, dtype, x)[()] for dtype, shape, x in leaves]
        return fn(*jax.tree.unflatten(structure, numbers))

    @ahead_of_time
    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        if is_traced(leaves) or not all(map(eqx.is_array_like, leaves)):
            return jax.tree.map(_with_one_derivative, fn(*args))
        numbers = map(np.asarray, leaves)
        return known(structure, tuple((x.dtype, x.shape, x.tobytes()) for x in numbers))

    return call


@jax.custom_jvp
def _with_one_derivative(x: Array) -> Array:
    return x


@_with_one_derivative.defjvp
def _with_one_derivative_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x,), (change,) = primals, tangents
    return x, change * _one_without_derivative(x)


@jax.custom_jvp
def _one_without_derivative(x: Array) -> Array:
    return jnp.ones_like(x)


@_one_without_derivative.defjvp
def _refused(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(
        "SelectBest has first derivatives only, got a derivative of one: take a "
        "difference of first derivatives"
    )


@kept
def weight_of(law: AbstractRepetitions, reverse: AbstractGuarantee) -> Weight:
    """The weight of a direction, by the profile of the exchanged one."""
    search = _searched(*jax.tree.map(held_fixed, (law, reverse)))
    if not is_traced((law, reverse)):
        return Weight(search.best, _found(law, search))
    beside = _beside(law, search)
    found = [reverse._profile(r).log_delta.estimate for r in beside]
    return Weight(search.best, _attached(law, beside, found))


def _searched(law: AbstractRepetitions, reverse: AbstractGuarantee) -> Secant:
    profile = lambda r: reverse._profile(r).log_delta
    search = _first(law, profile(np.float64(0)))
    looks = evaluates_at_once()
    for _ in range(law.rounds if looks else min(law.rounds, _IN_PROGRAMS)):
        if looks and not holds_anywhere(~search.settled):
            break
        search = _next(law, search, profile(_threshold(search)))
    return search


def _bound(law: AbstractRepetitions, r: Array, log_delta: Interval) -> Array:
    most = jnp.maximum(law._own(log_delta.upper), r)
    return law._power() * most * (1 + 16 * _UNIT) + 1e-300


def _place(search: Secant) -> Array:
    return jnp.logaddexp(0.0, search.u)


_threshold = in_float64(_place, cast_out=False)


@in_float64(cast_out=False)
def _first(law: AbstractRepetitions, log_delta: Interval) -> Secant:
    search = law._start(log_delta.estimate)
    return search._replace(best=_bound(law, jnp.zeros(()), log_delta))


@in_float64(cast_out=False)
def _next(law: AbstractRepetitions, search: Secant, log_delta: Interval) -> Secant:
    bound = _bound(law, _place(search), log_delta)
    search = law._next(search, log_delta.estimate)
    return search._replace(best=jnp.minimum(search.best, bound))


@in_float64(cast_out=False)
def _found(law: AbstractRepetitions, search: Secant) -> Array:
    root = law._power() * _place(search) if law.rounds else search.best
    return jnp.minimum(root, search.best)


@in_float64(cast_out=False)
def _beside(law: AbstractRepetitions, search: Secant) -> tuple[Array, ...]:
    """Thresholds around the best one, by whose secant it moves."""
    r = stop_gradient(_place(search))
    return (r * (1 - _NEAR), r * (1 + _NEAR)) if law.rounds else (jnp.zeros(()),)


@in_float64(cast_out=False)
def _attached(
    law: AbstractRepetitions, beside: tuple[Array, ...], log_deltas: list[Array]
) -> Array:
    first, *more = [law._own(x) for x in log_deltas]
    if not more:
        return law._power() * first
    low, high = beside
    gap, last = first - low, more[0] - high
    share = gap / jnp.where(gap > last, gap - last, 1.0)
    return law._power() * (low + (high - low) * share)
