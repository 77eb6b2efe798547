"""What a line says: certified values at thresholds, and the epsilon of a delta."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._internal._blocked_sum import sums
from .._internal._interval import Interval
from .._internal._shapes import zeros_of
from ..losses import where
from ._line_mesh import BLOCK, RIGHT, SHIFTS, UNIT, Stack, capped
from ._line_terms import ROW, frequencies
from ._lines import Line, line_of
from ._root import Near, Search


class Seen(NamedTuple):
    """The answer of a line at some thresholds, of delta or 1 - delta."""

    log_value: Float[Array, " e"]
    log_lower: Float[Array, " e"]
    log_upper: Float[Array, " e"]
    log_alpha: Float[Array, " e"]
    """Log P(X > eps), an estimate."""
    slope: Float[Array, " e"]
    """Of the value in the threshold."""

    def near(self) -> Near:
        """The part that a search asks for."""
        return Near(self.log_value, self.log_lower, self.log_upper, self.slope)


class Sum(NamedTuple):
    """The sum at some thresholds; all times e^(c eps) / M(c)."""

    value: Float[Array, " e"]
    """Of delta, or 1 - delta."""
    slope: Float[Array, " e"]
    """Minus the derivative of the sum (not of `value`) in the threshold."""
    noise: Float[Array, " e"]
    """The value's error but for aliases."""
    over: Float[Array, " e"]
    """Aliases that were not subtracted, at most."""
    lacking: Float[Array, " e"]
    """What was subtracted too much, at most."""


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
    # Those on the left are subtracted, or bounded: by one, too, as delta is.
    tail, whole = c > 0, jnp.isneginf(line.aliases)
    left = least((c > SHIFTS) & (RIGHT ^ ~whole))
    right = least((c < SHIFTS) & RIGHT)
    over = where(tail, right, left) + where(whole & tail, left, 0.0)
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
        over,
        where(
            whole, 0.0, where(tail, left, right) + jnp.exp(line.log_cut) * subtracted
        ),
    )


def chernoff(line: Line, epsilons: Float[Array, " e"]) -> Float[Array, " e"]:
    """Log of the best bound on the mesh, of delta or of 1 - delta."""
    logs = line.bounds - SHIFTS * epsilons[:, None]
    rows = RIGHT ^ (line.shift < 0)
    return jnp.min(where(rows, logs, jnp.inf), axis=1)


def log_lost(line: Line, epsilons: Float[Array, "..."]) -> Float[Array, "..."]:
    """Log of a bound on what components and outcomes that were left out add to delta.

    By components that is the weight times 1 + e^eps at most.
    """
    lost = line.log_lost + (jnp.maximum(epsilons, 0.0) + np.log(2))
    return jnp.logaddexp(lost, line.log_cut)


@jax.jit
def see(line: Line, epsilons: Float[Array, " e"]) -> Seen:
    """The certified profile at thresholds, in logarithms."""
    found = evaluate(line, epsilons)
    at = line.lead - line.shift * epsilons
    log = lambda x: at + jnp.log(jnp.maximum(x, 0.0))
    lower = log(found.value - found.noise - found.over)
    upper = log(found.value + found.noise + found.lacking)
    lost = log_lost(line, epsilons)
    upper = where(jnp.isnan(upper), jnp.inf, upper)
    upper = jnp.minimum(jnp.minimum(upper, chernoff(line, epsilons)), 0.0)
    share = jnp.exp(lost - jnp.maximum(lower, -1e300))
    lower = where(share < 0.5, lower - 2 * share, -jnp.inf)
    known = jnp.isfinite(found.noise) & (found.value > 0)
    value = where(known, jnp.clip(log(found.value), lower, upper), upper)
    upper = jnp.logaddexp(upper, lost)
    alpha = log(jnp.abs(found.slope)) - epsilons
    slope = -where(known, found.slope / found.value, line.shift)
    return Seen(value, lower, jnp.minimum(upper, 0.0), alpha, slope)


_TRIES, _CLOSE, _WIDE = 5, 3.0, 1e-9
"""Caps that are tried while a bracket of log delta is wide, until log delta turns out
to be as close to what was guessed for the last one."""


def line_at(stack: Stack, epsilon: Float[Array, ""]) -> Line:
    """The line for a threshold; with caps where one without leaves doubt."""

    @jax.jit
    def make(guess: Array) -> tuple[Line, Array, Array]:
        line = line_of(capped(stack, guess), epsilon, inverse=False)
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


def solve(line: Line, target: Float[Array, ""], slack: Float[Array, "2"]) -> Interval:
    """The threshold at which log delta is the target; its ends allow for `slack`."""
    search = Search.begun(target, slack, line.epsilon)
    search = search.solved(lambda e: see(line, e).near(), 4 / line.shift)

    def most(log_delta: Array) -> Array:
        """The largest threshold by the bounds on the mesh."""
        return jnp.min(where(RIGHT, (line.bounds - log_delta) / SHIFTS, jnp.inf))

    wanted = target - slack[1] - 8 * UNIT * (1 + jnp.abs(target))
    share = jnp.exp(log_lost(line, most(wanted)) - wanted)
    highest = most(where(share < 0.25, wanted - 2 * share, -jnp.inf))
    found = search.found(-jnp.inf, highest + 8 * UNIT * jnp.abs(highest))
    near = where(line.error < jnp.inf, found.estimate, line.epsilon)
    return Interval(found.lower, near, found.upper)
