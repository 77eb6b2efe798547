r"""Jumps on a grid: one factor for compound Poisson losses of any number of sizes.

Upper bound.  A jump between two grid points is one of two kinds, at either point, with
the rates that keep its own under P and under Q: forgetting the kind gives the old pair
back, so the new one dominates.  Where nothing jumps the loss is the drift; that is
moved down to a grid point, by less than a step, and made good by jumps of one step (a
pair in its own right, which reveals something more).  Then everything lies on the grid,
and the transform is exp(sum_k r_k (e^{-i omega k} - 1)), r_k the tilted rates.

Lower bound.  The test of `_grid.py` moves each jump by a coin and disregards the drift,
which it knows; jumps of one step, at the rate that they have under P, say nothing.
"""

import math

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._internal._arithmetic import ULP
from .._internal._tolerances import RARE_JUMPS
from ..losses import Atoms, CompoundJumps
from ._discretize import Grid, atoms_moved, log_moments, with_atoms
from ._factor import Factor

_LOG_RARE = -math.log(RARE_JUMPS)


def factor_of_jumps(loss: CompoundJumps, grid: Grid) -> Factor:
    """All jumps and the drift as one factor of a composition."""
    h, c, size = grid.spacing, grid.shift, grid.size
    drift = jnp.where(grid.sign > 0, 1, -1) * loss.drift
    place = jnp.floor(stop_gradient(drift) / h)
    # Jumps of one step that make good what the drift was moved by.
    missing = jnp.maximum(stop_gradient(drift) - place * h, 0)
    filler = missing / jnp.expm1(h) * jnp.exp(h)
    jumps, start = loss.atoms, -(size // 2)
    none = jnp.zeros((2, size), h.dtype)
    zero = jnp.zeros_like(h)
    tilted, top = with_atoms(jumps, grid, jnp.asarray(start), zero, (none, zero))
    both = filler * jnp.exp(c * h - jnp.stack([zero, h]))
    tilted = tilted.at[:, 1 - start].add(both)
    rate = jnp.sum(tilted[0])
    # What the parameters move the drift by, off the grid point: differences of four
    # neighbors, since a phase i omega would carry every kink through the whole period.
    omega = 2 * jnp.pi * jnp.arange(size // 2 + 1) / size
    moved = (drift - stop_gradient(drift)) / h
    slope = (8 * jnp.sin(omega) - jnp.sin(2 * omega)) / 6
    spectrum = jnp.fft.rfft(jnp.roll(tilted, start, axis=1)) - rate
    # The test's jumps of one step are fewer.
    fewer = jnp.stack([-1j * moved * slope, missing + 0j * omega])
    transform = jnp.exp(spectrum + fewer)
    transform = jnp.where(jnp.abs(transform) < 1e-150, 1e-150, transform)
    all_rates = _rates(jumps, grid.sign, zero) + filler
    drift = place * h + drift - stop_gradient(drift)
    moments = jnp.exp(log_moments(tilted[0], start, grid))
    # More of them have a tilted probability that is far below rounding.
    number = stop_gradient(rate)
    number = number + 2 / 3 * _LOG_RARE + jnp.sqrt(2 * _LOG_RARE * number)
    return Factor(
        transform=transform,
        offset=place.astype(int),
        log_mass=rate - all_rates + c * drift,
        noise=stop_gradient(1 + 2 * rate),
        powers=stop_gradient(1 + rate + all_rates + jnp.abs(c * drift)),
        log_moments=moments - all_rates + grid.sides * drift,
        top=top,
        moved=number * atoms_moved(jumps, grid)
        + 4 * ULP * jnp.abs(stop_gradient(drift)),
        sound=jnp.ones((), bool),
    )


def _rates(jumps: Atoms, sign: Array, shift: Array) -> Array:
    """Sum of the rates under Q, tilted by `shift`, in one direction."""
    loss = jnp.where(sign > 0, jumps.loss, -jumps.loss)
    log_q = jnp.where(sign > 0, jumps.log_mass + jumps.loss, jumps.log_mass)
    return jnp.sum(jnp.exp(log_q + shift * loss))
