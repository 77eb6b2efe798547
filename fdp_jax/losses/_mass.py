"""Losses that are known by their masses alone."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._base import AbstractLoss
from ._cells import Partition, partition

_PIECES = 4096


class MassLoss(AbstractLoss):
    """A loss known by its masses alone, within finite ends."""

    table: Partition | None = eqx.field(default=None, kw_only=True)
    """The `partition`, where it is at hand."""

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
        table = self.partition() if self.table is None else self.table
        return table.moments(order)

    def normalized_log_moment(self, order):
        # To about 1e-9 relative; its moments are upper bounds and less accurate.
        moment = self.partition().log_moment
        slope = jax.grad(moment)
        # What the table's masses lack counts next to orders at which Lambda is zero.
        return self._normalized(
            order,
            moment(order),
            slope(order),
            jax.grad(slope)(order),
            masses=(moment(jnp.ones_like(order)), moment(jnp.zeros_like(order))),
        )

    def tabulated(self):
        return dataclasses.replace(self, table=self.partition())
