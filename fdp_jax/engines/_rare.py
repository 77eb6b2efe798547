r"""Where the characteristic function decays too slowly: rare participations, few steps.

The law of N steps is split by the largest observation of a step.  With cuts a < b,

    delta = delta(all below a) + delta(all below b, one above a) + delta(one above b),

each the payoff's integral against a positive measure.  The one in the middle is a
contour integral that decays (`losses/_subsampled_gaussian/_band.py`), with all of the
contour engine's certificate.  The last one is negligible, by Chernoff's inequality.
So is the first one where the record is with the runs (direction "remove"): there many
small losses would have to add up.  In the direction "add" they are the largest losses,
all runs count, and delta(all below a) is P_a^N - e^eps Q_a^N, with P_a and Q_a the
masses below a, but for runs that add up to less than eps: again Chernoff's inequality.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, PyTree

from .._internal._arithmetic import ULP
from .._internal._interval import Interval, log_complement, sound
from .._internal._shapes import zeros_of
from .._internal._tolerances import SPLIT_REST
from ..losses import ComposedLoss
from ..losses._subsampled_gaussian._band import BandLoss
from ..losses._subsampled_gaussian._band_place import Place
from ..losses._subsampled_gaussian._band_tails import log_outside
from ._bounds import Profile, largest_loss, select
from ._line_mesh import (
    SHIFTS,
    Mesh,
    Place as LinePlace,
    Stack,
    chernoff_mesh,
    locate,
    prepared,
)
from ._line_queries import Seen, see
from ._line_slopes import log_value
from ._lines import Line, make_line
from ._rare_cuts import (
    BULK,
    Scales,
    bands_between,
    certain_part,
    farthest,
    log_above,
    log_below,
    outer_cuts,
    scales_of,
)
from ._root import step_within

_TURNS = 6
"""How often cuts are chosen anew, for a better guess of delta."""
_ABOUT = 1.5
"""How far log delta may be from its target where a threshold is moved."""
LEAST = -800.0
"""log delta below which no effort is made."""


class Rare(eqx.Module):
    """Cuts, and a line for what is between each two of them."""

    used: Bool[Array, ""]
    """Whether it was prepared, for there was a need."""
    width: Float[Array, ""]
    """Of the bracket of log delta where it was made for; 0 before that is known."""
    sign: Float[Array, ""]

    parts: BandLoss
    lines: Line
    active: Bool[Array, " j"]
    """Stacked, from the lowest band to the highest; not all are needed."""
    scales: Scales


def _outermost(parts: BandLoss, active: Array, ends: Array) -> BandLoss:
    """The lowest and the highest cut of those stacked bands that are needed."""
    lows, highs = parts.place.cuts.T
    low = jnp.min(jnp.where(active, lows, jnp.inf))
    cuts = jnp.stack([low, jnp.max(jnp.where(active, highs, -jnp.inf))])
    first = jax.tree.map(lambda x: x[0], parts)
    return dataclasses.replace(first, placed=Place(cuts, first.place.width, ends))


def _composed(part: BandLoss) -> ComposedLoss:
    return ComposedLoss((part,), (jnp.ones_like(part.count),))


@jax.jit
def plan_rare(
    step,
    count: Array,
    sign: Array,
    epsilon: Array,
    log_delta: Array,
    span: tuple[Array, Array] | None = None,
) -> Rare:
    """Chooses the cuts for a threshold.

    Args:
        step: The loss of one step.
        count: Number of steps.
        sign: Direction.
        epsilon: The threshold.
        log_delta: A first guess of log delta there.
        span: Where the threshold may move, to where log delta is about that; if the
            numbers are the same it is fixed.
    """
    span = (epsilon, epsilon) if span is None else span
    step, count, sign, epsilon, log_delta, (least, most) = stop_gradient(
        (step, count, sign, epsilon, log_delta, span)
    )
    fixed = least == most

    @jax.jit
    def bands(log_delta: Array, epsilon: Array) -> tuple:
        """Bands, their meshes and places; log delta by these, and its slope."""

        def begin(part: BandLoss) -> tuple[Stack, Mesh, LinePlace]:
            stack = prepared(_composed(part), sign)
            mesh = chernoff_mesh(stack)
            return stack, mesh, locate(mesh, epsilon, inverse=False, tail=True)

        scales = scales_of(step, count, sign, epsilon, -log_delta)
        low, high = outer_cuts(step, count, sign, epsilon, log_delta, scales)
        cuts, active = bands_between(step, low, high, scales.width)
        parts = jax.vmap(lambda pair: BandLoss(step, count, scales.around(pair)))(cuts)
        begun = _map_active(begin, parts, active)
        place = begun[2]
        each = place.log_value
        each = jnp.where(active & ~jnp.isnan(each), each, -jnp.inf)
        outer = _outermost(parts, active, scales.ends)
        certain, log_q = certain_part(outer, sign, epsilon[None])
        value = jnp.logaddexp(jax.nn.logsumexp(each), certain.estimate[0])
        steep = jnp.exp(each - value) @ jnp.asarray(SHIFTS)[place.row]
        steep = steep + jnp.exp(epsilon + log_q - value)
        return parts, begun, active, jnp.clip(value, LEAST, -1.0), -steep

    def unfinished(state: tuple) -> Array:
        turn, used, _, (*_, value, _) = state
        deep = (used < value + 3) & (used > value - 40)
        near = jnp.where(fixed, deep, jnp.abs(value - first) < _ABOUT)
        return (turn == 0) | ((turn < _TURNS) & ~near)

    def again(state: tuple) -> tuple:
        turn, _, (low, epsilon, high), (*_, value, slope) = state
        miss = jnp.where(turn > 0, value - first, 0)
        used = jnp.where(fixed, value - 1, first)
        low = jnp.where(miss > 0, epsilon, low)
        high = jnp.where(miss < 0, epsilon, high)
        newton = jnp.where(value > LEAST, epsilon - miss / slope, jnp.nan)
        moved = step_within(epsilon, newton, low, high)
        return turn + 1, used, (low, moved, high), bands(used, moved)

    first = jnp.clip(log_delta, LEAST, -1.0)
    turn, none = jnp.zeros((), jnp.int32), jnp.full_like(first, jnp.inf)
    *empty, _, _ = zeros_of(bands, first, epsilon)
    start = turn, none, (least, epsilon, most), (*empty, first + 1, none)
    found = lax.while_loop(unfinished, again, start)
    _, depth, (_, epsilon, _), (parts, begun, active, *_) = found
    lines = _map_active(lambda x: make_line(*x), begun, active)
    scales = scales_of(step, count, sign, epsilon, -depth)
    used, width = jnp.ones((), bool), jnp.zeros_like(sign)
    return stop_gradient(Rare(used, width, sign, parts, lines, active, scales))


def _map_active(one: Callable, args: PyTree, active: Array) -> PyTree:
    """A function of each of some bands, and zeros for those that are not needed."""
    one = jax.jit(one)
    none = lambda x: zeros_of(one, x)
    return lax.map(lambda x: lax.cond(x[1], one, none, x[0]), (args, active))


@functools.partial(jax.jit, static_argnames="moves")
def evaluation(
    loss: ComposedLoss,
    rare: Rare,
    epsilons: Float[Array, " e"],
    *,
    moves: bool = True,
) -> Seen:
    """The profile at thresholds near the plan's; differentiable if it `moves`."""
    sign, (step,), (count,) = rare.sign, loss.terms, loss.counts
    step: Any = step  # of a loss that can be split

    def one(line: Line) -> Seen:
        found = see(stop_gradient(line), stop_gradient(epsilons))
        if not moves:
            return found
        value = log_value(_composed(BandLoss(step, count)), epsilons, line)
        value = jnp.where(jnp.isneginf(value), found.log_value, value)
        return found._replace(log_value=value)

    each = _map_active(one, rare.lines, rare.active)
    active = rare.active[:, None]
    each = jax.tree.map(lambda x: jnp.where(active, x, -jnp.inf), each)
    add = lambda x: jax.nn.logsumexp(x, axis=0)
    outer = _outermost(rare.parts, rare.active, rare.scales.ends)
    # In batches what is not used is evaluated as well, and has to have derivatives.
    some = Place(jnp.arange(2.0), jnp.ones_like(count), jnp.asarray([-1.0, 1.0]))
    part = BandLoss(step, count, select(rare.used, outer.place, some))
    rest = stop_gradient(_left_out(rare, part, epsilons)) + SPLIT_REST
    least, log_q = certain_part(part, sign, epsilons)
    value = jnp.logaddexp(add(each.log_value), least.estimate)
    upper = jnp.logaddexp(jnp.logaddexp(add(each.log_upper), least.upper), rest)
    lower = jnp.logaddexp(add(each.log_lower), least.lower)
    log_alpha = jnp.logaddexp(add(each.log_alpha), log_q)
    # Of each part its own slope: where a sum is not heard, its tails are not known.
    share = jnp.exp(jnp.where(active, each.log_value - value, -jnp.inf))
    slope = jnp.sum(jnp.where(share > 0, share * each.slope, 0), axis=0)
    slope = slope - jnp.exp(epsilons + log_q - value)
    beyond = epsilons >= largest_loss(stop_gradient(loss), sign)
    cut = lambda x: jnp.where(beyond, -jnp.inf, x)
    return Seen(
        log_value=cut(value),
        log_lower=stop_gradient(cut(lower - 8 * ULP * (1 + jnp.abs(lower)))),
        log_upper=stop_gradient(cut(upper + 8 * ULP * (1 + jnp.abs(upper)))),
        log_alpha=stop_gradient(cut(log_alpha)),
        slope=stop_gradient(cut(slope)),
    )


