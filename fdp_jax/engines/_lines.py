"""Certified profiles of sums of independent losses along a line of the complex plane.

With M(c + iy) the product of the terms' transforms (`losses/_normal_mixtures.py`) and z
= c + iy, the profile is delta(eps) = T(eps) - left - right for every c > 0 and h > 0,

    T(eps) = (h / pi) Re sum'_k M(c + i k h) e^(-z_k eps) / (z_k (1 + z_k)),

where the sum's first term counts half, and the aliases are e^(c m R) delta(eps + m R),
R = 2 pi / h, for m < 0 and m > 0 (Poisson summation).  For -1 < c < 0 the same holds of
-(1 - delta), which is accurate where delta is close to one.  Nothing is searched for:

1. Chernoff bounds of M on a mesh of shifts c tell the place (by Laplace's method), a
   proved bound of delta or 1 - delta, and the shift and the period R with which aliases
   do not matter.  Aliases on the other side of c = 0 tend to e^(c m R): these are
   subtracted exactly, and what is too much of them is bounded by the mesh, too.
2. An envelope of |M| that falls with y tells how many frequencies there are.
3. The table of frequencies is made once, for all thresholds.  Every term's transform
   comes with a bound on its error, and so does the sum.
4. An epsilon is found by Newton's method in the table (`_root.py`).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from .._internal._blocked_sum import sums
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
from ._line_mesh import (
    BLOCK,
    DIGITS,
    SHIFTS,
    UNIT,
    Mesh,
    Place,
    Stack,
    chernoff_mesh,
    locate,
    orders_at,
)

SIDE, MOST = 8, 4096
"""Frequencies in a row of a block, and at most in sums over pairs alone."""
_ENDS = np.append(np.arange(16, 64, 8), 64 * 2.0 ** np.arange(0, 9.5, 0.5)).round()
"""Numbers of frequencies after which a sum may end."""
_LEVELS = 16 * 4.0 ** np.arange(7)
"""Numbers of frequencies up to which errors of a rule are bounded together."""
_USEFUL = 5.0
"""Minus the log of a truncation's relative error that is worth the sum."""
ROW = np.int32(0)


def line_nodes(components: int) -> int:
    """The nodes of a line's rule."""
    return 1024 if components <= 5 else 2048


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
    """The rule's relative error up to each of `_LEVELS`."""
    log_envelope: Float[Array, " b"]
    """At all places where the sum may end."""
    kept: Float[Array, " n"]
    """Log of what a cap keeps, at the nodes."""


def _term_line(
    frame: Frame,
    low: Array,
    step: Array,
    shift: Array,
    reach: tuple[Array, Array],
    total: Array,
) -> TermLine:
    nodes = line_nodes(frame.gaps.shape[-1])
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
    height, (ends, levels) = 0.9 * np.sqrt(90) * lax.rsqrt(total), reach
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


class Line(eqx.Module):
    """The profile near a place: a table of frequencies, and all that is certain."""

    sign: Float[Array, "..."]
    shift: Float[Array, "..."]
    step: Float[Array, "..."]
    """h."""
    blocks: Int[Array, "..."]
    table: Float[Array, "2 f"]
    """Amplitudes and angles of the terms of T e^(c eps) / M(c)."""
    lead: Float[Array, "..."]
    """Log M(c)."""
    lead_error: Float[Array, "..."]
    center: Float[Array, "..."]
    center_size: Float[Array, "..."]
    error: Float[Array, "..."]
    """Of the sum, but for that of M(c), and with what was left out."""
    moment: Float[Array, "..."]
    """Of amplitudes times y."""
    bounds: Float[Array, "..."]
    aliases: Float[Array, "..."]
    log_lost: Float[Array, "..."]
    log_cut: Float[Array, "..."]
    """Log of what caps leave out of delta, at most."""
    epsilon: Float[Array, "..."]
    """The place."""
    lows: Float[Array, "... m"]
    node_steps: Float[Array, "... m"]
    """The rules of all terms."""
    kept: Float[Array, "... m n"]
    """Log of what their caps keep, at the nodes."""
    turned: Float[Array, "... m b"]
    """Their continuous angles at the first frequency of each block."""
    plans: tuple[PyTree, ...]
    """Of the terms that are no pairs ..."""
    others_turned: tuple[Float[Array, "... b"], ...]
    """... and their angles."""

    @property
    def side(self) -> Array:
        """1 where the sum is delta, -1 where it is -(1 - delta)."""
        return jnp.sign(self.shift)


