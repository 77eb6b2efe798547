"""The law of the sum S: from above, from below, and the estimate of it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import stop_gradient
from jax.scipy.special import erfc, logsumexp
from jaxtyping import Array, ArrayLike, Bool, Float

from ..._internal._special import safe_log
from ._component import Component, cell_masses, component, standard
from ._place import Place, place
from ._powers import Power, log_total, power, resolved, tilted

_POINTS = {True: 5 << 14, False: 1 << 18}
"""Lattice points where the estimate is smoothed, and where it is not."""
_BIG_CELLS, _COARSE = 128, 256
_FARTHEST = 12.0
"""Standard deviations, with the record, up to which big components are looked at."""
_CLOSE = 1e-9
"""Relative distance from a whole number within which a number of batches is one."""


class Law(eqx.Module):
    """Masses of S without the record; with it they are S / t times as large."""

    noise: Float[Array, ""]
    batches: Float[Array, ""]
    """t, by which the ratio is S / t."""
    spacing: Float[Array, ""]
    start: Float[Array, ""]
    """The first lattice point, in steps."""
    masses: Float[Array, " n"]
    far: Float[Array, " k"]
    """Sums with one big component."""
    far_masses: Float[Array, " k"]
    log_missing: tuple[Float[Array, ""], Float[Array, ""]]
    """Log of what is left out, with the record and without."""

    def points(self) -> Float[Array, " n"]:
        """The lattice points."""
        return (self.start + jnp.arange(self.masses.size)) * self.spacing


class Laws(eqx.Module):
    """Three laws of one sum."""

    upper: Law
    """Above the true one in the convex order."""
    estimate: Law
    lower: Law
    """Below the true one."""


def laws(
    noise: Float[Array, ""],
    batches: Float[Array, ""],
    *,
    smoothed: bool,
    points: int | None = None,
    puts: Bool[ArrayLike, ""] = False,
) -> Laws:
    """All that is known of the sum, for real t >= 1.

    S / t decreases in t in the convex order: bounds are those of the whole numbers
    around t.

    Args:
        noise: s, in (0, inf).
        batches: t, at least 1.
        smoothed: Whether the estimate is the law spread once, whose calls and puts are
            right at lattice points, and not values of the density, whose sums with
            others are.
        points: Lattice points, a power of two from 2^10 on.
        puts: Whether the laws are for puts alone, with strikes up to t: those of one
            release without the record, at thresholds >= 0.  Sums beyond are left out,
            and what the lattice need not hold makes it as much finer.
    """
    at = place(noise, batches, points or _POINTS[smoothed], puts)
    x = component(noise, at)
    t, s = stop_gradient((batches, noise))
    near = jnp.round(t)
    whole = jnp.abs(t - near) <= _CLOSE * t
    fewer = jnp.where(whole, near, jnp.floor(t))
    more = jnp.where(whole, near, jnp.ceil(t))
    upper = _upper(x, at, s, fewer, outside_window(x, at, fewer), puts)
    lower = _lower(x, at, s, more, outside_window(x, at, more))
    estimate = _estimate(x, at, noise, batches, 1.0 if smoothed else 0.0)
    return Laws(*(_padded(x) for x in (upper, estimate, lower)))


def _padded(law: Law) -> Law:
    """With as many sums with a big component as any: of one shape."""
    missing = (_COARSE + 1) * (_BIG_CELLS + 1) - law.far.size
    far = jnp.pad(law.far, (0, missing), constant_values=1.0)
    masses = jnp.pad(law.far_masses, (0, missing))
    return eqx.tree_at(lambda x: (x.far, x.far_masses), law, (far, masses))


# ------------------------------------------------------------------------ the lattice


class Outside(eqx.Module):
    """Logs of bounds on what is outside the window."""

    left: Float[Array, ""]
    """Its mass to the left."""
    right: Float[Array, ""]
    left_included: Float[Array, ""]
    """With the record."""
    right_included: Float[Array, ""]
    wrapped: Float[Array, "2"]
    """Of the share that the tilted laws have outside."""


def outside_window(x: Component, at: Place, t: Array) -> Outside:
    """Chernoff bounds, with the upper law of a component."""
    h = at.spacing
    first = at.first * h * t
    low, high = at.window * h, (at.window + at.points - 1) * h
    outer = [t * log_total(x.upper, u, h) for u in at.outer]
    inner = [t * log_total(x.upper, u, h) for u in at.tilts]
    size = 1e-9 + 1e-12 * sum(jnp.abs(v) for v in (*outer, *inner))
    left = jnp.minimum(outer[0] - at.outer[0] * low, 0) + size
    right = outer[1] - at.outer[1] * high + size
    # Whole sums are at least the least and at most the largest.
    left = jnp.where(at.window <= 0, -jnp.inf, left)
    right = jnp.where(t * at.cells < at.window + at.points, -jnp.inf, right)
    # s <= end e^{(s - end) / end}, where the tilt is at least 1 / end.
    end = jnp.maximum(first + high, 1 / at.outer[1])
    included = (
        right + jnp.log(end / t) + jnp.maximum(at.outer[1] * (end - high - first), 0)
    )
    wrapped = []
    for u, own in zip(at.tilts, inner, strict=True):
        beyond = left + u * low, right + u * high
        proper = (at.outer[0] < u) & (u < at.outer[1])
        share = jnp.logaddexp(*beyond) - own + 2 * size
        wrapped.append(jnp.where(proper, share, 0.0))
    low_share = jnp.log(jnp.maximum((first + low) / t, 1e-300))
    return Outside(
        left, right, left + jnp.minimum(low_share, 0), included, jnp.stack(wrapped)
    )


def joined(
    at: Place, t: Array, x: Array, both: Power, up: int, wrapped: Array
) -> Float[Array, " n"]:
    """Masses from the left tilt below the mean, from the right one above."""
    mean = t * x / at.spacing
    place = at.first * t + at.window + jnp.arange(at.points)
    below = stop_gradient(place < mean)
    found = []
    for i in range(2):
        part = jax.tree.map(lambda v, i=i: v[i], both)
        off = part.error * up
        if up < 0:
            off = off - jnp.exp(jnp.minimum(wrapped[i], 0))
        values = jnp.maximum(part.values + off, 0)
        scale = part.log_scale + up * part.exponent_error
        found.append(values * jnp.exp(jnp.clip(scale, -700, 600)))
    return jnp.where(below, *found)


def both_tilts(masses: Array, t: Array, at: Place, kept: float | None = None) -> Power:
    """The sum under both tilts, stacked; without spreads but for `kept` ones."""

    def one(tilt: Array) -> Power:
        if kept is None:
            return power(((tilted(masses, tilt, at, continuous=False), t),), at)
        single = tilted(masses, tilt, at, continuous=True)
        count = jnp.where(resolved(single, t, at), t - kept, 0.0)
        return power(((single, t),), at, count)

    return lax.map(one, at.tilts)


def _upper(
    x: Component,
    at: Place,
    s: Array,
    t: Array,
    outside: Outside,
    puts: Bool[ArrayLike, ""],
) -> Law:
    both = both_tilts(x.upper, t, at)
    masses = stop_gradient(joined(at, t, x.mean, both, 1, outside.wrapped))
    far, far_masses, beyond = _far_up(x, at, s, t, masses)
    big, included = t * x.big, x.big_included
    # Two big ones or more: pairs, of which one may be the record's own.
    others = jnp.maximum(t - 1, 0) * x.big
    most = jnp.maximum(t - 2, 0) * x.big
    two = safe_log(0.5 * big * others), safe_log(others * (included + 0.5 * most))
    small = x.log_left_out + jnp.log(t)
    # What is outside the window with a big component besides is a share of that.
    more = 1e-9 + jnp.log1p(big + included)
    add = lambda *logs: logsumexp(jnp.stack(logs)) + more
    # A put is worth nothing there.
    large = jnp.stack([outside.right, two[0], beyond[1]])
    without = add(outside.left, small, *jnp.where(puts, -jnp.inf, large))
    included = add(
        outside.left_included, outside.right_included, two[1], small, beyond[0]
    )
    return Law(
        s,
        t,
        at.spacing,
        at.first * t + at.window,
        masses,
        far,
        far_masses,
        (included, without),
    )


def _lower(x: Component, at: Place, s: Array, t: Array, outside: Outside) -> Law:
    both = both_tilts(x.lower, t, at)
    masses = joined(at, t, x.mean, both, -1, outside.wrapped)
    masses = jnp.where(x.sound, masses, 0.0)
    cells, ends = _big_cells(x, at, s)
    kept = jnp.exp((t - 1) * jnp.log1p(-x.big - jnp.exp(x.log_left_out)))
    mass = jnp.maximum(cells.without - cells.error, 0)
    some = mass > 1e-290
    middle = jnp.where(
        some, cells.included / jnp.where(some, cells.without, 1), ends[:-1]
    )
    middle = jnp.clip(middle, ends[:-1], ends[1:])
    # F'^(t-1) is above F'^t made smaller by (t - 1) / t, that above its groups' means;
    # where no law from below is known, above its own mean.
    total, place = _groups(masses, at)
    place = (at.first * t + at.window + place) * at.spacing * ((t - 1) / t)
    alone = jnp.arange(total.size) == 0
    total = jnp.where(x.sound, total, jnp.where(alone, kept, 0))
    place = jnp.where(x.sound, place, (t - 1) * x.mean)
    none = jnp.full_like(t, -jnp.inf)
    # Less by what rounding may move the means.
    big = jnp.where(some, t * mass * (1 - 1e-7), 0)
    far = (place[:, None] + middle).ravel()
    far_masses = (total[:, None] * big).ravel()
    return stop_gradient(
        Law(
            s,
            t,
            at.spacing,
            at.first * t + at.window,
            masses,
            far,
            far_masses,
            (none, none),
        )
    )


def _estimate(x: Component, at: Place, noise: Array, t: Array, kept: float) -> Law:
    """The law without spreads but for `kept` ones."""
    both = both_tilts(x.estimate, t, at, kept)
    masses = joined(at, t, x.mean, both, 0, jnp.zeros(2))
    far, far_masses = _far_middle(x, at, noise, t, masses)
    none = jnp.full_like(t, -jnp.inf)
    start = at.first * t + at.window
    return Law(noise, t, at.spacing, start, masses, far, far_masses, (none, none))


# ------------------------------------------------------------------ one big component


def _big_cells(x: Component, at: Place, noise: Array):
    """Cells of a big component, and their ends."""
    edge = (at.first + at.cells) * at.spacing
    z0 = standard(edge, noise)
    last = jnp.maximum(1 / noise, stop_gradient(z0)) + _FARTHEST
    share = jnp.arange(_BIG_CELLS + 1) / _BIG_CELLS
    z = z0 + share * (last - z0)
    ends = jnp.exp(z / noise - 0.5 / jnp.square(noise))
    return cell_masses(z, noise), ends


def _far_up(x: Component, at: Place, s: Array, t: Array, masses: Array):
    """Atoms: the law of t components, less a mean, for t - 1; spread on both sides.

    With m the mean of a component that is not big, p the probability of a big one,
    F' the law of those that are not: F'^(t-1) is below F'^t moved by -m, over 1 - p.
    """
    cells, ends = _big_cells(x, at, s)
    a, b, e, f = cells.without, cells.included, cells.error, cells.error_included
    width = ends[1:] - ends[:-1]
    off = (ends[1:] * e + f) / width
    right = jnp.clip((b - ends[:-1] * a) / width, 0, a) + off
    left = jnp.clip((ends[1:] * a - b) / width, 0, a) + off
    big = jnp.append(left, 0) + jnp.append(jnp.zeros(1), right)
    rows = masses.reshape(_COARSE, -1)
    step = at.points // _COARSE
    share = jnp.arange(step) / step
    high = rows @ share
    low = rows @ (1 - share)
    coarse = (jnp.append(low, 0) + jnp.append(jnp.zeros(1), high)) * (1 + 1e-9)
    place = (at.first * t + at.window + step * jnp.arange(_COARSE + 1)) * at.spacing
    far = (place - x.mean)[:, None] + ends
    lost = x.big + jnp.exp(x.log_left_out)
    far_masses = t / (1 - lost) * coarse[:, None] * big * (1 + 1e-9)
    last = (
        jnp.maximum(1 / s, standard((at.first + at.cells) * at.spacing, s)) + _FARTHEST
    )
    tails = safe_log(0.5 * erfc(jnp.stack([last - 1 / s, last]) * np.sqrt(0.5)))
    log_t = jnp.log(t)
    beyond = jnp.logaddexp(tails[0], tails[1] + log_t) + 1e-9, tails[1] + log_t + 1e-9
    return stop_gradient((far.ravel(), far_masses.ravel(), beyond))


def _groups(masses: Array, at: Place) -> tuple[Array, Array]:
    """Masses of groups of neighboring points, and their means in steps."""
    step = at.points // _COARSE
    rows = jnp.maximum(masses, 0).reshape(_COARSE, -1)
    total = jnp.sum(rows, axis=1)
    held = total > 1e-290
    inside = rows @ jnp.arange(step) / jnp.where(held, total, 1)
    place = jnp.where(held, inside, 0.5 * step) + step * jnp.arange(_COARSE)
    return total, place


def _far_middle(x: Component, at: Place, noise: Array, t: Array, masses: Array):
    """The estimate's middle: cells at their means, sums with t - 1 components."""
    cells, ends = _big_cells(x, at, noise)
    some = cells.without > 1e-290
    middle = cells.included / jnp.where(some, cells.without, 1)
    middle = jnp.where(some, middle, ends[:-1])
    total, place = _groups(masses, at)
    place = (at.first * t + at.window + place) * at.spacing
    mean = t * x.mean
    squeeze = jnp.sqrt(jnp.where(t > 1, (t - 1) / t, 1.0))
    squeeze = jnp.where(t > 1, squeeze, 0.0)
    far = (mean - x.mean + (place - mean) * squeeze)[:, None] + middle
    mass = t * total[:, None] / (1 - x.big) * jnp.where(some, cells.without, 0)
    return far.ravel(), mass.ravel()
