r"""One component X on the lattice, moved up and down in the convex order.

X = exp(Z / s - 1 / (2 s^2)) with E X = 1; measures are compared by all convex functions
that are not negative, those that both profiles are expectations of.

Up.  The mass of every cell is split between its ends so that its mean is kept: a
mean-preserving spread.  Rounding is met by raising masses.

Down.  Let p(x) = E (x - X)_+ and v_k = p(k h) - g_k, with g_k = h^2 / 8 times the
largest density in the two cells at k.  The chord of p exceeds p by at most h^2 / 8
times the cell's largest density, so the chords of v lie below p: if the second
differences of v are not negative they are the masses of a law whose puts are below those
of X.  They are the masses of the spread above, less the second differences of g.

At the left end, from k_0 on down, v continues as a straight line up to where that
reaches zero, y.  As p is convex and above the line right of k_0, it stays above left of
it; y is split between the two lattice points around it, below p if p at the left one is
at least as large as the line at the right one.

At the right end, k_1, v continues as a straight line too (what lies beyond is left
out).  For calls the order needs p - v >= g_{k_1} - (F - M)(k_1 h - x), F being X's mass
up to k_1 h and M the slope of v there.  In the last cell that follows from the tangent of
p at k_1 h; left of it from h (F - mean of F in the last cell) >= g_{k_1 - 1}, whose left
side is the part of the last cell's mass that was moved up, times h.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.lax import optimization_barrier, stop_gradient
from jax.scipy.special import erfc
from jaxtyping import Array, Bool, Float

from ..._internal._logs import LOG_SQRT_2PI
from ..._internal._tolerances import NORMAL_TAIL
from ._place import POINTS, Place

_GROWTH = 1.2
_LEAST = 60


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
    index = jnp.arange(POINTS // 2 + 1)
    x = (at.first + index).astype(h.dtype) * h
    z = standard(x, noise)
    masses = cell_masses(z, noise)
    inside = index[:-1] < count
    a, b, e, f = (
        jnp.where(inside, v, 0)
        for v in (
            masses.without,
            masses.included,
            masses.error,
            masses.error_included,
        )
    )
    error = (x[1:] * e + f) / h + 4 * jnp.finfo(h.dtype).eps * a
    right = jnp.clip((b - x[:-1] * a) / h, 0, a)
    left = jnp.clip((x[1:] * a - b) / h, 0, a)
    both = lambda u, v: jnp.append(u, 0) + jnp.append(jnp.zeros(1, v.dtype), v)
    spread, off = both(left, right), stop_gradient(both(error, error))
    lower, sound = _lowered(
        *stop_gradient((noise, at, x, z, spread, off, right - error))
    )
    ends = jnp.stack([z[0], z[count]])
    tails = 0.5 * erfc(jnp.stack([-ends[0], ends[1], ends[1] - 1 / noise]) * np.sqrt(0.5))
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


def _lowered(
    noise: Array, at: Place, x: Array, z: Array, spread: Array, off: Array, right: Array
) -> tuple[Array, Array]:
    """The masses of the law below, and whether the proof's conditions hold."""
    h, index = at.spacing, jnp.arange(x.size)
    log_x = jnp.log(jnp.where(x > 0, x, 1.0))
    density = jnp.exp(-0.5 * jnp.square(z) - LOG_SQRT_2PI - log_x) * noise
    density = jnp.where(x > 0, density, 0.0)
    precision = 1 / jnp.square(noise)
    mode = jnp.exp(-1.5 * precision)
    highest = noise * jnp.exp(precision - LOG_SQRT_2PI)
    largest = jnp.maximum(density[:-1], density[1:])
    largest = jnp.where((x[:-1] <= mode) & (mode <= x[1:]), highest, largest)
    largest = jnp.pad(largest, 1)
    g = 0.125 * jnp.square(h) * 1.000001 * jnp.maximum(largest[:-1], largest[1:])
    around = jnp.pad(g, 1)
    bent = (around[2:] - 2 * g + around[:-2]) / h
    error = off + 1e-5 * 0 + 16 * jnp.finfo(h.dtype).eps * (4 * g / h + spread)
    masses = spread - bent - error
    middle = jnp.clip(jnp.floor(mode / h).astype(int) - at.first, 4, x.size - 8)
    # Left of the mode, also where the density grows so fast that the line would end at
    # once, or where there is no mass below the lattice that it could stand for.
    slow = jnp.append(density[1:] <= _GROWTH * density[:-1], True)
    slow = slow & ((at.first == 0) | (index > _LEAST))
    good = (masses > 0) & (index < at.cells - 1) & (slow | (index > middle))
    start = jnp.max(jnp.where((index < middle) & ~good, index, 3)) + 1
    end = jnp.min(jnp.where((index > middle) & ~good, index, x.size - 1))
    # The line left of `start`.
    before = index < start
    put = h * jnp.sum(jnp.where(before, (start - index) * spread, 0))
    value = put - g[start]
    slope = h * jnp.sum(jnp.where(index <= start, spread, 0)) - (g[start + 1] - g[start])
    steps = value / jnp.where(slope > 0, slope, 1)
    # A little to the left: rounding may not place it too far right.
    reach = jnp.floor(start - steps)
    share = start - steps - reach
    lost = 1e-9
    corner = reach.astype(int)
    line = (1 - share) * slope
    put_at = h * jnp.sum(jnp.where(index < corner, (corner - index) * spread, 0))
    sound = (slope > 0) & (value > 0) & (corner > 0) & (end > start + 8)
    sound = sound & (put_at > 1.001 * line) & (start < middle + 8)
    sound = sound & (h * right[jnp.maximum(end - 1, 0)] > 1.001 * g[jnp.maximum(end - 1, 0)])
    inner = jnp.where((index > start) & (index < end), masses, 0)
    del lost
    unit = 1e-12
    inner = inner.at[corner].add((1 - share) * slope / h * (1 - unit))
    inner = inner.at[corner + 1].add(share * slope / h * (1 - unit))
    return jnp.where(sound, inner, 0.0), sound
