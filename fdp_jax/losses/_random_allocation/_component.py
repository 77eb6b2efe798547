r"""One component X on the lattice: moved by a coin, and what a test of that is told.

X = exp(Z / s - 1 / (2 s^2)) with E X = 1.  A coin moves X to either end of its cell,
so that its mean is kept: with u in [0, 1] the place of X in its cell, to the right end
with probability u.

Above.  The sum S' of what was moved is above S in the convex order.

Below.  All that a test is told is S'.  Without the record it has the law that it has
above.  With it one of the terms has the masses of X among which the coin decides, not
those of X': they differ by what crosses a threshold while it is moved, h E u (1 - u) in
the cell at the threshold.

Below, by a law whose ratio is S' / t.  Let p(x) = E (x - X)_+ and v_k = p(k h) - g_k,
with g_k = h^2 / 8 times the largest density in the two cells at k.  The chord of p
exceeds p by at most h^2 / 8 times the cell's largest density, so the chords of v lie
below p: if the second differences of v are not negative they are the masses of a law
whose puts are below those of X.  They are the masses of the spread above, less the
second differences of g.

At the left end, from k_0 on down, v continues as a straight line up to where that
reaches zero, y.  As p is convex and above the line right of k_0, it stays above left of
it; y is split between the two lattice points around it, a and a + h.  The chord from
(a, 0) to the line at a + h is below p there, because the tangent of p at a (whose slope
is at least the mean one in the cell left of a) is: that is looked at.

At the right end, k_1, v continues as a straight line too (what lies beyond is left
out).  For calls the order needs p - v >= g_{k_1} - (F - M)(k_1 h - x), F being X's
mass up to k_1 h and M the slope of v there.  In the last cell that follows from the
tangent of p at k_1 h; left of it from h (F - mean of F in the last cell) >=
g_{k_1 - 1}, whose left side is what of the last cell's mass was moved up, times h.
"""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jax.scipy.special import erfc
from jaxtyping import Array, Bool, Float

from ..._internal._logs import LOG_SQRT_2PI
from ..._internal._quadrature import unit_rule
from ..._internal._special import log_ndtr
from ..._internal._tolerances import GAUSS_RULE, NORMAL_TAIL
from ._place import Place

_ORDER, _BENT = 16, 10.0
_LEAST = 16
"""Points from the left end on, if there is mass left of it."""
_DEEPEST = 14.0
"""Normal variable whose tail is counted as left out, for what is not known there."""


class Component(eqx.Module):
    """X between the ends of the lattice: masses at `first`, `first` + 1, ..."""

    masses: Float[Array, " m"]
    right: Float[Array, " m"]
    """E u in the cell right of the point."""
    between: Float[Array, " m"]
    """E u (1 - u) there."""
    error: Float[Array, ""]
    """Bound on the relative error of any of these."""
    log_left_out: Float[Array, ""]
    """Log of the mass of small X that is left out, from above."""
    big: Float[Array, ""]
    """Mass beyond the lattice, from above."""
    big_included: Float[Array, ""]
    """The same with the record."""
    mean: Float[Array, ""]
    """Of X on the lattice."""


class Cells(eqx.Module):
    """Means over cells, with u the place of X in its cell."""

    left: Float[Array, " m"]
    """E (1 - u)."""
    right: Float[Array, " m"]
    """E u."""
    between: Float[Array, " m"]
    """E u (1 - u)."""
    good: Bool[Array, " m"]
    """Where the others are known; they are zero elsewhere."""
    error: Float[Array, ""]
    """Bound on their relative error."""


def standard(x: Array, noise: Array) -> Array:
    """The z of an x >= 0, at least -1e6."""
    some = x > 0
    z = noise * jnp.log(jnp.where(some, x, 1.0)) + 0.5 / noise
    return jnp.where(some, z, -1e6)


def tail(z: Array) -> Array:
    """P(Z > z)."""
    return 0.5 * erfc(z * np.sqrt(0.5))


def cells(left: Float[Array, " m"], width: Array, noise: Float[Array, ""]) -> Cells:
    """Cells of X between `left` and `left + width`, by a Gauss rule in log X.

    With L = log(1 + width / left) and v in [0, 1] the place of log X, the density's
    exponent is a polynomial of v, whose slope is at most A = s L (|z| + s L), and
    u = (e^{L v} - 1) / (e^L - 1).  On the ellipse around 0 and 1 whose semi-axes add up
    to r / 2 and are at most a = (r + 1 / r) / 4, all of it is at most
    e^{(A + 2 L) a + (s L r)^2 / 32} of what it is in the middle.  For A + 2 L <= 10 and
    r = 7 that is e^24, of which a rule with 16 nodes is off by r^-32 = e^-62.
    """
    some = left > 0
    length = jnp.log1p(width / jnp.where(some, left, 1.0))
    z, step = standard(left, noise), noise * length
    bent = step * (jnp.abs(z) + 2 / noise + step)
    good = stop_gradient(some & (bent <= _BENT))
    z, step, length = (jnp.where(good, v, 0.0) for v in (z, step, length))
    nodes, weights = unit_rule(_ORDER)
    place = jnp.where(good, left, 1.0) / width
    u = place[:, None] * jnp.expm1(length[:, None] * nodes)
    at = z[:, None] + step[:, None] * nodes
    mass = jnp.exp(-0.5 * jnp.square(at) - LOG_SQRT_2PI) * (step[:, None] * weights)
    right = jnp.sum(mass * u, axis=1)
    size = jnp.minimum(jnp.max(jnp.abs(z)), 40.0)
    unit = jnp.finfo(z.dtype).eps * (64 + 8 * jnp.square(size) + 8 * size / noise)
    return Cells(
        jnp.sum(mass, axis=1) - right,
        right,
        jnp.sum(mass * u * (1 - u), axis=1),
        good,
        stop_gradient(unit + GAUSS_RULE),
    )


