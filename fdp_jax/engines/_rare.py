r"""Where the characteristic function decays too slowly: rare participations, few steps.

The law of N steps is split by the largest observation of a step.  With cuts a < b,

    delta = delta(all below a) + delta(all below b, one above a) + delta(one above b),

each the payoff's integral against a positive measure.  The one in the middle is a
contour integral that decays (`losses/_subsampled_gaussian/_band.py`), with all of the
spectral engine's certificate.  The last one is negligible, by Chernoff's inequality.
So is the first one where the record is with the runs (direction "remove"): there many
small losses would have to add up.  In the direction "add" they are the largest losses,
all runs count, and delta(all below a) is P_a^N - e^eps Q_a^N, with P_a and Q_a the
masses below a, but for runs that add up to less than eps: again Chernoff's inequality.
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, PyTree

from .._internal._interval import Interval, log_complement, sound
from .._internal._special import log1mexp, log1p, log_ndtr, safe_log
from .._internal._tolerances import SPLIT_REST
from ..losses import ComposedLoss
from ..losses._subsampled_gaussian._band import NODES, BandLoss, Place
from ..losses._subsampled_gaussian._integrand import Integrand
from ._bounds import Profile, largest_loss, select
from ._contour import Contour, Start, _log_payoff, plan_contour
from ._inversion import Evaluation, evaluate, look_up, tabulate
from ._spectral import (
    tail_start_at_epsilon,
)

_LOW_CUTS, _HIGH_CUTS, _LEVELS = 24, 16, 20
_DROP = 30.0
"""-log of what is left out, relative to delta."""
_TAIL = 45.0
"""-log of the mass of one step beyond the nodes, relative to delta."""
_BEYOND = 9.0
"""Widths of a cut that there are nodes for beyond the highest one."""
_BULK = 13.5
"""Standard deviations of the noise that hold all but 1e-41 of it."""
_BANDS = 12
_TURNS = 6
"""How often cuts are chosen anew, for a better guess of delta."""
_LEAST = -800.0
"""log delta below which no effort is made."""
_NEWTON_TURNS, _MOST_STEPS = 24, 1e9
_MOST_PROB = 1 - 1e-9
"""Sampling probability from which on every record takes part in every step."""
_TOLERANCE = 1e-7
"""Relative width of a bracket that is close enough."""
_NEAR, _CLOSE = 2.0, 0.1
"""How much log delta may change before cuts and contours are chosen anew; the second
where the bracket of the last one is wide."""
_MOST_WORK = 16384
"""Blocks of frequencies times blocks of nodes."""
_RATIO = 1.0
"""Log of the ratio of the losses at the two cuts of a band, about."""


class Rare(eqx.Module):
    """Cuts, and a contour for what is between each two of them."""

    used: Bool[Array, ""]
    """Whether it was prepared, for there was a need."""
    sign: Float[Array, ""]

    parts: BandLoss
    contours: Contour
    active: Bool[Array, " j"]
    """Stacked, from the lowest band to the highest; not all are needed."""
    scales: "_Scales"


def _outermost(parts: BandLoss, active: Array, ends: Array) -> BandLoss:
    """The lowest and the highest cut of those stacked bands that are needed."""
    lows, highs = parts.place.cuts.T
    low = jnp.min(jnp.where(active, lows, jnp.inf))
    cuts = jnp.stack([low, jnp.max(jnp.where(active, highs, -jnp.inf))])
    first = jax.tree.map(lambda x: x[0], parts)
    return dataclasses.replace(first, placed=Place(cuts, first.place.width, ends))


def _composed(part: BandLoss) -> ComposedLoss:
    return ComposedLoss((part,), (jnp.ones_like(part.count),))


class _Scales(eqx.Module):
    """Observations and losses that matter at a threshold."""

    gap: Float[Array, ""]
    """What the losses beyond the least one must add up to."""
    left: Float[Array, ""]
    right: Float[Array, ""]
    width: Float[Array, ""]
    reach: Float[Array, ""]
    """Widths above a cut beyond which a cut leaves next to nothing."""
    levels: Float[Array, " k"]
    """Exponents of Chernoff's inequality."""
    ends: Float[Array, "2"]

    def around(self, cuts: Float[Array, "2"]) -> Place:
        """Of a band: above its reach, tilts may make much of next to nothing."""
        end = jnp.minimum(cuts[1] + self.reach * self.width, self.ends[1])
        return Place(cuts, self.width, self.ends.at[1].set(end))

    def log_beyond(self, count: Array) -> Float[Array, ""]:
        """A bound of what runs with a step beyond that add to delta, in all bands."""
        return jnp.log(_BANDS * count) + log_ndtr(-self.reach)


