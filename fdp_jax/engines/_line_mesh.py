"""Chernoff bounds of sums of losses on a mesh of shifts, and the place of a profile.

See `_lines.py`, of which this is the first step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from ..losses import (
    FAR,
    LOST,
    Frame,
    NormalMixtures,
    bend,
    kept_slip,
    log_kept,
    rough_logs,
    rough_slip,
    rule,
    rule_error,
    where,
)

BLOCK = 64
"""Frequencies in a block, a square."""
UNIT = 2.0**-53
DIGITS = 37.0
"""Minus the log of the wanted relative error of a truncation, or of an alias."""
_FREE = 2.0
"""Cancellation, as the log of a factor, that is not worth a longer period."""
_shifts = 0.0025 * 1.25 ** np.arange(68.0)
_shifts = np.append(_shifts, _shifts[-1] * 1.6 ** np.arange(1.0, 30.0))
_inner = -1 / (1 + np.exp(np.linspace(-5.0, 5.0, 12)))
SHIFTS = np.concatenate([_shifts, _inner])
RIGHT = SHIFTS > 0
_PAYOFF = np.concatenate(
    [
        _shifts * np.log(_shifts / (1 + _shifts)) - np.log1p(_shifts),
        np.zeros(_inner.size),
    ]
)
"""Log of the largest (1 - e^-u) e^(-c u), u > 0; of 1 - delta it is 1."""
_GAP = np.abs(SHIFTS - SHIFTS[:, None])
_STEEP = 1 / np.where(_GAP == 0, 1e-300, _GAP)
_LEFT = np.where((SHIFTS[:, None] > SHIFTS) & ~RIGHT, 0, np.inf)
"""By contour and bound: which of them bound aliases on the left, infinite if not."""
_BEYOND = np.where((SHIFTS[:, None] < SHIFTS) & RIGHT, 0, np.inf)
_HALF_LOG = 0.5 * np.log(2 * np.pi)
_WIDTH = 2 * np.pi * (1 + 2 * SHIFTS + 2 * SHIFTS**2)
_POLE = np.sqrt(2 * np.pi) * np.abs(SHIFTS * (1 + SHIFTS))
"""The integrand's width, of which (variance + 1/c^2 + 1/(1+c)^2) is the inverse."""
_NEVER, _NEVER_RIGHT = np.where(RIGHT, 0, np.inf), np.where(RIGHT, np.inf, 0)
_NARROWEST = 1.01 * np.pi * BLOCK / (1.3 * np.sqrt(2 * DIGITS))
"""A normal law's frequencies are no fewer than half a block."""


def sums(arrays: tuple[Array, ...], axis: int) -> tuple[Array, ...]:
    """Sums of arrays side by side: one loop (XLA splits up the sum of one array)."""
    zeros = tuple(np.zeros((), x.dtype) for x in arrays)
    plus = lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True))
    return tuple(lax.reduce(tuple(arrays), zeros, plus, (axis % arrays[0].ndim,)))


def mesh_nodes(components: int) -> int:
    """The number of nodes of a Chernoff bound's rule.

    Its error falls like e^(-2 pi v / h) with v < pi / range of the centers, and counts
    as often as there are releases.
    """
    return 48 * max(components - 1, 2)


class Terms(NamedTuple):
    """Pairs, stacked, and how often each of them adds."""

    pairs: NormalMixtures
    counts: Float[Array, " m"]


class Stack(NamedTuple):
    """Terms in one direction, prepared."""

    frames: Frame
    counts: Float[Array, " m"]
    log_lost: Float[Array, ""]
    """Of the weight of components that were left out, in all of them."""


@jax.jit
def prepared(terms: Terms, sign: Array) -> Stack:
    """The terms in a direction: as given (1), or exchanged (-1)."""
    pairs = jax.vmap(lambda pair: pair.directed(sign))(terms.pairs)
    lost = jnp.max(pairs.log_lost()) + jnp.log(jnp.sum(terms.counts))
    return Stack(jax.vmap(NormalMixtures.frame)(pairs), terms.counts, lost)


_CAP = 28.0
"""Minus the log of what caps may leave out of delta, relative to it."""


@jax.jit
def capped(stack: Stack, log_value: Array) -> Stack:
    """The terms without what never happens, for a delta of about that; see `Frame`.

    Products of what is kept are a law where counts are whole numbers: else no caps.
    """
    total = jnp.sum(stack.counts)
    whole = jnp.all(stack.counts == jnp.round(stack.counts))
    log_cut = where(whole, log_value - _CAP - jnp.log(total), -jnp.inf)
    frames = jax.vmap(Frame.capped, (0, None))(stack.frames, log_cut)
    return stack._replace(frames=frames)


class Mesh(NamedTuple):
    """Chernoff bounds on the mesh of shifts."""

    upper: Float[Array, " r"]
    """Upper bounds of log M(c)."""
    variance: Float[Array, " r"]
    """Of the tilted loss, about."""
    lows: Float[Array, "m r"]
    lengths: Float[Array, "m r"]
    """Of the windows of every term."""


