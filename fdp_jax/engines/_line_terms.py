"""The terms of a line: what each of them adds to the table of frequencies.

A term is a pair of normal mixtures, whose nodes are its loss, or any other loss whose
transform is known; see `_lines.py`.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from .._internal._blocked_sum import sums
from .._internal._rotation import rotation
from ..losses import (
    LOST,
    AnalyticLoss,
    Frame,
    bend,
    densities,
    envelope,
    kept_slip,
    law_error,
    log_kept,
    rule_error,
    turned_error,
    where,
)
from ._line_mesh import BLOCK, UNIT

SIDE = 8
"""Frequencies in a row of a block."""
ROW = np.int32(0)


class Along(NamedTuple):
    """A line, with its frequencies."""

    sign: Float[Array, ""]
    shift: Float[Array, ""]
    step: Float[Array, ""]
    blocks: Int[Array, ""]
    levels: Float[Array, " l"]
    """Frequencies up to which errors of a rule are bounded together."""


def frequencies(step: Array, block: Array) -> Float[Array, " k"]:
    """A block of frequencies."""
    return step * (BLOCK * block + np.arange(float(BLOCK)))


class TermLine(NamedTuple):
    """One term's nodes along a line."""

    weights: Float[Array, " n"]
    """With sum 1."""
    losses: Float[Array, " n"]
    """Less their mean."""
    mean: Float[Array, ""]
    deviation: Float[Array, ""]
    log_m: Float[Array, ""]
    log_m_error: Float[Array, ""]
    turn: Float[Array, ""]
    """Rounding of M(c + iy) / M(c), over y."""
    strip: Float[Array, ""]
    """Relative error of the rule for M(c), and of what is beyond its ends."""
    turned: Float[Array, " l"]
    """The rule's relative error up to each of some frequencies."""
    log_envelope: Float[Array, " b"]
    """At all places where the sum may end."""
    kept: Float[Array, " n"]
    """Log of what a cap keeps, at the nodes."""


def pair_line(
    frame: Frame,
    low: Array,
    step: Array,
    shift: Array,
    reach: tuple[Array, Array],
    height: Array,
    nodes: int,
) -> TermLine:
    """The nodes of a pair in a window.

    In `reach` are frequencies where a sum may end, and those up to which errors are
    bounded together; `height` is how far the envelope's line is moved.
    """
    t = low + step * np.arange(float(nodes))
    logs, shares, slips = densities(frame, t)
    kept, slip = log_kept(frame, t), kept_slip(frame, t)
    loss, half, w = logs[1] - logs[0], 0.5 * t * t - kept, 1 + shift
    tilt = w * logs[1] - shift * logs[0]
    peak = jnp.max(tilt - half)
    p, base = jnp.exp(tilt - half - peak), jnp.exp(logs[0] - half)
    # Roundings in units: of losses, and of the logarithms of weights.
    loss_slip = slips[0] + slips[1] + jnp.abs(loss)
    far = jnp.abs(shift)
    size = w * (slips[1] + 4 * jnp.abs(logs[1])) + far * (
        slips[0] + 4 * jnp.abs(logs[0])
    )
    size = size + 16 + 4 * half + slip
    # M(c) - 1 = E_P[e^(wl) - 1 - w (e^l - 1)], for M next to one; of what is kept up to
    # (1 + 2 w) cut.
    grown = jnp.expm1(jnp.minimum(w * loss, 700.0))
    one = jnp.expm1(jnp.minimum(loss, 700.0))
    excess = grown - w * one
    counted = (
        8 * (jnp.abs(grown) + w * jnp.abs(one)) + w * jnp.abs(grown - one) * loss_slip
    )
    counted = counted + jnp.abs(excess) * (nodes + 16 + 4 * half + slips[0] + slip)
    mass, mean, rounded, near_one, near_slip = sums(
        (p, p * loss, p * size, base * excess, base * counted), 0
    )
    inverse, unit = 1 / mass, step * (1 / np.sqrt(2 * np.pi))
    mean, rounded, p = mean * inverse, rounded * inverse, p * inverse
    d = loss - mean
    moved = jnp.abs(d) * (3 * nodes + size) + 2 * loss_slip
    moved, second = sums((p * moved, p * d * d), 0)
    deviation = 1.01 * jnp.sqrt(second)
    strip = rule_error(frame, shift, step, 0.0) + LOST * bend(frame, shift)
    direct = peak + jnp.log(mass * unit)
    largest = jnp.maximum(w, 1.0) * jnp.max(jnp.abs(loss))
    near = (jnp.abs(direct) < 0.25) & (largest < 600)
    missed = (1 + w) * 2 * (law_error(frame, step) + frame.cut) + 2 * strip
    log_m = where(near, lax.log1p(where(near, near_one * unit, 0.0)), direct)
    log_m_error = where(
        near,
        2 * (missed + UNIT * unit * near_slip),
        2 * strip + UNIT * (2 * nodes + rounded + 4 * jnp.abs(peak)),
    )
    lost = -jnp.expm1(kept)
    ends, levels = reach
    moduli, angles, error = envelope(frame, shift, step, shares, lost, height)
    sizes = jnp.exp(moduli - ends[:, None] * angles) @ p
    return TermLine(
        p,
        d,
        mean,
        deviation,
        log_m,
        where(strip < 0.1, log_m_error, jnp.inf),
        UNIT * (moved + rounded * deviation),
        strip,
        turned_error(frame, shift, t, p, shares, levels),
        # Of a positive sum; the share is more than its roundings.
        jnp.log(sizes * (1 + 1e-12) + error + strip),
        kept,
    )


