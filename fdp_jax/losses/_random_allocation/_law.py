"""The law of the sum S' of t copies of what a coin moved to the lattice."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, ArrayLike, Bool, Float

from ..._internal._special import log_ndtr, safe_log
from ..._internal._tolerances import LATTICE_SUM, NORMAL_TAIL
from ._component import Cells, Component, cells, component, lowered, standard, tail
from ._place import Place, place
from ._powers import Power, log_total, power, tilted

_BIG_CELLS, _COARSE = 128, 256
_FARTHEST = 12.0
"""Standard deviations, with the record, up to which big components are looked at."""
_CLOSE = 1e-9
"""Relative distance from a whole number within which a number of batches is one."""


class Law(eqx.Module):
    """Masses of S' without the record, and what a test is told less than S' / t says.

    Sums with one big component are apart: first those above the true ones in the convex
    order, then those below.
    """

    noise: Float[Array, ""]
    batches: Float[Array, ""]
    """t, by which the ratio is S / t."""
    spacing: Float[Array, ""]
    start: Float[Array, ""]
    """The first lattice point, in steps."""
    masses: Float[Array, " n"]
    off: Float[Array, " n"]
    """Bounds on the errors of the masses."""
    gap: Float[Array, " n"]
    """E u (1 - u) of a component, with the others, in the cell right of the point."""
    off_gap: Float[Array, " n"]
    cut: Float[Array, ""]
    """The largest component on the lattice."""
    far: Float[Array, "2 k"]
    far_masses: Float[Array, "2 k"]
    strike: Float[Array, ""]
    """The largest strike, if it is finite."""
    log_missing: tuple[Float[Array, ""], Float[Array, ""]]
    """Log of what is left out, with the record and without."""

    def points(self) -> Float[Array, " n"]:
        """The lattice points."""
        return (self.start + jnp.arange(self.masses.size)) * self.spacing

    def ratio(self, told: float) -> Float[Array, " n"]:
        """S' / t, or with `told` 1 / 2 about that of the true law.

        That is the mean of what the two ends have with the record.
        """
        moved = self.spacing * (self.gap - jnp.pad(self.gap, (1, 0))[:-1])
        some = self.masses > 1e-290
        moved = jnp.where(some, moved / jnp.where(some, self.masses, 1), 0)
        return self.points() / self.batches + told * moved


class Laws(eqx.Module):
    """Laws of one sum, for bounds and for the estimate."""

    upper: Law
    estimate: Law
    lower: Law


def laws(
    noise: Float[Array, ""],
    batches: Float[Array, ""],
    points: int,
    strike: Float[Array, ""] | None = None,
    calls: Bool[Array, ""] | bool = True,
) -> Laws:
    """All that is known of the sum, for real t >= 1.

    S / t decreases in t in the convex order: bounds are those of the whole numbers
    around t.

    Args:
        noise: s, in (0, inf).
        batches: t, at least 1.
        points: Lattice points, a power of two from 2^10 on.
        strike: Of one release alone.  If finite, the laws are for strikes up to this
            one: a sum is beyond it as soon as a component is, and what the lattice need
            not hold makes it as much finer.  If there is none, the lower law is one
            whose ratio is S' / t, for compositions.
        calls: Whether the laws are for calls, not for puts, if there is a strike.
    """
    composed = strike is None
    strike = jnp.full_like(batches, jnp.inf) if strike is None else strike
    # The less noise, the more a sum beyond a strike is that of two large components,
    # which stronger tilts know better.
    room = jnp.where(calls & jnp.isfinite(strike), jnp.clip(2 / noise, 2, 5), 2)
    at = place(noise, batches, points, strike, stop_gradient(room))
    # Far out calls have few components beyond the lattice, which are looked at.
    strike = jnp.where(calls & (strike > at.end), jnp.inf, strike)
    x = component(noise, at)
    t = stop_gradient(batches)
    near = jnp.round(t)
    whole = jnp.abs(t - near) <= _CLOSE * t
    t = jnp.where(whole, near, t)
    estimate = _law(x, at, noise, batches + (t - stop_gradient(batches)), strike)
    fixed, same = stop_gradient(((x, at, noise), estimate))
    one = lambda n: lax.cond(
        whole, lambda: same, lambda: _law(*fixed, n, stop_gradient(strike))
    )
    around = lax.map(one, jnp.stack([jnp.floor(t), jnp.ceil(t)]))
    upper, lower = (jax.tree.map(lambda v, i=i: v[i], around) for i in (0, 1))
    if composed:
        x, at, noise = fixed
        lower = _law(lowered(x, noise, at), at, noise, jnp.ceil(t), strike)
    return Laws(upper, estimate, lower)


def _law(x: Component, at: Place, noise: Array, t: Array, strike: Array) -> Law:
    """Everything for one number of batches."""

    def one(tilt: Array) -> tuple[Power, Power]:
        single, between = (
            tilted(v, tilt, at, continuous=True) for v in (x.masses, x.between)
        )
        last = (single, t - 1), (between, jnp.ones_like(t))
        return power(((single, t),), at), power(last, at)

    outside = outside_window(x, at, t)
    both, rest = lax.map(one, at.tilts)
    masses, off = joined(at, t, both, 1.01 * t * x.error, outside.wrapped)
    # What the window leaves out of it is less than of the masses themselves.
    gap, off_gap = joined(at, t, rest, 1.01 * t * x.error, jnp.full(2, -jnp.inf))
    start = at.first * t + at.window
    far, far_masses = _far(x, at, noise, t, masses + off, start)
    mean, mass = _beyond(at, noise, t)
    every, first = strike <= at.end, jnp.arange(far.shape[1]) == 0
    return Law(
        noise,
        t,
        at.spacing,
        start,
        masses,
        off,
        gap,
        off + off_gap,
        at.end,
        jnp.where(every, mean, far),
        jnp.where(every, jnp.where(first, mass, 0), far_masses),
        strike,
        _missing(x, outside, noise, t, at, strike),
    )


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
    """Chernoff bounds, with the law of a component."""
    h = at.spacing
    first = at.first * h * t
    low, high = at.window * h, (at.window + at.points - 1) * h
    outer = [t * log_total(x.masses, u, h) for u in at.outer]
    inner = [t * log_total(x.masses, u, h) for u in at.tilts]
    size = 1e-9 + 1e-12 * sum(jnp.abs(v) for v in (*outer, *inner)) + t * x.error
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
    at: Place, t: Array, both: Power, error: ArrayLike, wrapped: Float[Array, "2"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Masses from the left tilt up to the middle, from the right one above; and errors.

    The errors count a relative one of the masses that were summed.
    """
    place = (at.first * t + at.window + jnp.arange(at.points)) * at.spacing
    below = stop_gradient(place) < at.middle
    values = jnp.maximum(both.values, 0)
    share = both.error + jnp.exp(jnp.minimum(wrapped, 0))
    off = share[:, None] + values * jnp.expm1(both.exponent_error + error)
    scale = jnp.exp(jnp.clip(both.log_scale, -700, 600))
    masses, off = (jnp.where(below, *(v * scale)) for v in (values, off))
    return masses, stop_gradient(off)


