"""Composition: independent losses add, so log-moment functions add."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._base import AbstractLoss


class ComposedLoss(eqx.Module):
    """The loss of independent releases: `counts[i]` times `terms[i]`.

    Counts may be real numbers where the losses allow it.
    """

    terms: tuple[AbstractLoss, ...]
    counts: tuple[Float[Array, ""], ...]
    single: bool = eqx.field(static=True, default=False)
    """Known to be at most one release, whatever the parameters."""
    method: str = eqx.field(static=True, default="auto")
    """Which engine has to answer: one of `engines.METHODS`."""

    @property
    def symmetric(self) -> bool:
        """Whether both directions have the same trade-off function."""
        return all(term.symmetric for term in self.terms)

    @property
    def decays(self) -> bool:
        """Whether the characteristic function tends to zero."""
        return any(term.decays for term in self.terms)

    def loss_range(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Essential infimum and supremum of the finite part of X."""
        low, high = jnp.zeros_like(self.counts[0]), jnp.zeros_like(self.counts[0])
        for term, count in zip(self.terms, self.counts, strict=True):
            least, most = term.loss_range()
            low = low + _times(count, least)
            high = high + _times(count, most)
        return low, high

    def log_finite_mass(self) -> Float[Array, ""]:
        """Log of the probability, under Q, that no loss is infinite."""
        total = jnp.zeros_like(self.counts[0])
        for term, count in zip(self.terms, self.counts, strict=True):
            total = total + _times(count, term.log_finite_mass())
        return total


def _times(count: Array, value: Array) -> Array:
    """Count value, with 0 inf = 0 and no NaN in the derivative."""
    finite = jnp.isfinite(value)
    product = count * jnp.where(finite, value, 0)
    return jnp.where(finite | (count == 0), product, value)
