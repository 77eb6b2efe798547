"""Group privacy by composing the trade-off function with itself."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._internal._special import safe_log
from ..losses import AbstractLoss, AtomicLoss, ComposedLoss, TwoPointLoss
from ._base import AbstractMechanism
from ._discrete import one_release
from ._relations import NeighboringRelation

_Power = tuple[Float[Array, " k"], Float[Array, " k"]]
"""Knots of a power function 1 - f: false positive rates and true positive rates."""


class Group(AbstractMechanism):
    """A mechanism with finitely many losses against a group of records.

    The power of the best test is composed: g = 1 - f becomes g o ... o g.  Both are
    concave and piecewise linear.
    """

    mechanism: AbstractMechanism
    size: int = eqx.field(static=True)

    @property
    def relation(self) -> NeighboringRelation:
        return self.mechanism.relation

    def require_complete(self) -> None:
        self.mechanism.require_complete()

    def loss(self) -> ComposedLoss:
        found = self.mechanism.loss()
        if not self.mechanism.releases_once() or len(found.terms) != 1:
            raise ValueError("group privacy is not available for this composition")
        power = _power(found.terms[0])
        total = power
        for _ in range(self.size - 1):
            total = _after(power, total)
        x, y = total
        p, q = jnp.diff(x), jnp.diff(y)
        # Differences of numbers near 1: where Q has little beside P, only so much is
        # sure.  Only the exchanged pair has these in its delta; less makes that larger.
        unsure = 4 * self.size * jnp.finfo(y.dtype).eps
        q = jnp.where(q < p, jnp.maximum(q - unsure, 0.0), q)
        # The first knot is (0, delta(inf)): a release of the group's presence.
        p, q = jnp.append(p, 0.0), jnp.append(q, y[0])
        logs = safe_log(jnp.maximum(p, 0)), safe_log(jnp.maximum(q, 0))
        return one_release(AtomicLoss(*logs, symmetric=found.symmetric))


def _power(term: AbstractLoss) -> _Power:
    """Knots of the power function of a loss with point masses alone."""
    if not isinstance(term, (AtomicLoss, TwoPointLoss)):
        raise ValueError(f"group privacy is not available for a {type(term).__name__}")
    atoms = term.atoms()
    upper, _ = term.log_infinite_masses()
    order = jnp.argsort(-jnp.where(jnp.isneginf(atoms.log_mass), -jnp.inf, atoms.loss))
    p = jnp.exp(atoms.log_mass[order])
    q = jnp.exp((atoms.log_mass + atoms.loss)[order])
    start = jnp.exp(upper)
    x = jnp.concatenate([jnp.zeros(1, p.dtype), jnp.cumsum(p), jnp.ones(1, p.dtype)])
    y = start + jnp.append(0.0, jnp.cumsum(q))
    return jnp.minimum(x, 1), jnp.append(jnp.minimum(y, 1), 1.0)


def _after(outer: _Power, inner: _Power) -> _Power:
    """outer(inner(x)): its knots are those of the inner one and the preimages."""
    x, y = inner
    preimages = jnp.interp(outer[0], y, x)
    knots = jnp.sort(jnp.concatenate([x, preimages]))
    return knots, jnp.interp(jnp.interp(knots, x, y), *outer)
