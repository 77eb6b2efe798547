"""Batches of a fixed size, drawn without replacement.

One record is in the batch with probability q = size / number of records.  Where it is
not, some other record is there in its place, so that unlike with Poisson sampling the
record's absence is not "nothing": the pair is not that of Poisson sampling.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks, _draws
from .._internal._concrete import evaluates_at_once, known
from .._internal._record import public_name
from .._internal._show import Call
from .._internal._special import safe_log
from ..losses import (
    AbstractLoss,
    ComposedLoss,
    DisplacingLoss,
    GaussianMixtureLoss,
    GluedLoss,
    SubsampledGaussianLoss,
    SubsampledLoss,
    SymmetrizedGaussianLoss,
    symmetrized,
)
from ..mechanisms import (
    RATE,
    REPLACE_ONE,
    AbstractMechanism,
    AbstractSampling,
    AbstractWrapped,
    Composition,
    Gaussian,
    NeighboringRelation,
    Sampling,
    as_float,
    least_of,
    parameter,
    quotient,
    where_released,
)

_WHY = (
    "with a fixed size the batch of one data set is no batch of the other, and the "
    "rate size / number of records differs"
)
_FEW = 128
"""Steps from which on the contour integral serves if the noise is not tiny."""


class FixedSize(AbstractSampling):
    """Every step draws a batch of a fixed size, uniformly without replacement.

    For replacing a record, and for zeroing it out with Gaussian noise.  A single step
    has an exact pair.  Of several steps it is known what the worst data sets leak
    whose other records are all equal (a bound from below), and that one step's profile
    composed is a bound from above: `bounds` has both ends, queries return the private
    one, and curves and comparisons are those of the dominating pair.

    This is not Poisson sampling, and leaks much more: other records stand in a
    record's place, twice the clipping norm away.

    Args:
        prob: Probability that a record is in a step's batch: its size over the number
            of records, in [0, 1]; or
        batch_size: the size and ...
        dataset_size: ... the number of records, whole numbers.  Batches are then drawn
            of so many records alone.

    Raises:
        ValueError: If a number is out of range, or both forms are given.

    Example:
        >>> import fdp_jax as fdp
        >>> scheme = fdp.sampling.FixedSize(batch_size=100, dataset_size=10_000)
        >>> run = fdp.DPSGD(
        ...     noise_multiplier=4.0, sampling=scheme, num_steps=100,
        ...     relation="replace_one",
        ... )
        >>> found = run.bounds(delta=1e-5)
        >>> print(f"{found.lower:.3f} to {found.upper:.3f}")
        0.190 to 0.209

    References:
        Zhu, Dong, Wang (2022), Theorem 11 (2) and Proposition 9; Lebeda et al. (2025),
        arXiv:2405.20769, for what data sets attain and how far that is from Poisson
        sampling.  ZERO_OUT: let an event have probability a where another record y is
        in the batch, b where the empty one is, and c where the record is.  With
        z = Phi^-1 and noise s, |z(c) - z(b)| and |z(b) - z(a)| are at most 1 / s, and
        (1 - q) a (1 - e^eps) + q (c - e^eps b) is largest with z(a) = z(b) - 1 / s for
        eps > 0 and with z(a) = z(b) + 1 / s for eps < 0; half-lines attain both.
    """

    prob: Real[ArrayLike, ""] | None = parameter(
        "prob", _checks.probability, RATE, default=None, kw_only=True
    )
    _sizes: tuple[int, ...] = eqx.field(static=True, init=False, repr=False, default=())
    """Of a batch and of the data, where they are stated and known."""
    scheme: ClassVar[Sampling] = Sampling.FIXED_SIZE
    shared: ClassVar = frozenset()  # every step draws anew
    refused: ClassVar[dict[NeighboringRelation, str]] = {
        NeighboringRelation.ADD_OR_REMOVE_ONE: _WHY
    }

    def __init__(
        self, *, prob: Any = None, batch_size: Any = None, dataset_size: Any = None
    ):
        sizes = batch_size, dataset_size
        if any(x is not None for x in sizes):
            _checks.require(
                prob is None and (not any(x is None for x in sizes)),
                "FixedSize takes prob, or batch_size and dataset_size",
                f"prob={prob}, batch_size={batch_size} and dataset_size={dataset_size}",
            )
            prob = batch_share(batch_size, dataset_size)
        self.prob = prob
        stated = [x for x in sizes if x is not None and known(x) is not None]
        self._sizes = tuple(int(x) for x in stated) if len(stated) == 2 else ()

    def _shown(self, parent):
        if not self.sizes():
            return super()._shown(parent)
        sizes = zip(("batch_size", "dataset_size"), self._sizes, strict=True)
        return Call(public_name(type(self)), list(sizes))

    def sizes(self) -> tuple[int, ...]:
        """Batch size and data size, unless another probability was put in since."""
        prob = known(self.prob)
        if not self._sizes or prob is None:
            return self._sizes
        size, records = self._sizes
        return self._sizes if abs(prob * records - size) <= 1e-7 * size else ()

    def run(self, release, num_steps):
        step = _FixedSizeStep.unchecked(
            mechanism=release, sampling_prob=self.prob, few=_few_inside(num_steps)
        )
        return Composition.unchecked(parts=(step,), num_steps=(num_steps,))

    def require_release(self, release):
        super().require_release(release)
        _checks.require(
            release.relation is REPLACE_ONE or isinstance(release, Gaussian),
            f"relation must be REPLACE_ONE for {type(release).__name__} "
            "on batches of a fixed size",
            f"{release.relation.name}: what another record does in a "
            "record's place is known for Gaussian noise alone",
        )

    def participants(self, key, step, *, num_records):
        size = self.expected_size(num_records)
        return _draws.subset(_draws.at(key, step), size, num_records)

    def expected_size(self, num_records):
        if not self.sizes():
            return _whole_size(self.prob, num_records)
        size, records = self._sizes
        _checks.require(
            num_records == records,
            f"num_records must be {records}, the dataset_size of batches of {size}",
            num_records,
        )
        return size


def _whole_size(prob: Any, num_records: int) -> int:
    """The size of a batch, which the probability has to be a share for."""
    size = round(float(prob) * num_records)
    _checks.require(
        abs(size - float(prob) * num_records) <= 1e-09 * num_records,
        f"num_records must make a whole batch of its share {float(prob):g}",
        num_records,
    )
    return size


def _few_inside(num_steps: Any) -> bool:
    """Whether few steps are known to be asked for inside of a program.

    Characteristic functions of few steps may decay too slowly; but there nobody can see
    that an answer is loose and ask the grid instead.
    """
    count = None if num_steps is None else known(num_steps)
    few = count is not None and bool(np.all(count < _FEW))
    return few and not evaluates_at_once()


def batch_share(batch_size: Any, dataset_size: Any) -> Any:
    """The share of the records that is in a batch.

    Raises:
        ValueError: If the sizes are not whole numbers in their order.
    """
    batch_size = _checks.positive_count("batch_size", batch_size)
    dataset_size = _checks.positive_count("dataset_size", dataset_size)
    return _checks.probability(
        "batch_size / dataset_size", quotient(batch_size, dataset_size)
    )


class _Step(AbstractWrapped):
    """One release of a batch of a fixed size."""

    mechanism: AbstractMechanism
    sampling_prob: Any
    _scheme: ClassVar = Sampling.FIXED_SIZE
    _for_one_record = (
        "batches of a fixed size",
        "the mixture by how many of a group are in a batch does not dominate, since "
        "other records stand in their places",
    )

    def _numbers(self) -> tuple[Array, Array, Array]:
        """Whether anything is released, noise if it is Gaussian, and the rate."""
        inner: Any = self.mechanism
        noise = inner.noise_multiplier if isinstance(inner, Gaussian) else 1.0
        return where_released(as_float(noise), as_float(self.sampling_prob))

    def _subsampled(self, released: Array, prob: Array) -> tuple[SubsampledLoss, Array]:
        """The pair of a release other than Gaussian noise, and whether it is made."""
        inner = self.mechanism.loss()
        (term,), (count,) = inner.terms, inner.counts
        # Of the others' records either law may be the one to be told apart.
        _checks.require(
            term.symmetric,
            "mechanism must have the same guarantee in both "
            "directions, not by its numbers alone, on batches of a "
            "fixed size",
            type(self.mechanism).__name__,
        )
        return SubsampledLoss(term, prob), jnp.where(released, count, 0.0)


class _FixedSizeStep(_Step):
    """By the pair that dominates."""

    few: bool = eqx.field(static=True, default=False)
    """Whether the grid is to answer in any case."""

    def alone(self, way: str) -> AbstractMechanism:
        # The worse direction of what is attained: for Gaussians a closed form.
        if self.relation is not REPLACE_ONE or way != "both":
            return self
        return self._equal_others(self.mechanism)

    def attained(self) -> AbstractMechanism:
        return self._equal_others(least_of(self.mechanism))

    def _equal_others(self, release: AbstractMechanism) -> AbstractMechanism:
        return _AttainedStep.unchecked(
            mechanism=release, sampling_prob=self.sampling_prob
        )

    def loss(self) -> ComposedLoss:
        released, noise, prob = self._numbers()
        if isinstance(self.mechanism, Gaussian):
            count = jnp.where(released, 1.0, 0.0)
            pair = fixed_size_pair(noise, prob, self.relation, many=not self.few)
            return ComposedLoss((pair,), (count,), single=True)
        term, count = self._subsampled(released, prob)
        return ComposedLoss((symmetrized(term),), (count,), single=True)


class _AttainedStep(_Step):
    """By the pair of data sets that are all the same but for the record."""

    def known_steps(self):
        # With it, programs need not split laws of many steps by the largest one.
        _, count = super().known_steps()
        prob = known(self.sampling_prob)
        return None if prob is None else float(prob), count

    def loss(self) -> ComposedLoss:
        released, noise, prob = self._numbers()
        if not isinstance(self.mechanism, Gaussian):
            term, count = self._subsampled(released, prob)
            return ComposedLoss((term,), (count,), single=True)
        if self.relation is REPLACE_ONE:
            term = SubsampledGaussianLoss(noise, prob)
        else:
            term = displacing_pair(noise, prob)
        return ComposedLoss((term,), (jnp.where(released, 1.0, 0.0),), single=True)


def fixed_size_pair(
    noise: Array,
    prob: Array,
    relation: NeighboringRelation,
    *,
    many: bool = True,
) -> AbstractLoss:
    """The pair of one step whose record may displace another, and Gaussian noise.

    The noise is over the sensitivity: under REPLACE_ONE twice the clipping norm.
    """
    if relation is REPLACE_ONE:
        return SymmetrizedGaussianLoss(noise, prob, many=many)
    out, one, none = 1 - prob, jnp.ones_like(prob), jnp.zeros_like(prob)
    # For losses below zero the other record is opposite to where it is for those above.
    laws = (one, none, none), (out, prob, none)
    other = normal_mixtures(noise, (0.0, 1.0, 2.0), *laws)
    return GluedLoss(displacing_pair(noise, prob).positive(), other)


def displacing_pair(noise: Array, prob: Array) -> DisplacingLoss:
    """(1 - q) N(0) + q N(1) without, (1 - q) N(0) + q N(2) with."""
    return DisplacingLoss(noise, safe_log(prob), safe_log(1 - prob))


def normal_mixtures(
    noise: Array,
    places: tuple[float, ...],
    p: tuple[Array, ...],
    q: tuple[Array, ...],
    *,
    symmetric: bool = False,
) -> GaussianMixtureLoss:
    """The pair of two mixtures of normal laws, from their weights at some places."""
    log_p, log_q = (jnp.stack([safe_log(x) for x in w]) for w in (p, q))
    at = jnp.asarray(places, noise.dtype)
    return GaussianMixtureLoss(noise, at, log_p, log_q, symmetric=symmetric)
