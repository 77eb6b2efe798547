"""Poisson numbers of runs: the bound of `_winner.py`, for the best of all r.

As a function of e^t the profile of a run is convex: between points of it, chords lie
above.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._concrete import evaluates_at_once, holds_anywhere
from .._internal._implicit import implicit_root
from .._internal._precision import in_float64
from .._internal._roots import root_between
from .._internal._special import safe_log
from ..curves import (
    AbstractGuarantee,
    Bounds,
    Curve,
    GridCurve,
    with_gradient,
)
from ..engines import Interval
from ..mechanisms import AbstractMechanism, resolve
from ._laws import Poisson
from ._weights import kept
from ._winner import cells

_LOGS = np.concatenate(
    [
        np.linspace(-80.0, -32.0, 20, endpoint=False),
        np.linspace(-32.0, -10.0, 28, endpoint=False),
        -np.geomspace(10.0, 0.3, 104),
        -np.geomspace(0.25, 0.01, 8),
    ]
)
"""Logarithms of delta at points of a profile."""
_WIDE = 600.0
"""Thresholds beyond which a profile is not followed."""
_FALLS = np.concatenate(
    [np.linspace(0.0, 36.0, 181), np.linspace(37.0, 72.0, 36), [150.0, 700.0, 1e4]]
)
"""Minus the logarithms of the weights at the ends of cells."""
_PARTS = (np.arange(1, 49) / 48) ** 1.5
"""Values of r, as parts of the largest one."""
_LEAST = 1e-2
"""Least one of the largest."""
_ROOM = 1e-9
_PLACES = np.linspace(0.0, 1.0, 384).reshape(8, 48)
"""Of thresholds, in rows that share a line of the contour."""
_DOUBT, _SEEN, _NOTHING = 1e-3, -60.0, -700.0
"""By how much more than its estimate log delta may be, from where on, and the least."""
_PROBES = _WIDE * np.linspace(-1.0, 1.0, 97) ** 3
"""Thresholds looked at for a tangent, then some between neighbors of the best one."""
_SHARES, _CLOSER = np.linspace(0.0, 1.0, 17), 3


class Points(NamedTuple):
    """Points of a privacy profile."""

    threshold: Float[Array, " n"]
    """Rising ones."""
    log_delta: Float[Array, " n"]
    """Upper bounds."""


Ways = tuple[Points, Points]
"""Of a direction and of the exchanged one."""


@kept
def points_of(run: AbstractGuarantee) -> Points:
    """Points of the profile of one direction of a run."""
    return _at_deltas(run._solve(np.exp(_LOGS[::-1])))


@kept
def points_by_lines(run: AbstractMechanism) -> Ways | None:
    """Points of both directions of a run; None if the contour leaves doubt."""
    curve = resolve(run.remove).many_points(_PLACES, np.exp(_LOGS[0]))
    if curve is None or (evaluates_at_once() and holds_anywhere(_is_wide(curve))):
        return None
    return _at_thresholds(curve)


@in_float64(cast_out=False)
def _at_deltas(found: Bounds) -> Points:
    threshold = with_gradient(found.upper, found.estimate)
    # They rise, also where loose answers or rounding do not.
    threshold = jax.lax.cummax(threshold)
    # Of those that are met beyond, only what is met below is known there.
    met, logs = threshold <= _WIDE, _LOGS[::-1]
    log_delta = jnp.where(met, logs, jnp.min(jnp.where(met, logs, 0.0)))
    return Points(jnp.clip(threshold, -_WIDE, _WIDE), log_delta)


@in_float64(cast_out=False)
def _is_wide(curve: Curve) -> Array:
    logs = jnp.stack([x.log_delta_grid.upper for x in (curve.remove, curve.add)])
    middle = jnp.stack([x.log_delta_grid.estimate for x in (curve.remove, curve.add)])
    return ~(logs - middle <= _DOUBT) & (logs > _SEEN)


@in_float64(cast_out=False)
def _at_thresholds(curve: Curve) -> Ways:
    def points(half: GridCurve) -> Points:
        found = half.log_delta_grid
        log_delta = with_gradient(found.upper, found.estimate)
        log_delta = jnp.maximum(jax.lax.cummin(log_delta), _NOTHING)
        return Points(half.epsilon_grid, log_delta)

    return points(curve.remove), points(curve.add)


@in_float64(cast_out=False)
def profile_of_many(epsilon: Array, law: Poisson, ways: Ways) -> Interval:
    """Log delta(eps) by the best of all r; no estimate where points end before."""
    least = _log_delta(jnp.minimum(epsilon, 1e300), (law, *ways))
    known = least > law.log_mean() + _SEEN
    none = jnp.full_like(least, -jnp.inf)
    return Interval(none, jnp.where(known, least, none), jnp.minimum(least, 0))


@in_float64(cast_out=False)
def epsilon_of_many(delta: Array, law: Poisson, ways: Ways) -> Interval:
    """The least eps >= 0 with delta(eps) at most delta, rounded up; infinite beyond."""
    target, args = safe_log(jnp.asarray(delta)), (law, *ways)
    constant, goal = stop_gradient((args, target))
    # The bound with r = 0 needs no more than a point and the total variation.
    here, there = ways
    met = here.log_delta <= goal[..., None] - law.log_mean()
    least = jnp.min(jnp.where(met, here.threshold, _WIDE), axis=-1)
    weight = law.mean() * _chords(there, jnp.zeros(()))
    end = jnp.clip(stop_gradient(least + weight * (1 + _ROOM)), 0, _WIDE)
    missing = lambda epsilon: goal - _log_delta(epsilon, constant)
    _, root = root_between(missing, 0 * end, end)
    each = lambda e, t: implicit_root(_residual, e, (args, t), ())
    known = (end < _WIDE) & (goal > law.log_mean() + _SEEN)
    upper = jnp.where(known, jnp.vectorize(each)(root, target), jnp.inf)
    return Interval(jnp.full_like(upper, -jnp.inf), upper, upper)


@in_float64(cast_out=False)
def beta_of_many(alpha: Array, law: Poisson, ways: Ways) -> Array:
    """The largest lower bound of 1 - delta(t) - e^t alpha that was found."""

    def height(t: Array, args: tuple[Array, Poisson, Ways]) -> Array:
        alpha, law, (here, there) = args
        ahead = 1 - jnp.exp(_log_delta(t, (law, here, there)))
        # At negative thresholds it is the reflection of the exchanged direction's.
        behind = jnp.exp(t) * (1 - jnp.exp(_log_delta(-t, (law, there, here))))
        return jnp.where(t >= 0, ahead, behind) - jnp.exp(t) * alpha

    def one(alpha: Array) -> Array:
        args = alpha, law, ways
        fixed = stop_gradient(args)

        def closer(_: Any, t: Array) -> Array:
            best = jnp.argmax(height(t, fixed))
            ends = t[jnp.maximum(best - 1, 0)], t[jnp.minimum(best + 1, t.size - 1)]
            return ends[0] + (ends[1] - ends[0]) * _SHARES

        t = jax.lax.fori_loop(0, _CLOSER, closer, closer(0, jnp.asarray(_PROBES)))
        best = t[_SHARES.size // 2]
        return height(best, args) - _ROOM * jnp.exp(jnp.minimum(best, 0))

    return jnp.vectorize(one)(alpha)


def _residual(epsilon: Array, args: tuple[Any, Array], aux: tuple[()]) -> Array:
    return _log_delta(epsilon, args[0]) - args[1]


def _log_delta(epsilon: Array, args: tuple[Poisson, Points, Points]) -> Array:
    """An upper bound of log delta at thresholds of at least 0."""
    law, points, reverse = args
    # Where e^r - 1 is no less than h nothing is gained by a larger one.
    gain = jnp.log1p(law.mean() * jnp.exp(reverse.log_delta))
    most = jnp.min(jnp.maximum(reverse.threshold, gain))
    r = jnp.maximum(most, _LEAST) * _PARTS
    each = lambda r, share: cells(law, _FALLS, r, law.mean() * share)
    masses, log_t = jax.vmap(each)(r, _chords(reverse, r))
    moved = epsilon[..., None, None] + log_t
    moved = moved - _ROOM * (1 + jnp.abs(epsilon[..., None, None]))
    total = law.mean() * jnp.sum(masses * _chords(points, moved), axis=-1)
    return jnp.log(jnp.min(total, axis=-1) * (1 + _ROOM))


def _chords(points: Points, thresholds: Array) -> Array:
    """Upper bounds of delta at thresholds."""
    ends = jnp.zeros(1), jnp.ones(1)
    places, heights = (
        jnp.append(end, jnp.exp(x)) for end, x in zip(ends, points, strict=True)
    )
    return jnp.interp(jnp.exp(jnp.minimum(thresholds, _WIDE)), places, heights)
