"""Losses of discrete mechanisms: nothing but point masses."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float

from .._internal._special import log1mexp, log_sum_exp
from ._base import AbstractLoss
from ._cells import Atoms, Cells


class AtomicLoss(AbstractLoss):
    """The loss of two probability vectors over the same outputs.

    Probabilities may be zero: their logarithm is then -inf.
    """

    log_p: Float[Array, " k"]
    log_q: Float[Array, " k"]
    unit: Float[Array, ""] | None = None
    """A number of which every finite loss is a multiple, if there is one."""
    missing: tuple[Float[Array, ""], Float[Array, ""]] | None = None
    """Logarithms of bounds on the masses under Q and P of outputs left out; those
    count as infinite losses."""
    lost: float = eqx.field(static=True, default=0.0)
    """Bound on the mass of outputs without any loss that rounding may have lost: by
    so much 1 - delta may be larger."""
    symmetric: bool = eqx.field(static=True, default=False)

    def _common(self) -> Bool[Array, " k"]:
        return jnp.isfinite(self.log_p) & jnp.isfinite(self.log_q)

    def moments(self, order):
        common = self._common()
        log_p, log_q = (jnp.where(common, x, 0) for x in (self.log_p, self.log_q))
        loss = log_q - log_p
        logs = jnp.where(common, log_p + order[:, None] * loss, -jnp.inf)
        value = logsumexp(logs, axis=1)
        weight = jnp.exp(logs - value[:, None])
        mean = weight @ loss
        square = jnp.sum(weight * jnp.square(loss - mean[:, None]), axis=1)
        return value, mean, square

    def cells(self, low, high):
        inside = jnp.clip(jnp.zeros_like(low), low, high)
        return Cells(jnp.full_like(low, -jnp.inf), inside, jnp.zeros_like(low))

    def atoms(self):
        common = self._common()
        log_p, log_q = (jnp.where(common, x, 0) for x in (self.log_p, self.log_q))
        return Atoms(log_q - log_p, jnp.where(common, log_p, -jnp.inf))

    def lattice(self):
        return self.unit

    def trimmed(self, count: int) -> tuple["AtomicLoss", Bool[Array, ""]]:
        """At most `count` outputs, and whether all the others have no finite loss."""
        common = self._common()
        place = jnp.arange(common.size)
        first = jnp.min(jnp.where(common, place, common.size - count))
        first = jnp.minimum(first, common.size - count)
        last = jnp.max(jnp.where(common, place, 0))
        log_p, log_q = (
            lax.dynamic_slice(x, (first,), (count,)) for x in (self.log_p, self.log_q)
        )
        few = dataclasses.replace(self, log_p=log_p, log_q=log_q)
        return few, last < first + count

    def exchanged(self) -> "AtomicLoss":
        """The loss of the exchanged pair."""
        missing = None if self.missing is None else self.missing[::-1]
        return dataclasses.replace(
            self, log_p=self.log_q, log_q=self.log_p, missing=missing
        )

    def loss_range(self):
        common, loss = self._common(), self.atoms().loss
        least = jnp.min(jnp.where(common, loss, jnp.inf))
        most = jnp.max(jnp.where(common, loss, -jnp.inf))
        # With nothing in common every loss is infinite.
        none = ~jnp.any(common)
        return jnp.where(none, 0, least), jnp.where(none, 0, most)

    def log_finite_masses(self):
        upper, lower = self.log_infinite_masses()
        return log1mexp(-jnp.minimum(upper, 0)), log1mexp(-jnp.minimum(lower, 0))

    def log_infinite_masses(self):
        gone = ~self._common()
        found = [log_sum_exp(x, gone) for x in (self.log_q, self.log_p)]
        if self.missing is not None:
            found = map(jnp.logaddexp, found, self.missing)
        upper, lower = found
        return upper, lower

    def log_unsure_masses(self):
        return super().log_unsure_masses() if self.missing is None else self.missing
