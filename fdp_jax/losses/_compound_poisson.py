"""The loss of jumps of several sizes, each as many as a Poisson variable."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._internal._special import safe_log
from ._base import CompoundJumps, Jumps
from ._cells import Atoms
from ._poisson import PoissonLoss
from ._schedule import ScheduleLoss


class CompoundPoissonLoss(ScheduleLoss):
    """Independent Poisson losses: X = sum_j N_j x_j + drift.

    `counts[j]`, any real number, times the j-th of the stack.
    """

    steps: PoissonLoss
    fractional: ClassVar[bool] = True

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

    def lattice(self):
        return None

    def jumps_and_variance(self):
        jumps = self.compound_jumps().atoms
        zero = jnp.zeros_like(self.loss_range()[0])
        return Jumps(zero, jumps.loss, jnp.exp(jumps.log_mass))
