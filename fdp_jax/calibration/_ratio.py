r"""The largest ratio of delta to a reference's, certified between thresholds.

With x = e^eps both profiles are convex and fall in x.  Between two thresholds the one
in the numerator lies below its chord, and the reference, with some delta added, above
the lines through pairs of thresholds on either side.  The ratio of two linear functions
is monotone, so on a cell it is largest at an end or where the two lines meet.  With
cells of width h the bound exceeds the truth by O(h^2), at a kink of the reference by
nothing once it is a threshold: the cells with the highest bounds are split again and
again, and where their lines meet is tried.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from .._internal._special import safe_log
from ..comparison.explore import ROUND, accumulated, first_grid
from ..comparison.sources import Request
from ..engines import Interval

_EVEN, _ADAPTIVE = 3, 6
"""Rounds of thresholds over the whole range, and in the cells with high bounds."""
_CELLS, _PARTS = 12, 8
_STEPS = (1, 2, 3, 4, 8, 16, 32)
"""Which neighbors of a cell may give a slope: near ones are sharp, far ones steady."""
_STEEP, _MOST = 1e30, 700.0


class Profiles(eqx.Module):
    """Log delta of both at rising thresholds of each half-axis, unused ones at inf."""

    epsilon: Float[Array, "h n"]
    allowed: Interval
    """Of the reference, with what is set aside."""
    used: Interval

    @property
    def ratios(self) -> Float[Array, "h n"]:
        """Log ratios, estimates."""
        usable = jnp.isfinite(self.epsilon) & (self.used.estimate > -jnp.inf)
        ratio = self.used.estimate - self.allowed.estimate
        return jnp.where(usable, ratio, -jnp.inf)


class _Cells(eqx.Module):
    """Between one threshold and the next."""

    bound: Float[Array, "h n-1"]
    """Of the log ratio."""
    meeting: Float[Array, "h n-1"]
    """Where the lines below the reference meet, a threshold."""


def explored(
    pair: Any, prepared: Any, halves: int, reference: Request, delta: Array
) -> tuple[Profiles, Float[Array, ""]]:
    """Profiles at many thresholds, and a bound of the largest log ratio of all."""
    steps = jnp.arange(1.0, ROUND + 1)
    least, log_delta = log_least(reference, delta), safe_log(delta)

    def propose(nodes: Profiles, number: Int[Array, ""]) -> Float[Array, "h k"]:
        # Known from the first round; the even ones have to fit together.
        reach = _reach(jax.tree.map(lambda x: x[:, :ROUND], nodes), least)
        even = reach * (steps - (number - 1) / _EVEN) / ROUND
        return jnp.where(number <= _EVEN, even, _between(_in_order(nodes), least))

    def look(at: Float[Array, "h k"]) -> Profiles:
        one, other = pair.log_deltas(prepared, at)
        return Profiles(at, one.map(lambda x: jnp.logaddexp(x, log_delta)), other)

    low = jnp.asarray(-jnp.inf)
    nothing = Profiles(-low, Interval(low, low, low), Interval(low, low, low))
    rounds = 1 + _EVEN + _ADAPTIVE
    first = first_grid(pair, halves)
    nodes = _in_order(accumulated(first, nothing, propose, look, rounds))
    # Beyond the outermost threshold delta falls, and this much stays allowed.
    last = jnp.sum(jnp.isfinite(nodes.epsilon), axis=1, keepdims=True) - 1
    beyond = jnp.take_along_axis(nodes.used.upper, last, axis=1)
    beyond = jnp.where(beyond > -jnp.inf, beyond - least, -jnp.inf)
    bounds = jnp.maximum(jnp.max(_cells(nodes, least).bound), jnp.max(beyond))
    return nodes, jnp.maximum(bounds, jnp.max(nodes.ratios))


def log_least(reference: Request, delta: Array) -> Array:
    """Log of what is allowed at every threshold: delta, and infinite losses."""
    if reference.directions:
        loss = reference.subject.loss()
        signs = jnp.asarray([1.0, -1.0])
        infinite = jnp.min(jnp.stack([loss.log_infinite_mass(s) for s in signs]))
    else:
        infinite = reference.subject._bounds_of("log_delta", jnp.asarray(jnp.inf)).lower
    return jnp.logaddexp(safe_log(delta), infinite)


def _in_order(nodes: Profiles) -> Profiles:
    order = jnp.argsort(nodes.epsilon, axis=1)
    return jax.tree.map(lambda x: jnp.take_along_axis(x, order, axis=1), nodes)


def _reach(nodes: Profiles, least: Array) -> Float[Array, "h 1"]:
    """The first node whose reference is allowed anyway, or the last node."""
    finite = jnp.isfinite(nodes.epsilon)
    down = finite & (nodes.allowed.estimate <= least + 0.05)
    last = jnp.max(jnp.where(finite, nodes.epsilon, 0.0), axis=1, keepdims=True)
    at = jnp.min(jnp.where(down, nodes.epsilon, jnp.inf), axis=1, keepdims=True)
    return jnp.minimum(at, last)


def _between(nodes: Profiles, least: Array) -> Float[Array, "h k"]:
    """Thresholds in the cells with the highest bounds."""
    cells = _cells(nodes, least)
    best, at = lax.top_k(cells.bound, _CELLS)
    pick = lambda x, i: jnp.take_along_axis(x, i, axis=1)[:, :, None]
    low, high = pick(nodes.epsilon, at), pick(nodes.epsilon, at + 1)
    parts = np.arange(1, _PARTS) / _PARTS
    tried = jnp.concatenate([low + (high - low) * parts, pick(cells.meeting, at)], -1)
    fine = (tried > low) & (tried < high) & (best[:, :, None] > -jnp.inf)
    tried = jnp.where(fine, tried, jnp.inf)
    return tried.reshape(len(tried), _CELLS * _PARTS)


def _cells(nodes: Profiles, least: Array) -> _Cells:
    return jax.vmap(lambda row: _cells_of_row(row, least))(nodes)


def _cells_of_row(row: Profiles, least: Array) -> _Cells:
    """Bounds on the cells of one half-axis.

    In units of the reference's lower end at the left of the cell, lines are 1 and
    `left` at its ends, or `right` and `drop`; chords have the heights `top`.
    """
    unit = jnp.finfo(row.epsilon.dtype).eps
    widened = lambda x: 4 * unit * (1 + jnp.where(jnp.isfinite(x), jnp.abs(x), 0))
    finite = jnp.isfinite(row.epsilon)
    epsilon = jnp.where(finite, row.epsilon, 0.0)
    low = jnp.maximum(row.allowed.lower, least)
    low = jnp.where(finite, low - widened(low), 0.0)
    high = jnp.where(finite, row.allowed.upper + widened(row.allowed.upper), 0.0)
    used = row.used.upper + widened(row.used.upper)
    falling, rising = _slopes(epsilon, low, high, finite)

    gap = epsilon[1:] - epsilon[:-1]
    inside = finite[1:] & (gap > 0)
    gap = jnp.where(inside, gap, 1.0)
    drop = jnp.exp(jnp.minimum(low[1:] - low[:-1], _MOST))
    left = 1 + falling[:-1] * jnp.expm1(gap)
    right = drop * (1 + rising[1:] * jnp.expm1(-gap))
    lead = right - 1, left - drop
    crossing = lead[0] * lead[1] > 0
    place = jnp.where(crossing, lead[0], 0.0)
    place = place / jnp.where(crossing, lead[0] + lead[1], 1.0)
    # Allowances for the rounding of the place, in units of the left end.
    slack = 16 * unit
    floor = right + place * (drop - right) - slack * right
    tops = used[:-1] - low[:-1], used[1:] - low[:-1]
    chord = jnp.logaddexp(
        safe_log(1 - place + slack) + tops[0], safe_log(place) + tops[1]
    )
    middle = jnp.where(floor > 0, chord - safe_log(floor), jnp.inf)
    ends = tops[0] - jnp.log(jnp.maximum(1.0, right)), used[1:] - low[1:]
    bound = jnp.maximum(jnp.maximum(*ends), jnp.where(crossing, middle, -jnp.inf))
    bound = jnp.minimum(bound + slack, used[:-1] - least)
    some = inside & (used[:-1] > -jnp.inf)
    meeting = epsilon[:-1] + jnp.log1p(place * jnp.expm1(gap))
    bound = jnp.where(jnp.isnan(bound), jnp.inf, bound)
    return _Cells(jnp.where(some, bound, -jnp.inf), jnp.where(inside, meeting, jnp.inf))


def _slopes(epsilon: Array, low: Array, high: Array, finite: Array) -> tuple:
    """Lower bounds of the left slopes at all thresholds, upper ones of the right.

    Of the reference as a function of x = e^eps, in units of its lower end over x.
    """
    index, steps = np.arange(epsilon.size), np.asarray(_STEPS)[:, None]
    before = np.maximum(index - steps, 0)
    after = np.minimum(index + steps, index[-1])
    gap, rise = epsilon - epsilon[before], high[before] - low
    fine = finite & (gap > 0) & (rise < _MOST)
    run = -jnp.expm1(-jnp.where(fine, gap, 1.0))
    slope = -jnp.expm1(jnp.minimum(rise, _MOST)) / run
    falling = jnp.max(jnp.where(fine, slope, -_STEEP), axis=0)

    gap = epsilon[after] - epsilon
    fine = finite[after] & (gap > 0)
    run = jnp.expm1(jnp.where(fine, gap, 1.0))
    slope = jnp.expm1(jnp.minimum(high[after] - low, 0.0)) / run
    return falling, jnp.min(jnp.where(fine, slope, 0.0), axis=0)
