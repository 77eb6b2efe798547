"""The privacy loss of one epoch of random allocation."""

import abc
from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from ..._internal._special import safe_log
from .._atomic import AtomicLoss
from .._base import AbstractLoss
from .._gaussian import GaussianLoss
from ._law import Law, Laws, laws

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

    def has_closed_form(self, kinds, *, single):
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


class EnclosedLoss(AbstractLoss):
    """A loss that is known by pairs above and below it, and takes all real values.

    By convexity the pair is dominated by that of the Gaussian mechanism, whose moments
    are bounds therefore; those of the laws leave out what the laws leave out.
    """

    noise_multiplier: eqx.AbstractVar[Float[Array, ""]]

    symmetric: ClassVar[bool] = False

    @abc.abstractmethod
    def law(self) -> LawLoss:
        """A pair next to the true one, for numbers that are no bounds."""

    @abc.abstractmethod
    def bracketed(self, points: int | None) -> "BracketedLoss":
        """The pairs around it, for sums of several losses."""

    def release(self, sign: Float[Array, ""], points: int | None = None) -> Laws:
        """The laws of one release, for thresholds >= 0 in one direction."""
        raise NotImplementedError(f"one release of a {type(self).__name__}")

    @property
    def on_grid(self) -> bool:
        return True

    @staticmethod
    def dominating(
        terms: Sequence["EnclosedLoss"], counts: Sequence[Float[Array, ""]]
    ) -> AbstractLoss:
        """One loss with a closed form that dominates a whole composition."""
        pairs = zip(terms, counts, strict=True)
        precisions = [n / jnp.square(x.noise_multiplier) for x, n in pairs]
        # A little less noise, for what is rounded here.
        noise = (1 - 1e-14) / jnp.sqrt(sum(precisions))
        return GaussianLoss(stop_gradient(noise))

    def moments(self, order):
        _, slope, curvature = jax.vmap(self.law().rough_moments)(order)
        inner = 0.5 * order * (order - 1) / jnp.square(self.noise_multiplier)
        most = jnp.maximum(inner, 0)
        return most + 8 * jnp.finfo(most.dtype).eps * most, slope, curvature

    def rough_moments(self, order):
        return self.law().rough_moments(order)

    def normalized_log_moment(self, order):
        """L(w) of the estimate, without its far tail."""
        found = self.law().moments(order[None])
        return self._normalized(order, *(x[0] for x in found))

    def loss_range(self):
        most = jnp.full_like(self.noise_multiplier, jnp.inf)
        return -most, most


class BracketedLoss(EnclosedLoss):
    """The loss, between two pairs: one that dominates it, one that it dominates."""

    noise_multiplier: Float[Array, ""]
    upper: LawLoss
    estimate: LawLoss
    """Of no pair in particular: its profiles are next to the true ones."""
    lower: LawLoss

    def law(self) -> LawLoss:
        return self.estimate

    def bracketed(self, points):
        return self


class RandomAllocationLoss(EnclosedLoss):
    """One of t batches has the record, noise of standard deviation s on every sum.

    P = N(0, s^2 I_t) and Q = (1/t) sum_i N(e_i, s^2 I_t): the loss is log(S / t), S
    the sum of t copies of exp(Z / s - 1 / (2 s^2)).  It is known by measures above and
    below it in the order of all pairs: see `_component.py`.

    References:
        Chua et al. (2024), arXiv:2412.16802; Feldman, Shenfeld (2025),
        arXiv:2502.08202.
    """

    noise_multiplier: Float[Array, ""]
    num_batches: Float[Array, ""]
    """Real numbers are between the whole ones next to them."""

    def bracketed(self, points):
        s, t = self.noise_multiplier, self.num_batches
        found = laws(s, t, smoothed=False, points=points)
        each = (LawLoss.of(x) for x in (found.upper, found.estimate, found.lower))
        return BracketedLoss(s, *each)

    def release(self, sign, points=None):
        s, t = self.noise_multiplier, self.num_batches
        return laws(s, t, smoothed=True, points=points, puts=sign < 0)

    def law(self) -> LawLoss:
        return LawLoss.of(self.release(jnp.ones_like(self.num_batches)).estimate)
