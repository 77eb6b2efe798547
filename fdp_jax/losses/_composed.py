"""Composition: independent losses add, so log-moment functions add."""

import dataclasses
import functools
from collections.abc import Callable
from typing import cast

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._internal._special import log1mexp, safe_log
from ._base import AbstractLoss, AnalyticLoss

_NEVER = -1e5
"""A logarithm of nothing that is safe to calculate with."""


@dataclasses.dataclass(frozen=True)
class Method:
    """Which engine has to answer, and on how many points if it is the grid."""

    name: str = "auto"
    """One of `engines.METHODS`."""
    points: int = 1 << 17


AUTO = Method()


class ComposedLoss(eqx.Module):
    """The loss of independent releases: `counts[i]` times `terms[i]`.

    Counts may be real numbers where the losses allow it.
    """

    terms: tuple[AbstractLoss, ...]
    counts: tuple[Float[Array, ""], ...]
    single: bool = eqx.field(static=True, default=False)
    """Known to be at most one release, whatever the parameters."""
    method: Method = eqx.field(static=True, default=AUTO)

    @property
    def symmetric(self) -> bool:
        """Whether both directions have the same trade-off function."""
        return all(term.symmetric for term in self.terms)

    @property
    def analytic(self) -> bool:
        """Whether the spectral engine can handle it."""
        return all(isinstance(term, AnalyticLoss) for term in self.terms)

    @property
    def analytic_terms(self) -> tuple[AnalyticLoss, ...]:
        """The terms, for the spectral engine."""
        return cast(tuple[AnalyticLoss, ...], self.terms)

    @property
    def on_grid(self) -> bool:
        """Whether the grid engine can handle it."""
        return all(term.on_grid for term in self.terms)

    @property
    def decays(self) -> bool:
        """Whether the characteristic function is known and tends to zero."""
        return self.analytic and any(
            isinstance(term, AnalyticLoss) and term.decays for term in self.terms
        )

    def tabulated(self) -> "ComposedLoss":
        """The same, prepared for many evaluations of moments."""
        terms = tuple(term.tabulated() for term in self.terms)
        return dataclasses.replace(self, terms=terms)

    def absorbed(self) -> "ComposedLoss":
        """The same with one release of every loss whose powers are of its own kind."""
        terms, counts = [], []
        for term, count in zip(self.terms, self.counts, strict=True):
            some = count > 0
            power = term.powered(jnp.where(some, count, 1.0))
            if power is not None:
                term, count = power, jnp.where(some, 1.0, 0.0)
            terms.append(term)
            counts.append(count)
        return dataclasses.replace(self, terms=tuple(terms), counts=tuple(counts))

    def loss_range(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Essential infimum and supremum of the finite part of X."""
        low, high = jnp.zeros_like(self.counts[0]), jnp.zeros_like(self.counts[0])
        for term, count in zip(self.terms, self.counts, strict=True):
            least, most = term.loss_range()
            low = low + _times(count, least)
            high = high + _times(count, most)
        return low, high

    def log_finite_mass(self, sign: Float[Array, ""]) -> Float[Array, ""]:
        """Log of the probability that no loss is infinite, or of a lower bound of it.

        Under Q for the pair as given (`sign` 1), under P for it exchanged (-1).  Losses
        that were cut off count as infinite there.
        """
        total = jnp.zeros_like(self.counts[0])
        for term, count in zip(self.terms, self.counts, strict=True):
            finite = _of(term.log_finite_masses(), sign)
            infinite = jnp.minimum(_of(term.log_infinite_masses(), sign), 0)
            total = total + _times(count, jnp.minimum(finite, log1mexp(-infinite)))
        return total

    def log_supported_mass(self, sign: Float[Array, ""]) -> Float[Array, ""]:
        """The same of true infinite losses alone: outputs that only one side has."""
        total = jnp.zeros_like(self.counts[0])
        for term, count in zip(self.terms, self.counts, strict=True):
            total = total + _times(count, _of(term.log_finite_masses(), sign))
        return total

    def log_infinite_mass(self, sign: Float[Array, ""]) -> Float[Array, ""]:
        """Log of the probability that some loss is infinite, also where it is tiny."""
        finite = self.log_finite_mass(sign)
        tiny = finite > -1e-12
        union = self._log_union(lambda term: _of(term.log_infinite_masses(), sign))
        return jnp.where(tiny, union, log1mexp(-jnp.where(tiny, -1, finite)))

    def log_unsure_mass(self, sign: Float[Array, ""]) -> Float[Array, ""]:
        """Log of a bound on the probability of outputs that were left out."""
        union = self._log_union(lambda term: _of(term.log_unsure_masses(), sign))
        return jnp.minimum(union, 0)

    def _log_union(self, mass: Callable[[AbstractLoss], Array]) -> Array:
        """The union bound: log of the sum of count times mass."""
        logs = [
            jnp.maximum(mass(term) + safe_log(count), _NEVER)
            for term, count in zip(self.terms, self.counts, strict=True)
        ]
        union = functools.reduce(jnp.logaddexp, logs)
        return jnp.where(union < 0.5 * _NEVER, -jnp.inf, union)


def _of(sides: tuple[Array, Array], sign: Array) -> Array:
    return jnp.where(sign > 0, *sides)


def _times(count: Array, value: Array) -> Array:
    """Count value, with 0 inf = 0 and no NaN in the derivative."""
    finite = jnp.isfinite(value)
    product = count * jnp.where(finite, value, 0)
    return jnp.where(finite | (count == 0), product, value)
