"""What a line says: certified values at thresholds, and the epsilon of a delta."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from .._internal._shapes import zeros_of
from ..losses import where
from ._line_mesh import BLOCK, RIGHT, SHIFTS, UNIT, Stack, capped, sums
from ._lines import ROW, Line, frequencies, line_of


class Seen(NamedTuple):
    """The answer of a line at some thresholds, of delta or 1 - delta."""

    log_value: Float[Array, " e"]
    log_lower: Float[Array, " e"]
    log_upper: Float[Array, " e"]
    log_alpha: Float[Array, " e"]
    """Log P(X > eps), an estimate."""


class Sum(NamedTuple):
    """The sum at some thresholds; all times e^(c eps) / M(c)."""

    value: Float[Array, " e"]
    """Of delta, or 1 - delta."""
    slope: Float[Array, " e"]
    """Minus the derivative of the sum (not of `value`) in the threshold."""
    noise: Float[Array, " e"]
    """The value's error but for aliases."""
    vague: Float[Array, " e"]
    """Error of the slope."""
    over: Float[Array, " e"]
    """Aliases that were not subtracted, at most."""
    lacking: Float[Array, " e"]
    """What was subtracted too much, at most."""
    growth: Float[Array, " e"]
    """Aliases on the right grow by e^(growth x) at thresholds less by x."""


def look_up(line: Line, epsilons: Float[Array, " e"]) -> tuple[Array, Array]:
    """Sums over the table of amplitudes and cosines, and of their derivative."""
    center, c = line.center, line.shift

    def add(i: Array, total: tuple[Array, Array]) -> tuple[Array, Array]:
        y = frequencies(line.step, i)
        amplitude, phase = lax.dynamic_slice(line.table, (ROW, BLOCK * i), (2, BLOCK))
        phase = phase - y * (epsilons - center)[:, None]
        value, slope = sums(
            (amplitude * jnp.cos(phase), amplitude * y * jnp.sin(phase)), 1
        )
        return total[0] + value, total[1] + slope

    none = jnp.zeros_like(epsilons)
    value, slope = lax.fori_loop(ROW, line.blocks, add, (none, none))
    return value, c * value - slope


def evaluate(line: Line, epsilons: Float[Array, " e"]) -> Sum:
    """The profile at thresholds, with all that may be wrong."""
    value, slope = look_up(line, epsilons)
    c, period, scale = line.shift, 2 * np.pi / line.step, line.step / np.pi
    subtracted = jnp.exp(line.aliases - line.lead + c * epsilons)
    total = line.side * scale * value
    # Of bounds and aliases the exponents e^(-(c' - c) eps) are left.
    gap = jnp.abs(SHIFTS - c) * period
    logs = line.bounds - line.lead - gap - jnp.log(-jnp.expm1(-gap))
    logs = logs - (SHIFTS - c) * epsilons[:, None]
    least = lambda rows: jnp.exp(jnp.min(where(rows, logs, jnp.inf), axis=1))
    beyond = (c < SHIFTS) & RIGHT
    left, right = least((c > SHIFTS) & ~RIGHT), least(beyond)
    row = jnp.argmin(where(beyond, logs, jnp.inf), axis=1)
    tail = c > 0
    turned = 8 * UNIT * (jnp.abs(epsilons) + line.center_size)
    noise = scale * (line.error + turned * line.moment)
    wide = 2 * line.lead_error + 16 * UNIT * (
        1
        + jnp.abs(line.lead)
        + jnp.abs(c * epsilons)
        + jnp.abs(jnp.maximum(line.aliases, -1e3))
    )
    noise = noise + wide * (jnp.abs(total) + noise)
    noise = where(wide < 0.1, noise, jnp.inf)
    return Sum(
        total - subtracted,
        line.side * scale * slope,
        noise,
        scale * (jnp.sqrt(line.error * line.bent) + turned * line.bent),
        where(tail, right, left),
        where(tail, left, right) + jnp.exp(line.log_cut) * subtracted,
        jnp.asarray(SHIFTS)[row],
    )


def chernoff(line: Line, epsilons: Float[Array, " e"]) -> Float[Array, " e"]:
    """Log of the best bound on the mesh, of delta or of 1 - delta."""
    logs = line.bounds - SHIFTS * epsilons[:, None]
    rows = RIGHT ^ (line.shift < 0)
    return jnp.min(where(rows, logs, jnp.inf), axis=1)


def see(line: Line, epsilons: Float[Array, " e"]) -> Seen:
    """The certified profile at thresholds, in logarithms."""
    found = evaluate(line, epsilons)
    at = line.lead - line.shift * epsilons
    log = lambda x: where(x > 0, at + jnp.log(where(x > 0, x, 1.0)), -jnp.inf)
    lower = log(found.value - found.noise - found.over)
    upper = log(found.value + found.noise + found.lacking)
    # Components that were left out: delta moves by lost (1 + e^eps) at most.
    lost = line.log_lost + (jnp.maximum(epsilons, 0.0) + np.log(2))
    lost = jnp.logaddexp(lost, line.log_cut)
    upper = where(jnp.isnan(upper) | jnp.isposinf(found.noise), jnp.inf, upper)
    upper = jnp.minimum(jnp.minimum(upper, chernoff(line, epsilons)), 0.0)
    share = where(jnp.isneginf(lost), 0.0, jnp.exp(lost - lower))
    lower = where(share < 0.5, lower - 2 * share, -jnp.inf)
    lower = where(jnp.isnan(lower), -jnp.inf, lower)
    known = jnp.isfinite(found.noise) & (found.value > 0)
    value = where(known, jnp.clip(log(found.value), lower, upper), upper)
    upper = jnp.logaddexp(upper, lost)
    alpha = log(jnp.abs(found.slope)) - epsilons
    return Seen(value, lower, jnp.minimum(upper, 0.0), alpha)