def component(noise: Float[Array, ""], at: Place) -> Component:
    """The law of one component on the lattice."""
    h, index = at.spacing, jnp.arange(at.points // 2 + 1)
    x = (at.first + index) * h
    z = standard(x, noise)
    found = cells(x[:-1], h, noise)
    inside = index[:-1] < at.cells
    left, right, between = (
        jnp.where(inside, v, 0) for v in (found.left, found.right, found.between)
    )
    # The cell from zero on, by its mass and its mean.
    mass, mean = tail(-z[1]), tail(1 / noise - z[1]) / h
    whole = jnp.stack([mass - mean, mean, (mass - mean) * mean / (mass + 1e-300)])
    whole = jnp.where(at.first > 0, 0, whole)
    left, right, between = (
        v.at[0].add(w) for v, w in zip((left, right, between), whole, strict=True)
    )
    depth = jnp.minimum(jnp.abs(z[1]), _DEEPEST)
    unit = NORMAL_TAIL * jnp.finfo(h.dtype).eps * (1 + depth) * (1 + noise * depth)
    unit = unit * (1 + depth + 1 / noise)
    error = jnp.maximum(found.error, jnp.where(at.first > 0, 0, unit))
    bad = inside & ~found.good & (x[:-1] > 0)
    lowest = jnp.maximum(jnp.max(jnp.where(bad, z[1:], -_DEEPEST)), z[0])
    ends = jnp.stack([z[at.cells], z[at.cells] - 1 / noise])
    big = tail(ends) * (1 + 1e-9) + 1e-300
    masses = jnp.append(left, 0) + jnp.append(jnp.zeros(1, left.dtype), right)
    return Component(
        masses,
        jnp.append(right, 0),
        jnp.append(between, 0),
        stop_gradient(error),
        stop_gradient(log_ndtr(lowest) + 1e-9),
        *stop_gradient((big[0], big[1])),
        (masses @ x) / jnp.sum(masses),
    )


def _density(x: Array, noise: Array) -> Array:
    """Density of X; 0 at 0."""
    some = x > 0
    log_x = jnp.log(jnp.where(some, x, 1.0))
    z = noise * log_x + 0.5 / noise
    value = noise * jnp.exp(-0.5 * jnp.square(z) - LOG_SQRT_2PI - log_x)
    return jnp.where(some, value, 0.0)


def lowered(one: Component, noise: Array, at: Place) -> Component:
    """The law below, on the lattice; nothing where the proof's conditions fail."""
    noise, at = stop_gradient((noise, at))
    spread, right, error = stop_gradient((one.masses, one.right, one.error))
    off = error * spread
    h, index = at.spacing, jnp.arange(spread.size)
    x = (at.first + index) * h
    heights = _density(x, noise)
    precision = 1 / jnp.square(noise)
    mode = jnp.exp(-1.5 * precision)
    highest = noise * jnp.exp(precision - LOG_SQRT_2PI)
    largest = jnp.maximum(heights[:-1], heights[1:])
    largest = jnp.where((x[:-1] <= mode) & (mode <= x[1:]), highest, largest)
    largest = jnp.pad(largest, 1)
    g = 0.125 * jnp.square(h) * 1.000001 * jnp.maximum(largest[:-1], largest[1:])
    around = jnp.pad(g, 1)
    bent = (around[2:] - 2 * g + around[:-2]) / h
    error = off + 16 * jnp.finfo(h.dtype).eps * (4 * g / h + spread)
    masses = spread - bent - error
    good = (masses > 0) & (index < at.cells - 1)
    # From a point at the mean on, to both sides.
    middle = jnp.maximum(jnp.round(1 / h).astype(int) - at.first, 4)
    begins, line = _left_line(spread, g, h, at)
    bad = jnp.max(jnp.where((index <= middle) & ~good, index, 0))
    start = jnp.argmax(begins & (index >= bad))
    end = jnp.min(jnp.where((index > middle) & ~good, index, x.size - 1))
    last = jnp.maximum(end - 1, 0)
    sound = begins[start] & (start >= bad) & (end > start + 8)
    sound = sound & (h * right[last] > 1.002 * g[last])
    inner = jnp.where((index > start) & (index < end), masses, 0)
    corner, share, slope = (v[start] for v in line)
    slope = slope / h * (1 - 1e-12)
    inner = inner.at[corner].add((1 - share) * slope).at[corner + 1].add(share * slope)
    return dataclasses.replace(one, masses=jnp.where(sound, inner, 0.0))


def _left_line(
    spread: Array, g: Array, h: Array, at: Place
) -> tuple[Array, tuple[Array, Array, Array]]:
    """At which indices v may go on as a line to the left, and that line.

    Its corner is a share of a step right of the index `corner`; with its slope times h.
    """
    index = jnp.arange(g.size)
    total = jnp.cumsum(spread)
    put = h * (jnp.cumsum(total) - total)
    value = put - g
    slope = h * total - (jnp.append(g[1:], 0) - g)
    some = (slope > 0) & (value > 0)
    zero = index - jnp.where(some, value / jnp.where(some, slope, 1), 0)
    corner = jnp.clip(jnp.floor(zero), 0, g.size - 2).astype(int)
    share = jnp.clip(zero - corner, 0, 1)
    # By its tangent at the corner p is at least this at the next point.
    tangent = put[corner] + h * (total[corner] - spread[corner])
    begins = some & (zero > 1) & (tangent > 1.001 * (1 - share) * slope)
    # Below the lattice some mass may be missing that the line would stand for.
    begins = begins & ((at.first == 0) | (corner > _LEAST))
    return begins, (corner, share, slope)
