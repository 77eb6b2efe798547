"""What random allocation leaks at least: a pair made of its own by quantizing.

Every step's likelihood ratio r is replaced by the nearest value of
g(r) = log(1 + z r) / z on a lattice, and of all steps only the sum of these is told.
That is post-processing, so the pair of the two laws of the sum is dominated by the true
one, whatever z is, and for k of t steps just as well as for one: without the record all
t terms are alike, with it k of them have the other law, and the order does not matter.

The ratio of k of t steps is the elementary symmetric mean of the r's, whose logarithm
is nearly that sum with z = k / (t - k), by the saddle point of its generating function;
for one step it is the mean itself, to which z = 0 belongs.

Sums in either tail are known with relative accuracy from laws that are tilted there.
Outputs that are not known well enough are left out.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from ..._internal._special import log1mexp, safe_log
from ..._internal._tolerances import QUANTIZED_MASS
from .._atomic import AtomicLoss
from .._base import AbstractLoss
from ._any_base import POINTS, masked_cells, nodes, reach
from ._place import Place, place_of
from ._powers import Power, log_total, power, tilted

_REACH = 30.0
"""-log of the probability of ratios that count as the last one."""
_TILTS = -6.0, -4.5, -3.0, -1.5, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0
"""Means of tilted sums, in standard deviations as rates of large deviations are."""
_OUTER = -13.0, 16.0
_WINDOW = 100.0, 150.0
"""-log of the probability of sums left and right of the window, about."""
_SIZES = 120
_FAR_RATIO = 1000.0
"""A largest ratio from which on the lattice is too coarse for sums of ratios."""
_CURVED = {1: 0.05, 2: 0.3}
"""Share of k / (t - k) that is best for few participations."""


def dominated(
    base: AbstractLoss,
    batches: Float[Array, ""],
    participations: int,
    points: int = POINTS,
) -> AtomicLoss:
    """A pair that t steps dominate, of which k uniformly random ones have the record.

    Args:
        base: The loss of one step.
        batches: t >= k; a real number counts as the next larger whole one.
        participations: k.
        points: Lattice points of the sum, a power of two.
    """
    base, t = stop_gradient((base, batches))
    near = jnp.round(t)
    t = jnp.where(jnp.abs(t - near) <= 1e-9 * t, near, jnp.ceil(t))
    k = float(participations)
    log_zero = _certain(base.log_infinite_masses()[1], base, 1)
    z, at, (tilts, outer) = _plan(base, t, participations, points, log_zero)
    without, included, error = _masses(base, at, z)
    # What only a step without the record releases.
    without = without.at[0].add(jnp.exp(log_zero))
    log_p, log_q, errors = _sums(without, included, t, k, at, tilts, outer)
    known = errors <= QUANTIZED_MASS
    # That all steps release what one with the record does not is the least sum.
    alone = jnp.where(known[0] | (at.window > 0), -jnp.inf, t * log_zero)
    # A step with the record may reveal it.
    infinite = _infinite(base, k)
    none = jnp.full_like(infinite, -jnp.inf)
    ends = jnp.stack([none, alone]), jnp.stack([infinite, none])
    log_p, log_q = (
        jnp.concatenate([jnp.where(known, logs, -jnp.inf), end])
        for logs, end in zip((log_p, log_q), ends, strict=True)
    )
    mass_error = 2 * QUANTIZED_MASS + 1.01 * t * error
    return AtomicLoss(log_p, log_q, mass_error=mass_error)


def _plan(
    base: AbstractLoss, t: Array, participations: int, points: int, log_zero: Array
) -> tuple[Array, Place, tuple[Array, Array]]:
    """The bend z, the lattice of the terms, and the tilts of their sums."""
    k = float(participations)
    ends = reach(base, _REACH + jnp.log(t))
    z = _CURVED.get(participations, 1.0) * k / jnp.maximum(t - k, 0.01 * k)
    if participations == 1:
        # Straight where the lattice is fine enough for that.
        z = z * jnp.clip(jnp.exp(ends.high) / _FAR_RATIO, 1e-4, 1.0)
    bent = lambda loss: jnp.log1p(z * jnp.exp(loss)) / z
    loss, logs = nodes(base, ends)
    values, logs = jnp.append(bent(loss), 0.0), jnp.append(logs, log_zero)
    sides = jnp.where(log_zero > -jnp.inf, 0.0, bent(ends.low)), bent(ends.high)
    at = place_of(values, logs, t, points, ends=sides, more=k, reach=_WINDOW)
    return z, at, _tilts(values, logs, t)


def _sums(
    without: Array,
    included: Array,
    t: Array,
    k: float,
    at: Place,
    tilts: Array,
    outer: Array,
) -> tuple[Array, Array, Array]:
    """Logs of both laws of the sum, each from the tilt it is known by best, and errors.

    Errors are relative, of the larger one of both.
    """
    h = at.spacing

    def total(u: Array) -> Array:
        one, other = log_total(without, u, h), log_total(included, u, h)
        return jnp.stack([t * one, (t - k) * one + k * other])

    beyond = jnp.stack([total(u) for u in outer])

    def both(tilt: Array) -> tuple[Array, Array, Array]:
        one, other = (
            tilted(x, tilt, at, continuous=False) for x in (without, included)
        )
        pair = (one, t - k), (other, jnp.asarray(k))
        sums = power(((one, t),), at), power(pair, at)
        wrapped = _wrapped(at, tilt, total(tilt), outer, beyond, t)
        (log_p, error), (log_q, more) = (
            _logs(x, w) for x, w in zip(sums, wrapped, strict=True)
        )
        return log_p, log_q, jnp.maximum(error, more)

    found = lax.map(both, tilts)
    best = jnp.argmin(found[2], axis=0)[None]
    log_p, log_q, errors = (jnp.take_along_axis(x, best, axis=0)[0] for x in found)
    return log_p, log_q, errors


def _masses(
    base: AbstractLoss, at: Place, z: Array
) -> tuple[Array, Array, Float[Array, ""]]:
    """Masses of the quantized terms, without the record and with it; and their error.

    Cells whose masses are not known well are left out under both laws.
    """
    index = jnp.arange(at.points // 2 + 1)
    # Between lattice points; what is beyond the first and last one counts as that.
    value = (at.first + index - 0.5) * at.spacing
    ratio = jnp.expm1(z * value) / z
    edges = jnp.where(ratio > 0, safe_log(jnp.where(ratio > 0, ratio, 1.0)), -jnp.inf)
    edges = jnp.where(index == 0, -jnp.inf, edges)
    edges = jnp.where(index > at.cells, jnp.inf, edges)
    inside = (index <= at.cells)[:-1]
    cells, some = masked_cells(base, edges, inside)
    some = some & (cells.error < 1e-7)
    p = jnp.where(some, jnp.exp(cells.log_mass), 0.0)
    q = jnp.where(some, jnp.exp(cells.log_mass + cells.loss), 0.0)
    unit = 8 * jnp.finfo(p.dtype).eps
    sizes = 1 + jnp.abs(cells.log_mass) + jnp.abs(cells.loss)
    error = jnp.max(jnp.where(some, cells.error + unit * sizes, 0.0))
    p, q = jnp.append(p, 0.0), jnp.append(q, 0.0)
    p, q, most = _with_atoms(base, at, z, p, q)
    return p, q, jnp.maximum(error, most)


def _with_atoms(
    base: AbstractLoss, at: Place, z: Array, p: Array, q: Array
) -> tuple[Array, Array, Array]:
    """The masses with those of the atoms, and the largest error of one of these."""
    atoms = base.atoms()
    if not atoms.loss.size:
        return p, q, jnp.zeros_like(z)
    finite = jnp.isfinite(atoms.log_mass)
    loss = jnp.where(finite, atoms.loss, 0.0)
    log_mass = jnp.where(finite, atoms.log_mass, 0.0)
    place = jnp.log1p(z * jnp.exp(loss)) / z / at.spacing - at.first
    cell = jnp.clip(jnp.round(place), 0, at.cells).astype(int)
    cell = jnp.where(finite, cell, p.size)
    p = p.at[cell].add(jnp.exp(log_mass))
    q = q.at[cell].add(jnp.exp(log_mass + loss))
    sizes = 1 + jnp.abs(log_mass) + jnp.abs(loss)
    unit = 8 * jnp.finfo(p.dtype).eps
    error = jnp.where(finite, 2 * atoms.error + unit * sizes, 0.0)
    return p, q, jnp.max(error)


def _tilts(x: Array, logs: Array, t: Array) -> tuple[Array, Array]:
    """Tilts for sums at given depths, and two beyond these."""
    mean = jnp.exp(logs) @ x
    deviation = jnp.sqrt(t * (jnp.exp(logs) @ jnp.square(x - mean))) + 1e-300
    sizes = jnp.logspace(-3.0, 3.0, _SIZES, dtype=x.dtype) / deviation
    sizes = jnp.concatenate([-sizes[::-1], jnp.zeros(1, x.dtype), sizes])

    def depth(u: Array) -> Array:
        values = logs + u * (x - mean)
        log_mean = logsumexp(values)
        rate = u * (jnp.exp(values - log_mean) @ (x - mean)) - log_mean
        return jnp.sign(u) * jnp.sqrt(2 * t * jnp.maximum(rate, 0))

    depths = jax.vmap(depth)(sizes)
    near = lambda places: sizes[
        jnp.argmin(jnp.abs(depths - jnp.asarray(places)[:, None]), axis=1)
    ]
    return near(_TILTS), near(_OUTER)


def _wrapped(
    at: Place, tilt: Array, own: Array, outer: Array, beyond: Array, t: Array
) -> Float[Array, "2"]:
    """The tilted laws' shares outside of the window, from above."""
    low, high = at.window * at.spacing, (at.window + at.points - 1) * at.spacing
    size = 1e-9 + 1e-12 * (jnp.abs(own) + jnp.max(jnp.abs(beyond)))
    left = beyond[0] - outer[0] * low + tilt * low - own + 2 * size
    right = beyond[1] - outer[1] * high + tilt * high - own + 2 * size
    left = jnp.where(outer[0] < tilt, left, 0.0)
    right = jnp.where(tilt < outer[1], right, 0.0)
    left = jnp.where(at.window <= 0, -jnp.inf, left)
    right = jnp.where(t * at.cells < at.window + at.points, -jnp.inf, right)
    return jnp.exp(jnp.minimum(jnp.logaddexp(left, right), 0))


def _logs(found: Power, wrapped: Array) -> tuple[Array, Array]:
    """Logarithms of masses, and bounds of their errors."""
    some = found.values > 0
    values = jnp.where(some, found.values, 1.0)
    error = (found.error + wrapped) / values + found.exponent_error
    logs = jnp.where(some, jnp.log(values) + found.log_scale, -jnp.inf)
    return logs, jnp.where(some, 2 * error, jnp.inf)


def _infinite(base: AbstractLoss, k: float) -> Float[Array, ""]:
    """Log of the probability of some infinite loss with the record, from below."""
    certain = _certain(base.log_infinite_masses()[0], base, 0)
    share = jnp.minimum(jnp.exp(certain), 1 - 1e-16)
    return safe_log(-jnp.expm1(k * jnp.log1p(-share))) - 1e-12


def _certain(log_mass: Array, base: AbstractLoss, side: int) -> Float[Array, ""]:
    """Log of a mass of infinite losses, without what may have been left out of it."""
    truncated = base.log_truncated_masses()[side]
    some = (log_mass > -jnp.inf) & (truncated < log_mass - 1e-6)
    gap = jnp.where(some, log_mass - truncated, 1.0)
    return jnp.where(some, log_mass + log1mexp(gap), -jnp.inf)