@jax.jit
def chernoff_mesh(stack: Stack) -> Mesh:
    """Upper bounds of log M(c) and the variance there, on the mesh of shifts."""
    shifts = jnp.asarray(SHIFTS)
    c = SHIFTS[:, None]
    nodes = mesh_nodes(stack.frames.gaps.shape[-1])

    def add(total: Array, term: tuple[Frame, Array]) -> tuple[Array, tuple]:
        frame, count = term
        low, step = rule(frame, shifts, nodes)
        t = low[:, None] + step[:, None] * np.arange(float(nodes))
        logs = rough_logs(frame, t)
        loss, g = logs[1] - logs[0], (1 + c) * logs[1] - c * logs[0] - 0.5 * t * t
        g = g + log_kept(frame, t)
        peak = jnp.max(g, axis=1)
        p = jnp.exp(g - peak[:, None])
        mass, mean, second = sums((p, p * loss, p * loss * loss), 1)
        mean, second = mean / mass, second / mass
        variance = jnp.maximum(second - mean * mean, 0.0) + 1e-14 * second
        # The rule's error; or that of convex interpolation, whatever the rule: on a
        # cell g is at most its chord and bend (t - t_i) (t_(i+1) - t) / 2.
        curved = bend(frame, shifts)
        error = 2 * rule_error(frame, shifts, step, 0.0)
        error = where(error < 1, error, jnp.inf)
        error = jnp.minimum(error, 0.125 * curved * step * step) + LOST * curved
        length = step * (nodes - 1)
        slip = (1 + 2 * np.abs(SHIFTS)) * rough_slip(frame, length - low)
        slip = slip + kept_slip(frame, low + length)
        rounded = UNIT * (2 * nodes + 16 + 4 * jnp.abs(peak) + 2 * slip)
        log_m = peak + jnp.log(mass * step) + (error + rounded - _HALF_LOG)
        # No rule sees what lies so far beyond the cap that nothing is kept there.
        log_m = where(low + length > frame.top + FAR, jnp.inf, log_m)
        both = count * jnp.stack([log_m + 2 * UNIT * jnp.abs(log_m), variance])
        return total + where(count > 0, both, 0.0), (low, length)

    terms = stack.frames, stack.counts
    total, (lows, lengths) = lax.scan(add, jnp.zeros((2, SHIFTS.size)), terms)
    # A bound that is not a number says nothing.
    upper = where(total[0] < jnp.inf, total[0], jnp.inf)
    return Mesh(upper, total[1], lows, lengths)


class Place(NamedTuple):
    """The place of a profile, what the mesh says of it, and the line to take."""

    epsilon: Float[Array, ""]
    log_value: Float[Array, ""]
    """Log of delta, or of 1 - delta where the shift is negative, about."""
    bounds: Float[Array, " r"]
    """Less c eps: logs of upper bounds of delta, for c < 0 of 1 - delta."""
    row: Int[Array, ""]
    """Of the mesh: the shift."""
    period: Float[Array, ""]
    aliases: Float[Array, ""]
    """Log of the sum of e^(-|c| m R), m > 0: of all aliases beyond c = 0."""


def locate(mesh: Mesh, target: Array, *, inverse: bool) -> Place:
    """The place for a threshold, or for a log delta (`inverse`), and its line."""
    upper, variance = mesh.upper, mesh.variance
    bounds = upper + 4 * UNIT * (1 + jnp.abs(upper)) + _PAYOFF
    # The integrand at the saddle point, by Laplace's method.
    rough = upper - 0.5 * jnp.log(variance * _POLE**2 + _WIDTH)
    if inverse:
        middle = np.zeros((), bool)
        epsilon, log_value = jnp.min((rough - target) / SHIFTS + _NEVER), target
        logs = rough - SHIFTS * epsilon
    else:
        epsilon, logs = target, rough - SHIFTS * target
        right, rest = jnp.min(logs + _NEVER), jnp.min(logs + _NEVER_RIGHT)
        middle = (rest < right) & (rest < -1)
        log_value = jnp.minimum(where(middle, rest, right), 0.0)
    # The shortest period for which aliases drop below the digits wanted.
    need = (bounds - SHIFTS * epsilon + (DIGITS - log_value)) * _STEEP
    left, right = jnp.min(need + _LEFT, axis=1), jnp.min(need + _BEYOND, axis=1)
    narrowest = _NARROWEST * jnp.sqrt(variance)
    period = jnp.maximum(jnp.maximum(left, right), narrowest)
    falls = np.abs(SHIFTS) * period
    aliases = -falls - jnp.log(-jnp.expm1(-falls))
    cost = jnp.maximum(jnp.maximum(logs, aliases) - (log_value + _FREE), 0.0)
    cost = jnp.log(period) + cost + where(middle, _NEVER_RIGHT, _NEVER)
    row = jnp.argmin(where(cost < jnp.inf, cost, jnp.inf)).astype(jnp.int32)
    return Place(epsilon, log_value, bounds, row, period[row], aliases[row])