def _gap(step, count: Array, sign: Array, epsilon: Array) -> Float[Array, ""]:
    """What losses beyond the least one must add up to at a threshold, rounded up."""
    least = -count * log1p(-jnp.minimum(step.sampling_prob, 1 - 1e-15))
    unit = 4 * jnp.finfo(least.dtype).eps
    gap = least + sign * epsilon + unit * (least + jnp.abs(epsilon))
    return jnp.maximum(gap, 1e-300)


def _scales(step, count: Array, sign: Array, epsilon: Array, depth: Array) -> _Scales:
    s = step.noise_multiplier
    gap = _gap(step, count, sign, epsilon)
    levels = (depth + 60) / gap * jnp.exp2(jnp.arange(_LEVELS, dtype=s.dtype) - 3)
    levels = levels.at[0].set(0)
    far = s * jnp.sqrt(2 * (_TAIL + depth + jnp.log1p(count)))
    reach = jnp.sqrt(2 * (_TAIL + depth))
    # Neither wider than the noise, nor than what tilts and losses vary in.
    width = jnp.minimum(0.5 * s, jnp.minimum(jnp.square(s), 2.5 * s) / reach)
    left = jnp.where(sign > 0, -_BULK * s, -far - 3 * s)
    # Losses of "add" that farther steps take away are too many.
    most = jnp.maximum(_place(step, gap), left) + (reach + 1) * width
    right = jnp.where(sign > 0, 1 + far, jnp.minimum(1 + _BULK * s, most))
    width = jnp.maximum(width, 2 * (right - left) / NODES)
    ends = jnp.stack([left, right + _BEYOND * width])
    return _Scales(gap, left, right, width, reach, levels, ends)


def _place(step, level: Array) -> Array:
    """The observation at which the loss is `level` above the least one."""
    s, q = step.noise_multiplier, jnp.minimum(step.sampling_prob, 1 - 1e-15)
    log_ratio = jnp.where(
        level < 1,
        safe_log(jnp.expm1(jnp.minimum(level, 1))),
        level + log1mexp(jnp.maximum(level, 1)),
    )
    return 0.5 + jnp.square(s) * (log_ratio + log1p(-q) - jnp.log(q))


def _farthest(step, count: Array, sign: Array, epsilon: Array) -> Float[Array, ""]:
    """The observation beyond which one step of "add" leaves nothing of delta."""
    return _place(step, _gap(step, count, sign, epsilon))


def _level(step, x: Array) -> Array:
    """The inverse of `_place`."""
    q = jnp.minimum(step.sampling_prob, 1 - 1e-15)
    return jax.nn.softplus(step.u(x) + jnp.log(q) - log1p(-q))