_TRIES, _CLOSE, _WIDE = 5, 3.0, 1e-9
"""Caps that are tried while a bracket of log delta is wide, until log delta turns out
to be as close to what was guessed for the last one."""


def line_at(stack: Stack, sign: Array, epsilon: Float[Array, ""]) -> Line:
    """The line for a threshold; with caps where one without leaves doubt."""

    @jax.jit
    def make(guess: Array) -> tuple[Line, Array, Array]:
        line = line_of(capped(stack, guess), sign, epsilon, inverse=False)
        found = see(line, epsilon[None])
        return line, found.log_value[0], (found.log_upper - found.log_lower)[0]

    def again(state: tuple) -> tuple:
        i, _, (_, value, _) = state
        guess = where(i > 0, value, -jnp.inf)
        return i + 1, guess, make(guess)

    def unfinished(state: tuple) -> Array:
        i, guess, (_, value, width) = state
        closer = jnp.isneginf(guess) | (value < guess - _CLOSE)
        return (i == 0) | ((i < _TRIES) & closer & ~(width < _WIDE))

    start = np.int32(0), epsilon, zeros_of(make, epsilon)
    return lax.while_loop(unfinished, again, start)[2][0]


class Root(NamedTuple):
    """The epsilon of a log delta."""

    lower: Float[Array, ""]
    estimate: Float[Array, ""]
    upper: Float[Array, ""]


def solve(line: Line, target: Float[Array, ""], slack: Float[Array, "2"]) -> Root:
    """The threshold at which log delta is the target; its ends allow for `slack`.

    Newton's method for the logarithm.  The finite sum, times e^(c x) / M(c) at eps + x,
    is F(x) with |F''| <= e^(c |x|) sum |a_k| |z_k|^2, so that it is at most

        value - x slope + x^2 bent e^(c |x|) / 2 + noise e^(c |x|)

    (for c > 0 as always here), and eps + x is an upper end if that and what may lack is
    not above the wanted value; for the lower end likewise.
    """
    c = line.shift
    rc = 1 / c

    def newton(state: tuple) -> tuple:
        i, epsilon, *_ = state
        found = evaluate(line, epsilon[None])
        wanted = jnp.exp(target - line.lead + c * epsilon)
        value, slope = found.value[0], found.slope[0]
        change = jnp.log(value / wanted) * value / slope
        change = where(jnp.isfinite(change), jnp.clip(change, -4 * rc, 4 * rc), 0.0)
        return i + 1, epsilon + change, epsilon, found, wanted

    def unfinished(state: tuple) -> Bool[Array, ""]:
        i, epsilon, before, *_ = state
        moved = jnp.abs(epsilon - before)
        return (i < 12) & (moved > 1e-13 * jnp.abs(epsilon) + 1e-15)

    empty = zeros_of(lambda: evaluate(line, line.epsilon[None]))
    start = (0, line.epsilon, line.epsilon + jnp.inf, empty, target)
    _, near, epsilon, found, wanted = lax.while_loop(unfinished, newton, start)
    value, slope, noise, vague, over, lacking, growth = jax.tree.map(
        lambda x: jnp.squeeze(x), found
    )
    residue, bent = value - wanted, line.step / np.pi * line.bent
    logs = jnp.abs(line.lead) + jnp.abs(c * epsilon) + jnp.abs(target)
    slack = slack + 8 * UNIT * (1 + logs)
    # What was left out moves delta as an error of the target does.
    least = lambda slack: jnp.min(
        where(RIGHT, (line.bounds - target + slack) / SHIFTS, jnp.inf)
    )
    highest = least(slack[1])
    gone = line.log_lost + jnp.maximum(highest, 0.0) + np.log(2)
    gone = jnp.logaddexp(gone, line.log_cut)
    share = where(jnp.isneginf(gone), 0.0, jnp.exp(gone - target))
    gone = where(share < 0.25, 2 * share, jnp.inf)
    less, more = (wanted * jnp.expm1(x + gone) for x in slack)
    steep = 1 / jnp.maximum(slope - vague, 0.0)
    size = noise + over + lacking + less + more + jnp.abs(residue)
    x = 2 * steep * size + 8 * UNIT * jnp.abs(epsilon)
    common = jnp.exp(c * x) * (noise + 0.5 * bent * x * x)
    up = steep * (common + residue + more + lacking * jnp.exp(x))
    # Aliases on the right change by e^(c' x), those on the left by e^x at most.
    down = steep * (common - residue + less + over * jnp.exp(growth * x))
    unit = 4 * UNIT * jnp.abs(epsilon)
    upper = where(up < x, epsilon + jnp.maximum(up, 0.0) + unit, jnp.inf)
    lower = where(down < x, epsilon - jnp.maximum(down, 0.0) - unit, -jnp.inf)
    highest = least(slack[1] + gone)
    highest = highest + 8 * UNIT * jnp.abs(highest)
    near = where(line.error < jnp.inf, near, line.epsilon)
    return Root(lower, near, jnp.minimum(upper, highest))
