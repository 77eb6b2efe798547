r"""Jumps on a grid: one factor for compound Poisson losses of any number of sizes.

Upper bound.  A jump between two grid points is one of two kinds, at either point, with
the rates that keep its own under P and under Q: forgetting the kind gives the old pair
back, so the new one dominates.  Where nothing jumps the loss is the drift; that is
moved down to a grid point, by less than a step, and made good by jumps of one step (a
pair in its own right, which reveals something more).  Then everything lies on the grid,
and the transform is exp(sum_k r_k (e^{-i omega k} - 1)), r_k the tilted rates.

Lower bound.  The loss is the limit of many releases that jump rarely.  Exchanging them
one at a time, as in `_grid.py`, costs E[S(eps - Y)] in the limit, S being the sum of
the triangles of all kinds of jumps weighted by their rates; the jumps of one step are
exchanged last and cost their own profile.  The window grows with the number of jumps,
a Poisson variable with a tail bound (Boucheron, Lugosi, Massart 2013, Section 2.2).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from .._internal._tolerances import RARE_JUMPS
from ..losses import Atoms, CompoundJumps
from ._discretize import Discrete, Grid, atoms_moved, with_atoms
from ._factor import Factor, Single

_STEPS = 32
"""Jumps of one step that are looked at; their mean number is at most about 1."""
_FAR = 20
"""As many of them are rarer than `RARE_JUMPS` where their mean is below `_MOST`."""
_MOST = 1.2
_LOG_RARE = 37.0


class _Filler(NamedTuple):
    """Jumps of one step that make good what the drift was moved by."""

    rate: Float[Array, ""]
    """Under Q, tilted."""
    log_moments: Float[Array, " k"]
    """At the Chernoff shifts."""
    part: Discrete


def factor_of_jumps(
    loss: CompoundJumps, grid: Grid, log_moments: Float[Array, " k"]
) -> Factor:
    """All jumps and the drift as one factor of a composition."""
    h, c, size = grid.spacing, grid.shift, grid.size
    drift = jnp.where(grid.sign > 0, 1, -1) * loss.drift
    place = jnp.floor(stop_gradient(drift) / h)
    filler = _filler(grid, jnp.maximum(stop_gradient(drift) - place * h, 0))
    jumps, start = loss.atoms, -(size // 2)
    none = jnp.zeros(size, h.dtype)
    zero = jnp.zeros_like(h)
    sums = with_atoms(
        jumps, grid, jnp.asarray(start), zero, (none, none, none, none, zero, zero)
    )
    tilted, excess, mean_excess, slack, bottom, top = sums
    tilted = tilted.at[0].add(bottom).at[1 - start].add(filler.rate)
    rate = jnp.sum(tilted)
    # What the parameters move the drift by, off the grid point: differences of four
    # neighbors, since a phase i omega would carry every kink through the whole period.
    omega = 2 * jnp.pi * jnp.arange(size // 2 + 1) / size
    moved = (drift - stop_gradient(drift)) / h
    slope = (8 * jnp.sin(omega) - jnp.sin(2 * omega)) / 6
    spectrum = jnp.fft.rfft(jnp.roll(tilted, start)) - rate - 1j * moved * slope
    transform = jnp.exp(spectrum)
    transform = jnp.where(jnp.abs(transform) < 1e-150, 1e-150, transform)
    all_rates = _rates(jumps, grid.sign, zero) + filler.rate * jnp.exp(-c * h)
    drift = place * h + drift - stop_gradient(drift)
    moved = atoms_moved(jumps, grid)
    part = Discrete(
        tilted,
        *stop_gradient((excess, mean_excess, slack, zero, top)),
        stop_gradient(bottom + RARE_JUMPS * jnp.max(excess)),
        start * h,
        moved,
        jnp.ones((), bool),
    )
    lifted = stop_gradient(bottom)
    # Their arrays begin half a period below zero.
    turned = stop_gradient(transform) * (1 - 2 * (jnp.arange(omega.size) % 2))
    one = jnp.ones_like(h)
    noise = stop_gradient(1 + 2 * rate)
    number = stop_gradient(rate)
    number = number + 2 / 3 * _LOG_RARE + jnp.sqrt(2 * _LOG_RARE * number)
    return Factor(
        transform=transform,
        offset=place.astype(int),
        log_mass=rate - all_rates + c * drift,
        singles=[Single(x, one, turned, turned, noise) for x in (part, filler.part)],
        noise=noise,
        powers=stop_gradient(1 + rate + all_rates + jnp.abs(c * drift)),
        most=number + 1,
        log_moments=log_moments,
        log_grown=log_moments
        + filler.log_moments
        + _growth(jumps, grid, lifted, start),
        top=top,
        besides=jnp.where(filler.rate > 0, _FAR, 0).astype(h.dtype),
        moved=number * moved
        + 4 * jnp.finfo(h.dtype).eps * jnp.abs(stop_gradient(drift)),
    )


def _rates(jumps: Atoms, sign: Array, shift: Array) -> Array:
    """Sum of the rates under Q, tilted by `shift`, in one direction."""
    loss = jnp.where(sign > 0, jumps.loss, -jumps.loss)
    log_q = jnp.where(sign > 0, jumps.log_mass + jumps.loss, jumps.log_mass)
    return jnp.sum(jnp.exp(log_q + shift * loss))


def _growth(jumps: Atoms, grid: Grid, bottom: Array, start: int) -> Float[Array, " k"]:
    """The growth of E[e^{c Y}], at most, as an exponent: chords of x^(1 + c)."""
    h = grid.spacing
    found = []
    for k in range(grid.chernoff_shifts.size):
        c = grid.chernoff_shifts[k]
        chord = 0.125 * jnp.square(jnp.expm1(h)) * jnp.abs((1 + c) * c)
        chord = chord * jnp.exp(h * (2 + jnp.abs(c)))
        lifted = bottom * jnp.exp(jnp.minimum((c - grid.shift) * start * h, 700))
        found.append(_rates(jumps, grid.sign, c) * chord + lifted)
    return stop_gradient(jnp.stack(found))


def _filler(grid: Grid, missing: Float[Array, ""]) -> _Filler:
    """Jumps of one step h and the drift -`missing`, a number from 0 to h."""
    h, c, size = grid.spacing, grid.shift, grid.size
    rate_p = missing / jnp.expm1(h)
    rate_q = rate_p * jnp.exp(h)
    # The profile at k h, k = 0, 1, ...: the sum of (q_n - e^{kh} p_n)_+, where
    # q_n = p_n e^{nh - missing}.
    n = jnp.arange(_STEPS, dtype=h.dtype)
    some = rate_p > 0
    log_p = n * jnp.log(jnp.where(some, rate_p, 1)) - rate_p - gammaln(n + 1)
    p = jnp.where(some, jnp.exp(log_p), 0)
    above = jnp.maximum((n - n[:, None]) * h - missing, 0)
    profile = jnp.exp(n * h) * (jnp.expm1(above) @ p)
    # Right of each point it is at most what it is there; left of 0, what it is at 0.
    first = size // 2 - 1
    tilt = jnp.exp(c * h * jnp.append(-1.0, n))
    highest = jnp.append(profile[0], profile) * tilt
    # Without these jumps all else lies on the grid but for the drift: at most the
    # profile at k h - missing counts, k = 1, 2, ...
    whole = jnp.maximum((n - n[1:, None]) * h, 0)
    counted = jnp.exp(n[1:] * h - missing) * (jnp.expm1(whole) @ p)
    mean = jnp.concatenate([jnp.zeros(2), counted]) * tilt
    none = jnp.zeros(size, h.dtype)
    cells = first + jnp.arange(_STEPS + 1)
    zero = jnp.zeros_like(h)
    part = Discrete(
        none,
        none.at[cells].set(highest),
        none.at[cells].set(mean),
        none,
        zero,
        zero,
        RARE_JUMPS * profile[0],
        zero,
        zero,
        # With fewer points, or a stronger tilt, there may be more of them.
        rate_q * jnp.exp(c * h) < _MOST,
    )
    shifts = grid.chernoff_shifts
    log_moments = rate_q * jnp.expm1(shifts * h) - shifts * missing
    return _Filler(rate_q * jnp.exp(c * h), log_moments, part)
