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

_FEW = np.append(np.linspace(-80.0, -2.0, 12), [-0.7, -0.1, -1e-3])
"""Logarithms of delta at the thresholds that points lie between."""
_SHARES = np.concatenate(
    [np.linspace(0, 7, 16), np.linspace(7.2, 10.2, 36), np.linspace(10.25, 14, 76)]
)
"""Of the points, counted in these."""
_WIDE = 600.0
"""Thresholds beyond which a profile is not followed."""
_FALLS = np.concatenate(
    [np.linspace(0.0, 36.0, 401), np.linspace(36.5, 72.0, 72), [150.0, 700.0, 1e4]]
)
"""Minus the logarithms of the weights at the ends of cells."""
_LEAST = 1e-4
"""Least r."""
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
    thresholds = _between(run._solve(np.exp(_FEW)))
    return _points(thresholds, run._profile(thresholds).log_delta)


@in_float64(cast_out=False)
def _between(found: Bounds) -> Array:
    places = jnp.clip(with_gradient(found.upper, found.estimate), -_WIDE, _WIDE)
    thresholds = jnp.interp(_SHARES, np.arange(float(_FEW.size)), places)
    # They fall, also where loose answers or rounding do not.
    return jax.lax.cummax(thresholds, reverse=True)


@in_float64(cast_out=False)
def _points(thresholds: Array, log_delta: Interval) -> Points:
    return Points(thresholds, with_gradient(log_delta.upper, log_delta.estimate))


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
    threshold, log_delta = (x[::2] for x in reverse)
    r = jnp.clip(threshold, _LEAST, 0.1 * _WIDE)
    share = jnp.where(threshold <= r, jnp.exp(log_delta), 1.0)  # delta at r
    each = lambda r, share: cells(law, _FALLS, r, law.mean() * share)
    masses, log_t = jax.vmap(each)(r, share)
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
