"""The loss of jumps of several sizes, each as many as a Poisson variable."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._internal._special import safe_log
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

    def jumps(self) -> Atoms:
        """The sizes of jumps, with the logarithms of their rates under P for masses."""
        sizes = self._each(lambda step: step.jump())
        return Atoms(sizes, safe_log(self.counts * self.steps.rate_without))

    def drift(self) -> Float[Array, ""]:
        """X where nothing jumps: what makes E_P e^X = 1."""
        return -self._sum(self._each(lambda step: step.gap()))

    def farthest_jump(self) -> Float[Array, ""]:
        """The largest size of a jump."""
        jumps = self.jumps()
        happens = ~jnp.isneginf(jumps.log_mass)
        return jnp.max(jnp.where(happens, jnp.abs(jumps.loss), 0))

    def lattice(self):
        return None