def _left_out(
    rare: Rare, part: BandLoss, epsilons: Float[Array, " e"]
) -> Float[Array, " e"]:
    """A bound of what runs outside of all bands add to delta; no derivative."""
    part, epsilons = stop_gradient((part, epsilons))
    sign, scales, place = rare.sign, rare.scales, part.place
    below = log_below(part, sign, epsilons, scales, place.cuts[:1])
    above = log_above(part, sign, epsilons, scales, place.cuts[1:])
    far = farthest(part.step, part.count, sign, epsilons)
    # Ends that are far away leave out next to nothing, at any threshold.
    near = place.ends[1] < 1 + BULK * part.step.noise_multiplier
    outside = log_outside(part, sign, jnp.where(near, far, -jnp.inf))
    beyond = jnp.logaddexp(outside, scales.log_beyond(part.count))
    return jnp.logaddexp(jnp.logaddexp(below, above)[:, 0], beyond)


def rare_profile(
    loss: ComposedLoss,
    rare: Rare,
    epsilons: Float[Array, " e"],
    *,
    moves: bool = True,
) -> Profile:
    """The profile at thresholds near the plan's; differentiable if it `moves`."""
    found = evaluation(loss, rare, epsilons, moves=moves)
    log_delta = Interval(found.log_lower, found.log_value, found.log_upper)
    log_delta = sound(log_delta, -jnp.inf, 0.0).map(lambda x: jnp.minimum(x, 0))
    return Profile(log_delta, log_delta.map_down(log_complement), found.log_alpha)
