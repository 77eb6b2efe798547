"""The interval that holds an integrand, from end to end."""

import math

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient, while_loop
from jaxtyping import Array, Float

from .._amplification import inclusion
from ._integrand import Integrand

REACH = 13.0
"""Standard deviations kept beyond the outermost modes of the tilted density."""
_ITERATIONS = 16
_ENOUGH = 0.05
"""Standard deviations by which an interval may be too long."""
_DROP = 72.0
"""Least fall of l(x) from a mode to the end of the interval."""

_NODES = 256
"""Nodes that show where an integrand lives."""


class Interval(eqx.Module):
    start: Float[Array, "..."]
    end: Float[Array, "..."]
    mode: Float[Array, "..."]
    """Largest |mode| of l(x)."""


class Location(eqx.Module):
    order: Float[Array, ""]
    interval: Interval
    center: Float[Array, ""]
    """Tilted mean of X."""
    peak: Float[Array, ""]
    """Maximum of l(x) on a coarse grid: the shift before exponentiating."""
    log: Float[Array, ""]
    """Log of the whole integral, from that grid."""
    edge: Float[Array, ""]
    """Sum of the densities at both ends, relative to the whole integral."""
    beyond: Float[Array, ""]
    """Bound on the integral between these ends and those of `interval_of`, likewise."""
    loss_deviation: Float[Array, ""]
    loss_size: Float[Array, ""]
    """E_w|X - center| and E_w|X| + |center|, for the rounding bound."""


def interval_of(one: Integrand, order: Float[Array, "..."]) -> Interval:
    """An interval outside which exp(l) is negligible, and a bound on |modes|.

    The modes solve x = w p(x), p the increasing `inclusion`.  For w > 0 the
    iteration x <- w p(x) from w (from 0) falls (rises) to the largest (smallest)
    mode, and l is monotone beyond every iterate.  For w < 0, l is strongly
    concave and its only mode, in [w p(0), 0], is found by bisection.

    Of several orders at once for an array.
    """
    one, order = stop_gradient((one, order))
    s, down = one.noise_multiplier, order < 0
    reach = REACH * s

    def step(carry):
        count, high, low, end, start, _ = carry
        middle = 0.5 * (high + low)
        x = jnp.stack([high, low, middle, high + reach, low - reach])
        loss = one.loss_at(x)
        balances = order * one.sampling_prob * jnp.exp(one.u(x) - loss)
        next_high, next_low, balance, *_ = balances
        height = one.log_base(x) + order * loss
        far = height[:2] - height[3:] >= _DROP
        end = jnp.where(far[0], high + reach, end)
        start = jnp.where(far[1], low - reach, start)
        above = middle > balance
        next_high = jnp.where(down, jnp.where(above, middle, high), next_high)
        next_low = jnp.where(down, jnp.where(above, low, middle), next_low)
        moved = jnp.maximum(high - next_high, next_low - low)
        return count + 1, next_high, next_low, end, start, moved

    def unfinished(carry):
        return (carry[0] < _ITERATIONS) & jnp.any(carry[-1] > _ENOUGH * s)

    share = inclusion(one.u(0 * order), one.sampling_prob)
    # The iterates from above and from below, or what encloses the only mode.
    high, low = jnp.maximum(order, 0), jnp.minimum(order, 0) * share
    ends = high + reach, 0 * order - reach
    begin = jnp.zeros((), jnp.int32), high, low, *ends, jnp.full_like(order, jnp.inf)
    _, high, low, end, start, _ = while_loop(unfinished, step, begin)
    mode = jnp.maximum(jnp.abs(high), jnp.abs(low))
    start = jnp.where(down, low - reach, start)
    end = jnp.where(down, high + reach, end)
    return Interval(start, end, mode)


def covers_base(one: Integrand, place: Interval) -> Array:
    """Whether all of P is in the interval, too."""
    return jnp.minimum(-place.start, place.end) >= 12 * one.noise_multiplier


def beyond_iterates(one: Integrand) -> Array:
    """Bound on the integral beyond the ends over the density there.

    Beyond every iterate of `interval_of` l falls at least like
    -(x - iterate)^2 / (2 s^2).
    """
    return (_ITERATIONS + 2) * 1.2533141373155 * one.noise_multiplier


def locate(one: Integrand, order: Float[Array, ""]) -> Location:
    """The place of e^{w X} dP at a real order, from a grid that holds all of it.

    It has no derivative.
    """
    one = stop_gradient(one)
    place = interval_of(one, order)
    spacing = (place.end - place.start) / _NODES
    x = place.start + spacing * jnp.arange(_NODES + 1, dtype=spacing.dtype)
    loss = one.loss_at(x)
    log_weight = one.log_base(x) + order * loss
    peak = jnp.max(log_weight)
    weight = jnp.exp(log_weight - peak)
    total = jnp.sum(weight)
    center = jnp.sum(weight * loss) / total
    # An outer mode without mass need not be integrated over.  As l'' >= -1 / s^2,
    # l exceeds its values at two nodes by at most spacing^2 / (8 s^2) in between.
    # (For w < 0 there is one mode.)
    flat = 0.125 * jnp.square(spacing / one.noise_multiplier)
    kept = log_weight >= peak - _DROP - flat
    first = jnp.maximum(jnp.argmax(kept) - 1, 0)
    last = jnp.minimum(_NODES + 1 - jnp.argmax(kept[::-1]), _NODES)
    edge = jnp.maximum(weight[first], weight[last])
    return Location(
        order=order,
        interval=Interval(x[first], x[last], place.mode),
        center=center,
        peak=peak,
        log=peak + jnp.log(total * spacing),
        edge=2 * edge / (total * spacing),
        beyond=_NODES * math.exp(-_DROP) / total,
        loss_deviation=jnp.sum(weight * jnp.abs(loss - center)) / total,
        loss_size=jnp.sum(weight * jnp.abs(loss)) / total + jnp.abs(center),
    )