def plan_rare(
    step, count: Array, sign: Array, epsilon: Array, log_delta: Array
) -> Rare:
    """Chooses the cuts for a threshold; log_delta is a first guess of delta's there."""
    step, count, sign, epsilon, log_delta = stop_gradient(
        (step, count, sign, epsilon, log_delta)
    )

    def bands(log_delta: Array) -> tuple[BandLoss, Start, Array, Array]:
        scales = _scales(step, count, sign, epsilon, -log_delta)
        low, high = _cuts(step, count, sign, epsilon, log_delta, scales)
        cuts, active = _between(step, low, high, scales.width)
        parts = jax.vmap(lambda pair: BandLoss(step, count, scales.around(pair)))(cuts)
        begin = lambda part: tail_start_at_epsilon(_composed(part), sign, epsilon)
        starts = _map_active(begin, parts, active)
        each = jax.vmap(lambda start: start.rough_log_delta(epsilon))(starts)
        each = jnp.where(active & ~jnp.isnan(each), each, -jnp.inf)
        outer = _outermost(parts, active, scales.ends)
        certain, *_ = _certain(outer, sign, epsilon[None])
        value = jnp.logaddexp(jax.nn.logsumexp(each), certain.estimate[0])
        return parts, starts, active, jnp.clip(value, _LEAST, -1.0)

    def unfinished(state: tuple) -> Array:
        turn, used, (*_, value) = state
        return (turn < _TURNS) & ~((used < value + 3) & (used > value - 40))

    def again(state: tuple) -> tuple:
        turn, _, (*_, value) = state
        return turn + 1, value - 1, bands(value - 1)

    first = jnp.clip(log_delta, _LEAST, -1.0)
    shape = jax.eval_shape(bands, first)
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
    start = (jnp.zeros((), jnp.int32), jnp.ones_like(first), (*empty[:-1], first + 1))
    _, used, (parts, starts, active, _) = lax.while_loop(unfinished, again, start)
    contours = _map_active(_contour, (parts, starts), active)
    scales = _scales(step, count, sign, epsilon, -used)
    return stop_gradient(
        Rare(jnp.ones((), bool), sign, parts, contours, active, scales)
    )


def can_split(loss: ComposedLoss) -> bool:
    """Whether the law of a loss can be split by its largest step."""
    return len(loss.terms) == 1 and loss.analytic and loss.analytic_terms[0].splits


def splits(loss: ComposedLoss) -> bool:
    """Whether that is to be done, where it helps."""
    double = loss.counts[0].dtype == jnp.float64
    return double and loss.method.split and can_split(loss)


def split_if_loose(
    loss: ComposedLoss,
    contour: Contour,
    epsilons: Float[Array, " e"],
    found: Profile,
    wanted: Bool[Array, ""],
) -> tuple[Profile, Rare]:
    """A profile, improved where its bounds are not close together and it is `wanted`.

    Without derivative; see `rare_profile`.
    """
    sign, (step,), (count,) = contour.sign, loss.terms, loss.counts
    middle = epsilons.size // 2
    known = found.log_delta.estimate[middle]
    first = jnp.where(jnp.isfinite(known), known, found.log_delta.upper[middle])

    def full() -> Rare:
        return plan_rare(step, count, sign, epsilons[middle], first)

    def split() -> tuple[Profile, Rare]:
        rare = full()
        other = rare_profile(loss, rare, epsilons, tabulated=True)
        both = _in_common(found, other)
        better = jnp.max(_width(other, contour)) < jnp.max(_width(found, contour))
        better = better & ~jnp.any(jnp.isnan(other.log_delta.estimate))
        estimates = select(better, other, found)
        profile = Profile(
            _between_bounds(both.log_delta, estimates.log_delta),
            _between_bounds(both.log_rest, estimates.log_rest),
            estimates.log_alpha,
        )
        return profile, dataclasses.replace(rare, used=better)

    loose = jnp.any(_width(found, contour) > _TOLERANCE)
    loose = loose & _applies(loss)
    keep = lambda: (found, _zeros(full))
    return lax.cond(wanted & loose, split, keep)


def _applies(loss: ComposedLoss) -> Bool[Array, ""]:
    """Whether there is a whole number of steps, which not all records take part in."""
    (step,), (count,) = loss.terms, loss.counts
    assert isinstance(step, Integrand)
    whole = (count == jnp.round(count)) & (count < _MOST_STEPS)
    return whole & (step.sampling_prob < _MOST_PROB) & (step.sampling_prob > 0)


