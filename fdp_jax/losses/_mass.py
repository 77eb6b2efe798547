"""Losses that are known by their masses alone."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._base import AbstractLoss
from ._cells import Partition, partition

_PIECES = 4096


class MassLoss(AbstractLoss):
    """A loss known by its masses alone, within finite ends."""

    def edges(self) -> Float[Array, " m+1"]:
        """Values of the loss, from end to end, between which it changes little."""
        low, high = self.loss_range()
        share = jnp.arange(_PIECES + 1, dtype=low.dtype) / _PIECES
        return low + share * (high - low)

    def partition(self) -> Partition:
        """The loss in small pieces."""
        edges = self.edges()
        return partition(edges, self.cells(edges[:-1], edges[1:]), self.atoms())

    def moments(self, order):
        return self.partition().moments(order)

    def normalized_log_moment(self, order):
        # To about 1e-9 relative; its moments are upper bounds and less accurate.
        moment = self.partition().log_moment
        slope = jax.grad(moment)
        return self._normalized(
            order, moment(order), slope(order), jax.grad(slope)(order)
        )

    def tabulated(self) -> AbstractLoss:
        return _Tabulated(self, self.partition())


class _Tabulated(AbstractLoss):
    """A loss with its pieces at hand."""

    loss: MassLoss
    table: Partition

    @property
    def symmetric(self) -> bool:
        return self.loss.symmetric

    def moments(self, order):
        return self.table.moments(order)

    def cells(self, low, high):
        return self.loss.cells(low, high)

    def atoms(self):
        return self.loss.atoms()

    def lattice(self):
        return self.loss.lattice()

    def loss_range(self):
        return self.loss.loss_range()

    def log_finite_masses(self):
        return self.loss.log_finite_masses()

    def log_infinite_masses(self):
        return self.loss.log_infinite_masses()

    def log_truncated_masses(self):
        return self.loss.log_truncated_masses()
