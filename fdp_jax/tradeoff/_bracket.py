"""A guarantee between two piecewise-linear curves, both proved."""

import contextlib
import dataclasses
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.lax import cummax, cummin
from jaxtyping import Array

from .._internal import _checks
from .._internal._concrete import is_traced, outside_transformations
from .._internal._hull import gap, last_kept, tradeoff_chain
from .._internal._logs import LOG_HALF
from .._internal._precision import in_float64
from .._internal._tolerances import LOG_OPERATIONS
from ..curves import AbstractGuarantee, Bound, Curve
from ..curves.logs import reflect
from ..engines import log_complement
from ..mechanisms import (
    AbstractMechanism,
    AbstractRenyi,
    View,
    require_guarantee,
)
from ._base import AbstractTradeOff
from ._construct import knots_of_vertices
from .knots import Knots, from_profile

_POINTS = 65
_STRETCH = 3.0
_LEAST = 1e-15
_FARTHEST = 600.0
_NEAREST = 1e-6
"""Least distance of two thresholds of the grid."""
_CLOSE = 1e-7
"""Relative distance below which two points of a curve count as one."""
_SAFE = Bound.PESSIMISTIC
"""The proved side, with the estimate's derivative."""


def bracket(guarantee: AbstractGuarantee, epsilons: Any) -> tuple[Knots, Knots]:
    """Tangents from upper bounds of delta, chords from upper bounds of beta."""
    guarantee = require_guarantee("guarantee", guarantee)
    reverse = _reversed(guarantee)
    with _double():
        lower, split = _below(guarantee, reverse, epsilons, _POINTS)
        upper = _above(guarantee, reverse, lower, split)
    return _smooth(lower), _smooth(upper)


def one_side(
    guarantee: AbstractGuarantee,
    bound: Bound,
    points: int = _POINTS,
    epsilons: Any = None,
) -> Knots:
    """One of the two curves of a bracket, from so many thresholds in each direction."""
    guarantee = require_guarantee("guarantee", guarantee)
    reverse = _reversed(guarantee)
    with _double():
        found, split = _below(guarantee, reverse, epsilons, points)
        if bound is Bound.OPTIMISTIC:
            found = _above(guarantee, reverse, found, split)
    return _smooth(found)


def _smooth(knots: Knots) -> Knots:
    return dataclasses.replace(knots, sampled=True)


def _below(
    guarantee: AbstractGuarantee,
    reverse: AbstractGuarantee | None,
    epsilons: Any,
    points: int,
) -> tuple[Knots, tuple[int, bool]]:
    """Tangents; the vertex in the middle, and whether one half mirrors the other."""
    # One half is the other's mirror image: it is not computed again.
    mirrored = reverse is guarantee and epsilons is None
    right, left = _halves(guarantee, reverse, epsilons, points)
    own = _side(guarantee, right)
    if mirrored:
        other = tuple(x[1:] for x in own)
    else:
        other = _side(guarantee, -left) if reverse is None else _side(reverse, left)
    lower = _tangents(right, left, own, other, exchanged=reverse is not None)
    return lower, (left.size + 1, mirrored)


def _above(
    guarantee: AbstractGuarantee,
    reverse: AbstractGuarantee | None,
    lower: Knots,
    split: tuple[int, bool],
) -> Knots:
    """Chords between points at the type I errors of the vertices of the tangents."""
    (alpha, beta), (middle, mirrored) = _rates_of(lower), split
    near = _points(guarantee, alpha[middle:])
    if reverse is None:
        far = _points(guarantee, alpha[:middle])
    elif mirrored:
        far = tuple(x[::-1] for x in near)
    else:
        # The other axis: its type I errors are our type II errors.
        far = _points(reverse, beta[:middle])
    return _chords(near, far, exchanged=reverse is not None)


def _double() -> contextlib.AbstractContextManager:
    return (
        jax.enable_x64(True) if outside_transformations() else contextlib.nullcontext()
    )


def _reversed(guarantee: AbstractGuarantee) -> AbstractGuarantee | None:
    """The guarantee for the pair in the other order, if it is known."""
    if isinstance(guarantee, AbstractTradeOff):
        return guarantee.inverse()
    if isinstance(guarantee, AbstractMechanism | AbstractRenyi | Curve):
        return guarantee  # of both directions
    if isinstance(guarantee, View):
        exchange = {"remove": "add", "add": "remove", "both": "both"}
        name = exchange[guarantee.direction]
        return View(guarantee.mechanism, name, guarantee.method)
    return None


def _halves(
    guarantee: AbstractGuarantee,
    reverse: AbstractGuarantee | None,
    epsilons: Any,
    points: int,
) -> tuple[Array, Array]:
    """Thresholds >= 0, and > 0 for the exchanged pair, both increasing."""
    if epsilons is not None:
        epsilons = _checks.concrete("epsilons", epsilons)
        given = np.asarray(_checks.vector("epsilons", _checks.finite, epsilons))
        right = _apart_from_zero(given[given > 0])
        left = _apart_from_zero(-given[given < 0])
        return jnp.asarray(np.append(0.0, right)), jnp.asarray(left)
    shape = np.sinh(_STRETCH * np.linspace(0, 1, points)) / np.sinh(_STRETCH)
    reach = _reach(guarantee)
    other = reverse or guarantee
    far = reach if other is guarantee else _reach(other)
    return reach * shape, far * shape[1:]