def _width(found: Profile, contour: Contour) -> Float[Array, " e"]:
    """Of the bracket of what is the less of delta and 1 - delta, where that matters."""
    ends = select(contour.middle, found.log_rest, found.log_delta)
    width = ends.upper - ends.lower
    small = jnp.isneginf(ends.upper) | (ends.upper < _LEAST)
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
    """The epsilon of a log delta, improved where its bounds are not close together."""
    least = log_complement(target + slack[0])
    least = least - 8 * jnp.finfo(least.dtype).eps * (1 + jnp.abs(least))
    low = jnp.maximum(found.lower, least)
    bounds = low, jnp.maximum(found.upper, low)

    def split() -> tuple[Interval, Rare]:
        return rare_epsilon(loss, sign, bounds, found.estimate, target, slack)

    width = bounds[1] - bounds[0]
    loose = ~(width <= _TOLERANCE * jnp.maximum(jnp.abs(low), jnp.abs(bounds[1])))
    loose = loose & jnp.isfinite(width) & (target > _LEAST) & _applies(loss)
    keep = lambda: (found, _zeros(lambda: split()[1]))
    return lax.cond(wanted & loose, split, keep)


def _zeros(make: Callable[[], PyTree]) -> PyTree:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(make))


def _map_active(one: Callable, args: PyTree, active: Array) -> PyTree:
    """A function of each of some bands, and zeros for those that are not needed."""
    shape = jax.eval_shape(one, jax.tree.map(lambda x: x[0], args))
    none = lambda _: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
    return lax.map(lambda x: lax.cond(x[1], one, none, x[0]), (args, active))


def _contour(args: tuple[BandLoss, Start]) -> Contour:
    part, start = args
    contour = plan_contour(_composed(part), start)
    work = contour.blocks * contour.plans[0].blocks
    hopeless = contour.rough | (work > _MOST_WORK)
    return dataclasses.replace(
        contour, rough=hopeless, blocks=jnp.where(hopeless, 1, contour.blocks)
    )


def _between(
    step, low: Array, high: Array, width: Array
) -> tuple[Float[Array, "j 2"], Bool[Array, " j"]]:
    """Cuts of bands in which the loss varies by about the same factor."""
    bottom, top = _level(step, low), _level(step, high)
    ratio = jnp.log(top / bottom)
    bands = jnp.clip(jnp.ceil(ratio / _RATIO), 1, _BANDS)
    index = jnp.arange(_BANDS + 1, dtype=ratio.dtype)
    cuts = _place(step, bottom * jnp.exp(ratio * jnp.minimum(index / bands, 1)))
    cuts = jnp.where(index == 0, low, jnp.where(index >= bands, high, cuts))
    active = index[:-1] < bands
    # What is not needed lies above all others.
    lows = jnp.where(active, cuts[:-1], high)
    highs = jnp.where(active, cuts[1:], high + width)
    return jnp.stack([lows, jnp.maximum(highs, lows + 1e-3 * width)], axis=1), active


def _cuts(
    step, count: Array, sign: Array, epsilon: Array, log_delta: Array, scales: _Scales
) -> tuple[Array, Array]:
    """The highest cut below which little adds up, and the lowest with little above."""
    left, right, width = scales.left, scales.right, scales.width
    exponents = jnp.arange(_LOW_CUTS, dtype=left.dtype) / 1.5 - 1
    lows = _place(step, scales.gap * jnp.exp2(-exponents)) - scales.reach * width
    lows = jnp.clip(lows, left, right - width)
    begin = jnp.clip(_place(step, 0.25 * scales.gap), left, right)
    share = jnp.arange(_HIGH_CUTS, dtype=left.dtype) / (_HIGH_CUTS - 1)
    highs = begin + (right - begin) * share
    place = Place(jnp.stack([left, right]), width, scales.ends)
    part = BandLoss(step, count, place)
    below = _log_below(part, sign, epsilon, scales, lows)
    above = _log_above(part, sign, epsilon, scales, highs)
    target = log_delta - _DROP
    fits = below < target
    low = jnp.where(jnp.any(fits), lows[jnp.argmax(fits)], left)
    fits = above < target
    high = jnp.where(jnp.any(fits), highs[jnp.argmax(fits)], right + 8 * width)
    return low, jnp.maximum(high, low + width)


