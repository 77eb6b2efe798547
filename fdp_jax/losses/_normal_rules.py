"""The trapezoid rule of a pair of normal mixtures: its window and its errors.

The proofs are for what `_normal_mixtures.py` says of such pairs.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._internal._special import log1p
from ._normal_mixtures import (
    LOST,
    REACH,
    UNIT,
    Frame,
    bend,
    log_kept,
    rough_logs,
    where,
)

_LOG_LOST = -50.0
"""Log of what may be beyond an early end, relative to the integral."""
_LOW = 1.5
"""The most that a line is moved where there is a cap."""
_UNHEARD = 1e-21
"""The weight of a node that does not matter."""
_MOST_TURNS = 1e13
"""Of c r: slopes have no rounding beyond one."""
_NOWHERE = 1e300
"""A place beyond all others."""


class Rule(NamedTuple):
    """A trapezoid rule for given shifts c, which have the leading axes."""

    low: Float[Array, "..."]
    """The first node."""
    step: Float[Array, "..."]


def rule(frame: Frame, shift: Float[Array, "..."], count: int) -> Rule:
    """Nodes that see P, Q and what is tilted by a shift.

    Left of zero A' <= A'(0), right of it A' >= A'(0).  So for c >= 0, g' >= d_Q - c
    A'(0) - t left of zero and g' <= D_Q - c A'(0) - t right of it, with the least and
    the largest center d_Q and D_Q times 1 + c; REACH beyond where that is zero the
    integrand has fallen by e^(-REACH^2 / 2), and falls by e^-REACH per unit.

    What is kept by a cap at T falls faster by (log k)' <= -curved (t - T) beyond it
    (Mills' ratio), so that slopes of -REACH sqrt(1 + curved) are needed there.

    The right end may come earlier, at E, where c > 0: of the convex B chords between
    some places, the largest slope beyond them, and of the convex A tangents at these
    places bound what is beyond E.  M(c) is at least one by Jensen's inequality, and at
    least e^g / sqrt(bend) with g at any place, since g bends no more than that.
    """
    positive, negative = jnp.maximum(shift, 0.0), jnp.minimum(shift, 0.0)
    slope = frame.early_slopes[0, 0]
    least = (1 + shift) * frame.low[1] - positive * slope
    most = (1 + shift) * frame.high[1] - positive * slope
    least = least - negative * frame.low[0]
    most = most - negative * frame.high[0]
    first = jnp.minimum(jnp.min(frame.low), jnp.minimum(least, 0.0)) - REACH
    steep = 1 + frame.curved
    capped = frame.top + REACH * lax.rsqrt(steep)
    natural = jnp.minimum(
        jnp.maximum(most, 0.0) + REACH,
        capped + jnp.maximum(most - frame.top, 0.0) / steep,
    )
    last = jnp.minimum(jnp.max(frame.high) + REACH, capped)
    last = jnp.maximum(last, jnp.minimum(natural, _early_end(frame, shift)))
    return Rule(first, (last - first) * (1 / (count - 1)))


def _early_end(frame: Frame, shift: Float[Array, "..."]) -> Float[Array, "..."]:
    """The first place beyond which all pieces are negligible; inf if c <= 0."""
    early, c = frame.early, shift[..., None]
    log_p, logs = frame.early_logs
    g = (1 + c) * logs - c * log_p - 0.5 * early * early + log_kept(frame, early)
    least = jnp.max(g, axis=-1) - 0.5 * jnp.log(bend(frame, shift))
    ends = jnp.append(early[1:], jnp.inf)
    lost = _log_pieces(frame, shift, ends) - jnp.maximum(least, 0.0)[..., None]
    needed = (lost >= _LOG_LOST) | (c <= 0)
    return jnp.max(where(needed, ends, 0.0), axis=-1)


def _log_pieces(
    frame: Frame, shift: Float[Array, "..."], ends: Float[Array, "... e"]
) -> Float[Array, "... e"]:
    """Logs of bounds of integrals from each early end up to others, but for a factor.

    That is their number and one, so that the largest bounds a sum of them.
    """
    early, c = frame.early, shift[..., None]
    (log_p, logs), slope_p = frame.early_logs, frame.early_slopes[0]
    lengths = jnp.append(jnp.diff(early), np.sqrt(2 * np.pi))
    slopes = jnp.append(jnp.diff(logs) / lengths[:-1], frame.high[1])
    steep = 1 + frame.curved
    # Between two places a parabola: its largest value.
    t = ((1 + c) * slopes - c * slope_p + frame.curved * frame.top) / steep
    t = jnp.clip(t, early, jnp.maximum(ends, early))
    value = (1 + c) * (logs + slopes * (t - early)) - c * (
        log_p + slope_p * (t - early)
    )
    value = value - 0.5 * (t * t + frame.curved * jnp.square(t - frame.top))
    # A cap falls like that beyond its place only.
    below = (early < frame.top) & (frame.curved > 0)
    return where(below, jnp.inf, value + jnp.log(lengths * (1 + early.size)))


def late_start(frame: Frame, shift: Float[Array, ""]) -> Float[Array, ""]:
    """The start of nodes that see the tilted law alone; -inf if it is that of `rule`.

    For c > 0, not far from the largest mode there can be: as in `rule`, with chords of
    B and tangents of A, and left of zero with the least slope that there is.
    """
    early, c = frame.early, shift
    mode = (1 + c) * frame.high[1] - c * frame.early_slopes[0, 0]
    start = mode - 2 * REACH
    value = _log_pieces(frame, c, jnp.minimum(jnp.append(early[1:], jnp.inf), start))
    before = jnp.max(where(early < start, value, -jnp.inf))
    low = (1 + c) * frame.low[1] - c * frame.early_slopes[0, 0]
    log_p, log_q = frame.early_logs[:, 0]
    left = (1 + c) * log_q - c * log_p + 0.5 * jnp.square(jnp.minimum(low, 0.0))
    left = left + np.log(np.sqrt(2 * np.pi) * (1 + early.size))
    at = rough_logs(frame, mode[None, None])[:, 0, 0]
    least = (1 + c) * at[1] - c * at[0] - 0.5 * mode * mode + log_kept(frame, mode)
    least = jnp.maximum(least - 0.5 * jnp.log(bend(frame, c)), 0.0)
    # Where log M(c) is small all of P has to be seen, for what exceeds it.
    few = (jnp.maximum(before, left) - least < _LOG_LOST) & (least > 1)
    return where((c > 0) & (start > 0) & few, start, -jnp.inf)


def rule_error(
    frame: Frame,
    shift: Float[Array, "..."],
    step: Float[Array, "..."],
    frequency: Float[Array, "..."] | float,
) -> Float[Array, "..."]:
    """A bound of |sum - M(c + iy)| / M(c), for y >= 0, without what is beyond the ends.

    If an integrand is analytic for |Im t| <= v and its modulus there integrates to at
    most F, the trapezoid rule is off by at most 2 F / (e^(2 pi v / h) - 1) <= 4 F e^(-2
    pi v / h) where the latter is below 2 F.  On Im t = v, with a = v r_P / 2 < pi / 2,

        F / M(c) <= exp((1 + curved) v^2/2 + |y| v turn - max(c, 0) log cos a),

    for every v < pi / r; v is near where that is least.  (No mixture is zero there, so
    that both logarithms are analytic.)

    Of a large c that is too much where the tilted law sees little of some components.
    Let d be the largest center of P and cos(r_P v) > 0.  As log cos is concave, the
    real part of e^(A(t + iv) - i d v) is at least that with e^(-u (d - d_i)) for each
    rotation, u = -log cos(r_P v) / r_P:

        |e^A(t + iv)| >= e^(A(t + u) - d u).

    If Q is one component, moving t by u leaves F / M(c) <= e^(v^2/2 - u^2/2) E_c[e^(u
    (t - (1 + c) d_Q + c d))], and as -g'' >= 1, E_c[e^(u t)] <= e^(u E_c[t] + u^2/2),
    where E_c[t] is at most one beyond the mode.  (Not with a cap: it would keep more.)
    """
    rate = 2 * np.pi / step - frequency * frame.turn
    flat, steep = 1 + frame.curved, bend(frame, shift)
    away = _mean_away(frame, shift)
    mild = flat + away * frame.range_p
    some = mild < steep
    share, most = where(some, 1.0, 0.5), where(some, 1.5, 2.8) / frame.range
    high = jnp.clip(rate / jnp.minimum(mild, steep), 0.0, most)
    power = where(some, away / jnp.maximum(frame.range_p, UNIT), jnp.maximum(shift, 0))
    room = power * jnp.log(jnp.cos(share * frame.range_p * high))
    error = 4 * jnp.exp((0.5 * flat * high - rate) * high - room)
    return where(2 * np.pi * high > 0.7 * step, error, jnp.inf)


def _mean_away(frame: Frame, shift: Float[Array, "..."]) -> Float[Array, "..."]:
    """A bound of E_c[t] - (1 + c) d_Q + c d, if Q is one component, and without a cap.

    The mode is left of places where g falls; the slopes' roundings are within a unit.
    """
    c = shift[..., None]
    falls = (1 + c) * frame.high[1] - c * frame.early_slopes[0] < frame.early
    mode = jnp.min(where(falls, frame.early, _NOWHERE), axis=-1)
    away = mode + 2 - (1 + shift) * frame.high[1] + shift * frame.high[0]
    alone = (shift > 0) & (frame.low[1] == frame.high[1]) & (frame.curved == 0)
    return where(alone & (shift * frame.range < _MOST_TURNS), away, _NOWHERE)


def turned_error(
    frame: Frame,
    shift: Float[Array, ""],
    t: Float[Array, " n"],
    weights: Float[Array, " n"],
    shares: Float[Array, "2 k n"],
    frequencies: Float[Array, " f"],
) -> Float[Array, " f"]:
    """The rule's error for all y up to each frequency, if most losses turn slowly.

    With h the step, v = 10 h, and b and G(t) the distance of the two heaviest centers
    and the posterior mean distances from them, both laws' together,

        0 <= Im l(t + iv) <= v (b + G(t) / cos(v r / 2)),

    since shares grow by no more than 1 / cos off the line.  On Im t = v this makes the
    integrand smaller, on Im t = -v larger by e^(y Im l), of which the mean is over the
    nodes: between them -(g + u G)'' <= bend + u r^3 / 2 adds h^2 / 8 times that.

    Towards the ends of the window u = y v / cos(v r / 2) may be too much.  There the
    integrand is cut off by factors Phi((T - t) / w), w = 2.5 h: where nodes weigh
    nothing, and so far within that at the ends e^(-2 r u) outweighs e^(u G).  What is
    beyond counts as lost; off the line each factor is at most e^(v^2 / 2 w^2) = e^8
    times as large.
    """
    step, r = t[1] - t[0], frame.range
    v, w = 10 * step, 2.5 * step
    cos = jnp.cos(0.5 * r * v)
    swing = jnp.sum(jnp.abs(frame.gaps)[..., None] * shares, axis=(0, 1))
    push = frequencies * (v / cos)
    inner = w * jnp.sqrt(4 * r * push)[:, None]
    heard = weights > _UNHEARD
    low = jnp.min(where(heard, t, jnp.inf)) - 5 * w
    high = jnp.max(where(heard, t, -jnp.inf)) + 5 * w
    low, high = jnp.maximum(t[0] + inner, low), jnp.minimum(t[-1] - inner, high)
    beyond = jnp.maximum(t - high, low - t) / w
    inside, outside = jnp.minimum(beyond, 0.0), jnp.maximum(beyond, 0.0)
    lost = jnp.exp(-0.5 * jnp.square(inside)) @ weights
    grown = jnp.exp(push[:, None] * swing - 0.5 * jnp.square(outside)) @ weights
    curved = bend(frame, shift)
    room = jnp.maximum(shift, 0) * jnp.log(jnp.cos(0.5 * frame.range_p * v))
    turn = frequencies * v * (frame.base[1] - frame.base[0])
    between = 0.125 * step * step * (curved + 0.5 * push * r**3)
    strip = (16 - 20 * np.pi) + 0.5 * (1 + frame.curved) * v * v
    log_size = strip - room + turn + between
    error = jnp.exp(log_size) * (grown + LOST * curved) + lost + LOST * curved
    return where((r * v < 2.8) & (error < 0.1), 2.1 * error, jnp.inf)


def law_error(frame: Frame, step: Float[Array, "..."]) -> Float[Array, "..."]:
    """The rule's error for either law by itself, whose density is entire."""
    falls = 2 * np.square(np.pi) / (jnp.square(step) * (1 + frame.curved))
    return 4 * jnp.exp(-falls) + 2 * LOST


class Envelope(NamedTuple):
    """|M(c + iy)| <= M(c) E_c[e^(moduli - y angles)] (1 + error) for y and all beyond.

    E_c is over the nodes' normalized weights.
    """

    moduli: Float[Array, " n"]
    angles: Float[Array, " n"]
    error: Float[Array, ""]
    """Relative to M(c), for all y."""


def envelope(
    frame: Frame,
    shift: Float[Array, ""],
    step: Float[Array, ""],
    shares: Float[Array, "2 k n"],
    lost: Float[Array, " n"],
    height: Float[Array, ""],
) -> Envelope:
    """Moves the line by a > 0: e^(iy l) becomes e^(-y Im l(t + ia)), with Im l >= 0.

    That is so since no center of P lies right of one of Q; so the modulus falls with y,

        |M(c + iy)| <= int e^(a^2/2 + Re[(1 + c) B - c A](t + ia) - y Im l(t + ia)).

    The trapezoid rule for this positive function is off by at most 4 exp(b^2/2 - 2 pi b
    / h - max(c, 0) log cos((a + b) r_P / 2)) for all y >= 0: continued to t + ib its
    parts are (B(t + ia + ib) + B(t - ia + ib)) / 2 and the same of A, of which moduli
    are as above, and y / 2 times -Im l(t + i(a + b)) + Im l(t + i(b - a)).  That is not
    positive if b <= a and (a + b) r < pi, since then Im l(t - i(a - b)) <= 0; and if
    (a + b) r <= pi/2, since Im l grows with the height that far (of B, d/dv Im is a
    mean of centers with weights w_i w_j cos((d_i - d_j) v) >= 0).

    With E = e^(curved a^2 / 2), |k(t + ia)| is at most E k and 1 + E (1 - k), and so is
    at most k times the second and 1 - k times the first: k (1 + 2 E (1 - k)).  That is
    at most e^(curved b^2) times as large at t + ib, and 1 + 2 E times k.

    `height` is the largest a: of so many releases e^(a^2 count / 2) has to be gained
    back.
    """
    wide = frame.range
    a = jnp.minimum(height, 1.5 / wide)
    a = jnp.minimum(a, where(frame.curved > 0, _LOW, jnp.inf))
    # So that e^(-max(c, 0) log cos ...) is e^20, about.
    most = 12.5 * lax.rsqrt(jnp.maximum(shift, 1.0)) / jnp.maximum(frame.range_p, 1e-3)
    a = jnp.minimum(a, 0.5 * most)
    b = jnp.maximum(0.5 * np.pi / wide - a, jnp.minimum(a, 2.9 / wide - a))
    b = jnp.minimum(jnp.minimum(b, 6.0), 2 * np.pi / step)
    b = jnp.minimum(b, most - a)
    turns = (a * frame.gaps)[..., None]
    real = -2 * jnp.sum(shares * jnp.square(jnp.sin(0.5 * turns)), axis=1)
    imag = jnp.sum(shares * jnp.sin(turns), axis=1)
    angles = jnp.arctan2(imag, 1 + real) + (a * frame.base)[:, None]
    square = real * (2 + real) + jnp.square(imag)
    sizes = 0.5 * log1p(jnp.maximum(square, -1 + UNIT))
    room = jnp.maximum(shift, 0) * jnp.log(jnp.cos(0.5 * frame.range_p * (a + b)))
    cap = 2 * jnp.exp(0.5 * frame.curved * a * a)
    strip = ((0.5 + frame.curved) * b - 2 * np.pi / step) * b
    error = 4 * (1 + cap) * jnp.exp(0.5 * a * a + strip - room)
    fits = (2 * np.pi * b > 0.7 * step) & (frame.high[0] <= frame.low[1])
    return Envelope(
        0.5 * a * a + (1 + shift) * sizes[1] - shift * sizes[0] + lax.log1p(cap * lost),
        angles[1] - angles[0],
        where(fits, error, jnp.inf),
    )
