"""The profile of a meet: the convex hull of the smaller deficit."""

import dataclasses
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._hull import convex_minorant
from .._internal._implicit import _guarded as guarded
from .._internal._precision import in_float64
from .._internal._roots import bisect
from .._internal._special import safe_log
from .._internal._tolerances import MEET
from ..curves import (
    EPSILON,
    LOGARITHM,
    Bounds,
    ProfilePoint,
    bounds_of,
    elementwise,
    ordered,
)
from ..engines import Interval
from .cells import cell_bounds
from .delta import halves_of, search, sources
from .explore import Nodes, in_order
from .sources import Request, share

_Bracket = TypeVar("_Bracket", Bounds, Interval)


def without_derivative(found: _Bracket, *arguments: Any) -> _Bracket:
    """A value with a NaN derivative: better than one that is silently zero."""
    arrays = eqx.filter(arguments, eqx.is_inexact_array)
    estimate = jax.tree.map(lambda x: guarded(x, arrays), stop_gradient(found.estimate))
    return dataclasses.replace(found, estimate=estimate)


class _Hull(eqx.Module):
    """Deficits of the meet along the whole axis of priors, in the right frame.

    S(u) = u - R(1 - u) with u = 1 - pi is convex on [0, 1]; it is T for u <= 1/2.
    """

    u: Float[Array, " m"]
    lower: Float[Array, " m"]
    estimate: Float[Array, " m"]
    upper: Float[Array, " m"]

    def at(self, u: Array) -> Interval:
        """S at other places, by chords, which lie above."""
        return Interval(
            jnp.interp(u, self.u, self.lower),
            jnp.interp(u, self.u, self.estimate),
            jnp.interp(u, self.u, self.upper),
        )


def _hull(first: Request, second: Request, extra: Float[Array, " k"]) -> _Hull:
    found = search(first, second)
    chosen, halves = sources(first, second), halves_of(first, second)
    at = jnp.broadcast_to(jnp.abs(extra), (halves, extra.size))
    more = Nodes(at, *chosen.deficits(found.prepared, at))
    join = lambda x, y: jnp.concatenate([x, y], axis=1)
    nodes = in_order(jax.tree.map(join, found.nodes, more))
    least = jax.tree.map(jnp.minimum, nodes.one, nodes.other)
    q = nodes.q
    # Between nodes either deficit is below its chord by no more than this.
    sag = jnp.maximum(*(cell_bounds(q, t, t, None) for t in (nodes.one, nodes.other)))
    none = jnp.zeros_like(q[:, :1])
    sag = jnp.maximum(*(jnp.concatenate(x, axis=1) for x in ([none, sag], [sag, none])))
    low = jnp.maximum(least.upper - sag, 0)

    def whole(values: Array) -> Array:
        mirrored = values[-1][::-1] + (1 - 2 * q[-1][::-1])
        return jnp.concatenate([values[0], mirrored])

    u = jnp.concatenate([q[0], 1 - q[-1][::-1]])
    return _Hull(
        u,
        convex_minorant(u, whole(low)),
        convex_minorant(u, whole(least.estimate)),
        convex_minorant(u, whole(least.upper)),
    )


def _meet(first: Request, second: Request, epsilon: Array) -> tuple[_Hull, Array]:
    flat = jnp.ravel(jnp.clip(epsilon, -40.0, 40.0))
    hull = _hull(first, second, flat)
    u = jnp.where(epsilon >= 0, share(jnp.abs(epsilon)), 1 - share(jnp.abs(epsilon)))
    return hull, u


@in_float64(cast_out=False)
def meet_profile(
    first: Request,
    second: Request,
    either: tuple[ProfilePoint, ProfilePoint],
    epsilon: Array,
) -> ProfilePoint:
    """The profile, which is at most that of either guarantee."""
    epsilon = jnp.asarray(epsilon)
    hull, u = _meet(first, second, epsilon)
    found = hull.at(u)
    some = u > 0
    safe = jnp.where(some, u, 1.0)
    share_of = lambda x: jnp.where(some, x / safe, 0.0)
    floor = -jnp.expm1(jnp.minimum(epsilon, 0.0))
    delta = Interval(
        jnp.clip(share_of(found.lower) - MEET, floor, 1),
        jnp.clip(share_of(found.estimate), floor, 1),
        jnp.clip(share_of(found.upper) + MEET, floor, 1),
    )
    # R = u - S has an absolute error, of which u is the unit.
    rest = found.map_down(lambda s: u - s)
    rest = Interval(
        share_of(jnp.maximum(rest.lower - 0.1 * MEET, 0)),
        share_of(rest.estimate),
        jnp.where(some, jnp.minimum(share_of(rest.upper + 0.1 * MEET), 1), 1.0),
    )
    rounded = lambda value: value.map(safe_log).widened(_slack)
    log_delta, log_rest = rounded(delta), rounded(rest)
    least = jnp.minimum(either[0].log_delta.upper, either[1].log_delta.upper)
    most = jnp.maximum(either[0].log_rest.lower, either[1].log_rest.lower)
    least, most = jnp.minimum(log_delta.upper, least), jnp.maximum(log_rest.lower, most)
    found = (
        Interval(log_delta.lower, log_delta.estimate, jnp.minimum(least, 0)),
        Interval(most, log_rest.estimate, jnp.minimum(log_rest.upper, 0)),
    )
    arguments = first, second, epsilon
    return ProfilePoint(
        *(without_derivative(ordered(x, LOGARITHM)[0], *arguments) for x in found)
    )


def _slack(log_value: Array) -> Array:
    return 8 * jnp.finfo(log_value.dtype).eps * (1 + jnp.abs(log_value))


@in_float64
def meet_epsilon(first: Request, second: Request, delta: Array) -> Bounds:
    delta = jnp.asarray(delta)
    hull = _hull(first, second, jnp.zeros(1))

    def least(values: Array, target: Array) -> Array:
        # delta falls as u does: the eps with S(u) = u target.
        def above(epsilon: Array) -> Array:
            near = share(jnp.abs(epsilon))
            u = jnp.where(epsilon >= 0, near, 1 - near)
            return jnp.interp(u, hull.u, values) - u * target

        end = jnp.full_like(target, 40.0)
        high, _ = bisect(above, end, -end, 90)
        return jnp.where(high >= 40, jnp.inf, high)

    def one(target: Array) -> Bounds:
        upper = least(hull.upper, target - 1e-15)
        estimate = least(hull.estimate, target)
        lower = least(hull.lower, target + 1e-15)
        lower = jnp.where(jnp.isinf(lower), 40.0, lower - 1e-9)
        lower = jnp.where(lower <= -39, -jnp.inf, lower)
        upper = jnp.where(target >= 1, -jnp.inf, upper + 1e-14)
        lower = jnp.where(target >= 1, -jnp.inf, lower)
        value = Interval(lower, jnp.clip(estimate, lower, upper), upper)
        return bounds_of(value, jnp.isposinf(upper), EPSILON)

    return without_derivative(elementwise(one, delta), first, second, delta)
