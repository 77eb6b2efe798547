"""The loss of jumps of several sizes, each as many as a Poisson variable."""

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import scipy  # its parts load when they are used
from jaxtyping import Array, Float

from .._internal._counts import log_poisson
from .._internal._precision import in_float64
from .._internal._special import safe_log
from .._internal._tolerances import ATOM_MASS
from ._atomic import AtomicLoss
from ._base import CompoundJumps, Jumps
from ._cells import Atoms
from ._poisson import PoissonLoss
from ._schedule import ScheduleLoss

_LISTS = (690.0, 1 << 12), (350.0, 1 << 12), (160.0, 1 << 12), (80.0, 1 << 18)
"""Depths e^-depth of what is left out, and the most counts; the first that fits."""
_LEAST_RATE, _HIGHEST_RATE = 1e-300, 1e8
_BOX = 1 << 21
"""The most counts that are looked at for a list."""


class CompoundPoissonLoss(ScheduleLoss):
    """Independent Poisson losses: X = sum_j N_j x_j + drift.

    `counts[j]`, any real number, times the j-th of the stack.
    """

    steps: PoissonLoss
    fractional: ClassVar[bool] = True
    by_steps: ClassVar[bool] = False  # The grid takes all jumps at once.

    @property
    def on_grid(self) -> bool:
        return True

    def powered(self, count: Float[Array, ""]) -> "CompoundPoissonLoss":
        # Not the counts: powers of a Poisson loss have no branch that could be lost.
        return dataclasses.replace(self, steps=self.steps.powered(count))

    def compound_jumps(self) -> CompoundJumps:
        sizes = self._each(lambda step: step.jump())
        drift = -self._sum(self._each(lambda step: step.gap()))
        rates = self.counts * self.steps.rate_without
        return CompoundJumps(Atoms(sizes, safe_log(rates)), drift)

    def jumps_and_variance(self):
        jumps = self.compound_jumps().atoms
        return Jumps(jnp.zeros(()), jumps.loss, jnp.exp(jumps.log_mass))


def listed_jumps(
    sizes: Float[np.ndarray, " k"], rates: Float[np.ndarray, " k"]
) -> AtomicLoss | None:
    """The loss of jumps of known sizes and rates (under P) by a list of their counts.

    Listed are the counts of a box, outside of which one of them is farther from its
    mean than Chernoff's bound e^-deviance allows for, and of these the likely ones.
    All others count as infinite losses.  None if there are too many.
    """
    sizes, kind = np.unique(sizes[rates > 0], return_inverse=True)
    rates = np.bincount(kind, rates[rates > 0])
    laws = np.stack([rates, rates * np.exp(sizes)])
    if not sizes.size or np.any((laws < _LEAST_RATE) | (laws > _HIGHEST_RATE)):
        return None
    for depth, most in _LISTS:
        ranges = [_likely(means, depth) for means in laws.T]
        if math.prod(map(len, ranges)) > _BOX:
            continue
        counts = np.stack(np.meshgrid(*ranges, indexing="ij")).reshape(sizes.size, -1)
        log_p, log_q = np.asarray(_log_masses(*map(jnp.asarray, (counts, laws))))
        used = np.maximum(log_p, log_q) > -depth - math.log(_BOX)
        if np.sum(used) > most:
            continue
        # Parts of losses cancel; distances multiply the rounding of rates.
        drift = np.sum(rates * np.expm1(sizes))
        rounded = 2e-15 * (np.abs(sizes) @ counts[:, -1] + abs(drift))
        spans = 2e-15 * (np.sum(np.ptp(counts, 1)) + depth + math.log(_BOX))
        # A power of two of outputs, so that few programs serve; some have no mass.
        spare = (0, max(256, 1 << int(np.sum(used) - 1).bit_length()) - np.sum(used))
        log_p, log_q = (
            np.pad(x[used], spare, constant_values=-np.inf) for x in (log_p, log_q)
        )
        # Both tails of every size; inside of the box e^-depth is left out at most.
        missing = jnp.asarray(math.log(2 * sizes.size + 1) - 0.999 * depth)
        return AtomicLoss(
            jnp.asarray(log_p),
            jnp.asarray(log_q),
            missing=(missing, missing),
            loss=jnp.pad(sizes @ counts[:, used] - drift, spare),
            mass_error=jnp.asarray(sizes.size * ATOM_MASS + spans),
            loss_error=jnp.asarray(rounded),
        )
    return None


@in_float64(cast_out=False)
def _log_masses(counts: Float[Array, "k n"], laws: Float[Array, "2 k"]) -> Array:
    return jnp.sum(log_poisson(counts, laws[:, :, None]), axis=1)


def _likely(means: Float[np.ndarray, " 2"], depth: float) -> Float[np.ndarray, " n"]:
    """All counts between those whose deviance from one of two means is a depth.

    Some that are too many for a list where the means are farther apart than that.
    """
    low, high = np.min(means), np.max(means)
    first = max(math.floor(low - math.sqrt(2 * depth * low)), 0)
    last = math.ceil(high + math.sqrt(2 * depth * high) + depth) + 1
    if last - first > _BOX:
        return np.zeros(_BOX + 1)
    counts = np.arange(first, last + 1.0)
    near = np.min(scipy.special.kl_div(counts, means[:, None]), axis=0) <= depth
    place = np.flatnonzero(near)
    return counts[place[0] : place[-1] + 1]
