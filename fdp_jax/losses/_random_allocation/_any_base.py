"""Random allocation of any release: the law of the sum of its likelihood ratios.

Of t steps one, uniformly random, has the record; r_1, ..., r_t are the steps'
likelihood ratios, which are independent without it.  The ratio of all steps together is
their mean S / t, so the pair is known from the law of one r.  That is moved up in the
convex order onto a lattice, on which an atom at a lattice point stays where it is.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from ..._internal._special import safe_log
from ..._internal._tolerances import ATOM_MASS, CLOSE_TO_LATTICE
from .._atomic import AtomicLoss
from .._base import AbstractLoss
from .._cells import Cells
from ._component import Component
from ._law import Outside, joined, outside_window
from ._place import Place, place_of
from ._powers import power, tilted

POINTS = 1 << 16
"""Lattice points of the sum."""
_NODES = 512
_LEFT_OUT = 42.0
"""-log of the probability of ratios beyond the lattice, of all steps together."""
_FARTHEST = 300.0
"""Losses farther than this are left out in any case."""


class Reach(NamedTuple):
    """Losses of one release that are looked at, and what lies beyond."""

    low: Float[Array, ""]
    high: Float[Array, ""]
    log_below: Float[Array, ""]
    """Log of a bound of P(X < low), finite losses alone."""
    log_above: Float[Array, ""]
    """Log of a bound of Q(Y > high), finite losses alone."""


def reach(base: AbstractLoss, level: Float[Array, ""] | float) -> Reach:
    """Ends beyond which about e^-level is left, by Chernoff bounds."""
    base, level = stop_gradient((base, jnp.asarray(level)))
    least, most = base.loss_range()
    w = jnp.asarray([0.05 * 1.35**i for i in range(32)], least.dtype)
    below, above = base.moments(-w)[0], base.moments(1 + w)[0]
    usable = lambda x: jnp.where(jnp.isnan(x), jnp.inf, x)
    below, above = usable(below), usable(above)
    low = jnp.maximum(-jnp.min((below + level) / w), -_FARTHEST)
    high = jnp.minimum(jnp.min((above + level) / w), _FARTHEST)
    cut_low, cut_high = low > least, high < most
    low, high = jnp.maximum(low, least), jnp.minimum(high, most)
    unit = 1e-9
    log_below = jnp.minimum(jnp.min(below + w * low), 0) + unit
    log_above = jnp.minimum(jnp.min(above - w * high), 0) + unit
    return Reach(
        low,
        jnp.maximum(high, low + 1e-9),
        jnp.where(cut_low, log_below, -jnp.inf),
        jnp.where(cut_high, log_above, -jnp.inf),
    )


def nodes(base: AbstractLoss, ends: Reach) -> tuple[Array, Array]:
    """Losses and logarithms of their probabilities under P, about."""
    base, ends = stop_gradient((base, ends))
    share = jnp.arange(_NODES + 1) / _NODES
    edges = ends.low + share * (ends.high - ends.low)
    cells, atoms = base.cells(edges[:-1], edges[1:]), base.atoms()
    loss = jnp.concatenate([cells.loss, atoms.loss, ends.low[None]])
    logs = jnp.concatenate([cells.log_mass, atoms.log_mass, jnp.full(1, -60.0)])
    logs = jnp.where(jnp.isnan(logs), -jnp.inf, logs)
    return jnp.clip(loss, ends.low, ends.high), logs - logsumexp(logs)


def masked_cells(
    base: AbstractLoss, edges: Float[Array, " m+1"], inside: Array
) -> tuple[Cells, Array]:
    """The cells between losses, and which of them have some mass that is known."""
    found = base.cells(edges[:-1], edges[1:])
    some = inside & jnp.isfinite(found.log_mass) & (edges[:-1] < edges[1:])
    safe = lambda x: jnp.where(some, x, 0.0)
    return Cells(safe(found.log_mass), safe(found.loss), safe(found.error)), some


def dominating(
    base: AbstractLoss, batches: Float[Array, ""], points: int = POINTS
) -> AtomicLoss:
    """A pair that dominates t steps, one of which has the record.

    Args:
        base: The loss of one step.
        batches: t, at least 1; a real number counts as the next smaller whole one,
            since S / t decreases in t in the convex order.
        points: Lattice points of the sum, a power of two.
    """
    t = stop_gradient(batches)
    near = jnp.round(t)
    t = jnp.where(jnp.abs(t - near) <= 1e-9 * t, near, jnp.floor(t))
    ends = reach(base, _LEFT_OUT + jnp.log(t))
    loss, logs = nodes(base, ends)
    log_nothing = base.log_infinite_masses()[1]
    # A ratio of zero is a lattice point if it is possible.
    zero = stop_gradient(log_nothing) > -jnp.inf
    least = jnp.where(zero, 0.0, jnp.exp(ends.low))
    values = jnp.append(jnp.exp(loss), 0.0)
    logs = jnp.append(logs, jnp.where(zero, stop_gradient(log_nothing), -jnp.inf))
    at = place_of(values, logs, t, points, ends=(least, jnp.exp(ends.high)))
    x = _component(base, at, ends, jnp.exp(log_nothing))
    outside = outside_window(x, at, t)
    single = lambda tilt: tilted(x.masses, tilt, at, continuous=False)
    both = lax.map(lambda tilt: power(((single(tilt), t),), at), at.tilts)
    masses = sum(joined(at, t, both, 0.0, outside.wrapped))
    s = (at.first * t + at.window + jnp.arange(at.points)) * at.spacing
    some = s > 0
    log_p = safe_log(masses)
    ratio = jnp.log(jnp.where(some, s, 1) / t)
    log_q = jnp.where(some, log_p + ratio, -jnp.inf)
    # The record's own step may reveal it.
    end = jnp.full(1, -jnp.inf), base.log_infinite_masses()[0][None]
    log_p, log_q = (jnp.concatenate(v) for v in zip((log_p, log_q), end, strict=True))
    missing = _missing(x, at, t, outside)
    return AtomicLoss(log_p, log_q, None, missing, loss=jnp.append(ratio, 0.0))


def _missing(
    x: Component, at: Place, t: Array, outside: Outside
) -> tuple[Array, Array]:
    """Logs of what is left out, with the record and without."""
    small = x.log_left_out + jnp.log(t)
    big = safe_log(t * x.big)
    add = lambda *logs: logsumexp(jnp.stack(logs)) + 1e-9
    without = add(outside.left, outside.right, small, big)
    included = add(
        outside.left_included,
        outside.right_included,
        small,
        jnp.logaddexp(big, safe_log(x.big_included)),
    )
    return stop_gradient((included, without))


def _component(
    base: AbstractLoss, at: Place, ends: Reach, nothing: Float[Array, ""]
) -> Component:
    """One ratio on the lattice, spread to the ends of its cells."""
    h = at.spacing
    index = jnp.arange(at.points // 2 + 1)
    x = (at.first + index) * h
    spread, off = _spread_cells(base, at, ends, x)
    spread, off = _add_atoms(base, at, ends, spread, off)
    spread = spread.at[0].add(nothing)
    off = off.at[0].add(2 * ATOM_MASS * stop_gradient(nothing))
    total = jnp.sum(spread)
    return Component(
        spread + stop_gradient(off),
        jnp.zeros_like(spread),
        jnp.zeros_like(spread),
        jnp.zeros_like(h),
        stop_gradient(ends.log_below),
        stop_gradient(jnp.exp(ends.log_above - ends.high)),
        stop_gradient(jnp.exp(ends.log_above)),
        (spread @ x) / total,
    )


def _spread_cells(
    base: AbstractLoss, at: Place, ends: Reach, x: Array
) -> tuple[Array, Array]:
    """Masses of the part without atoms, and bounds of their errors.

    A cell's mass a and the mean of r in it decide what goes to either end.
    """
    h, count = at.spacing, at.cells
    some = x > 0
    edges = jnp.where(some, jnp.log(jnp.where(some, x, 1.0)), -jnp.inf)
    # The ends of all losses are those of the lattice.
    index = jnp.arange(x.size)
    edges = jnp.where(index == 0, jnp.maximum(edges, ends.low), edges)
    edges = jnp.where(index >= count, ends.high, edges)
    cells, known = masked_cells(base, edges, index[:-1] < count)
    mean = jnp.exp(cells.loss)
    share = jnp.clip((mean - x[:-1]) / h, 0, 1)
    mass = jnp.where(known, jnp.exp(cells.log_mass), 0.0)
    unit = 8 * jnp.finfo(h.dtype).eps
    moved = x[1:] / h * (2 * cells.error + unit * (1 + jnp.abs(cells.loss)))
    error = mass * jnp.expm1(cells.error + moved)
    both = lambda u, v: jnp.append(u, 0) + jnp.append(jnp.zeros(1, v.dtype), v)
    return (
        both(mass * (1 - share), mass * share),
        stop_gradient(both(error, error)),
    )


def _add_atoms(
    base: AbstractLoss, at: Place, ends: Reach, spread: Array, off: Array
) -> tuple[Array, Array]:
    """Masses with the atoms added, those next to a lattice point on it."""
    atoms = base.atoms()
    if not atoms.loss.size:
        return spread, off
    h = at.spacing
    inside = (atoms.loss >= ends.low - 1e-9) & (atoms.loss <= ends.high + 1e-9)
    inside = inside & jnp.isfinite(atoms.log_mass)
    loss = jnp.where(inside, atoms.loss, 0.0)
    place = jnp.exp(loss) / h - at.first
    near = jnp.round(place)
    gap = stop_gradient(jnp.abs(place - near))
    unit = 8 * jnp.finfo(h.dtype).eps * (1 + jnp.abs(loss))
    rounding = unit * (jnp.exp(loss) / h + at.first)
    on_it = gap <= jnp.maximum(CLOSE_TO_LATTICE, 2 * stop_gradient(rounding))
    left = jnp.clip(jnp.where(on_it, near, jnp.floor(place)), 0, at.cells)
    # On the lattice no more than its derivative.
    moved = place - stop_gradient(place)
    share = jnp.where(on_it, moved, place - left)
    mass = jnp.where(inside, jnp.exp(jnp.where(inside, atoms.log_mass, 0.0)), 0.0)
    error = mass * (2 * atoms.error + unit + rounding + jnp.where(on_it, gap, 0.0))
    cell = jnp.where(inside, left, spread.size).astype(int)
    spread = spread.at[cell].add(mass * (1 - share)).at[cell + 1].add(mass * share)
    error = stop_gradient(error)
    off = off.at[cell].add(error).at[cell + 1].add(error)
    # Where it may be off to the left as well.
    return spread, off.at[jnp.where(inside & (cell > 0), cell - 1, off.size)].add(error)
