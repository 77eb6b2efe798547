"""The profile of a meet: the convex hull of the smaller deficit."""

import dataclasses
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._hull import convex_minorant
from .._internal._implicit import _guarded as guarded
from .._internal._precision import in_float64
from .._internal._special import safe_log
from .._internal._tolerances import MEET
from ..curves import (
    LOGARITHM,
    Bounds,
    ProfilePoint,
    ordered,
)
from ..curves.logs import log_room
from ..curves.pointwise import epsilon_bounds
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
    _at_once: ClassVar[int] = 32

    def _point(self, epsilon: Array) -> ProfilePoint:
        """The profile at real thresholds, by chords of S, which lie above."""
        near = share(jnp.abs(epsilon))
        u = jnp.where(epsilon >= 0, near, 1 - near)
        ends = self.lower, self.estimate, self.upper
        found = Interval(*(jnp.interp(u, self.u, values) for values in ends))
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
        rounded = lambda value: value.map(safe_log).widened(log_room)
        return ProfilePoint(rounded(delta), rounded(rest))


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


@in_float64(cast_out=False)
def meet_profile(
    first: Request,
    second: Request,
    either: tuple[ProfilePoint, ProfilePoint],
    epsilon: Array,
) -> ProfilePoint:
    """The profile, which is at most that of either guarantee."""
    epsilon = jnp.asarray(epsilon)
    nodes = jnp.ravel(jnp.clip(epsilon, -40.0, 40.0))
    point = _hull(first, second, nodes)._point(epsilon)
    log_delta, log_rest = point.log_delta, point.log_rest
    least = jnp.minimum(either[0].log_delta.upper, either[1].log_delta.upper)
    most = jnp.maximum(either[0].log_rest.lower, either[1].log_rest.lower)
    least, most = jnp.minimum(log_delta.upper, least), jnp.maximum(log_rest.lower, most)
    upper = jnp.minimum(least, 0), jnp.minimum(log_rest.upper, 0)
    log_delta, _ = ordered(
        Interval(log_delta.lower, log_delta.estimate, upper[0]), LOGARITHM
    )
    log_rest, _ = ordered(Interval(most, log_rest.estimate, upper[1]), LOGARITHM)
    arguments = first, second, epsilon
    return ProfilePoint(
        without_derivative(log_delta, *arguments),
        without_derivative(log_rest, *arguments),
    )


@in_float64
def meet_epsilon(first: Request, second: Request, delta: Array) -> Bounds:
    """Bounds of the least epsilon of a delta."""
    hull = _hull(first, second, jnp.zeros(1))
    found = epsilon_bounds(*stop_gradient((hull, jnp.asarray(delta))))
    return without_derivative(found, first, second, delta)