def _log_below(
    part: BandLoss, sign: Array, epsilon: Array, scales: _Scales, cuts: Array
) -> Float[Array, " c"]:
    """A bound of what runs below some lower cuts add to delta.

    In direction "add", of what they fall short of P_a^N - e^eps Q_a^N.
    """
    orders = 1 + scales.levels
    logs, beyond = part.log_excess_below(orders, cuts, scales.reach)
    least = part.count * -log1p(-part.step.sampling_prob)
    # R = e^(D - least): runs with all steps within reach, then those with another one.
    removed = _log_payoff(scales.levels) - scales.levels * epsilon - orders * least
    added = orders * (epsilon - least)
    every = part.count * logs
    bound = every + jnp.where(sign > 0, removed, added)[:, None]
    unit = 8 * jnp.finfo(bound.dtype).eps
    sizes = orders * (1 + jnp.abs(epsilon) + least)
    bound = bound + unit * (sizes[:, None] + jnp.abs(every))
    bound = jnp.min(jnp.where(jnp.isnan(bound), jnp.inf, bound), axis=0)
    other = jnp.log(part.count) + beyond + jnp.where(sign > 0, 0, epsilon)
    return jnp.logaddexp(bound, other)


def _log_above(
    part: BandLoss, sign: Array, epsilon: Array, scales: _Scales, cuts: Array
) -> Float[Array, " c"]:
    """A bound of what runs with a step above some upper cuts add to delta."""
    levels = scales.levels
    orders = jnp.where(sign > 0, 1 + levels, -levels)
    one, every = part.log_masses_above(orders, cuts)
    rest = (part.count - 1) * every + _log_payoff(levels) - levels * epsilon
    unit = 8 * jnp.finfo(rest.dtype).eps
    sizes = (part.count - 1) * jnp.abs(every) + (1 + levels) * (1 + jnp.abs(epsilon))
    rest = rest + unit * sizes
    bound = jnp.log(part.count) + one + rest[:, None]
    bound = jnp.min(jnp.where(jnp.isnan(bound), jnp.inf, bound), axis=0)
    # In direction "add" a step with more than the gap leaves nothing of delta.
    far = _farthest(part.step, part.count, sign, epsilon)
    few = log_ndtr((far - cuts) / part.place.width) + 1e-9
    few = jnp.where(sign > 0, 0, jnp.log(part.count) + few)
    return jnp.minimum(bound, few)


def rare_evaluation(
    rare: Rare, step, count: Array, epsilons: Float[Array, " e"], *, tabulated: bool
) -> Evaluation:
    """The profile at thresholds near the plan's; differentiable if not tabulated."""
    contours, sign = rare.contours, rare.sign

    def one(contour: Contour) -> Evaluation:
        loss = _composed(BandLoss(step, count))
        if tabulated:
            table = tabulate(loss, contour)
            return look_up(table, contour, epsilons)
        return evaluate(loss, contour, epsilons)

    each = _map_active(one, contours, rare.active)
    active = rare.active[:, None]
    each = jax.tree.map(lambda x: jnp.where(active, x, -jnp.inf), each)
    add = lambda x: jax.nn.logsumexp(x, axis=0)
    outer = _outermost(rare.parts, rare.active, rare.scales.ends)
    part = BandLoss(step, count, outer.place)
    fixed = stop_gradient(part)

    def left_out(epsilon: Array) -> Array:
        low, high = fixed.place.cuts[:1], fixed.place.cuts[1:]
        below = _log_below(fixed, sign, epsilon, rare.scales, low)
        above = _log_above(fixed, sign, epsilon, rare.scales, high)
        far = _farthest(step, count, sign, epsilon)
        # Ends that are far away leave out next to nothing, at any threshold.
        near = fixed.place.ends[1] < 1 + _BULK * step.noise_multiplier
        outside = fixed.log_outside(sign, jnp.where(near, far, -jnp.inf))
        beyond = jnp.logaddexp(outside, rare.scales.log_beyond(count))
        return jnp.logaddexp(jnp.logaddexp(below, above)[0], beyond)

    rest = lax.map(left_out, stop_gradient(epsilons)) + SPLIT_REST
    least, log_p, log_q = _certain(part, sign, epsilons)
    value = jnp.logaddexp(add(each.log_value), least.estimate)
    upper = jnp.logaddexp(jnp.logaddexp(add(each.log_upper), least.upper), rest)
    lower = jnp.logaddexp(add(each.log_lower), least.lower)
    unit = 8 * jnp.finfo(upper.dtype).eps
    log_alpha = jnp.logaddexp(add(each.log_alpha), log_q)
    log_power = jnp.logaddexp(add(each.log_power), log_p)
    # Of each part its own slope: where a sum is not heard, its tails are not known.
    share = jnp.exp(jnp.where(active, each.log_value - value, -jnp.inf))
    slope = jnp.sum(jnp.where(share > 0, share * each.slope, 0), axis=0)
    slope = slope - jnp.exp(epsilons + log_q - value)
    steep = jnp.where(active, jnp.abs(each.alpha_slope), 0)
    log_density = add(each.log_alpha + safe_log(steep))
    return Evaluation(
        log_value=value,
        log_upper=stop_gradient(upper + unit * (1 + jnp.abs(upper))),
        log_lower=stop_gradient(lower - unit * (1 + jnp.abs(lower))),
        slope=stop_gradient(slope),
        curvature=stop_gradient(0 * slope),
        log_alpha=stop_gradient(log_alpha),
        log_power=stop_gradient(log_power),
        alpha_slope=stop_gradient(-jnp.exp(log_density - log_alpha)),
        power_slope=stop_gradient(-jnp.exp(log_density + epsilons - log_power)),
    )


