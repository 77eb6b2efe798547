"""Where the law of a run is cut, and what is left out by that; see `_rare.py`."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

from .._internal._arithmetic import ULP
from .._internal._interval import Interval
from .._internal._special import log1mexp, log1p, log_ndtr, safe_log
from ..losses._subsampled_gaussian._band import BandLoss
from ..losses._subsampled_gaussian._band_place import NODES, Place
from ..losses._subsampled_gaussian._band_tails import log_excess_below, log_masses_above
from ._line_mesh import log_payoff

_LOW_CUTS, _HIGH_CUTS, _LEVELS = 24, 16, 20
_DROP = 22.0
"""-log of what is left out, relative to delta."""
_TAIL = 45.0
"""-log of the mass of one step beyond the nodes, relative to delta."""
_BEYOND = 9.0
"""Widths of a cut that there are nodes for beyond the highest one."""
BULK = 13.5
"""Standard deviations of the noise that hold all but 1e-41 of it."""
_BANDS = 12
_RATIO = 1.0
"""Log of the ratio of the losses at the two cuts of a band, about."""


class Scales(eqx.Module):
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
        """A band's place: above its reach, tilts may make much of next to nothing."""
        end = jnp.minimum(cuts[1] + self.reach * self.width, self.ends[1])
        return Place(cuts, self.width, self.ends.at[1].set(end))

    def log_beyond(self, count: Array) -> Float[Array, ""]:
        """A bound of what runs with a step beyond that add to delta, in all bands."""
        return jnp.log(_BANDS * count) + log_ndtr(-self.reach)


def _gap(step, count: Array, sign: Array, epsilon: Array) -> Float[Array, ""]:
    """The sum of losses beyond the least one that reaches a threshold, rounded up."""
    least = -count * log1p(-jnp.minimum(step.sampling_prob, 1 - 1e-15))
    gap = least + sign * epsilon + 4 * ULP * (least + jnp.abs(epsilon))
    return jnp.maximum(gap, 1e-300)


@jax.jit
def scales_of(step, count: Array, sign: Array, epsilon: Array, depth: Array) -> Scales:
    s = step.noise_multiplier
    gap = _gap(step, count, sign, epsilon)
    levels = (depth + 60) / gap * jnp.exp2(jnp.arange(_LEVELS, dtype=s.dtype) - 3)
    levels = levels.at[0].set(0)
    far = s * jnp.sqrt(2 * (_TAIL + depth + jnp.log1p(count)))
    reach = jnp.sqrt(2 * (_TAIL + depth))
    # Neither wider than the noise, nor than what tilts and losses vary in.
    width = jnp.minimum(0.5 * s, jnp.minimum(jnp.square(s), 2.5 * s) / reach)
    left = jnp.where(sign > 0, -BULK * s, -far - 3 * s)
    # Losses of "add" that farther steps take away are too many.
    most = jnp.maximum(_place(step, gap), left) + (reach + 1) * width
    right = jnp.where(sign > 0, 1 + far, jnp.minimum(1 + BULK * s, most))
    width = jnp.maximum(width, 2 * (right - left) / NODES)
    ends = jnp.stack([left, right + _BEYOND * width])
    return Scales(gap, left, right, width, reach, levels, ends)


def _place(step, level: Array) -> Array:
    """The observation at which the loss is `level` above the least one."""
    s, q = step.noise_multiplier, jnp.minimum(step.sampling_prob, 1 - 1e-15)
    log_ratio = jnp.where(
        level < 1,
        safe_log(jnp.expm1(jnp.minimum(level, 1))),
        level + log1mexp(jnp.maximum(level, 1)),
    )
    return 0.5 + jnp.square(s) * (log_ratio + log1p(-q) - jnp.log(q))


def farthest(step, count: Array, sign: Array, epsilon: Array) -> Float[Array, ""]:
    """The observation beyond which one step of "add" leaves nothing of delta."""
    return _place(step, _gap(step, count, sign, epsilon))


def _level(step, x: Array) -> Array:
    """The inverse of `_place`."""
    q = jnp.minimum(step.sampling_prob, 1 - 1e-15)
    return jax.nn.softplus(step.u(x) + jnp.log(q) - log1p(-q))