def _missing(
    x: Component, outside: Outside, s: Array, t: Array, at: Place, strike: Array
) -> tuple[Array, Array]:
    """Logs of what is left out, with the record and without."""
    big, included = t * x.big, x.big_included
    # Two big ones or more: pairs, of which one may be the record's own.
    others = jnp.maximum(t - 1, 0) * x.big
    most = jnp.maximum(t - 2, 0) * x.big
    two = safe_log(0.5 * big * others), safe_log(others * (included + 0.5 * most))
    small = x.log_left_out + jnp.log(t)
    own, one = tail(_big_ends(at, s, 1)[1] - jnp.array([1.0, 0.0]) / s)
    one, own = safe_log(t * jnp.stack([one, one + own / t]))
    # What is outside the window with a big component besides is a share of that.
    more = 2e-9 + jnp.log1p(big + included)
    add = lambda *logs: logsumexp(jnp.stack(logs)) + more
    # Beyond a strike a put is worth nothing, and calls of big components are known.
    right, *large = jnp.where(
        jnp.isfinite(strike), -jnp.inf, jnp.stack([outside.right, *two, one, own])
    )
    without = add(outside.left, small, right, *large[::2])
    included = add(outside.left_included, small, outside.right_included, *large[1::2])
    return stop_gradient((included, without))


