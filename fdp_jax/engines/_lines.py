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
from jaxtyping import Array, Float, Int

from ..losses import (
    LOST,
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
    sums,
)

SIDE, MOST = 8, 4096
"""Frequencies in a row of a block, and at most."""
_ENDS = np.array(
    [16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256, 320, 384]
)
_ENDS = np.concatenate([_ENDS, [512, 640, 768, 1024, 1280, 1536, 2048, 3072, MOST]])
"""Numbers of frequencies after which a sum may end."""
_LEVELS = 16 * 4.0 ** np.arange(5)
"""Numbers of frequencies up to which errors of a rule are bounded together."""
_TRIANGLE = np.tri(BLOCK)
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
    frame: Frame, low: Array, step: Array, shift: Array, h: Array, total: Array
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
    height = 0.9 * np.sqrt(90) * lax.rsqrt(total)
    moduli, angles, error = envelope(frame, shift, step, shares, lost, height)
    sizes = jnp.exp(moduli - (h * (_ENDS - 1.0))[:, None] * angles) @ p
    return TermLine(
        p,
        d,
        mean,
        deviation,
        log_m,
        where(strip < 0.1, log_m_error, jnp.inf),
        UNIT * (moved + rounded * deviation),
        strip,
        turned_error(frame, shift, t, p, shares, h * _LEVELS),
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

    @property
    def side(self) -> Array:
        """1 where the sum is delta, -1 where it is -(1 - delta)."""
        return jnp.sign(self.shift)


def frequencies(step: Array, block: Array) -> Float[Array, " k"]:
    """A block of frequencies."""
    return step * (BLOCK * block + np.arange(float(BLOCK)))


@jax.jit
def make_line(stack: Stack, sign: Array, mesh: Mesh, place: Place) -> Line:
    """The table of all frequencies along the line that was chosen."""
    frames, counts, log_lost = stack
    c, h = jnp.asarray(SHIFTS)[place.row], 2 * np.pi / place.period
    lows = mesh.lows[:, place.row]
    nodes = line_nodes(frames.gaps.shape[-1])
    steps = mesh.lengths[:, place.row] * (1 / (nodes - 1))
    ends, total = h * (_ENDS - 1.0), jnp.sum(counts)
    each = lambda x: _term_line(x[0], x[1], x[2], c, h, total)
    made = lax.map(each, (frames, lows, steps))
    some = counts > 0
    logs, errors = made.log_m, made.log_m_error + 4 * UNIT * jnp.abs(made.log_m)
    centers = counts * made.mean
    whole = jnp.stack([counts * logs, counts * errors, centers, jnp.abs(centers)])
    lead, lead_error, center, center_size = jnp.sum(where(some, whole, 0.0), axis=1)
    # The log of what does not matter to the sum: where less is beyond, it ends.
    wanted = place.log_value - lead + c * place.epsilon - jnp.log(h / np.pi) - DIGITS
    logs = counts[:, None] * (made.log_envelope + 1e-12)
    # Terms beyond Y are less than |M(c + iY)| times the sum of 1/y^2.
    tails = jnp.sum(where(some[:, None], logs, 0.0), axis=0) - jnp.log(ends * h)
    last = jnp.argmax(tails < wanted)
    ended = tails[last] < wanted
    # A sum that does not end has no certificate; its first term alone has slopes that
    # are about right, those of Laplace's method.
    number = where(ended, jnp.asarray(_ENDS, np.int32)[last], np.int32(1))
    blocks = (number + (BLOCK - 1)) // BLOCK

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

        def block(i: Array, state: tuple) -> tuple[Array, Array, Array]:
            table, begun, (before, turns, lost) = state
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
            near = y < h * _LEVELS[:, None]
            turned = jnp.min(where(near, line.turned[:, None], jnp.inf), axis=0)
            off = jnp.minimum(rule_error(frame, c, step, y), turned)
            off = off + line.strip + y * line.turn
            share = (off + where(close, 0 * y, 8 * UNIT)) * jnp.exp(-log_phi)
            # |prod a^n - prod b^n| <= prod (|b| + off)^n - prod |b|^n for n >= 1, and
            # for smaller n with twice the error, if that is less than a quarter.
            known = share < 0.25
            relative = where((count < 1) & ~known, 1e9, lax.log1p(2 * share))
            # Fractional powers need the continuous angle.  It is known as long as the
            # next value is nearer to this one than zero is.
            jump = angle - jnp.concatenate([before[None], angle[:-1]])
            slack = jnp.exp(log_phi) * (1 - 4 * share) - line.deviation * h
            steps = jnp.stack([-jnp.round(jump * (0.5 / np.pi)), (slack < 0) + 0.0])
            found = steps @ _TRIANGLE.T + jnp.stack([turns, lost])[:, None]
            along = angle + (2 * np.pi) * found[0]
            astray = fractional & ((found[1] > steps[1]) | ~known)
            logs = jnp.stack([log_phi, where(fractional, along, angle)])
            rounded = 8 * UNIT * jnp.sum(jnp.abs(logs), axis=0)
            new = jnp.concatenate([logs, jnp.stack([relative + rounded, astray + 0.0])])
            new = where(count > 0, count * new, 0.0)
            new = new + lax.dynamic_slice(table, (ROW, BLOCK * i), (4, BLOCK))
            table = lax.dynamic_update_slice(table, new, (ROW, BLOCK * i))
            begun = lax.dynamic_update_slice(begun, along[:1], (i,))
            return table, begun, jnp.stack([angle[-1], found[0, -1], found[1, -1]])

        state = table, jnp.zeros(MOST // BLOCK), jnp.zeros(3)
        return lax.fori_loop(ROW, blocks, block, state)[:2]

    each = frames, counts, steps, made
    logs, turned = lax.scan(add_term, jnp.zeros((4, MOST)), each)
    few = UNIT * (4 * BLOCK + 40 + 4 * counts.size)

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

    state = jnp.zeros((2, MOST)), jnp.zeros(2)
    table, (error, moment) = lax.fori_loop(ROW, blocks, finish, state)
    return Line(
        sign=sign,
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
        log_lost=log_lost,
        log_cut=jnp.log(jnp.sum(where(some, counts * frames.cut, 0.0))),
        epsilon=place.epsilon,
        lows=lows,
        node_steps=steps,
        kept=made.kept,
        turned=turned,
    )


def line_of(stack: Stack, sign: Array, target: Array, *, inverse: bool) -> Line:
    """The line for a threshold, or for a log delta (`inverse`)."""
    mesh = chernoff_mesh(stack)
    return make_line(stack, sign, mesh, locate(mesh, target, inverse=inverse))