class _Angle(NamedTuple):
    """A continuous angle, as far as it is known."""

    last: Float[Array, ""]
    """Its principal value at the last frequency."""
    turns: Float[Array, ""]
    lost: Float[Array, ""]
    """How often it was not known."""


def _continued(
    before: _Angle, angle: Array, slack: Array
) -> tuple[Array, Array, _Angle]:
    """The continuous angles of a block, and how often they were not known till there.

    An angle is known as long as the next value is nearer to this one than zero is, by a
    positive `slack`.
    """
    jump = angle - jnp.concatenate([before.last[None], angle[:-1]])
    steps = jnp.stack([-jnp.round(jump * (0.5 / np.pi)), (slack < 0) + 0.0])
    known = jnp.stack([before.turns, before.lost])[:, None]
    found = steps @ np.tri(angle.size).T + known
    after = _Angle(angle[-1], *found[:, -1])
    return angle + (2 * np.pi) * found[0], found[1] - steps[1], after


def _start() -> _Angle:
    return _Angle(*jnp.zeros(3))


def _added(table: Array, new: Array, count: Array, place: Array) -> Array:
    """The table with so many times some columns more."""
    new = where(count > 0, count * new, 0.0)
    new = new + lax.dynamic_slice(table, (ROW, place), new.shape)
    return lax.dynamic_update_slice(table, new, (ROW, place))