# ------------------------------------------------------------------ one big component


def _big_ends(at: Place, noise: Array, count: int) -> Float[Array, " k"]:
    """Normal variables at the ends of the cells of a big component."""
    first = standard(at.end, noise)
    last = jnp.maximum(1 / noise, stop_gradient(first)) + _FARTHEST
    # Not so wide that a cell's rule is not good.
    most = 9 * _BIG_CELLS / (last + 2 / noise + 1)
    return first + jnp.minimum(last - first, most) * jnp.arange(count + 1) / count


def _big(at: Place, noise: Array, count: int) -> tuple[Array, Array, Cells]:
    """Cells of a big component: left ends, widths, and means over them."""
    z = _big_ends(at, noise, count)
    ends = jnp.exp(z / noise - 0.5 / jnp.square(noise))
    width = ends[1:] - ends[:-1]
    return ends, width, cells(ends[:-1], width, noise)


def _far(
    x: Component, at: Place, s: Array, t: Array, upper: Array, start: Array
) -> tuple[Array, Array]:
    """Sums with one big component, which dominate, and which are dominated.

    With m the mean of a component that is not big, p the probability of a big one,
    F' the law of those that are not: F'^(t-1) is below F'^t moved by -m, over 1 - p.
    Of that and of the big one's cells the masses are spread to both ends.  What is told
    by the cell of a single big one is below.
    """
    lost = x.big + jnp.exp(x.log_left_out)
    ends, _, big = _big(at, s, _BIG_CELLS)
    both = lambda u, v: jnp.append(u, 0) + jnp.append(jnp.zeros(1), v)
    rows = upper.reshape(_COARSE, -1)
    step = at.points // _COARSE
    share = jnp.arange(step) / step
    coarse = both(rows @ (1 - share), rows @ share)
    place = (start + step * jnp.arange(_COARSE + 1)) * at.spacing
    far = ((place - x.mean)[:, None] + ends).ravel()
    masses = t / (1 - lost) * (coarse[:, None] * both(big.left, big.right)).ravel()
    ends, width, big = _big(at, s, far.size)
    mass = big.left + big.right
    near = ends[:-1] + width * big.right / (mass + 1e-300) + (t - 1) * x.mean
    near_masses = t * jnp.exp((t - 1) * jnp.log1p(-lost)) * mass * (1 - LATTICE_SUM)
    far, masses = stop_gradient((far, masses * (1 + 4e-9)))
    return jnp.stack([far, near]), jnp.stack([masses, near_masses])


def _beyond(at: Place, noise: Array, t: Array) -> tuple[Array, Array]:
    """Mean and mass of the sums with any big component, above the true ones and below.

    All are beyond a strike that no big component is below, so the mean will do.
    """
    z = standard(at.end, noise)
    none = log_ndtr(z)
    mass = -jnp.expm1(t * none)
    included = -jnp.expm1((t - 1) * none + log_ndtr(z - 1 / noise))
    unit = NORMAL_TAIL * jnp.finfo(z.dtype).eps * jnp.square(1 + jnp.abs(z) + 1 / noise)
    error = stop_gradient(unit) * jnp.array([[1.0], [-1.0]])
    return t * included / (mass + 1e-300) * (1 + 4 * error), mass * (1 + error)
