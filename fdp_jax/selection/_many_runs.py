"""The cost of many runs, weighted by the chance of each output to be beaten."""

import dataclasses
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
from ._laws import AbstractRepetitions
from ._weights import kept

_FEW = np.append(np.linspace(-80.0, -2.0, 12), [-0.7, -0.1, -1e-3])
"""Logarithms of delta at the thresholds that points lie between."""
_SHARES = np.concatenate(
    [np.linspace(0, 7, 16), np.linspace(7.2, 10.2, 36), np.linspace(10.25, 14, 76)]
)
"""Of the points, counted in these."""
_WIDE = 600.0
"""Thresholds beyond which a profile is not followed."""
_PLACES = np.concatenate(
    [np.linspace(0.0, 36.0, 401), np.linspace(36.5, 72.0, 72), [150.0, 300.0, 600.0]]
)
"""Minus the logarithms of the weights at the ends of cells."""
_FINER, _ROUNDS = 8, 4
"""By how much each round of the search for r is finer than the one before."""
_ALIKE = 1e-12
"""Relative difference of ratios that are taken for one."""
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
    found: Interval,
    epsilon: Array,
    law: AbstractRepetitions,
    points: tuple[Points, Points],
) -> Interval:
    """Log delta(eps), at most the least bound of all r."""
    least = _log_delta(epsilon, (law, *points))
    return found.map(lambda x: jnp.minimum(x, least))


@in_float64
def lowered_epsilon(
    found: Bounds,
    delta: Array,
    law: AbstractRepetitions,
    ways: list[tuple[Points, Points]],
) -> Bounds:
    """The least eps >= 0 with delta(eps) at most delta in all ways, rounded up."""
    each = [_epsilon(delta, found.upper, (law, here, there)) for here, there in ways]
    upper = jnp.max(jnp.stack(each), axis=0)
    # No minimum: equal ones would share their derivative.
    least = lambda x: jnp.where(x <= upper, x, upper)
    ends = Interval(least(found.lower), least(found.estimate), upper)
    value = bounds_of(ends, jnp.isposinf(upper), EPSILON)
    return dataclasses.replace(value, method=found.method)


def _epsilon(delta: Array, most: Array, args: tuple[Any, Points, Points]) -> Array:
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


def _log_delta(
    epsilon: Array, args: tuple[AbstractRepetitions, Points, Points]
) -> Array:
    """An upper bound of log delta(eps) of a selection, the least of all r.

    In the notation of `SelectBest` let x = scale p, for an output, and w(x) its weight
    phi'(1 - p) / m as a winner, which falls from 1 to nothing: e^-x for a Poisson law,
    (1 + x)^-(1 + shape) for a negative binomial one, by which both are continued beyond
    p = 1.  The density of the output as a winner is m w(x) times that of a run, and
    that of the neighbor at least m w(h + e^r x) times, with h = scale H and the other
    direction's H = delta_run(r).  With L the loss of a run and v = -w', what counts is

        g(x) = w(x) - e^(eps - L) w(h + e^r x),    -g'(x) = v(x) (1 - e^(eps - L) t(x)),

    t(x) = e^r v(h + e^r x) / v(x).  As g ends at nothing, it is at most the integral of
    the positive part of -g', so at most E (1 - e^(eps - L) t(X))_+ with an X whose
    density is v, whatever x.  So, for every r,

        delta(eps) <= m E delta_run(eps + log t(X)).

    Where e^r = 1 + h, t is constant for a negative binomial law, and this the bound
    with the weight s of `SelectBest`; for a Poisson law it is so at r = 0.

    As a function of e^eps the profile of a run is convex: it lies below chords between
    points of it, and chords of t count for the mean of a chord, which is known: the
    integral of v t is that of -dw(h + e^r x).
    """
    fixed = stop_gradient((epsilon, *args))

    def narrower(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        middle, reach = state
        trials = middle + reach * np.linspace(-1.0, 1.0, 2 * _FINER + 1)
        best = jnp.argmin(_log_deltas(trials, *fixed), axis=-1, keepdims=True)
        return jnp.take_along_axis(trials, best, axis=-1), reach / _FINER

    half = 0.5 * _SHARES.size
    start = jnp.full_like(epsilon[..., None], half), jnp.asarray(half)
    place, _ = jax.lax.fori_loop(0, _ROUNDS, narrower, start)
    return _log_deltas(place, epsilon, *args)[..., 0]


def _log_deltas(
    places: Array,
    epsilon: Array,
    law: AbstractRepetitions,
    points: Points,
    reverse: Points,
) -> Array:
    """The bounds with each r, by its place among the points of the exchanged one."""
    # On a corner of the chords it moves as that does.
    r = jnp.interp(places, np.arange(float(_SHARES.size)), reverse.threshold)
    r = jnp.clip(r, 0.0, 0.1 * _WIDE)
    x = law._place(_PLACES)
    beyond = (law._scale() * _chords(reverse, r))[..., None] + jnp.exp(r)[..., None] * x
    log_t = r[..., None] + law._log_slope(beyond) - law._log_slope(x)
    room = _ROOM * (1 + jnp.abs(epsilon[..., None, None]))
    heights = _chords(points, epsilon[..., None, None] + log_t - room)
    log_w = law._log_weight(beyond)
    drop = log_w[..., :-1] + safe_log(-jnp.expm1(jnp.diff(log_w)))
    mass = np.exp(-_PLACES[:-1]) * -np.expm1(-np.diff(_PLACES))
    # Of a cell, its right end has this part.
    rise, mean = jnp.diff(log_t), drop - np.log(mass) - log_t[..., :-1]
    alike = jnp.abs(rise) <= _ALIKE
    right = jnp.expm1(mean) / jnp.expm1(jnp.where(alike, 1.0, rise))
    right = jnp.clip(jnp.where(alike, 0.5, right), 0.0, 1.0)
    cells = mass * ((1 - right) * heights[..., :-1] + right * heights[..., 1:])
    total = jnp.sum(cells, axis=-1) + np.exp(-_PLACES[-1])
    return law.log_mean() + jnp.log(total * (1 + _ROOM))


def _chords(points: Points, thresholds: Array) -> Array:
    """Upper bounds of delta at thresholds."""
    ends = jnp.zeros(1), jnp.ones(1)
    each = points.threshold[::-1], points.log_delta[::-1]
    places, heights = (
        jnp.append(end, jnp.exp(x)) for end, x in zip(ends, each, strict=True)
    )
    return jnp.interp(jnp.exp(jnp.minimum(thresholds, _WIDE)), places, heights)