def add_pair(
    table: Float[Array, "4 f"],
    along: Along,
    frame: Frame,
    count: Array,
    step: Array,
    line: TermLine,
) -> tuple[Float[Array, "4 f"], Float[Array, " b"]]:
    """Adds a pair's powers to a table of frequencies.

    The table has logs of moduli, angles, errors of both and where angles are of no use.
    Also the continuous angles at the first frequency of each block.
    """
    c, h, levels = along.shift, along.step, along.levels
    p, d = line.weights, line.losses
    versine, sine = rotation((h * np.arange(float(SIDE)))[:, None] * d)
    inner = lax.complex(versine, sine)
    inner_sum, inner = inner @ p, jnp.concatenate([inner, jnp.ones((1, d.size))])
    fractional = count != jnp.round(count)

    def block(i: Array, state: tuple) -> tuple[Array, Array, _Angle]:
        table, begun, before = state
        y = frequencies(h, i)
        # e^(i(a+b)) - 1 = (e^(ia) - 1) (e^(ib) - 1) + (e^(ia) - 1) + (e^(ib) - 1): no
        # digit is lost.
        versine, sine = rotation(y[::SIDE, None] * d)
        outer = lax.complex(p * versine, p * sine)
        found = outer @ inner.T
        change = (found[:, :-1] + found[:, -1:] + inner_sum).reshape(BLOCK)
        real, imag = lax.real(change), lax.imag(change)
        # Of M(c + iy) / M(c) = 1 + change.
        excess = real * (2 + real) + imag * imag
        close = excess > -0.25
        square = jnp.square(1 + real) + imag * imag + 1e-200
        near = lax.log1p(jnp.maximum(excess, -0.25))
        log_phi = 0.5 * where(close, near, jnp.log(square))
        angle = jnp.arctan2(imag, 1 + real)
        near = y < levels[:, None]
        turned = jnp.min(where(near, line.turned[:, None], jnp.inf), axis=0)
        off = jnp.minimum(rule_error(frame, c, step, y), turned)
        off = off + line.strip + y * line.turn
        share = (off + where(close, 0 * y, 8 * UNIT)) * jnp.exp(-log_phi)
        # |prod a^n - prod b^n| <= prod (|b| + off)^n - prod |b|^n for n >= 1, and
        # for smaller n with twice the error, if that is less than a quarter.
        known = share < 0.25
        relative = where((count < 1) & ~known, 1e9, lax.log1p(2 * share))
        # Fractional powers need the continuous angle.
        slack = jnp.exp(log_phi) * (1 - 4 * share) - line.deviation * h
        whole, lost, after = _continued(before, angle, slack)
        astray = fractional & ((lost > 0) | ~known)
        logs = jnp.stack([log_phi, where(fractional, whole, angle)])
        rounded = 8 * UNIT * jnp.sum(jnp.abs(logs), axis=0)
        new = jnp.concatenate([logs, jnp.stack([relative + rounded, astray + 0.0])])
        table = _added(table, new, count, BLOCK * i)
        begun = lax.dynamic_update_slice(begun, whole[:1], (i,))
        return table, begun, after

    state = table, jnp.zeros(table.shape[1] // BLOCK), _start()
    return lax.fori_loop(ROW, along.blocks, block, state)[:2]


def add_other(
    table: Float[Array, "4 f"],
    along: Along,
    term: AnalyticLoss,
    count: Array,
    plan: PyTree,
) -> tuple[Float[Array, "4 f"], Float[Array, " b"]]:
    """Adds the powers of a term that is no pair, likewise."""
    h = along.step
    # Some take less time for each of many frequencies.
    length, fastest = term.together, term.fastest_turn(plan)
    fractional = count != jnp.round(count)

    def some(i: Array, state: tuple) -> tuple[Array, Array, _Angle]:
        table, begun, before = state
        part = term.log_characteristic(plan, h * (length * i), h, length)
        phi, angle = jnp.exp(part.real), part.imag
        # |log(phi + e) - log(phi)| <= 1.4 |e / phi| up to one half; of what is
        # farther off, or stands on a floor, the size is known.
        unusable = part.error > 0.5
        grown = where(unusable, jnp.log(3 + 2 * part.error), 1.4 * part.error)
        astray = unusable | part.turned
        used, whole, after = angle, angle, before
        if fastest is not None:
            slack = phi * (1 - 2 * part.error) - fastest * h
            whole, lost, after = _continued(before, angle, slack)
            astray = astray | (fractional & (lost > 0))
            used = where(fractional, whole, angle)
        grown = grown + 8 * UNIT * (jnp.abs(part.real) + jnp.abs(used))
        new = jnp.stack([part.real, along.sign * used, grown, astray + 0.0])
        table = _added(table, new, count, length * i)
        place = (i * (length // BLOCK),)
        begun = lax.dynamic_update_slice(begun, whole[::BLOCK], place)
        return table, begun, after

    turns = -(-(along.blocks * BLOCK) // length)
    state = table, jnp.zeros(table.shape[1] // BLOCK), _start()
    return lax.fori_loop(ROW, turns, some, state)[:2]
