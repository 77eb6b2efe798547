"""The privacy loss of one epoch of random allocation."""

import abc
from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

from ..._internal._special import log_ndtri, safe_log
from ..._internal._tolerances import ATOM_MASS, LATTICE_SUM
from .._atomic import AtomicLoss
from .._base import AbstractLoss
from .._gaussian import GaussianLoss
from ._law import Law, Laws, laws

_POINTS, _ROUGH = 1 << 18, 1 << 16
"""Lattice points for compositions, and for numbers that are no bounds."""
_GROUPS = 4096
"""Groups of outputs that rough moments look at."""


class LawLoss(AtomicLoss):
    """The loss of one law of S: a pair of measures, not quite of mass 1."""

    @classmethod
    def of(cls, law: Law, side: int) -> "LawLoss":
        """The pair that dominates (side 1), is next to the true one (0) or below it."""
        p, row = jnp.maximum(law.masses + side * law.off, 0), 0 if side > 0 else 1
        ratio = law.ratio(0.5 if side == 0 else 0.0)
        ratio = jnp.append(ratio, law.far[row] / law.batches)
        p = jnp.append(p, law.far_masses[row])
        some = ratio > 0
        loss = jnp.log(jnp.where(some, ratio, 1.0))
        log_p = safe_log(p)
        log_q = jnp.where(some, log_p + loss, -jnp.inf)
        none = jnp.full_like(law.batches, -jnp.inf)
        missing = law.log_missing if side > 0 else (none, none)
        # Means of cells are good to a few roundings.
        error = jnp.asarray(LATTICE_SUM if side < 0 else ATOM_MASS)
        return cls(log_p, log_q, None, missing, loss=loss, mass_error=error)

    in_closed_form: ClassVar[str] = "nothing"

    def rough_moments(self, order):
        # Of sums of neighboring masses, but for small ratios, whose logarithms differ.
        def few(logs: Array) -> Array:
            far = jnp.exp(logs[_GROUPS:])
            far = jnp.pad(far, (0, -far.size % _GROUPS)).reshape(_GROUPS, -1)
            return jnp.append(logs[:_GROUPS], safe_log(jnp.sum(far, axis=1)))

        return AtomicLoss(few(self.log_p), few(self.log_q)).rough_moments(order)


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

    def release(
        self,
        points: int,
        sign: Float[ArrayLike, ""] = 1.0,
        log_strike: Float[ArrayLike, ""] = jnp.inf,
    ) -> Laws:
        """The laws of one release, for one direction and strikes up to one over t."""
        raise NotImplementedError(f"one release of a {type(self).__name__}")

    def least_epsilon(
        self, sign: Float[Array, ""], log_delta: Float[Array, ""]
    ) -> Float[Array, ""]:
        """A bound of one release's epsilon from below, in one direction."""
        return jnp.log1p(-jnp.exp(jnp.minimum(log_delta, -1e-15))) - 1e-9

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
        return GaussianLoss(stop_gradient((1 - 1e-14) / jnp.sqrt(sum(precisions))))

    def moments(self, order):
        _, _, slope, curvature = self.law().rough_moments(order)
        inner = 0.5 * order * (order - 1) / jnp.square(self.noise_multiplier)
        most = jnp.maximum(inner, 0)
        return most + 8 * jnp.finfo(most.dtype).eps * most, slope, curvature

    def rough_moments(self, order):
        most, *_ = self.moments(order)
        return most, *self.law().rough_moments(order)[1:]

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
        found = laws(self.noise_multiplier, self.num_batches, points or _POINTS)
        each = found.upper, found.estimate, found.lower
        pairs = map(LawLoss.of, each, (1, 0, -1))
        return BracketedLoss(self.noise_multiplier, *pairs)

    def release(self, points, sign=1.0, log_strike=jnp.inf):
        t, calls = self.num_batches, jnp.asarray(sign) > 0
        # Places of thresholds are rounded.
        ratio = jnp.maximum(log_strike, jnp.where(calls, 0.0, -jnp.inf))
        strike = stop_gradient((1 + 1e-9) * t * jnp.exp(ratio))
        return laws(self.noise_multiplier, t, points, strike, calls)

    def least_epsilon(self, sign, log_delta):
        # With every X at most K / (2 t) a put is worth K / 2 or more.
        t, s = jnp.ceil(self.num_batches), self.noise_multiplier
        level = log_delta + jnp.log(2.0)
        z = log_ndtri(jnp.where(level < 0, level, -1.0) / t)
        most = (0.5 / s - z) / s - jnp.log(2.0)
        some = (sign < 0) & (level < 0)
        least = jnp.where(some, most - 1e-6 * (1 + jnp.abs(most)), -jnp.inf)
        return jnp.maximum(super().least_epsilon(sign, log_delta), least)

    def law(self) -> LawLoss:
        return LawLoss.of(self.release(_ROUGH).estimate, 0)

    def tabulated(self):
        # Moments alone are asked of it, for which one law will do.
        return BracketedLoss(self.noise_multiplier, *3 * [self.law()])
