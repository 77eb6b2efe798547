"""Losses of discrete mechanisms: nothing but point masses."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float

from .._internal._special import log1mexp, log_sum_exp, safe_log
from ._base import AbstractLoss
from ._cells import Atoms, Cells

_LEAST = 1e-290
"""Of smaller probabilities quotients lose digits."""


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
    loss: Float[Array, " k"] | None = None
    """log_q - log_p where that is known without cancellation."""

    @classmethod
    def of_probabilities(
        cls, p: Float[Array, " k"], q: Float[Array, " k"]
    ) -> "AtomicLoss":
        """From the probabilities, which may be next to equal."""
        log_p, log_q = safe_log(p), safe_log(q)
        near = (jnp.abs(q - p) < 0.5 * p) & (p > _LEAST)
        ratio = jnp.where(near, (q - p) / jnp.where(near, p, 1.0), 0.0)
        common = (p > 0) & (q > 0)
        far = jnp.where(common, log_q, 0.0) - jnp.where(common, log_p, 0.0)
        return cls(log_p, log_q, loss=jnp.where(near, jnp.log1p(ratio), far))

    def _common(self) -> Bool[Array, " k"]:
        return jnp.isfinite(self.log_p) & jnp.isfinite(self.log_q)

    def _losses(self) -> Float[Array, " k"]:
        """Of the outputs that both have; 0 for the others."""
        common = self._common()
        log_p, log_q = (jnp.where(common, x, 0) for x in (self.log_p, self.log_q))
        loss = log_q - log_p if self.loss is None else self.loss
        return jnp.where(common, loss, 0)

    def _rounding(self) -> Float[Array, " k"]:
        """Bound on the rounding of the losses, without derivative."""
        size = jnp.abs(self._losses())
        if self.loss is None:
            size = size + jnp.abs(self.log_p) + jnp.abs(self.log_q)
        return stop_gradient(jnp.finfo(size.dtype).eps * size)

    def moments(self, order):
        common, loss = self._common(), self._losses()
        log_p = jnp.where(common, self.log_p, 0)
        logs = jnp.where(common, log_p + order[:, None] * loss, -jnp.inf)
        value = logsumexp(logs, axis=1)
        weight = jnp.exp(logs - value[:, None])
        mean = weight @ loss
        square = jnp.sum(weight * jnp.square(loss - mean[:, None]), axis=1)
        # Every logarithm is rounded, and so is their sum.
        sizes = 2 * jnp.abs(log_p) + 2 * jnp.abs(order[:, None] * loss)
        unit = 2 * jnp.finfo(value.dtype).eps
        rounding = unit * (4 + jnp.sum(weight * sizes, axis=1) + jnp.abs(value))
        return value + stop_gradient(rounding), mean, square

    def cells(self, low, high):
        inside = jnp.clip(jnp.zeros_like(low), low, high)
        return Cells(jnp.full_like(low, -jnp.inf), inside, jnp.zeros_like(low))

    def atoms(self):
        return Atoms(self._losses(), jnp.where(self._common(), self.log_p, -jnp.inf))

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
        loss = self.loss
        if loss is not None:
            loss = lax.dynamic_slice(loss, (first,), (count,))
        few = dataclasses.replace(self, log_p=log_p, log_q=log_q, loss=loss)
        return few, last < first + count

    def exchanged(self) -> "AtomicLoss":
        """The loss of the exchanged pair."""
        missing = None if self.missing is None else self.missing[::-1]
        loss = None if self.loss is None else -self.loss
        return dataclasses.replace(
            self, log_p=self.log_q, log_q=self.log_p, missing=missing, loss=loss
        )

    def loss_range(self):
        common, loss = self._common(), self.atoms().loss
        rounding = jnp.where(common, self._rounding(), 0)
        least = jnp.min(jnp.where(common, loss - rounding, jnp.inf))
        most = jnp.max(jnp.where(common, loss + rounding, -jnp.inf))
        # With nothing in common every loss is infinite.
        none = ~jnp.any(common)
        return jnp.where(none, 0, least), jnp.where(none, 0, most)

    def log_finite_masses(self):
        common = self._common()
        exact = self.missing is None and self.lost == 0

        def rest(infinite: Array, logs: Array) -> Array:
            # A sum of its own where little is left: 1 - e^x is rounding then.
            little = (infinite > -0.5) & exact
            left = log1mexp(-jnp.minimum(jnp.where(little, -1.0, infinite), 0))
            return jnp.where(little, jnp.minimum(log_sum_exp(logs, common), 0), left)

        pairs = zip(self.log_infinite_masses(), (self.log_q, self.log_p), strict=True)
        upper, lower = (rest(*pair) for pair in pairs)
        return upper, lower

    def log_infinite_masses(self):
        gone = ~self._common()
        found = [log_sum_exp(x, gone) for x in (self.log_q, self.log_p)]
        if self.missing is not None:
            found = map(jnp.logaddexp, found, self.missing)
        upper, lower = found
        return upper, lower

    def log_unsure_masses(self):
        return super().log_unsure_masses() if self.missing is None else self.missing
