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

from .._internal._implicit import implicit_root
from .._internal._precision import in_float64
from .._internal._special import safe_log
from ..curves import EPSILON, AbstractGuarantee, Bounds, bounds_of, with_gradient
from ..engines import Interval
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
_HALVINGS = 40


class Points(NamedTuple):
    """Points of a privacy profile, from low to high ones."""

    threshold: Float[Array, " n"]
    log_delta: Float[Array, " n"]
    """Upper bounds."""


@kept
def points_of(run: AbstractGuarantee) -> Points:
    """Points of the profile of one direction of a run."""
    return _points(run._solve(np.exp(_LOGS)))


@in_float64(cast_out=False)
def _points(found: Bounds) -> Points:
    threshold = with_gradient(found.upper, found.estimate)
    # They fall, also where loose answers or rounding do not.
    threshold = jax.lax.cummax(threshold, reverse=True)
    # Of those that are met beyond, only what is met below is known there.
    met = threshold <= _WIDE
    log_delta = jnp.where(met, _LOGS, jnp.min(jnp.where(met, _LOGS, 0.0)))
    return Points(jnp.clip(threshold, -_WIDE, _WIDE), log_delta)


@in_float64(cast_out=False)
def lowered(
    found: Interval, epsilon: Array, law: Poisson, points: tuple[Points, Points]
) -> Interval:
    """Log delta(eps), at most the least bound of all r."""
    least = _log_delta(epsilon, (law, *points))
    return found.map(lambda x: jnp.minimum(x, least))


@in_float64
def lowered_epsilon(
    found: Bounds, delta: Array, law: Poisson, ways: list[tuple[Points, Points]]
) -> Bounds:
    """The least eps >= 0 with delta(eps) at most delta in all ways, rounded up."""
    each = [_epsilon(delta, found.upper, (law, here, there)) for here, there in ways]
    upper = jnp.max(jnp.stack(each), axis=0)
    # No minimum: equal ones would share their derivative.
    least = lambda x: jnp.where(x <= upper, x, upper)
    ends = Interval(least(found.lower), least(found.estimate), upper)
    return bounds_of(ends, jnp.isposinf(upper), EPSILON, found.method)


def _epsilon(delta: Array, most: Array, args: tuple[Poisson, Points, Points]) -> Array:
    target = jnp.broadcast_to(safe_log(jnp.asarray(delta)), most.shape)
    constant, goal = stop_gradient((args, target))
    end = jnp.where(jnp.isfinite(most), stop_gradient(most), _WIDE)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = 0.5 * (ends[0] + ends[1])
        below = _log_delta(middle, constant) <= goal
        return jnp.where(below, ends[0], middle), jnp.where(below, middle, ends[1])

    _, root = jax.lax.fori_loop(0, _HALVINGS, halve, (0 * end, end))
    each = lambda e, t: implicit_root(_residual, e, (args, t), ())
    moved = jnp.vectorize(each)(root, target)
    return jnp.where((root < end) & (moved < most), moved, most)


def _residual(epsilon: Array, args: tuple[Any, Array], aux: tuple[()]) -> Array:
    return _log_delta(epsilon, args[0]) - args[1]


def _log_delta(epsilon: Array, args: tuple[Poisson, Points, Points]) -> Array:
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
    each = points.threshold[::-1], points.log_delta[::-1]
    places, heights = (
        jnp.append(end, jnp.exp(x)) for end, x in zip(ends, each, strict=True)
    )
    return jnp.interp(jnp.exp(jnp.minimum(thresholds, _WIDE)), places, heights)
