"""Group privacy by composing the trade-off function with itself."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

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
        term = found.terms[0]
        other = term.exchanged() if isinstance(term, AtomicLoss) else term
        # Either power function is accurate where its own losses are positive.
        x, y = self._composed(_power(term))
        v, w = self._composed(_power(other))
        best = jnp.argmax(y - x)
        p, q = _masses(x, y, jnp.arange(x.size - 1) < best, self.size)
        middle = lambda knots: 0.5 * (knots[1:] + knots[:-1])
        # The same point of the curve; either coordinate may be all rounding.
        rest = (middle(v) < 1 - y[best]) & (middle(w) < 1 - x[best])
        q_rest, p_rest = _masses(v, w, rest, self.size)
        p, q = jnp.concatenate([p, p_rest]), jnp.concatenate([q, q_rest])
        logs = safe_log(p), safe_log(q)
        return one_release(AtomicLoss(*logs, symmetric=found.symmetric))

    def _composed(self, power: _Power) -> _Power:
        total = power
        for _ in range(self.size - 1):
            total = _after(power, total)
        return total


def _masses(x: Array, y: Array, kept: Bool[Array, " k"], size: int) -> _Power:
    """Masses of some segments, and of the first knot (0, delta(inf)).

    The second ones are rounded up by what a difference of two knots may be off.
    """
    unsure = 4 * size * jnp.finfo(y.dtype).eps * y[1:]
    p = jnp.where(kept, jnp.maximum(jnp.diff(x), 0), 0)
    q = jnp.where(kept, jnp.maximum(jnp.diff(y), 0), 0)
    # Of two knots that are one but for rounding nothing is left.
    q = jnp.where(p > 0, q + unsure, jnp.where(q > unsure, q, 0))
    return jnp.append(p, 0.0), jnp.append(q, y[0])


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