def rare_profile(
    loss: ComposedLoss, rare: Rare, epsilons: Float[Array, " e"], *, tabulated: bool
) -> Profile:
    """The profile at thresholds near the plan's; differentiable if not tabulated."""
    found = _evaluation(loss, rare, epsilons, tabulated=tabulated)
    log_delta = Interval(found.log_lower, found.log_value, found.log_upper)
    log_delta = sound(log_delta, -jnp.inf, 0.0).map(lambda x: jnp.minimum(x, 0))
    return Profile(log_delta, log_delta.map_down(log_complement), found.log_alpha)


def _evaluation(
    loss: ComposedLoss, rare: Rare, epsilons: Array, *, tabulated: bool
) -> Evaluation:
    (step,), (count,) = loss.terms, loss.counts
    found = rare_evaluation(rare, step, count, epsilons, tabulated=tabulated)
    beyond = epsilons >= largest_loss(stop_gradient(loss), rare.sign)
    return _without_losses(found, beyond)


def _without_losses(found: Evaluation, beyond: Bool[Array, " e"]) -> Evaluation:
    """The same, with nothing beyond the largest loss."""
    logs = "log_value", "log_lower", "log_upper", "log_alpha", "log_power"
    nothing = {n: jnp.where(beyond, -jnp.inf, getattr(found, n)) for n in logs}
    slope = jnp.where(beyond, -jnp.inf, found.slope)
    return dataclasses.replace(found, slope=slope, **nothing)


class _Near(eqx.Module):
    """Log delta at three real thresholds close together, with the slope."""

    value: Float[Array, " 3"]
    lower: Float[Array, " 3"]
    upper: Float[Array, " 3"]
    slope: Float[Array, " 3"]