def bands_between(
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


@jax.jit
def outer_cuts(
    step, count: Array, sign: Array, epsilon: Array, log_delta: Array, scales: Scales
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
    (below,) = log_below(part, sign, epsilon[None], scales, lows)
    (above,) = log_above(part, sign, epsilon[None], scales, highs)
    target = log_delta - _DROP
    fits = below < target
    low = jnp.where(jnp.any(fits), lows[jnp.argmax(fits)], left)
    fits = above < target
    high = jnp.where(jnp.any(fits), highs[jnp.argmax(fits)], right + 8 * width)
    return low, jnp.maximum(high, low + width)


@jax.jit
def log_below(
    part: BandLoss,
    sign: Array,
    epsilons: Float[Array, " e"],
    scales: Scales,
    cuts: Array,
) -> Float[Array, "e c"]:
    """A bound of what runs below some lower cuts add to delta.

    In direction "add", of what they fall short of P_a^N - e^eps Q_a^N.
    """
    orders = 1 + scales.levels
    logs, beyond = log_excess_below(part, orders, cuts, scales.reach)
    least = part.count * -log1p(-part.step.sampling_prob)
    epsilon = epsilons[:, None]
    # R = e^(D - least): runs with all steps within reach, then those with another one.
    removed = log_payoff(scales.levels) - scales.levels * epsilon - orders * least
    added = orders * (epsilon - least)
    every = part.count * logs
    bound = every + jnp.where(sign > 0, removed, added)[..., None]
    sizes = orders * (1 + jnp.abs(epsilon) + least)
    bound = bound + 8 * ULP * (sizes[..., None] + jnp.abs(every))
    bound = jnp.min(jnp.where(jnp.isnan(bound), jnp.inf, bound), axis=1)
    other = jnp.log(part.count) + beyond + jnp.where(sign > 0, 0, epsilon)
    return jnp.logaddexp(bound, other)


@jax.jit
def log_above(
    part: BandLoss,
    sign: Array,
    epsilons: Float[Array, " e"],
    scales: Scales,
    cuts: Array,
) -> Float[Array, "e c"]:
    """A bound of what runs with a step above some upper cuts add to delta."""
    levels, epsilon = scales.levels, epsilons[:, None]
    orders = jnp.where(sign > 0, 1 + levels, -levels)
    one, every = log_masses_above(part, orders, cuts)
    rest = (part.count - 1) * every + log_payoff(levels) - levels * epsilon
    sizes = (part.count - 1) * jnp.abs(every) + (1 + levels) * (1 + jnp.abs(epsilon))
    rest = rest + 8 * ULP * sizes
    bound = jnp.log(part.count) + one + rest[..., None]
    bound = jnp.min(jnp.where(jnp.isnan(bound), jnp.inf, bound), axis=1)
    # In direction "add" a step with more than the gap leaves nothing of delta.
    far = farthest(part.step, part.count, sign, epsilon)
    few = log_ndtr((far - cuts) / part.place.width) + 1e-9
    few = jnp.where(sign > 0, 0, jnp.log(part.count) + few)
    return jnp.minimum(bound, few)


@jax.jit
def certain_part(
    part: BandLoss, sign: Array, epsilons: Array
) -> tuple[Interval, Array]:
    """log(P_a^N - e^eps Q_a^N), and log of Q_a^N ("add" alone)."""
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
    ratio = jnp.maximum(gained / known, -1 + 1e-12)
    gain = part.count * log1p(ratio)
    log_q = log_p + gain
    distance = epsilons + gain
    unit = 200 * ULP
    # Of the distance: rounding, and what is beyond the first node and the last.
    left_out = jnp.exp(left_of_cut) * (jnp.exp(beyond) + jnp.exp(included))
    left_out = stop_gradient(jnp.exp(before) + 2 * left_out)
    slip = unit * (jnp.abs(epsilons) + jnp.abs(gain))
    lost = (unit * moved + left_out) / (known * (1 + ratio))
    slip = slip - part.count * log1p(-jnp.minimum(lost, 1))
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
    return Interval(lower, log_value(distance), upper), none(log_q)
