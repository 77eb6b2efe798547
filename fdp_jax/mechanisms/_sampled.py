"""Poisson subsampling, and DP-SGD as its composition."""

import dataclasses
import math
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks
from .._internal._logs import times
from .._internal._special import safe_log
from ..losses import (
    AbstractLoss,
    ComposedLoss,
    GaussianLoss,
    GaussianMixtureLoss,
    RevealedLoss,
    SubsampledGaussianLoss,
    SubsampledLoss,
)
from ._additive import Gaussian
from ._base import (
    AbstractMechanism,
    AbstractWrapped,
    one_release,
    require_mechanism,
)
from ._composed import Composition
from ._fields import (
    NOISE,
    OPTION,
    PROBABILITIES,
    RATE,
    STEPS,
    Search,
    as_float,
    as_known,
    is_one,
    parameter,
    product,
    quotient,
    several,
    where_released,
)
from ._joint import Shared
from ._relations import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    relation_field,
)
from ._sampling import Sampling
from ._subsampled import AbstractRun, require_sampling


class PoissonSubsampled(AbstractWrapped):
    """A mechanism on a random subset in which each record is included independently.

    Args:
        mechanism: What is run on the subset, once.  Its guarantee must hold for every
            subset, with which records are in it kept secret.
        sampling_prob: Probability of inclusion, in [0, 1].

    The relation is the mechanism's: ADD_OR_REMOVE_ONE, or ZERO_OUT if an empty record
    contributes nothing to it.  (For REPLACE_ONE see `DPSGD`: a pair for replacement
    does not tell what a record's absence does.)

    Raises:
        ValueError: If sampling_prob is outside [0, 1] or the relation is REPLACE_ONE.
        TypeError: If the mechanism is a composition.

    Example:
        >>> import fdp_jax as fdp
        >>> step = fdp.PoissonSubsampled(fdp.Gaussian(1.0), sampling_prob=0.1)
        >>> print(f"{step.add.delta(epsilon=0.05):.9f}")
        0.010572581

    References:
        Zhu, Dong, Wang (2022), Theorem 11; Dong, Roth, Su (2022), Section 4.
    """

    mechanism: AbstractMechanism
    sampling_prob: Real[ArrayLike, ""] | None = parameter(
        "sampling_prob", _checks.probability, RATE, default=None
    )
    _scheme: ClassVar = Sampling.POISSON

    def __check_init__(self):
        require_mechanism("mechanism", self.mechanism)
        _checks.require(
            self.mechanism.releases_once(),
            "mechanism must be a single release",
            f"{type(self.mechanism).__name__}: subsample each step, then repeat",
            TypeError,
        )
        _checks.require(
            self.relation is not REPLACE_ONE,
            "relation must be ADD_OR_REMOVE_ONE or ZERO_OUT",
            "REPLACE_ONE: a pair for replacement does not tell what a "
            "record's absence does",
        )

    def has_fractional_powers(self) -> bool:
        inner = self.mechanism
        while isinstance(inner, PoissonSubsampled):
            inner = inner.mechanism
        return isinstance(inner, Gaussian)

    def known_steps(self) -> tuple[float | None, float | None]:
        nested = isinstance(self.mechanism, PoissonSubsampled)
        return None if nested else as_known(self.sampling_prob), 1.0

    def simplified(self) -> AbstractMechanism:
        # Its losses may lie on a lattice, which those of a sample do not.
        return self.mechanism.simplified() if is_one(self.sampling_prob) else self

    def loss(self) -> ComposedLoss:
        prob = as_float(self.sampling_prob)
        inner = self.mechanism.loss()
        released = prob != 0
        safe = jnp.where(released, prob, 0.5)
        (term,), (count,) = inner.terms, inner.counts
        term = _subsampled_term(term, safe)
        return ComposedLoss((term,), (jnp.where(released, count, 0.0),), single=True)

    def _group(self, size):
        if isinstance(self.mechanism, Gaussian):
            noise = self.mechanism.noise_multiplier
            return SubsampledGroup(
                noise, self.sampling_prob, size, relation=self.relation
            )
        return super()._group(size)


def _subsampled_term(term: AbstractLoss, prob: Array) -> AbstractLoss:
    if isinstance(term, GaussianLoss):
        return SubsampledGaussianLoss(term.noise_multiplier, prob)
    if isinstance(term, SubsampledGaussianLoss):
        return SubsampledGaussianLoss(term.noise_multiplier, prob * term.sampling_prob)
    if not isinstance(term, RevealedLoss):
        return SubsampledLoss(term, prob)
    # The index is told whether the record is in the subset or not.  In few steps there
    # is too much of the law at one place for a contour.
    groups = []
    for group in term.groups:
        parts = tuple(_subsampled_term(x, prob) for x in group.terms)
        groups.append(dataclasses.replace(group, terms=parts))
    return RevealedLoss(tuple(groups), term.lost, term.idle)


