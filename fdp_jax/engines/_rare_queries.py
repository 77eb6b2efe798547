"""Profiles and epsilons of runs that are split where need be; see `_rare.py`."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._internal._arithmetic import ULP
from .._internal._interval import Interval, log_complement
from .._internal._shapes import zeros_of
from .._internal._special import safe_log
from ..losses import ComposedLoss
from ._bounds import Profile, capped, capped_profile, select, width_of
from ._rare import LEAST, Rare, evaluation, plan_rare, rare_profile
from ._root import Near, Search

_SPLITTING = "auto", "contour"
"""Engines that split a law; the answers of others do not depend on it."""
_MOST_STEPS = 1e9
_MOST_PROB = 1 - 1e-9
"""Sampling probability from which on every record takes part in every step."""
_TOLERANCE = 1e-7
"""Relative width of a bracket that is close enough."""
_DEEP = -100.0
"""log delta below which meshes do not tell where a threshold is."""
_NEAR, _CLOSE = 6.0, 0.1
"""How much log delta may change before cuts and contours are chosen anew; the second
where the bracket of the last one is wide."""


def can_split(loss: ComposedLoss) -> bool:
    """Whether the law of a loss can be split by its largest step, by its engine."""
    able = loss.method.name in _SPLITTING and len(loss.terms) == 1 and loss.analytic
    return able and loss.terms[0].splits


def splits(loss: ComposedLoss) -> bool:
    """Whether that is to be done, where it helps."""
    return loss.method.split and can_split(loss)


def split_if_loose(
    loss: ComposedLoss,
    sign: Float[Array, ""],
    epsilons: Float[Array, " e"],
    found: Profile,
    wanted: Bool[Array, ""],
    rare: Rare | None,
    anew: bool,
) -> tuple[Profile, Rare]:
    """A profile, improved where its bounds are not close together and it is `wanted`.

    Without derivative; see `rare_profile`.  A fractional number of steps has the upper
    bounds of the next whole number, where these are less.

    Args:
        loss: The composed loss.
        sign: Direction.
        epsilons: Thresholds.
        found: What is known there.
        wanted: Whether it matters.
        rare: The law as it is split already, if it is.
        anew: Whether to split it otherwise where that does not do.
    """
    loose = wanted & jnp.any(width_of(found) > _TOLERANCE)
    asked = loss, sign, found, epsilons, epsilons.size // 2
    other, rare = _split_where(loose, rare, anew, *asked)
    both = bounds_in_common(loss, other, found)
    better = rare.used & (jnp.max(width_of(other)) < jnp.max(width_of(found)))
    better = better & ~jnp.any(jnp.isnan(other.log_delta.estimate))
    estimates = select(better, other, found)
    profile = Profile(
        between_bounds(both.log_delta, estimates.log_delta),
        between_bounds(both.log_rest, estimates.log_rest),
        estimates.log_alpha,
    )
    return profile, dataclasses.replace(rare, used=better)


def split_where_possible(
    loss: ComposedLoss,
    sign: Float[Array, ""],
    known: Profile,
    epsilons: Float[Array, " e"],
    center: Int[Array, ""],
) -> tuple[Profile, Rare]:
    """The profile of the law split for one of some thresholds; without derivative.

    Of the next whole number of steps; whether that is the one asked for `used` says.
    """
    loose = width_of(known)[center] > _TOLERANCE
    return _split_where(loose, None, True, loss, sign, known, epsilons, center)


def _split_where(
    loose: Array, rare: Rare | None, anew: bool, loss: ComposedLoss, *args: Any
) -> tuple[Profile, Rare]:
    split = jax.jit(lambda: _split_at(rare, anew, loss, *args))
    keep = lambda: (args[1], rare or zeros_of(split)[1])
    # On the other side of zero directions are exchanged, and before it was needed a
    # law that is split has none.
    ready = anew or (rare is not None and rare.sign == args[0])
    return lax.cond(loose & ready & _applies(loss), split, keep)


def _split_at(
    rare: Rare | None,
    anew: bool,
    loss: ComposedLoss,
    sign: Array,
    known: Profile,
    epsilons: Array,
    center: ArrayLike,
) -> tuple[Profile, Rare]:
    """The profile by the law as it is split, and if that is not close `anew`."""
    loss, fraction = _rounded_up(loss)
    (step,), (count,) = loss.terms, loss.counts
    value = known.log_delta
    # Cuts for too small a delta will do, and bounds are several times too large.
    first = 2 * value.upper - 5
    first = jnp.where(jnp.isfinite(value.lower), value.estimate, first)

    @jax.jit
    def plan() -> Rare:
        return plan_rare(step, count, sign, epsilons[center], first[center])

    def unfinished(state: tuple) -> Array:
        turn, rare, found = state
        # As close as where it was made for, or nearly.
        enough = jnp.clip(2 * rare.width, _TOLERANCE, 5 * _TOLERANCE)
        return (turn < 1 + anew) & ~jnp.all(width_of(found) <= enough)

    def body(state: tuple) -> tuple:
        turn, rare, _ = state
        if anew:
            rare = lax.cond(turn == 0, lambda: rare, plan)
        found = rare_profile(loss, rare, epsilons, moves=False)
        width = jnp.where(turn == 0, rare.width, width_of(found)[center])
        return turn + 1, dataclasses.replace(rare, width=width), found

    rare = zeros_of(plan) if rare is None else rare
    turn = jnp.where(rare.sign == sign, 0, 1)
    _, rare, found = lax.while_loop(unfinished, body, (turn, rare, known))
    return found, dataclasses.replace(rare, used=~fraction)


def bounds_in_common(loss: ComposedLoss, found: Profile, known: Profile) -> Profile:
    """Bounds of a split law together with those that are known, and its estimates."""
    _, fraction = _rounded_up(loss)
    both = select(fraction, capped_profile(known, found), _in_common(known, found))
    return Profile(
        dataclasses.replace(both.log_delta, estimate=found.log_delta.estimate),
        dataclasses.replace(both.log_rest, estimate=found.log_rest.estimate),
        found.log_alpha,
    )


def _rounded_up(loss: ComposedLoss) -> tuple[ComposedLoss, Bool[Array, ""]]:
    """The next whole number of steps, and whether it is another one."""
    (count,) = loss.counts
    whole = jnp.ceil(count)
    return dataclasses.replace(loss, counts=(whole,), ends=None), whole != count


def _applies(loss: ComposedLoss) -> Bool[Array, ""]:
    """Whether there are steps which not all records take part in."""
    (step,), (count,) = loss.terms, loss.counts
    step: Any = step  # of a loss that can be split
    return (
        (count > 0)
        & (count < _MOST_STEPS)
        & (step.sampling_prob < _MOST_PROB)
        & (step.sampling_prob > 0)
    )


def _in_common(one: Profile, other: Profile) -> Profile:
    def both(a: Interval, b: Interval) -> Interval:
        lower, upper = jnp.maximum(a.lower, b.lower), jnp.minimum(a.upper, b.upper)
        return Interval(lower, a.estimate, upper)

    return Profile(
        both(one.log_delta, other.log_delta),
        both(one.log_rest, other.log_rest),
        one.log_alpha,
    )


def between_bounds(bounds: Interval, value: Interval) -> Interval:
    """An estimate, moved between some bounds."""
    estimate = jnp.clip(value.estimate, bounds.lower, bounds.upper)
    return Interval(bounds.lower, estimate, bounds.upper)


def is_close(low: Array, high: Array) -> Bool[Array, ""]:
    """Whether two ends of an epsilon are so close that its law need not be split."""
    return (high - low < jnp.inf) & (
        high - low <= _TOLERANCE * jnp.maximum(jnp.abs(low), jnp.abs(high))
    )


def split_epsilon_if_loose(
    loss: ComposedLoss,
    sign: Array,
    found: Interval,
    target: Array,
    slack: Float[Array, "2"],
    wanted: Bool[Array, ""],
) -> tuple[Interval, Rare]:
    """The epsilon of a log delta, improved where its bounds are not close together.

    A fractional number of steps has the upper bound of the next whole number, where
    that is less.
    """
    loss, fraction = _rounded_up(loss)
    least = log_complement(target + slack[0])
    least = least - 8 * ULP * (1 + jnp.abs(least))
    low = jnp.maximum(found.lower, least)
    most = jnp.maximum(found.upper, low)
    # Not proved for more steps, so what is found there has to be below.
    high = jnp.where(fraction, most + 3 * jnp.abs(most) + 1, most)
    bounds = jnp.where(fraction, least, low), high

    @jax.jit
    def split() -> tuple[Interval, Rare]:
        other, rare = rare_epsilon(loss, sign, bounds, found.estimate, target, slack)
        upper = jnp.where(other.upper < high, other.upper, jnp.inf)
        more = Interval(other.lower, other.estimate, upper)
        used = rare.used & ~fraction
        found_too = select(fraction, capped(found, more), other)
        return found_too, dataclasses.replace(rare, used=used)

    possible = jnp.isfinite(most - low) & (target > LEAST) & _applies(loss)
    loose = possible & ~is_close(low, most)
    keep = lambda: (found, zeros_of(split)[1])
    return lax.cond(wanted & loose, split, keep)


def _at_real(
    loss: ComposedLoss,
    rare: Rare,
    sign: Array,
    points: Array,
    *,
    moves: bool = True,
) -> Near:
    """Also below zero: delta(-e) = 1 - e^-e + e^-e delta_rev(e)."""
    flip = rare.sign != sign
    distance = jnp.where(flip, -points, points)
    found = evaluation(loss, rare, distance, moves=moves)
    none = -jnp.expm1(-distance)
    back = lambda x, none: safe_log(none + jnp.exp(x - distance))
    value = jnp.where(flip, back(found.log_value, none), found.log_value)
    # d delta(eps) / d eps = -e^eps P(X > eps), and P(X > -e) = 1 - Q_rev(Y >= e).
    log_power = jnp.logaddexp(found.log_value, distance + found.log_alpha)
    fall = -jnp.expm1(jnp.minimum(log_power, 0)) * jnp.exp(-distance - value)
    outward = lambda x, side: x + side * ULP * 4 * (1 + jnp.abs(x))
    # On the other side of zero terms cancel: no lower bound there.
    lower = outward(back(found.log_lower, none), -1)
    lower = jnp.where(distance < 0, -jnp.inf, lower)
    upper = outward(back(found.log_upper, jnp.maximum(none, 0)), 1)
    return Near(
        value,
        jnp.where(flip, lower, found.log_lower),
        jnp.where(flip, upper, found.log_upper),
        jnp.where(flip, -fall, found.slope),
    )


def rare_epsilon(
    loss: ComposedLoss,
    sign: Array,
    bounds: tuple[Array, Array],
    first: Array,
    target: Array,
    slack: Float[Array, "2"],
) -> tuple[Interval, Rare]:
    """The real epsilon at which log delta is `target`, by Newton's method.

    Args:
        loss: The composed loss.
        sign: Direction.
        bounds: Where it is for sure.
        first: Where it is, about.
        target: log delta.
        slack: Errors of the target to allow for, at the lower and the upper end.
    """
    (step,), (count,) = loss.terms, loss.counts

    @jax.jit
    def plan(search: Search) -> tuple[Search, Rare]:
        center = search.center
        flip, distance = center < 0, jnp.abs(center)
        guess = jnp.where(flip, -5.0, target)
        side = jnp.where(flip, -sign, sign)
        # What lines have told is not to be undone.
        stays = flip | (search.turn > 0) | (target < _DEEP)
        ends = jnp.maximum(search.low, 0), search.high
        span = tuple(jnp.where(stays, distance, x) for x in ends)
        rare = plan_rare(step, count, side, distance, guess, span)
        moved = jnp.where(stays, 0, rare.lines.epsilon[0] - distance)
        following = search.following + moved
        return dataclasses.replace(search, following=following), rare

    def too_far(rare: Rare, planned: Array, search: Search) -> Array:
        """Whether the next threshold needs a plan of its own."""
        moved = jnp.abs((search.center - planned) * search.last.slope[1])
        # Nearer only if what the plan leaves out is heard here.
        width = search.last.log_upper[1] - search.last.log_lower[1]
        far = ~(moved < jnp.where(width < _TOLERANCE, _NEAR, _CLOSE))
        return far | ((rare.sign != sign) & (search.center > 0))

    def body(state: tuple[Search, Rare]) -> tuple[Search, Rare]:
        """The steps of one plan, as long as thresholds are near enough to it."""
        before, rare = plan(state[0])
        at = lambda points: _at_real(loss, rare, sign, points, moves=False)

        def more(search: Search) -> Array:
            near = ~too_far(rare, before.center, search)
            return (search.turn == before.turn) | (search.unfinished() & near)

        return lax.while_loop(
            more, lambda search: search.after(at, jnp.inf), before
        ), rare

    least, most = bounds
    first = jnp.clip(first, least + 1e-3 * (most - least), most - 1e-3 * (most - least))
    search = Search.begun(target, slack, first, least, most)
    start = search, zeros_of(plan, search)[1]
    search, rare = lax.while_loop(lambda x: x[0].unfinished(), body, start)
    return search.found(least, most), rare


def rare_log_delta(
    loss: ComposedLoss, sign: Array, rare: Rare, epsilon: Array
) -> Float[Array, ""]:
    """Log delta at a real threshold, differentiable."""
    return _at_real(loss, rare, sign, epsilon[None]).log_value[0]
