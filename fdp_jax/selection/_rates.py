"""Error rates of a winner: by those of a run, or by lines under its curve."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._internal._precision import in_float64
from .._internal._tolerances import LOG_OPERATIONS as _UNIT
from ..curves import DELTA, Bounds, bounds_of, with_gradient
from ..engines import Interval
from ._laws import AbstractRepetitions
from ._weights import Weight

METHOD = "selection"
OPEN = 1e-4
"""Least gap below an upper end at which another bound is looked at."""
TINY = 1e-307
NOTHING: Any = Weight(0.0, 0.0)  # pyright: ignore[reportArgumentType]
"""The weight of what a winner's pair knows already."""


@in_float64(cast_out=False)
def errors(law: AbstractRepetitions, alpha: Array, s: Any) -> tuple[Array, Array]:
    weight = with_gradient(s.most, s.estimate)
    near = alpha * jnp.exp(weight - law.log_mean()) * (1 + 64 * _UNIT * (1 + s.most))
    near = jnp.where(alpha > 0, jnp.clip(near, TINY, 1.0), 0.0)
    far = 1 - (1 - alpha) * jnp.exp(-law.log_mean()) * (1 - 16 * _UNIT)
    return near, jnp.clip(far + _UNIT, 0.0, 1.0)


@in_float64(cast_out=False)
def are_vague(law: AbstractRepetitions, found: list[Any]) -> Array:
    """Whether ends of rates are far from their estimates."""
    gaps = [(p.upper - p.estimate, e.estimate - e.lower) for _, p, e in found]
    return ~(jnp.exp(law.log_mean()) * jnp.stack(jax.tree.leaves(gaps)) <= OPEN)


@in_float64
def rates(
    law: AbstractRepetitions, alpha: Array, found: list[list[Any]]
) -> tuple[Bounds, Bounds]:
    mean = jnp.exp(law.log_mean())

    def beta(power: Array, error: Array, s: Array) -> Array:
        most = power * mean * (1 + 64 * _UNIT)
        least = error * mean * jnp.exp(-s) * (1 - 64 * _UNIT * (1 + s))
        return jnp.maximum(1 - most - _UNIT, least)

    def best(end: Callable[..., Array]) -> Array:
        """The best of what is known of each direction, the worst of these."""
        each = [jnp.stack([end(*way) for way in ways]) for ways in found]
        return jnp.min(jnp.max(jnp.stack(each), axis=0), axis=0)

    ends = best(lambda s, p, e: beta(p.upper, e.lower, s.most))
    middle = best(lambda s, p, e: beta(p.estimate, e.estimate, s.estimate))
    return _both_rates(alpha, ends, middle)


@in_float64
def of_lines(alpha: Array, least: list[Array]) -> tuple[Bounds, Bounds]:
    worst = jnp.min(jnp.stack(least), axis=0)
    return _both_rates(alpha, worst, worst)


def _both_rates(alpha: Array, least: Array, middle: Array) -> tuple[Bounds, Bounds]:
    """Beta and the power, from a lower bound of beta and an estimate of it."""
    error = jnp.clip(least, 0.0, 1 - alpha)
    power = jnp.clip(1 - least, alpha, 1.0)
    beta = Interval(error, middle, 1 - alpha)
    tpr = Interval(alpha, 1 - middle, power)
    return (
        bounds_of(beta, error <= 0, DELTA, METHOD),
        bounds_of(tpr, power >= 1, DELTA, METHOD),
    )
