"""Losses that increase with a real output: from output to loss and back."""

import abc

import jax
import jax.numpy as jnp
from jax.lax import fori_loop, stop_gradient
from jaxtyping import Array, Float

from ._cells import Cells, partition
from ._mass import MassLoss

_NEWTON_STEPS = 5


class MonotoneLoss(MassLoss):
    """A loss that is a nondecreasing function of one real output.

    The output is cut to a finite interval; what lies outside it counts as an infinite
    loss (`log_infinite_masses`).
    """

    @abc.abstractmethod
    def outputs(self) -> Float[Array, " m"]:
        """Increasing outputs from end to end, between which the loss changes little."""

    @abc.abstractmethod
    def loss_at(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """The loss of an output."""

    @abc.abstractmethod
    def masses(self, low: Float[Array, " n"], high: Float[Array, " n"]) -> Cells:
        """Masses of intervals of outputs; `Cells.loss` is inside the interval."""

    def edges(self):
        return self.loss_at(self.outputs())

    def partition(self):
        nodes = self.outputs()
        cells = self.masses(nodes[:-1], nodes[1:])
        return partition(self.edges(), cells, self.atoms())

    def loss_range(self):
        ends = self.loss_at(self.outputs()[jnp.asarray([0, -1])])
        return ends[0], ends[1]

    def cells(self, low, high):
        ends = self.output_of(jnp.stack([low, high]))
        return self.masses(ends[0], ends[1])

    def output_of(self, loss: Float[Array, "..."]) -> Float[Array, "..."]:
        """The least output with at least that loss, cut to the interval."""
        nodes, table = stop_gradient((self.outputs(), self.edges()))
        target = jnp.clip(loss, table[0], table[-1])
        cell = jnp.searchsorted(table, target, side="left") - 1
        cell = jnp.clip(cell, 0, nodes.size - 2)
        left, right = nodes[cell], nodes[cell + 1]
        rise = table[cell + 1] - table[cell]
        share = (target - table[cell]) / jnp.where(rise > 0, rise, 1)
        x = left + jnp.where(rise > 0, share, 0) * (right - left)
        inside = (loss > table[0]) & (loss < table[-1])

        def step(one: MonotoneLoss, x: Array) -> Array:
            value, slope = jax.jvp(one.loss_at, (x,), (jnp.ones_like(x),))
            usable = inside & (slope > 0)
            change = (value - loss) / jnp.where(usable, slope, 1)
            return x - jnp.where(usable, change, 0)

        # A loop, to compile it once.
        constant = stop_gradient(self)
        clipped = lambda _, x: jnp.clip(step(constant, x), left, right)
        x = stop_gradient(fori_loop(0, _NEWTON_STEPS, clipped, x))
        # Two more steps, not clipped: they carry first and second derivatives.
        x = step(self, step(self, x))
        ends = self.outputs()
        x = jnp.where(loss <= table[0], ends[0], x)
        return jnp.where(loss >= table[-1], ends[-1], x)
