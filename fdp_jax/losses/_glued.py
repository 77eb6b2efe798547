"""Dominating pairs whose two halves are known from different pairs.

Where the worst data sets are others for positive losses than for negative ones, the
profile is that of one pair for alpha >= 1 and of another one for alpha < 1.  A profile
H_alpha that is convex in alpha, 1 at alpha = 0 and at least 1 - alpha has a pair (Zhu,
Dong, Wang 2022, Proposition 9): its losses above zero are the first pair's, those below
zero the second one's, and what is left has none.
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._internal._special import log_sum_exp, safe_log
from ._base import AbstractLoss
from ._cells import Atoms, together
from ._mass import MassLoss

_LEAST = 4.0
"""Units in the last place of 1 that the mass without any loss may be off by."""

_NEAR = 1e-9
"""Of a loss's range: what is closer to zero is no end of a piece."""


class ExchangedLoss(MassLoss):
    """The loss of the exchanged pair."""

    loss: MassLoss

    @property
    def symmetric(self) -> bool:
        return self.loss.symmetric

    def cells(self, low, high):
        return self.loss.cells(-high, -low).exchanged()

    def atoms(self):
        return self.loss.atoms().exchanged()

    def lattice(self):
        return self.loss.lattice()

    def edges(self):
        return -self.loss.edges()[::-1]

    def loss_range(self):
        low, high = self.loss.loss_range()
        return -high, -low

    def log_finite_masses(self):
        return _swapped(self.loss.log_finite_masses())

    def log_infinite_masses(self):
        return _swapped(self.loss.log_infinite_masses())

    def log_truncated_masses(self):
        return _swapped(self.loss.log_truncated_masses())


def _swapped(sides: tuple[Array, Array]) -> tuple[Array, Array]:
    upper, lower = sides
    return lower, upper


class GluedLoss(MassLoss):
    """Losses above zero as `above` has them, those below zero as `below` has them.

    Both must have the same total variation.
    """

    above: MassLoss
    below: MassLoss
    symmetric: bool = eqx.field(static=True, default=False)

    fractional: ClassVar[bool] = False

    def cells(self, low, high):
        zero = jnp.zeros_like(low)
        upper = self.above.cells(jnp.maximum(low, zero), jnp.maximum(high, zero))
        lower = self.below.cells(jnp.minimum(low, zero), jnp.minimum(high, zero))
        return together(upper, lower)

    def atoms(self):
        upper, lower = self.above.atoms(), self.below.atoms()
        kept = lambda atoms, some: Atoms(
            atoms.loss, jnp.where(some, atoms.log_mass, -jnp.inf), atoms.error
        )
        rest = Atoms(jnp.zeros(1, self._dtype), self._log_rest()[None])
        return Atoms.joined(
            kept(upper, upper.loss > 0), kept(lower, lower.loss < 0), rest
        )

    def edges(self):
        upper, lower = self.above.edges(), self.below.edges()
        ends = jnp.concatenate([jnp.minimum(lower, 0), jnp.maximum(upper, 0)])
        # Of a piece that is no wider than rounding the masses are not known.
        near = _NEAR * (ends[-1] - ends[0])
        return jnp.where(jnp.abs(ends) < near, 0, ends)

    def loss_range(self):
        return (
            jnp.minimum(self.below.loss_range()[0], 0),
            jnp.maximum(self.above.loss_range()[1], 0),
        )

    def log_infinite_masses(self):
        above, below = self.above, self.below
        return above.log_infinite_masses()[0], below.log_infinite_masses()[1]

    def log_finite_masses(self):
        above, below = self.above, self.below
        return above.log_finite_masses()[0], below.log_finite_masses()[1]

    def log_truncated_masses(self):
        above, below = self.above, self.below
        return above.log_truncated_masses()[0], below.log_truncated_masses()[1]

    @property
    def _dtype(self):
        return self.loss_range()[0].dtype

    def _log_rest(self) -> Array:
        """Log of the mass that has no loss, not too small."""
        ends = jnp.zeros(1, self._dtype), jnp.full(1, jnp.inf, self._dtype)
        cells = self.above.cells(*ends), self.below.cells(-ends[1], -ends[0])
        upper, lower = self.above.atoms(), self.below.atoms()
        # All of them under P, of which the infinite ones are below.
        masses = jnp.concatenate([cells[0].log_mass, cells[1].log_mass])
        atoms = jnp.concatenate(
            [
                jnp.where(upper.loss > 0, upper.log_mass, -jnp.inf),
                jnp.where(lower.loss < 0, lower.log_mass, -jnp.inf),
                self.below.log_infinite_masses()[1][None],
            ]
        )
        logs = jnp.concatenate([masses, atoms])
        some = jnp.exp(log_sum_exp(logs, jnp.isfinite(logs)))
        unit = _LEAST * float(jnp.finfo(some.dtype).eps)
        return safe_log(jnp.maximum(1 - some, 0) + unit)


def symmetrized(loss: AbstractLoss) -> GluedLoss:
    """The pair with both directions' larger profile, of a loss known by its masses."""
    assert isinstance(loss, MassLoss)
    return GluedLoss(loss, ExchangedLoss(loss), symmetric=True)
