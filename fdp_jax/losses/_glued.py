"""Dominating pairs whose two halves are known from different pairs.

Where the worst data sets are others for positive losses than for negative ones, the
profile is that of one pair for alpha >= 1 and of another one for alpha < 1.  A profile
H_alpha that is convex in alpha, 1 at alpha = 0 and at least 1 - alpha has a pair (Zhu,
Dong, Wang 2022, Proposition 9): its losses above zero are the first pair's, those below
zero those above zero of the second one, exchanged, and what is left has none.
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._internal._special import log_sum_exp, safe_log
from ._base import AbstractLoss
from ._cells import Atoms, together
from ._gaussian_mixture import GaussianMixtureLoss
from ._mass import MassLoss
from ._normal_form import NormalForm

_LEAST = 4.0
"""Units in the last place of 1 that the mass without any loss may be off by."""

_NEAR = 1e-9
"""Of a loss's range: what is closer to zero is no end of a piece."""


class GluedLoss(MassLoss):
    """Losses above zero as `above` has them; below zero as `other` has, exchanged.

    Both must have the same total variation.
    """

    above: MassLoss
    other: MassLoss
    """Its losses above zero are those of the exchanged pair."""
    symmetric: bool = eqx.field(static=True, default=False)

    fractional: ClassVar[bool] = False

    def cells(self, low, high):
        upper = self.above.cells(jnp.maximum(low, 0), jnp.maximum(high, 0))
        lower = self.other.cells(jnp.maximum(-high, 0), jnp.maximum(-low, 0))
        return together(upper, lower.exchanged())

    def atoms(self):
        upper, lower = (
            Atoms(x.loss, jnp.where(x.loss > 0, x.log_mass, -jnp.inf), x.error)
            for x in (self.above.atoms(), self.other.atoms())
        )
        rest = Atoms(jnp.zeros(1), self._log_rest()[None])
        return Atoms.joined(upper, lower.exchanged(), rest)

    def edges(self):
        upper, lower = (
            jnp.maximum(loss.edges(), 0) for loss in (self.above, self.other)
        )
        ends = jnp.concatenate([-lower[::-1], upper])
        # Of a piece that is no wider than rounding the masses are not known.
        near = _NEAR * (ends[-1] - ends[0])
        return jnp.where(jnp.abs(ends) < near, 0, ends)

    def loss_range(self):
        upper, lower = (
            jnp.maximum(loss.loss_range()[1], 0) for loss in (self.above, self.other)
        )
        return -lower, upper

    def log_infinite_masses(self):
        return self.above.log_infinite_masses()[0], self.other.log_infinite_masses()[0]

    def log_finite_masses(self):
        return self.above.log_finite_masses()[0], self.other.log_finite_masses()[0]

    def log_truncated_masses(self):
        return self.above.log_truncated_masses()[0], self.other.log_truncated_masses()[
            0
        ]

    @property
    def in_closed_form(self):
        both = self.above, self.other
        known = all(isinstance(loss, GaussianMixtureLoss) for loss in both)
        return "one release" if known else "nothing"

    @classmethod
    def closed_form(cls, terms, counts, sign):
        (term,) = terms
        return NormalForm.of(term.above.normal_pair(), term.other.normal_pair(), sign)

    def _log_rest(self) -> Array:
        """Log of the mass that has no loss, not too small."""
        ends = jnp.zeros(1), jnp.full(1, jnp.inf)
        upper, lower = self.above.atoms(), self.other.atoms().exchanged()
        # All of them under P, of which the infinite ones are below.
        logs = [
            self.above.cells(*ends).log_mass,
            self.other.cells(*ends).exchanged().log_mass,
            jnp.where(upper.loss > 0, upper.log_mass, -jnp.inf),
            jnp.where(lower.loss < 0, lower.log_mass, -jnp.inf),
            self.other.log_infinite_masses()[0][None],
        ]
        logs = jnp.concatenate(logs)
        some = jnp.exp(log_sum_exp(logs, jnp.isfinite(logs)))
        unit = _LEAST * float(jnp.finfo(some.dtype).eps)
        return safe_log(jnp.maximum(1 - some, 0) + unit)


def symmetrized(loss: AbstractLoss) -> GluedLoss:
    """The pair with both directions' larger profile, of a loss known by its masses."""
    assert isinstance(loss, MassLoss)
    return GluedLoss(loss, loss, symmetric=True)
