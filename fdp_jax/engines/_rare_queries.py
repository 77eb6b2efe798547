"""Profiles and epsilons of runs that are split where need be; see `_rare.py`."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._internal._interval import Interval, log_complement
from .._internal._shapes import zeros_of
from .._internal._special import safe_log
from ..losses import ComposedLoss
from ._bounds import Profile, capped, capped_profile, select
from ._contour import Contour
from ._inversion import Table
from ._rare import LEAST, Rare, evaluation, plan_rare, rare_profile, tables_of

_NEWTON_TURNS, _MOST_STEPS = 24, 1e9
_MOST_PROB = 1 - 1e-9
"""Sampling probability from which on every record takes part in every step."""
_TOLERANCE = 1e-7
"""Relative width of a bracket that is close enough."""
_NEAR, _CLOSE = 2.0, 0.1
"""How much log delta may change before cuts and contours are chosen anew; the second
where the bracket of the last one is wide."""


def can_split(loss: ComposedLoss) -> bool:
    """Whether the law of a loss can be split by its largest step."""
    return len(loss.terms) == 1 and loss.analytic and loss.analytic_terms[0].splits


def splits(loss: ComposedLoss) -> bool:
    """Whether that is to be done, where it helps."""
    return loss.method.split and can_split(loss)


def split_if_loose(
    loss: ComposedLoss,
    contour: Contour,
    epsilons: Float[Array, " e"],
    found: Profile,
    wanted: Bool[Array, ""],
) -> tuple[Profile, Rare]:
    """A profile, improved where its bounds are not close together and it is `wanted`.

    Without derivative; see `rare_profile`.  A fractional number of steps has the upper
    bounds of the next whole number, where these are less.
    """
    loss, fraction = _rounded_up(loss)
    sign, (step,), (count,) = contour.sign, loss.terms, loss.counts
    middle = epsilons.size // 2
    known = found.log_delta.estimate[middle]
    first = jnp.where(jnp.isfinite(known), known, found.log_delta.upper[middle])

    @jax.jit
    def full() -> Rare:
        return plan_rare(step, count, sign, epsilons[middle], first)

    def split() -> tuple[Profile, Rare]:
        rare = full()
        other = rare_profile(loss, rare, epsilons, tabulated=True)
        both = select(fraction, capped_profile(found, other), _in_common(found, other))
        better = jnp.max(_width(other, contour)) < jnp.max(_width(found, contour))
        better = better & ~jnp.any(jnp.isnan(other.log_delta.estimate)) & ~fraction
        estimates = select(better, other, found)
        profile = Profile(
            _between_bounds(both.log_delta, estimates.log_delta),
            _between_bounds(both.log_rest, estimates.log_rest),
            estimates.log_alpha,
        )
        return profile, dataclasses.replace(rare, used=better)

    loose = jnp.any(_width(found, contour) > _TOLERANCE)
    loose = loose & _applies(loss)
    keep = lambda: (found, zeros_of(full))
    return lax.cond(wanted & loose, split, keep)


def split_at(
    loss: ComposedLoss,
    sign: Float[Array, ""],
    known: Profile,
    epsilons: Float[Array, " e"],
    center: Int[Array, ""],
    *,
    tabulated: bool,
) -> tuple[Profile, Rare]:
    """The profile of the law split for one of some thresholds; without derivative.

    Of the next whole number of steps; whether that is the one asked for `used` says.
    """
    loss, fraction = _rounded_up(loss)
    (step,), (count,) = loss.terms, loss.counts
    estimate = known.log_delta.estimate[center]
    upper = known.log_delta.upper[center]
    first = jnp.where(jnp.isfinite(estimate), estimate, upper)

    @jax.jit
    def split() -> tuple[Profile, Rare]:
        rare = plan_rare(step, count, sign, epsilons[center], first)
        found = rare_profile(loss, rare, epsilons, tabulated=tabulated)
        return found, dataclasses.replace(rare, used=~fraction)

    keep = lambda: (known, zeros_of(split)[1])
    return lax.cond(_applies(loss), split, keep)


def bounds_in_common(loss: ComposedLoss, found: Profile, known: Profile) -> Profile:
    """Bounds of a split law together with those that are known, and its estimates."""
    _, fraction = _rounded_up(loss)
    both = select(fraction, capped_profile(known, found), _in_common(known, found))

    def between(bounds: Interval, value: Interval) -> Interval:
        return Interval(bounds.lower, value.estimate, bounds.upper)

    return Profile(
        between(both.log_delta, found.log_delta),
        between(both.log_rest, found.log_rest),
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


def _width(found: Profile, contour: Contour) -> Float[Array, " e"]:
    """The width of the bracket of min(delta, 1 - delta), where that matters."""
    ends = select(contour.middle, found.log_rest, found.log_delta)
    width = ends.upper - ends.lower
    small = jnp.isneginf(ends.upper) | (ends.upper < LEAST)
    return jnp.where(small, 0, jnp.where(jnp.isnan(width), jnp.inf, width))


def _in_common(one: Profile, other: Profile) -> Profile:
    def both(a: Interval, b: Interval) -> Interval:
        lower, upper = jnp.maximum(a.lower, b.lower), jnp.minimum(a.upper, b.upper)
        return Interval(lower, a.estimate, upper)

    return Profile(
        both(one.log_delta, other.log_delta),
        both(one.log_rest, other.log_rest),
        one.log_alpha,
    )


def _between_bounds(bounds: Interval, value: Interval) -> Interval:
    estimate = jnp.clip(value.estimate, bounds.lower, bounds.upper)
    return Interval(bounds.lower, estimate, bounds.upper)


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
    least = least - 8 * jnp.finfo(least.dtype).eps * (1 + jnp.abs(least))
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

    width = most - low
    loose = ~(width <= _TOLERANCE * jnp.maximum(jnp.abs(low), jnp.abs(most)))
    loose = loose & jnp.isfinite(width) & (target > LEAST) & _applies(loss)
    keep = lambda: (found, zeros_of(split)[1])
    return lax.cond(wanted & loose, split, keep)


class _Near(eqx.Module):
    """Log delta at three real thresholds close together, with the slope."""

    value: Float[Array, " 3"]
    lower: Float[Array, " 3"]
    upper: Float[Array, " 3"]
    slope: Float[Array, " 3"]


def _at_real(
    loss: ComposedLoss,
    rare: Rare,
    sign: Array,
    points: Array,
    tables: Table | None = None,
) -> _Near:
    """Also below zero: delta(-e) = 1 - e^-e + e^-e delta_rev(e)."""
    flip = rare.sign != sign
    distance = jnp.where(flip, -points, points)
    found = evaluation(loss, rare, distance, tables)
    none = -jnp.expm1(-distance)
    back = lambda x, none: safe_log(none + jnp.exp(x - distance))
    value = jnp.where(flip, back(found.log_value, none), found.log_value)
    # d delta(eps) / d eps = -e^eps P(X > eps), and P(X > -e) = 1 - Q_rev(Y >= e).
    fall = -jnp.expm1(jnp.minimum(found.log_power, 0)) * jnp.exp(-distance - value)
    unit = jnp.finfo(points.dtype).eps
    outward = lambda x, side: x + side * unit * 4 * (1 + jnp.abs(x))
    # On the other side of zero terms cancel: no lower bound there.
    lower = outward(back(found.log_lower, none), -1)
    lower = jnp.where(distance < 0, -jnp.inf, lower)
    upper = outward(back(found.log_upper, jnp.maximum(none, 0)), 1)
    return _Near(
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
    def plan(center: Array) -> Rare:
        flip = center < 0
        guess = jnp.where(flip, -5.0, target)
        side = jnp.where(flip, -sign, sign)
        return plan_rare(step, count, side, jnp.abs(center), guess)

    def least_step(center: Array, steep: Array) -> Array:
        """A distance that says nothing, of epsilon or of log delta."""
        return 1e-13 * jnp.abs(center) + 1e-15 * (1 + jnp.abs(target)) / steep

    def steepness(last: _Near) -> Array:
        return jnp.maximum(jnp.abs(last.slope[1]), 1e-300)

    def unfinished(found: tuple) -> Array:
        turn, center, points, _, _, last = found
        moved = jnp.abs(center - points[1])
        close = moved <= least_step(center, steepness(last))
        certified = (points[0] < points[1]) | (turn > 2)
        return (turn < _NEWTON_TURNS) & ~(close & certified)

    def too_far(rare: Rare, planned: Array, state: tuple) -> Array:
        """Whether the next threshold needs a plan of its own."""
        _, center, _, _, _, last = state
        moved = jnp.abs((center - planned) * last.slope[1])
        # Nearer only if what the plan leaves out is heard here.
        heard = ~(last.upper[1] - last.lower[1] < _TOLERANCE)
        far = ~(moved < jnp.where(heard, _CLOSE, _NEAR))
        return far | ((rare.sign != sign) & (center > 0))

    def look(rare: Rare, tables: Table, state: tuple) -> tuple:
        """A step of Newton's method, with what is a little to both sides."""
        turn, center, _, low, high, last = state
        # How far the certificate's ends are from the estimate, in epsilon.
        steep = steepness(last)
        zero = jnp.zeros_like(center)
        sides = jnp.stack(
            [last.lower[1] - last.value[1], zero, last.upper[1] - last.value[1]]
        )
        least = 2 * least_step(center, steep)
        sides = 1.01 * sides / steep + least * jnp.asarray([-1.0, 0.0, 1.0])
        usable = jnp.isfinite(sides) & (jnp.abs(sides) * steep < 1) & (turn > 0)
        points = center + jnp.where(usable, sides, 0)
        here = _at_real(loss, rare, sign, points, tables)
        miss = here.value[1] - target
        low = jnp.where(miss > 0, jnp.maximum(low, center), low)
        high = jnp.where(miss < 0, jnp.minimum(high, center), high)
        following = center - miss / here.slope[1]
        inside = (following >= low) & (following <= high)
        following = jnp.where(inside, following, 0.5 * (low + high))
        return turn + 1, following, points, low, high, here

    def body(state: tuple) -> tuple:
        """The steps of one plan, as long as thresholds are near enough to it."""
        found, _ = state
        planned, first = found[1], found[0]
        rare = plan(planned)
        tables = tables_of(loss, rare)

        def more(found: tuple) -> Array:
            near = unfinished(found) & ~too_far(rare, planned, found)
            return (found[0] == first) | near

        found = lax.while_loop(more, lambda found: look(rare, tables, found), found)
        return found, rare

    least, most = bounds
    first = jnp.clip(first, least + 1e-3 * (most - least), most - 1e-3 * (most - least))
    points = jnp.full(3, jnp.inf, first.dtype)
    empty = _Near(*(jnp.zeros(3, first.dtype),) * 4)
    none = zeros_of(plan, first)
    turn = jnp.zeros((), jnp.int32)
    start = (turn, first, points, least, most, empty), none
    found, rare = lax.while_loop(lambda state: unfinished(state[0]), body, start)
    _, _, points, _, _, here = found
    rounded = 4 * jnp.finfo(target.dtype).eps * (1 + jnp.abs(target)) + slack
    above = here.upper[2] <= target - rounded[1]
    below = here.lower[0] >= target + rounded[0]
    upper = jnp.where(above, jnp.minimum(points[2], most), most)
    lower = jnp.where(below, jnp.maximum(points[0], least), least)
    return Interval(lower, jnp.clip(points[1], lower, upper), upper), rare


def rare_log_delta(
    loss: ComposedLoss, sign: Array, rare: Rare, epsilon: Array
) -> Float[Array, ""]:
    """Log delta at a real threshold, differentiable."""
    return _at_real(loss, rare, sign, epsilon[None]).value[0]
