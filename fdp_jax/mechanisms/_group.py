"""Group privacy by composing the trade-off function with itself."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from .._internal import _checks
from .._internal._special import safe_log
from .._internal._tolerances import ATOM_MASS
from ..losses import AtomicLoss, ComposedLoss
from ._base import AbstractMechanism, AbstractWrapped, one_release
from ._fields import OPTION

_Power = tuple[Float[Array, " k"], Float[Array, " k"]]
"""Knots of a power function 1 - f: false positive rates and true positive rates."""


class Group(AbstractWrapped):
    """A mechanism with finitely many losses against a group of records.

    The power of the best test is composed: g = 1 - f becomes g o ... o g.  Both are
    concave and piecewise linear.
    """

    mechanism: AbstractMechanism
    size: int = eqx.field(static=True, metadata=OPTION)

    def attained(self) -> AbstractMechanism | None:
        # All of the group but one may count for nothing.
        return self.mechanism.attained()

    def loss(self) -> ComposedLoss:
        found = self.mechanism.loss()
        _checks.require(
            self.mechanism.releases_once() and len(found.terms) == 1,
            "group privacy is not available for this composition",
        )
        term = found.terms[0]
        other = term.exchanged() if isinstance(term, AtomicLoss) else term
        # Either power function is accurate where its own losses are positive.
        p, q = _riskier(*self._composed(_power(term)), self.size)
        q_rest, p_rest = _riskier(*self._composed(_power(other)), self.size)
        p, q = jnp.concatenate([p, p_rest]), jnp.concatenate([q, q_rest])
        # All others have no loss: what is left but for rounding, and what that and
        # the knots that are one may hide.
        unit = _unit(self.size, p)
        rounding = 2 * unit + p.size * float(jnp.finfo(p.dtype).eps)
        same = jnp.maximum(1 - jnp.sum(p) - rounding, 0)
        lost = 2 * rounding + p.size * unit
        logs = (safe_log(jnp.append(x, same)) for x in (p, q))
        # Losses that were taken for none are at most that large.
        error = 2 * ATOM_MASS
        return one_release(
            AtomicLoss(*logs, lost=lost, symmetric=found.symmetric, loss_error=error)
        )

    def _composed(self, power: _Power) -> _Power:
        total = power
        for _ in range(self.size - 1):
            total = _after(power, total)
        return total


def _riskier(x: Array, y: Array, size: int) -> _Power:
    """Masses of the segments where the power function is steeper than 1.

    The last one is that of the first knot (0, delta(inf)).  Knots that are one but for
    rounding are joined, and what rounding does to the slopes of short segments makes
    none of them steeper than those before.
    """
    truncated = _unit(size, y) * y[1:]
    kept = (jnp.arange(x.size - 1) < jnp.argmax(y - x)) & (jnp.diff(y) > truncated)
    # One without a loss would count twice, in either direction.
    kept = kept & (jnp.diff(y) > (1 + ATOM_MASS) * jnp.diff(x))
    p, q = _steps(x, kept), _steps(y, kept)
    slope = jnp.where(kept & (p > 0), q / jnp.where(p > 0, p, 1), jnp.inf)
    slope = lax.cummin(slope)
    p = jnp.where(jnp.isfinite(slope), q / jnp.where(slope > 0, slope, 1), 0)
    return jnp.append(p, 0.0), jnp.append(q, y[0])


def _unit(size: int, knots: Array) -> float:
    """Relative error of a knot after so many compositions."""
    return 4 * size * float(jnp.finfo(knots.dtype).eps)


def _steps(knots: Array, kept: Bool[Array, " k"]) -> Array:
    """Rises of kept segments, since the end of the kept one before."""
    ends = lax.cummax(jnp.where(kept, knots[1:], knots[0]))
    before = jnp.append(knots[:1], ends[:-1])
    return jnp.where(kept, knots[1:] - before, 0)


def _power(term: Any) -> _Power:
    """Knots of the power function of a loss with point masses alone."""
    _checks.require(
        isinstance(term, AtomicLoss),
        f"group privacy is not available for a {type(term).__name__}: "
        "it is for finitely many losses, additive noise and "
        "Poisson-subsampled Gaussians",
    )
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
    knots = jnp.sort(jnp.concatenate([x, _between(outer[0], y, x)]))
    return knots, _between(_between(knots, x, y), *outer)


def _between(at: Array, x: Array, y: Array) -> Array:
    """Linear interpolation; `jnp.interp` takes knots 1e-32 apart for one.

    Constant beyond the ends.
    """
    left = jnp.clip(jnp.searchsorted(x, at, side="right") - 1, 0, x.size - 2)
    width = x[left + 1] - x[left]
    share = jnp.where(width > 0, (at - x[left]) / jnp.where(width > 0, width, 1), 1)
    return y[left] + jnp.clip(share, 0, 1) * (y[left + 1] - y[left])