def frequencies(step: Array, block: Array) -> Float[Array, " k"]:
    """A block of frequencies."""
    return step * (BLOCK * block + np.arange(float(BLOCK)))


class _Angle(NamedTuple):
    """A continuous angle, as far as it is known."""

    last: Float[Array, ""]
    """Its principal value at the last frequency."""
    turns: Float[Array, ""]
    lost: Float[Array, ""]
    """How often it was not known."""


def _along(before: _Angle, angle: Array, slack: Array) -> tuple[Array, Array, _Angle]:
    """The continuous angles of a block, and how often they were not known till there.

    An angle is known as long as the next value is nearer to this one than zero is, by a
    positive `slack`.
    """
    jump = angle - jnp.concatenate([before.last[None], angle[:-1]])
    steps = jnp.stack([-jnp.round(jump * (0.5 / np.pi)), (slack < 0) + 0.0])
    found = (
        steps @ np.tri(angle.size).T + jnp.stack([before.turns, before.lost])[:, None]
    )
    after = _Angle(angle[-1], *found[:, -1])
    return angle + (2 * np.pi) * found[0], found[1] - steps[1], after


def _start() -> _Angle:
    return _Angle(*jnp.zeros(3))


@jax.jit
def make_line(stack: Stack, mesh: Mesh, place: Place) -> Line:
    """The table of all frequencies along the line that was chosen."""
    frames, counts, others = stack.frames, stack.counts, stack.others
    c, h = jnp.asarray(SHIFTS)[place.row], 2 * np.pi / place.period
    most = max((BLOCK * term.most_blocks for term in others), default=MOST)
    ends_at, levels = _ENDS[most >= _ENDS], _LEVELS[4 * most >= _LEVELS]
    ends = h * (ends_at - 1.0)
    falls, whole, made = jnp.zeros(ends.shape), jnp.zeros(4), None
    lows, steps = mesh.lows[:, place.row], jnp.zeros_like(counts)
    if frames is not None:
        steps = mesh.lengths[:, place.row]
        steps = steps * (1 / (line_nodes(frames.gaps.shape[-1]) - 1))
        reach, total = (ends, h * levels), jnp.sum(counts)
        each = lambda x: _term_line(x[0], x[1], x[2], c, reach, total)
        made = lax.map(each, (frames, lows, steps))
        logs, errors = made.log_m, made.log_m_error + 4 * UNIT * jnp.abs(made.log_m)
        centers = counts * made.mean
        whole = jnp.stack([counts * logs, counts * errors, centers, jnp.abs(centers)])
        whole = jnp.sum(where(counts > 0, whole, 0.0), axis=1)
        logs = counts[:, None] * (made.log_envelope + 1e-12)
        falls = jnp.sum(where((counts > 0)[:, None], logs, 0.0), axis=0)
    order = orders_at(c, stack.sign)
    located = tuple(term.locate(order) for term in others)
    for term, count, at in zip(others, stack.other_counts, located, strict=True):
        each = jax.vmap(lambda y, t=term, a=at: t.log_envelope(a, y))(ends)
        falls = falls + where(count > 0, count * each, 0.0)
    # The log of what does not matter to the sum: where less is beyond, it ends.
    wanted = place.log_value - mesh.upper[place.row] + c * place.epsilon
    wanted = wanted - jnp.log(h / np.pi) - DIGITS
    # Terms beyond Y are less than |M(c + iY)| times the sum of 1/y^2.
    tails = falls - jnp.log(ends * h)
    short = tails < wanted
    last = where(jnp.any(short), jnp.argmax(short), ends.size - 1)
    ended = tails[last] < wanted + (DIGITS - _USEFUL)
    # A sum that does not end has no certificate; its first term alone has slopes that
    # are about right, those of Laplace's method.
    number = where(ended, jnp.asarray(ends_at, np.int32)[last], np.int32(1))
    blocks = (number + (BLOCK - 1)) // BLOCK
    tolerance = where(ended, np.log(2 * UNIT) - 2, 1e4)
    plans = tuple(
        term.prepare(at, h * number, tolerance - jnp.log1p(count))
        for term, count, at in zip(others, stack.other_counts, located, strict=True)
    )
    for term, count, plan in zip(others, stack.other_counts, plans, strict=True):
        log, error = term.log_mgf(plan)
        error = error + 4 * UNIT * jnp.abs(log)
        center = stack.sign * term.center(plan)
        each = count * jnp.stack([log, error, center, jnp.abs(center)])
        whole = whole + where(count > 0, each, 0.0)
    lead, lead_error, center, center_size = whole

    def add_term(table: Array, one: tuple) -> tuple[Array, Array]:
        frame, count, step, line = one
        p, d = line.weights, line.losses
        turning = (0.5 * h * np.arange(float(SIDE)))[:, None] * d
        sine = jnp.sin(turning)
        inner = lax.complex(jnp.cos(2 * turning), jnp.sin(2 * turning))
        sine = p * sine, sine
        parts = -2 * sine[0] * sine[1], p * lax.imag(inner)
        inner_sum = lax.complex(*sums(parts, 1))
        fractional = count != jnp.round(count)

        def block(i: Array, state: tuple) -> tuple[Array, Array, _Angle]:
            table, begun, before = state
            y = frequencies(h, i)
            # e^(i(a+b)) - 1 = (e^(ia) - 1) e^(ib) + (e^(ib) - 1): no digit is lost.
            x = (0.5 * y[::SIDE])[:, None] * d
            sine = jnp.sin(x)
            outer = lax.complex(-2 * p * sine * sine, 2 * p * sine * jnp.cos(x))
            change = (outer @ inner.T + inner_sum).reshape(BLOCK)
            real, imag = lax.real(change), lax.imag(change)
            # Of M(c + iy) / M(c) = 1 + change.
            excess = real * (2 + real) + imag * imag
            close = excess > -0.25
            square = jnp.square(1 + real) + imag * imag + 1e-200
            near = lax.log1p(jnp.maximum(excess, -0.25))
            log_phi = 0.5 * where(close, near, jnp.log(square))
            angle = jnp.arctan2(imag, 1 + real)
            near = y < h * levels[:, None]
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
            along, lost, after = _along(before, angle, slack)
            astray = fractional & ((lost > 0) | ~known)
            logs = jnp.stack([log_phi, where(fractional, along, angle)])
            rounded = 8 * UNIT * jnp.sum(jnp.abs(logs), axis=0)
            new = jnp.concatenate([logs, jnp.stack([relative + rounded, astray + 0.0])])
            new = where(count > 0, count * new, 0.0)
            new = new + lax.dynamic_slice(table, (ROW, BLOCK * i), (4, BLOCK))
            table = lax.dynamic_update_slice(table, new, (ROW, BLOCK * i))
            begun = lax.dynamic_update_slice(begun, along[:1], (i,))
            return table, begun, after

        state = table, jnp.zeros(most // BLOCK), _start()
        return lax.fori_loop(ROW, blocks, block, state)[:2]

    def add_other(
        table: Array, term: AnalyticLoss, count: Array, plan: PyTree
    ) -> tuple[Array, Array]:
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
            along, after = angle, before
            if fastest is not None:
                slack = phi * (1 - 2 * part.error) - fastest * h
                along, lost, after = _along(before, angle, slack)
                astray = astray | (fractional & (lost > 0))
                along = where(fractional, along, angle)
            new = jnp.stack([part.real, stack.sign * along, grown, astray + 0.0])
            new = where(count > 0, count * new, 0.0)
            new = new + lax.dynamic_slice(table, (ROW, length * i), (4, length))
            table = lax.dynamic_update_slice(table, new, (ROW, length * i))
            place = (i * (length // BLOCK),)
            begun = lax.dynamic_update_slice(begun, along[::BLOCK], place)
            return table, begun, after

        turns = -(-(blocks * BLOCK) // length)
        state = table, jnp.zeros(table.shape[1] // BLOCK), _start()
        return lax.fori_loop(ROW, turns, some, state)[:2]

    # Frequencies evaluated together may go beyond the end.
    room = max((term.together for term in others), default=0)
    logs, turned = jnp.zeros((4, most + room)), jnp.zeros((0, 1))
    if frames is not None:
        each = frames, counts, steps, made
        logs, turned = lax.scan(add_term, logs, each)
    others_turned = []
    for term, count, plan in zip(others, stack.other_counts, plans, strict=True):
        logs, begun = add_other(logs, term, count, plan)
        others_turned.append(begun)
    few = UNIT * (4 * BLOCK + 40 + 4 * (counts.size + len(others)))

    def finish(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        table, total = state
        power, phase, relative, astray = lax.dynamic_slice(
            logs, (ROW, BLOCK * i), (4, BLOCK)
        )
        k = BLOCK * i + np.arange(BLOCK)
        y = h * k
        near, far = c * c + y * y, jnp.square(1 + c) + y * y
        weight = where(k > 0, where(k < number, 1.0, 0.0 * y), 0.5)
        weight = weight * lax.rsqrt(near * far)
        amplitude = weight * jnp.exp(power)
        small = amplitude * jnp.expm1(jnp.minimum(relative, 1.0))
        wrong = where(relative < 1, small, weight * jnp.exp(power + relative))
        wrong = wrong + amplitude * (where(astray > 0, 2.0, 0.0) + few)
        wrong = where(k < number, wrong, 0.0)
        more = sums((wrong, amplitude * y), 0)
        phase = phase - jnp.arctan2(y * (1 + 2 * c), c * (1 + c) - y * y)
        new = jnp.stack([amplitude, phase])
        table = lax.dynamic_update_slice(table, new, (ROW, BLOCK * i))
        return table, total + jnp.stack(more)

    state = jnp.zeros((2, most)), jnp.zeros(2)
    table, (error, moment) = lax.fori_loop(ROW, blocks, finish, state)
    cut = (
        0.0 if frames is None else jnp.sum(where(counts > 0, counts * frames.cut, 0.0))
    )
    return Line(
        sign=stack.sign,
        shift=c,
        step=h,
        blocks=blocks,
        table=table,
        lead=lead,
        lead_error=lead_error,
        center=center,
        center_size=center_size,
        error=error + where(ended, jnp.exp(tails[last]), jnp.inf),
        moment=moment,
        bounds=place.bounds,
        aliases=where(ended, place.aliases, -jnp.inf),
        log_lost=stack.log_lost,
        log_cut=jnp.log(jnp.asarray(cut)),
        epsilon=place.epsilon,
        lows=lows,
        node_steps=steps,
        kept=jnp.zeros((0, 1)) if made is None else made.kept,
        turned=turned,
        plans=plans,
        others_turned=tuple(others_turned),
    )


def line_of(stack: Stack, target: Array, *, inverse: bool) -> Line:
    """The line for a threshold, or for a log delta (`inverse`)."""
    mesh = chernoff_mesh(stack)
    place = locate(mesh, target, inverse=inverse, log_mass=stack.log_mass)
    return make_line(stack, mesh, place)
