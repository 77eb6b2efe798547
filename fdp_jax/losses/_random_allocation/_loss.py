"""The privacy loss of one epoch of random allocation."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from ..._internal._special import safe_log
from .._atomic import AtomicLoss
from .._base import AbstractLoss
from ._law import Law, laws

_GROUPS = 4096
"""Groups of outputs that rough moments look at."""


class LawLoss(AtomicLoss):
    """The loss log(S / t) of one law of S: a pair of measures, not quite of mass 1."""

    law: Law = eqx.field(kw_only=True)

    @classmethod
    def of(cls, law: Law) -> "LawLoss":
        """The pair that has the law's masses without the record."""
        s = jnp.concatenate([law.points(), law.far])
        log_p = safe_log(jnp.concatenate([law.masses, law.far_masses]))
        loss = jnp.log(jnp.where(s > 0, s, 1) / law.batches)
        log_q = jnp.where(s > 0, log_p + loss, -jnp.inf)
        return cls(log_p, log_q, None, law.log_missing, loss=loss, law=law)

    @classmethod
    def has_closed_form(cls, kinds, *, single):
        del kinds, single
        return False

    def rough_moments(self, order):
        law = self.law
        p, s = _grouped(law.masses, law.points())
        far, places = _grouped(law.far_masses, law.far)
        p, s = jnp.append(p, far), jnp.append(s, places)
        some = (p > 0) & (s > 0)
        loss = jnp.log(jnp.where(some, s, 1) / law.batches)
        logs = jnp.where(some, jnp.log(jnp.where(some, p, 1)) + order * loss, -jnp.inf)
        value = logsumexp(logs)
        weight = jnp.exp(logs - value)
        mean = weight @ loss
        return value, mean, weight @ jnp.square(loss - mean)


def _grouped(masses: Array, places: Array) -> tuple[Array, Array]:
    """Sums of neighboring masses, and their means."""
    missing = -masses.size % _GROUPS
    masses, places = (
        jnp.pad(x, (0, missing)).reshape(_GROUPS, -1) for x in (masses, places)
    )
    total = jnp.sum(masses, axis=1)
    some = total > 0
    mean = jnp.sum(masses * places, axis=1) / jnp.where(some, total, 1)
    return total, jnp.where(some, mean, 1.0)


class _Delegating(AbstractLoss):
    """A loss that is known by three pairs: what is asked of it is of the upper one."""

    symmetric: ClassVar[bool] = False

    def _upper(self) -> AtomicLoss:
        raise NotImplementedError

    @property
    def on_grid(self) -> bool:
        return True

    def moments(self, order):
        return self._upper().moments(order)

    def rough_moments(self, order):
        return self._upper().rough_moments(order)

    def atoms(self):
        return self._upper().atoms()

    def lattice(self):
        return None

    def cells(self, low, high):
        return self._upper().cells(low, high)

    def loss_range(self):
        return self._upper().loss_range()

    def log_finite_masses(self):
        return self._upper().log_finite_masses()

    def log_infinite_masses(self):
        return self._upper().log_infinite_masses()

    def log_truncated_masses(self):
        # The pair above may have them where the true one has none.
        return self.log_infinite_masses()


class BracketedLoss(_Delegating):
    """A loss between two pairs: one that dominates it, one that it dominates."""

    upper: LawLoss
    estimate: LawLoss
    """Of no pair in particular: its profiles are next to the true ones."""
    lower: LawLoss

    def _upper(self) -> AtomicLoss:
        return self.upper


class RandomAllocationLoss(_Delegating):
    """One of t batches has the record, noise of standard deviation s on every sum.

    P = N(0, s^2 I_t) and Q = (1/t) sum_i N(e_i, s^2 I_t): the loss is log(S / t), S the
    sum of t copies of exp(Z / s - 1 / (2 s^2)).  It is known by measures above and below
    it in the order of all pairs: see `_component.py`.

    References:
        Chua et al. (2024), arXiv:2412.16802; Feldman, Shenfeld (2025), arXiv:2502.08202.
    """

    noise_multiplier: Float[Array, ""]
    num_batches: Float[Array, ""]
    """Real numbers are between the whole ones next to them."""

    def bracketed(
        self, *, single: bool, points: int | None = None
    ) -> BracketedLoss:
        """The pairs around it, for one epoch or for sums of several losses."""
        found = laws(self.noise_multiplier, self.num_batches, smoothed=single, points=points)
        return BracketedLoss(*(LawLoss.of(x) for x in (found.upper, found.estimate, found.lower)))

    def _upper(self) -> AtomicLoss:
        return self.bracketed(single=True).upper