class MixtureOfGaussians(AbstractMechanism):
    """Gaussian noise on a statistic that moves by a random, hidden amount.

    P = N(0, s^2), Q = sum_i probs[i] N(shifts[i], s^2).  So is each output of
    correlated or banded noise under sampling, and a group under Poisson subsampling.

    Args:
        noise_multiplier: s, the noise's standard deviation over the unit of the shifts,
            in (0, inf).
        shifts: How far the record may move the statistic, each at least 0.
        probs: Their probabilities, with sum 1.
        relation: The neighboring relation the shifts refer to.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> release = fdp.MixtureOfGaussians(
        ...     1.0, shifts=[0.0, 1.0, 2.0], probs=[0.9, 0.08, 0.02]
        ... )
        >>> print(f"{release.advantage():.6f}")
        0.043404

    References:
        Choquette-Choo et al. (2024): for vectors, the shifts are their norms.
    """

    noise_multiplier: Real[ArrayLike, ""] = parameter(
        "noise_multiplier", _checks.finite_positive, NOISE
    )
    shifts: Any = several(
        "shifts", _checks.nonnegative, Search(1, 1e-12, 1e12), kw_only=True
    )
    probs: Any = several("probs", _checks.probabilities, PROBABILITIES, kw_only=True)
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def __check_init__(self):
        _checks.same_length("shifts", self.shifts, "probs", self.probs)

    def loss(self) -> ComposedLoss:
        shifts, probs = as_float(self.shifts), as_float(self.probs)
        noise = as_float(self.noise_multiplier)
        log_q = safe_log(jnp.append(0.0, probs / jnp.sum(probs)))
        log_p = jnp.full_like(log_q, -jnp.inf).at[0].set(0.0)
        term = GaussianMixtureLoss(noise, jnp.append(0.0, shifts), log_p, log_q)
        return one_release(term)


class ClippedSum(Gaussian):
    """Gaussian noise on a sum of contributions that are clipped to a norm.

    As of every Gaussian its noise multiplier is over the sensitivity: under REPLACE_ONE
    that is twice the clipping norm.  Unlike of other Gaussians it is known that no
    contribution is farther from none at all than the norm.
    """

    @property
    def noise_over_norm(self) -> Any:
        """The noise's standard deviation over the clipping norm."""
        if self.noise_multiplier is None or self.relation is not REPLACE_ONE:
            return self.noise_multiplier
        return product(self.noise_multiplier, 2.0)


