r"""One component X on the lattice, moved up and down in the convex order.

X = exp(Z / s - 1 / (2 s^2)) with E X = 1; measures are compared by all convex functions
that are not negative, those that both profiles are expectations of.

Up.  The mass of every cell is split between its ends so that its mean is kept: a
mean-preserving spread.  Rounding is met by raising masses.

Down.  Let p(x) = E (x - X)_+ and v_k = p(k h) - g_k, with g_k = h^2 / 8 times the
largest density in the two cells at k.  The chord of p exceeds p by at most h^2 / 8
times the cell's largest density, so the chords of v lie below p: if the second
differences of v are not negative they are the masses of a law whose puts are below
those of X.  They are the masses of the spread above, less the second differences of g.

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

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.lax import optimization_barrier, stop_gradient
from jax.scipy.special import erfc
from jaxtyping import Array, Bool, Float

from ..._internal._logs import LOG_SQRT_2PI
from ..._internal._quadrature import unit_rule
from ..._internal._tolerances import GAUSS_RULE, NORMAL_TAIL
from ._place import Place

_LEAST = 16
"""Points from the left end on, if there is mass left of it."""
_ORDER, _SMOOTH = 5, 12.0


class Masses(eqx.Module):
    """Masses of cells under two laws, without and with the record."""

    without: Float[Array, " n"]
    included: Float[Array, " n"]
    """Equal to the mean of X over the cell, times its mass."""
    error: Float[Array, " n"]
    error_included: Float[Array, " n"]


class Component(eqx.Module):
    """X between the ends of the lattice: masses at `first`, `first` + 1, ..."""

    upper: Float[Array, " m"]
    estimate: Float[Array, " m"]
    """The spread, without anything added for rounding."""
    lower: Float[Array, " m"]
    sound: Bool[Array, ""]
    """Whether `lower` is what it should be; else it is nothing."""
    log_left_out: Float[Array, ""]
    """Log of the mass below the lattice, from above."""
    big: Float[Array, ""]
    """Mass beyond the lattice, from above."""
    big_included: Float[Array, ""]
    """The same with the record."""
    mean: Float[Array, ""]
    """Of X on the lattice."""


def standard(x: Array, noise: Array) -> Array:
    """The z of an x >= 0, at least -1e6."""
    some = x > 0
    z = noise * jnp.log(jnp.where(some, x, 1.0)) + 0.5 / noise
    return jnp.where(some, z, -1e6)


def cell_masses(z: Float[Array, " m"], noise: Float[Array, ""]) -> Masses:
    """Masses between neighboring z of a normal law, and of one shifted by 1 / s."""
    found = [_differences(z, noise), _differences(z - 1 / noise, noise)]
    (a, e), (b, f) = found
    return Masses(a, b, stop_gradient(e), stop_gradient(f))


def _differences(z: Array, noise: Array) -> tuple[Array, Array]:
    tail = optimization_barrier(0.5 * erfc(jnp.abs(z) * np.sqrt(0.5)))
    below = jnp.where(z < 0, tail, 1 - tail)
    above = jnp.where(z < 0, 1 - tail, tail)
    flip = z[1:] + z[:-1] > 0
    mass = jnp.where(flip, above[:-1] - above[1:], below[1:] - below[:-1])
    largest = jnp.where(flip, above[:-1], below[1:])
    # Errors of z count as much as the hazard, at most 1 + |z|.
    near = jnp.where(flip, jnp.abs(z[:-1]), jnp.abs(z[1:]))
    size = 1 + (1 + near) * (2 * near + 1 / noise)
    unit = NORMAL_TAIL * jnp.finfo(z.dtype).eps
    return jnp.maximum(mass, 0), unit * size * largest


def component(noise: Float[Array, ""], at: Place) -> Component:
    """The laws of one component on the lattice."""
    h, count = at.spacing, at.cells
    index = jnp.arange(at.points // 2 + 1)
    x = (at.first + index) * h
    z = standard(x, noise)
    inside = index[:-1] < count
    left, right, error = (jnp.where(inside, v, 0) for v in _shares(x, z, noise, h))
    a, b = left + right, (left * x[:-1] + right * x[1:])
    both = lambda u, v: jnp.append(u, 0) + jnp.append(jnp.zeros(1, v.dtype), v)
    spread, off = both(left, right), stop_gradient(both(error, error))
    lower, sound = _lowered(
        *stop_gradient((noise, at, x, z, spread, off, right - error))
    )
    ends = jnp.stack([z[0], z[count]])
    tails = 0.5 * erfc(
        jnp.stack([-ends[0], ends[1], ends[1] - 1 / noise]) * np.sqrt(0.5)
    )
    tails = tails * (1 + 1e-9)
    total = jnp.sum(a)
    return Component(
        stop_gradient(spread + off),
        spread,
        lower,
        sound,
        stop_gradient(jnp.where(at.first > 0, jnp.log(tails[0] + 1e-300), -jnp.inf)),
        stop_gradient(tails[1] + 1e-300),
        stop_gradient(tails[2] + 1e-300),
        jnp.sum(b) / total,
    )


def _shares(x: Array, z: Array, noise: Array, h: Array) -> tuple[Array, Array, Array]:
    """Shares of every cell at its left and right end, and an error of either.

    Where the density changes little over a cell, by a Gauss rule.  With R = x over
    h (2 + s + s |z|), on the circle of radius R h around a point of the cell the
    density is at most e^2.5 of its largest value there, so Cauchy's bounds of its
    derivatives leave a relative error below 2e-5 R^-9 (1 + 1/R) of the rule with 5
    nodes: log |f| changes by at most (1 + s |z|) L + s^2 L^2 / 2 along the circle,
    L = -log(1 - R h / x).
    """
    cells = cell_masses(z, noise)
    a, b = cells.without, cells.included
    off = (x[1:] * cells.error + cells.error_included) / h
    off = off + 4 * jnp.finfo(h.dtype).eps * a
    right = jnp.clip((b - x[:-1] * a) / h, 0, a)
    left = jnp.clip((x[1:] * a - b) / h, 0, a)
    nodes, weights = unit_rule(_ORDER)
    size = jnp.maximum(jnp.abs(z[:-1]), jnp.abs(z[1:]))
    radius = x[:-1] / (h * (2 + noise + noise * size))
    smooth = stop_gradient(radius >= _SMOOTH)
    at = jnp.where(smooth[:, None], x[:-1, None] + h * nodes, 1.0)
    mass = density(at, noise) * h * weights
    moved = mass @ nodes, mass @ (1 - nodes)
    unit = jnp.finfo(h.dtype).eps * (32 + 8 * jnp.square(size) + 8 * size / noise)
    exact = (unit + GAUSS_RULE) * (moved[0] + moved[1])
    right = jnp.where(smooth, moved[0], right)
    left = jnp.where(smooth, moved[1], left)
    return left, right, stop_gradient(jnp.where(smooth, exact, off))


def density(x: Array, noise: Array) -> Array:
    """Density of X; 0 at 0."""
    some = x > 0
    log_x = jnp.log(jnp.where(some, x, 1.0))
    z = noise * log_x + 0.5 / noise
    value = noise * jnp.exp(-0.5 * jnp.square(z) - LOG_SQRT_2PI - log_x)
    return jnp.where(some, value, 0.0)


def _lowered(
    noise: Array, at: Place, x: Array, z: Array, spread: Array, off: Array, right: Array
) -> tuple[Array, Array]:
    """The masses of the law below, and whether the proof's conditions hold."""
    h, index = at.spacing, jnp.arange(x.size)
    heights = density(x, noise)
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
    sound = sound & (h * right[last] > 1.001 * g[last])
    inner = jnp.where((index > start) & (index < end), masses, 0)
    corner, share, slope = (v[start] for v in line)
    slope = slope / h * (1 - 1e-12)
    inner = inner.at[corner].add((1 - share) * slope).at[corner + 1].add(share * slope)
    return jnp.where(sound, inner, 0.0), sound


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