def _apart_from_zero(thresholds: np.ndarray) -> np.ndarray:
    """Increasing; slopes between thresholds that are too close were rounding errors."""
    kept, last = [], 0.0
    for threshold in np.unique(thresholds):
        if threshold - last > _NEAREST:
            kept.append(threshold)
            last = threshold
    return np.asarray(kept, np.float64)


def _reach(guarantee: AbstractGuarantee) -> Array:
    found = guarantee._bounds_of("epsilon", np.float64(_LEAST)).estimate
    found = jnp.where(jnp.isnan(found), _FARTHEST, found)
    return jax.lax.stop_gradient(jnp.clip(found, 1e-3, _FARTHEST))


def _side(guarantee: AbstractGuarantee, epsilon: Array) -> tuple[Array, Array]:
    """Upper bounds of log delta and lower bounds of log(1 - delta)."""
    if epsilon.size == 0:
        return epsilon, epsilon
    found = guarantee._bounds_of("log_delta", epsilon)
    log_delta = found.pick(_SAFE, upper_is_pessimistic=True)
    # Next to small numbers their complements say no more: one question less.
    known = not is_traced(log_delta) and log_delta.dtype == jnp.float64
    if known and bool((log_delta < LOG_HALF).all()):
        return log_delta, log_complement(log_delta)
    found = guarantee._bounds_of("log_rest", epsilon)
    return log_delta, found.pick(_SAFE, upper_is_pessimistic=False)


# What follows is in float64 even if the bounds came in float32: its rounding errors are
# smaller than the room that is left for them.


def _rest(epsilon: Array, log_rest: Array) -> Array:
    """Lower bounds of log(1 - delta), with room for the threshold's rounding."""
    return jnp.minimum(log_rest - LOG_OPERATIONS * (1 + jnp.abs(epsilon)), 0)


def _both(epsilon: Array, side: tuple) -> tuple[Array, Array]:
    """Upper bounds of log delta and lower ones of log(1 - delta)."""
    log_delta, log_rest = side
    log_delta = jnp.minimum(log_delta, 0)
    small = log_delta < LOG_HALF
    by_delta = log_complement(jnp.where(small, log_delta, -1.0))
    return log_delta, jnp.where(small, by_delta, _rest(epsilon, log_rest))


@in_float64(cast_out=False)
def _tangents(
    right: Array, left: Array, own: tuple, other: tuple, *, exchanged: bool
) -> Knots:
    """The pessimistic curve: the largest profile with these values."""
    own = _both(right, own)
    if exchanged:
        far = _both(left, other)
    else:
        rest = jnp.minimum(_rest(-left, other[1]) + left, 0)
        far = log_complement(rest), rest
    glue = lambda a, b: jnp.concatenate([a[::-1], b])
    return from_profile(
        glue(-left, right),
        glue(reflect(far[0], left), own[0]),
        glue(far[0], reflect(own[0], right)),
        glue(far[1] - left, own[1]),
    )


@in_float64
def _rates_of(knots: Knots) -> tuple[Array, Array]:
    return jnp.exp(knots.log_alpha), jnp.exp(knots.log_beta)


def _points(guarantee: AbstractGuarantee, alpha: Array) -> tuple[Array, ...]:
    """Type I errors with upper bounds of beta and lower ones of the power."""
    beta, tpr = guarantee._error_rate_bounds(alpha)
    other = Bound.OPTIMISTIC
    return (
        alpha,
        beta.pick(other, upper_is_pessimistic=False),
        tpr.pick(other, upper_is_pessimistic=True),
    )


@in_float64(cast_out=False)
def _chords(near: tuple, far: tuple, *, exchanged: bool) -> Knots:
    """The optimistic curve: the lower hull of points above the true one."""

    def rows(alpha: Array, beta: Array, tpr: Array) -> Array:
        high, low = jnp.clip(beta, 0, 1), jnp.clip(tpr, 0, 1)
        small = low < 0.5
        high, low = jnp.where(small, 1 - low, high), jnp.where(small, low, 1 - high)
        return jnp.stack([alpha, 1 - alpha, high, low])

    left = rows(*far)
    left = jnp.roll(left, 2, axis=0) if exchanged else left
    alpha, tnr, beta, tpr = jnp.concatenate([left, rows(*near)], axis=1)
    # Moving a point up or to the right leaves it above the curve.
    alpha, tnr = cummax(alpha, reverse=True), cummin(tnr, reverse=True)
    beta, tpr = cummax(beta), cummin(tpr)
    # The slope between points that almost coincide would be a rounding error.
    apart = _apart(alpha, tnr) | _apart(beta, tpr)
    leader = last_kept(apart.at[0].set(True))
    alpha, tnr, beta, tpr = (x[leader] for x in (alpha, tnr, beta, tpr))
    kept = last_kept(tradeoff_chain(alpha, tnr, beta, tpr))
    return knots_of_vertices(*(x[kept] for x in (alpha, tnr, beta, tpr)))


def _apart(value: Array, complement: Array) -> Array:
    """Whether each number differs from the one before, on its own scale."""
    here = jnp.arange(value.size)
    before = jnp.maximum(here - 1, 0)
    small = jnp.minimum(value, complement)
    scale = jnp.minimum(small, small[before])
    return jnp.abs(gap(value, complement, here, before)) > _CLOSE * scale