class DPSGD(AbstractRun):
    """DP-SGD: `num_steps` noisy sums of clipped gradients of sampled batches.

    A parameter may be left out, for `calibrate` to find.

    Args:
        noise_multiplier: Standard deviation of the noise over the clipping norm, in
            (0, inf], whatever the relation.
        sampling_prob: Probability that a record enters a step, in [0, 1]; expected
            batch size over data set size.
        num_steps: Number of steps, real, in [0, inf); whole under REPLACE_ONE.  A run
            has a whole number: between two the guarantee is an interpolation (a power
            of the characteristic function), which is no run's, and its upper bounds at
            most those of the next whole number.  Round up for one.  Derivatives in it
            are the interpolation's, at whole numbers too.
        relation: ADD_OR_REMOVE_ONE and ZERO_OUT have the same pair; with REPLACE_ONE
            the gradients of both records are opposite at worst.
        sampling: How batches are drawn, one of the schemes of `fdp_jax.sampling`, in
            place of `sampling_prob`, which is short for `sampling.Poisson`.

    Raises:
        ValueError: If a parameter is out of range, both `sampling` and
            `sampling_prob` are given, or the scheme has no guarantee for the relation.
        TypeError: If `sampling` is no scheme.

    Example:
        >>> import fdp_jax as fdp
        >>> run = fdp.DPSGD(
        ...     noise_multiplier=1.1, sampling_prob=256 / 60_000, num_steps=14_062
        ... )
        >>> print(f"{run.epsilon(delta=1e-5):.4f}")
        2.3816

    References:
        Abadi et al. (2016).  REPLACE_ONE: Lebeda et al. (2025), Proposition 13.  (If
        the law without the record gives an event probability a, that with it gives at
        most (1 - q) a + q Phi(Phi^-1(a) + 1/s) and with the other one at least
        (1 - q) a + q Phi(Phi^-1(a) - 1/s); a half-line attains both.)
    """

    noise_multiplier: Real[ArrayLike, ""] | None = parameter(
        "noise_multiplier", _checks.noise, NOISE, default=None, kw_only=True
    )
    sampling_prob: Real[ArrayLike, ""] | None = parameter(
        "sampling_prob", _checks.probability, RATE, default=None, kw_only=True
    )
    num_steps: Real[ArrayLike, ""] | None = parameter(
        "num_steps", _checks.nonnegative, STEPS, default=None, kw_only=True
    )
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)
    sampling: Any = eqx.field(default=None, kw_only=True)
    _scheme: ClassVar[Sampling] = Sampling.POISSON

    def __check_init__(self):
        if self.sampling is not None:
            _checks.require(
                self.sampling_prob is None,
                "sampling_prob must be left out where sampling is given",
                f"both {self.sampling_prob} and {type(self.sampling).__name__}",
            )
            require_sampling(self.sampling).require_release(self._release())
        # Fractional powers are those of the subsampled Gaussian pair only.
        if self.num_steps is not None and not self.takes_fractions():
            _checks.count("num_steps", self.num_steps)

    def _release(self) -> ClippedSum:
        noise = self.noise_multiplier
        if noise is not None and self.relation is REPLACE_ONE:
            noise = product(noise, 0.5)
        return ClippedSum.unchecked(noise_multiplier=noise, relation=self.relation)

    def _run(self) -> AbstractMechanism:
        if self.sampling is not None:
            return super()._run()
        fields = {"sampling_prob": self.sampling_prob}
        if self.relation is REPLACE_ONE:
            own = {"noise_multiplier": self.noise_multiplier, "relation": self.relation}
            step = SubsampledGroup.unchecked(size=1, **own, **fields)
        else:
            step = PoissonSubsampled.unchecked(mechanism=self._release(), **fields)
        return Composition.unchecked(parts=(step,), num_steps=(self.num_steps,))

    @property
    def _optional(self) -> tuple[str]:
        return ("sampling",) if self.sampling is None else ("sampling_prob",)

    def has_fractional_powers(self) -> bool:
        return self.sampling is None and self.relation is not REPLACE_ONE

    def takes_fractions(self, index: int = 0) -> bool:
        if self.sampling is not None:
            return super().takes_fractions(index)
        return self.has_fractional_powers()

    def samplings(self) -> frozenset[Sampling]:
        sampling = self.sampling
        return frozenset({self._scheme if sampling is None else sampling.scheme})

    def shares(self) -> frozenset[Shared]:
        return frozenset() if self.sampling is None else super().shares()

    def as_steps(self) -> tuple[tuple[AbstractMechanism, Any], ...]:
        if self.sampling is not None:
            return super().as_steps()
        step = Gaussian(self.noise_multiplier, relation=self.relation)
        if self.relation is REPLACE_ONE:
            return ((dataclasses.replace(self, num_steps=1.0), self.num_steps),)
        return ((PoissonSubsampled(step, self.sampling_prob), self.num_steps),)


class SubsampledGroup(AbstractMechanism):
    """One Poisson-subsampled Gaussian step against a group of `size` records.

    Binomially many of them are in the batch, with contributions that add up at worst
    (Ganesh 2024): conditionally on the others, the power of any test is a mean of those
    of Gaussian shifts by the number included, and a half-line attains all of them.
    """

    noise_multiplier: Any = eqx.field(metadata=NOISE.metadata)
    sampling_prob: Any = eqx.field(metadata=RATE.metadata)
    size: int = eqx.field(static=True, metadata=OPTION)
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)
    _scheme: ClassVar = Sampling.POISSON

    def known_steps(self) -> tuple[float | None, float | None]:
        return as_known(self.sampling_prob) if self.size == 1 else None, 1.0

    def simplified(self) -> AbstractMechanism:
        if not is_one(self.sampling_prob):
            return self
        moved = self.size * (2 if self.relation is REPLACE_ONE else 1)
        noise = quotient(self.noise_multiplier, moved)
        return Gaussian.unchecked(noise_multiplier=noise, relation=self.relation)

    def _group(self, size):
        every = _checks.whole("size", self.size * size, 1, 64)
        return dataclasses.replace(self, size=every)

    def loss(self) -> ComposedLoss:
        size, relation = self.size, self.relation
        given = as_float(self.noise_multiplier), as_float(self.sampling_prob)
        released, noise, prob = where_released(*given)
        log_in, log_out = jnp.log(prob), safe_log(1 - prob)
        logs = [
            math.log(math.comb(size, j)) + j * log_in + times(size - j, log_out)
            for j in range(size + 1)
        ]
        none = [jnp.full_like(noise, -jnp.inf)] * size
        if relation is REPLACE_ONE:
            log_p, log_q = logs[:0:-1] + logs[:1] + none, none + logs
            places = jnp.arange(-size, size + 1, dtype=noise.dtype)
        else:
            log_p, log_q = [jnp.zeros_like(noise), *none], logs
            places = jnp.arange(size + 1, dtype=noise.dtype)
        term = GaussianMixtureLoss(
            noise,
            places,
            jnp.stack(log_p),
            jnp.stack(log_q),
            symmetric=relation is REPLACE_ONE,
        )
        return ComposedLoss((term,), (jnp.where(released, 1.0, 0.0),), single=True)
