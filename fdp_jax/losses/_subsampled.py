"""Poisson subsampling of any dominating pair."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._arithmetic import ULP
from .._internal._special import log1p
from ._amplification import SubsampledForm, inner_loss, log_ratio
from ._base import AbstractLoss, outward
from ._cells import Atoms, Cells
from ._mass import MassLoss


class SubsampledLoss(MassLoss):
    """P as it is, Q' = (1 - q) P + q Q: the loss is log(1 - q + q e^X).

    Zhu, Dong, Wang (2022), Theorem 11, for adding or removing one record: with
    beta = (alpha - 1 + q) / q, H_alpha(Q' || P) = q H_beta(Q || P).
    """

    loss: AbstractLoss
    sampling_prob: Float[Array, ""]

    symmetric: ClassVar[bool] = False

    def cells(self, low, high):
        inner_low, inner_high = self._inner(low), self._inner(high)
        cells = self.loss.cells(inner_low, inner_high)
        width = inner_high - inner_low
        size = jnp.minimum(jnp.abs(inner_low), jnp.abs(inner_high))
        moved = stop_gradient(
            jnp.where(
                width > 0, 8 * ULP * (1 + size) / jnp.where(width > 0, width, 1), 0
            )
        )
        return Cells(cells.log_mass, self._outer(cells.loss), cells.error + moved)

    def _without(self) -> tuple[Array, Array]:
        """Whether every record takes part, and log(1 - q) where not."""
        return self.sampling_prob >= 1, log1p(
            -jnp.where(self.sampling_prob >= 1, 0.5, self.sampling_prob)
        )

    def atoms(self):
        atoms = self.loss.atoms()
        _, lost = self.loss.log_infinite_masses()
        # What only P could release, Q' can now.
        whole, least = self._without()
        lost = jnp.where(whole, -jnp.inf, lost)
        return Atoms(
            jnp.append(self._outer(atoms.loss), least),
            jnp.append(atoms.log_mass, lost),
            atoms.error,
        )

    def edges(self):
        if isinstance(self.loss, MassLoss):
            return self._outer(self.loss.edges())
        return super().edges()

    def loss_range(self):
        least, most = map(self._outer, self.loss.loss_range())
        _, lost = self.loss.log_infinite_masses()
        whole, bottom = self._without()
        least = jnp.where(jnp.isneginf(lost) | whole, least, bottom)
        return outward(least, most, units=8)

    def log_finite_masses(self):
        upper, lower = self.loss.log_finite_masses()
        whole = self.sampling_prob >= 1
        part = jnp.where(whole, 0.5, self.sampling_prob)
        some = jnp.where(whole, upper, log1p(part * jnp.expm1(upper)))
        return some, jnp.where(whole, lower, 0.0)

    def log_infinite_masses(self):
        upper, lower = self.loss.log_infinite_masses()
        whole = self.sampling_prob >= 1
        return upper + jnp.log(self.sampling_prob), jnp.where(whole, lower, -jnp.inf)

    def log_truncated_masses(self):
        # Of P all of them, in `atoms` or not.
        upper, lower = self.loss.log_truncated_masses()
        return upper + jnp.log(self.sampling_prob), lower

    @property
    def in_closed_form(self):
        return "nothing" if self.loss.in_closed_form == "nothing" else "one release"

    @classmethod
    def closed_form(cls, terms, counts, sign):
        (term,) = terms
        base = term.loss.closed_form((term.loss,), counts, sign)
        return SubsampledForm(base, term.sampling_prob, sign)

    def _outer(self, loss: Array) -> Array:
        return log_ratio(loss, self.sampling_prob)

    def _inner(self, loss: Array) -> Array:
        """The loss of the pair itself, -inf where there is none.

        Also within rounding of log(1 - q): all that lies below has that loss.
        """
        found = inner_loss(loss, self.sampling_prob)
        rounding = np.log(8 * ULP)
        return jnp.where(found > rounding, found, -jnp.inf)