def _at_real(
    loss: ComposedLoss, rare: Rare, sign: Array, points: Array, *, tabulated: bool
) -> _Near:
    """Also below zero: delta(-e) = 1 - e^-e + e^-e delta_rev(e)."""
    flip = rare.sign != sign
    distance = jnp.where(flip, -points, points)
    found = _evaluation(loss, rare, distance, tabulated=tabulated)
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

    def unfinished(state: tuple) -> Array:
        turn, center, _, _, points, _, _, last = state
        moved = jnp.abs(center - points[1])
        close = moved <= least_step(center, steepness(last))
        certified = (points[0] < points[1]) | (turn > 2)
        return (turn < _NEWTON_TURNS) & ~(close & certified)

    def body(state: tuple) -> tuple:
        turn, center, planned, rare, points, low, high, last = state
        moved = jnp.abs((center - planned) * last.slope[1])
        # Nearer only if what the plan leaves out is heard here.
        heard = ~(last.upper[1] - last.lower[1] < _TOLERANCE)
        far = ~(moved < jnp.where(heard, _CLOSE, _NEAR)) | (turn == 0)
        far = far | ((rare.sign != sign) & (center > 0))
        rare = lax.cond(far, lambda: plan(center), lambda: rare)
        planned = jnp.where(far, center, planned)
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
        here = _at_real(loss, rare, sign, points, tabulated=True)
        miss = here.value[1] - target
        low = jnp.where(miss > 0, jnp.maximum(low, center), low)
        high = jnp.where(miss < 0, jnp.minimum(high, center), high)
        following = center - miss / here.slope[1]
        inside = (following >= low) & (following <= high)
        following = jnp.where(inside, following, 0.5 * (low + high))
        return turn + 1, following, planned, rare, points, low, high, here

    least, most = bounds
    first = jnp.clip(first, least + 1e-3 * (most - least), most - 1e-3 * (most - least))
    points = jnp.full(3, jnp.inf, first.dtype)
    empty = _Near(*(jnp.zeros(3, first.dtype),) * 4)
    shape = jax.eval_shape(plan, first)
    none = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
    turn = jnp.zeros((), jnp.int32)
    start = turn, first, first, none, points, least, most, empty
    _, _, _, rare, points, _, _, here = lax.while_loop(unfinished, body, start)
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
    return _at_real(loss, rare, sign, epsilon[None], tabulated=False).value[0]


def _certain(
    part: BandLoss, sign: Array, epsilons: Array
) -> tuple[Interval, Array, Array]:
    """log(P_a^N - e^eps Q_a^N), and logs of both powers ("add" alone)."""
    place, s = stop_gradient(part.place), part.step.noise_multiplier
    x = place.nodes()
    log_base, (cut, _) = part.step.log_base(x), place.log_cut(x)
    base = jnp.exp(log_base) * place.spacing
    below = base * jnp.exp(cut)
    more = jnp.expm1(jnp.minimum(part.step.loss_at(x), 700))
    gained, moved = jnp.sum(below * more), jnp.sum(below * jnp.abs(more))
    start, end = place.ends
    share, before, beyond, included, left_of_cut = log_ndtr(
        jnp.stack(
            [
                # The smoothed cut of a normal variable is that of a sum of two.
                place.cuts[0] / jnp.hypot(s, place.width),
                start / s,
                -end / s,
                (1 - end) / s,
                (place.cuts[0] - end) / place.width,
            ]
        )
    )
    whole, log_p = jnp.exp(share), part.count * share
    known = jnp.where(whole > 0, whole, 1.0)
    gain = part.count * log1p(jnp.maximum(gained / known, -1 + 1e-12))
    log_q = log_p + gain
    distance = epsilons + gain
    unit = 200 * jnp.finfo(x.dtype).eps
    # Of the distance: rounding, and what is beyond the first node and the last.
    left_out = jnp.exp(left_of_cut) * (jnp.exp(beyond) + jnp.exp(included))
    left_out = stop_gradient(jnp.exp(before) + 2 * left_out)
    slip = unit * (jnp.abs(epsilons) + jnp.abs(gain))
    slip = slip + part.count * (unit * moved + left_out) / known
    ours = (sign < 0) & (whole > 0)

    def log_value(distance: Array) -> Array:
        some = (distance < 0) & ours
        value = log_p + log1mexp(jnp.where(some, -distance, 1.0))
        return jnp.where(some, value, -jnp.inf)

    error = unit * (1 + jnp.abs(log_p))
    lower, upper = log_value(distance + slip), log_value(distance - slip)
    lower, upper = lower - error, upper + error
    none = lambda v: jnp.where(sign < 0, v, -jnp.inf)
    lower, upper = stop_gradient((lower, upper))
    return Interval(lower, log_value(distance), upper), none(log_p), none(log_q)
