"""Poisson sampling whose batches are cut to a largest size."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks, _draws
from .._internal._binomial import log_binomial_tail, log_tail_error
from .._internal._precision import in_float64
from ..losses import (
    AbstractLoss,
    Alternatives,
    ComposedLoss,
    SubsampledGaussianLoss,
    revealed_mixture,
)
from ..mechanisms import (
    ADD_OR_REMOVE_ONE,
    COUNT,
    REPLACE_ONE,
    AbstractMechanism,
    AbstractWrapped,
    Gaussian,
    NeighboringRelation,
    Sampling,
    as_float,
    as_number,
    parameter,
    where_released,
)
from ._fixed_size import fixed_size_pair, normal_mixtures
from ._poisson import AbstractPoisson


class TruncatedPoisson(AbstractPoisson):
    """Poisson sampling; of more than `batch_size` records a random part is kept.

    That is what programs with batches of a static shape do.  For Gaussian noise.
    Where the other records alone fill the batch, the record takes part with a smaller
    probability, but in another one's place; that they do is revealed.  That is a bound
    from above; from below it is known what is leaked where all other records contribute
    nothing.

    Args:
        prob: Probability that a record is sampled, in [0, 1].
        batch_size: Most records that are kept, whole, at least 1.
        dataset_size: Number of records, with the one in question; whole.  There is no
            derivative in the sizes.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> scheme = fdp.sampling.TruncatedPoisson(
        ...     0.005, batch_size=350, dataset_size=60_000
        ... )
        >>> run = fdp.DPSGD(noise_multiplier=1.0, sampling=scheme, num_steps=1000)
        >>> print(f"{run.epsilon(delta=1e-5):.4f}")
        2.5521

    References:
        Adding or removing a record: let M be the number of others that are sampled.
        Where M < B nothing is cut.  Where M >= B, which is revealed, the others' part
        S of B records is a uniformly random one whatever M is, and with the record x
        it is S but, with probability r, x in place of a random y in S: given (S, y)
        the pair is N(S), (1 - r) N(S) + r N(S - y + x), at most a distance of 2 apart.
        r = E[p B / (M + 1) | M >= B] = P(Bin(n, p) > B) B / (n P(M >= B)), as in
        dp_accounting, whose pair has the record on both sides and is never tighter.
        ZERO_OUT and REPLACE_ONE: as with `FixedSize`, at rate r.
    """

    batch_size: Real[ArrayLike, ""] | None = parameter(
        "batch_size", _checks.positive_count, COUNT, default=None, kw_only=True
    )
    dataset_size: Real[ArrayLike, ""] | None = parameter(
        "dataset_size", _checks.positive_count, COUNT, default=None, kw_only=True
    )
    scheme: ClassVar[Sampling] = Sampling.TRUNCATED_POISSON
    _gaussian_alone: ClassVar[str] = (
        "for truncated Poisson sampling (what a record does in another one's place is "
        "known for such noise)"
    )

    def _step(self, release):
        return _TruncatedStep.unchecked(mechanism=release, sampling=self)

    def participants(self, key, step, *, num_records):
        self._require_size(num_records)
        draw, cut = jax.random.split(_draws.at(key, step))
        drawn = _draws.with_prob(draw, self.prob, num_records)
        return _draws.subset_of(cut, drawn, self.batch_size)

    def expected_size(self, num_records):
        self._require_size(num_records)
        return min(super().expected_size(num_records), as_number(self.batch_size))

    def _require_size(self, num_records: int) -> None:
        if num_records != self.dataset_size:
            raise ValueError(
                f"num_records must be {self.dataset_size:g}, the dataset_size of "
                f"batches of at most {self.batch_size:g}, got {num_records}"
            )

    def truncation(self) -> tuple[Array, Array]:
        """Probabilities that the others fill the batch, and that the record is in."""
        return self._truncation_with_error()[:2]

    def _truncation_with_error(self) -> tuple[Array, Array, Array]:
        """Both, and a bound on the relative error of either."""
        return _truncation(self.prob, self.batch_size, self.dataset_size)


@in_float64
def _truncation(prob: Any, most: Any, records: Any) -> tuple[Array, Array, Array]:
    n, most = stop_gradient((records, most))
    cut = (n > most) & (prob > 0)
    n, prob = jnp.where(cut, n, most + 1), jnp.where(cut, prob, 0.5)
    full = log_binomial_tail(most, n - 1, prob)
    more = log_binomial_tail(most + 1, n, prob)
    error = log_tail_error(full, most, n - 1, prob)
    error = error + log_tail_error(more, most + 1, n, prob)
    share = more - full
    # However improbable, it happens.
    full = jnp.exp(jnp.maximum(full, math.log(jnp.finfo(full.dtype).tiny)))
    share = jnp.minimum(jnp.exp(share) * most / n, 1)
    error = jnp.where(cut, jnp.expm1(jnp.minimum(error, 1)), 0)
    return jnp.where(cut, full, 0), jnp.where(cut, share, 0), error


class _TruncatedStep(AbstractWrapped):
    """One release of such a batch."""

    mechanism: Gaussian
    sampling: TruncatedPoisson
    _scheme: ClassVar = Sampling.TRUNCATED_POISSON
    _for_one_record = (
        "batches of a largest size",
        "what a group of records leaks there is not available",
    )

    def attained(self) -> AbstractMechanism | None:
        return _AttainedStep.unchecked(mechanism=self.mechanism, sampling=self.sampling)

    def loss(self) -> ComposedLoss:
        noise = as_float(self.mechanism.noise_multiplier)
        prob = as_float(self.sampling.prob)
        full, share, error = self.sampling._truncation_with_error()
        # More of either leaks more: of both alternatives as much as there may be.
        share = jnp.minimum(share * (1 + error), 1)
        off = stop_gradient(full) * error
        released, noise, prob = where_released(noise, prob)
        share = jnp.where(share > 0, share, 0.5)
        terms = (
            _alone(noise, prob, self.relation),
            _in_another_place(noise, share, self.relation),
        )
        probs = jnp.minimum(1 - full + off, 1), full + off
        once = jnp.ones((1, 1), full.dtype)
        groups = tuple(
            Alternatives((term,), once, p[None], single=True)
            for term, p in zip(terms, probs, strict=True)
        )
        term = revealed_mixture(groups, jnp.zeros_like(full), idle=False)
        return ComposedLoss((term,), (jnp.where(released, 1.0, 0.0),), single=True)


class _AttainedStep(_TruncatedStep):
    """By the pair of data sets whose other records contribute nothing."""

    def attained(self) -> AbstractMechanism | None:
        return None

    def loss(self) -> ComposedLoss:
        noise = as_float(self.mechanism.noise_multiplier)
        full, share, error = self.sampling._truncation_with_error()
        prob = (1 - full) * as_float(self.sampling.prob) + full * share
        # By how much full * (share - prob) may be off, whatever its sign is.
        prob = jnp.maximum(prob - 4 * error * full, 0)
        released, noise, prob = where_released(noise, prob)
        term = _alone(noise, prob, self.relation)
        return ComposedLoss((term,), (jnp.where(released, 1.0, 0.0),), single=True)


def _alone(noise: Array, prob: Array, relation: NeighboringRelation) -> AbstractLoss:
    """The pair where nothing is cut."""
    if relation is not REPLACE_ONE:
        return SubsampledGaussianLoss(noise, prob)
    # Both records opposite to each other, half the sensitivity from none.
    out, none = 1 - prob, jnp.zeros_like(prob)
    weights = (prob, out, none), (none, out, prob)
    return normal_mixtures(noise, (-0.5, 0.0, 0.5), *weights, symmetric=True)


def _in_another_place(
    noise: Array, prob: Array, relation: NeighboringRelation
) -> AbstractLoss:
    """The pair where a record that takes part displaces another one."""
    if relation is ADD_OR_REMOVE_ONE:
        return SubsampledGaussianLoss(noise / 2, prob)
    return fixed_size_pair(noise, prob, relation)
