"""Mechanisms from dp_accounting's events."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import is_traced
from ..mechanisms import (
    ADD_OR_REMOVE_ONE,
    DPSGD,
    ZCDP,
    AbstractMechanism,
    AbstractRenyi,
    ApproxDP,
    BlatantNonPrivacy,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    KaryRandomizedResponse,
    Laplace,
    MixtureOfGaussians,
    NeighboringRelation,
    PerfectPrivacy,
    PermuteAndFlip,
    PoissonSubsampled,
    RandomizedResponse,
    RenyiDP,
    Subsampled,
    at_full_precision,
    is_number,
    product,
    quotient,
)
from ..sampling import (
    FixedSize,
    RandomAllocation,
    TruncatedPoisson,
    WithReplacement,
)
from ..selection import SelectBest
from ._library import is_event, name_of, relation_of
from ._selection import law_of
from ._steps import Step, Steps, whole

REPLACE_ONE = NeighboringRelation.REPLACE_ONE
ZERO_OUT = NeighboringRelation.ZERO_OUT
_ORDERS = 1 + np.geomspace(1e-3, 1e4, 256)
"""Where a Renyi divergence that is no multiple of the order is listed."""


class UnsupportedEvent(NotImplementedError):
    """An event that no mechanism here stands for."""

    def __init__(self, event: Any, missing: str):
        super().__init__(f"{type(event).__name__} is not supported: {missing}")
        self.event = event
        self.missing = missing


@explained
def from_dp_event(
    event: Any, *, relation: Any = ADD_OR_REMOVE_ONE
) -> AbstractMechanism:
    """The mechanism that an event of dp_accounting describes.

    Units are converted.  Noise multipliers of events divide by the largest norm C of
    one record's contribution, those of this package by the sensitivity: under
    REPLACE_ONE the sensitivity is 2 C, so that GaussianDpEvent(s) is Gaussian(s / 2).
    (`DPSGD` divides by C under each relation, as the events do.)

    - NoOp and NonPrivate are `PerfectPrivacy` and `BlatantNonPrivacy`;
    - Gaussian, Laplace and MixtureOfGaussians are called the same here (mixtures not
      under REPLACE_ONE), DiscreteLaplace(a) is `DiscreteLaplace` of scale 1 / a;
    - RandomizedResponse(p, k) has epsilon = log(1 + k (1 - p) / p) (not under
      ADD_OR_REMOVE_ONE: a report cannot be absent);
    - SingleEpochTreeAggregation is a `Gaussian`, under ZERO_OUT alone;
    - PoissonSampled is `PoissonSubsampled`, nested of the product of probabilities;
      under REPLACE_ONE a step of `DPSGD`, of Gaussians alone;
    - SampledWithoutReplacement of a Gaussian, under REPLACE_ONE or ZERO_OUT, is
      `Subsampled` with `sampling.FixedSize`; SampledWithReplacement, under REPLACE_ONE
      alone, with `sampling.WithReplacement`; TruncatedSubsampledGaussian is a step with
      `sampling.TruncatedPoisson`, by a pair that is tighter than dp_accounting's;
    - Composed and SelfComposed are a run of `DPSGD`, a composition, or an `Accountant`
      of more than four different steps;
    - ZCDp is `ZCDP`, with an offset xi `RenyiDP` at 256 orders;
    - EpsilonDelta, ExponentialMechanism and PermuteAndFlip are `ApproxDP` and those of
      their names; DiscreteGaussian is so in one dimension, else of the `ZCDP` of the
      Gaussian one (Canonne, Kamath and Steinke 2020, Theorem 14);
    - RepeatAndSelect is `SelectBest` with the law of its mean and shape; beside other
      releases it is a pair of finitely many outputs that dominates it;
    - RandomAllocation of a Gaussian is an epoch of `DPSGD` with
      `sampling.RandomAllocation`, not under REPLACE_ONE.

    Equal steps are counted together.  Whatever has no noise, or tells the records of a
    sample, counts as telling the record, as with dp_accounting.

    Args:
        event: A `dp_accounting.DpEvent`; its numbers may be traced.
        relation: The neighboring relation, which an event does not tell: of this
            package or of dp_accounting, whose REPLACE_SPECIAL is ZERO_OUT.

    Returns:
        A mechanism with the guarantee of the event, or a guarantee by Renyi divergences
        if a part is only known by these (see `compose`).

    Raises:
        TypeError: If it is no event.
        NotImplementedError: If an event is not supported; it is named, with what is
            missing.
        ValueError: If a number is out of range.

    References:
        The docstrings of dp_accounting.dp_event define the events: of 0.6.0, and of
        later versions for the last five.
    """
    relation = relation_of(relation)
    steps = Steps(relation)
    steps.add(read(event, relation))
    return steps.mechanism()


def read(event: Any, relation: NeighboringRelation) -> Iterator[tuple[Step, Any]]:
    """The single releases of an event, and how often each is made."""
    if not is_event(event):
        raise TypeError(f"event must be a dp_accounting.DpEvent, got {event!r}")
    name = name_of(event)
    if name == "ComposedDpEvent":
        for part in event.events:
            yield from read(part, relation)
    elif name == "SelfComposedDpEvent":
        count = whole("count", event.count)
        for step, times in read(event.event, relation):
            yield step, times * count
    elif name == "RepeatAndSelectDpEvent":
        yield _selected(event, relation), 1
    elif name in _SAMPLES:
        yield from _on_a_sample(event, relation, _SAMPLES[name](event, relation))
    elif name in _RELEASES:
        make, field, at_zero = _RELEASES[name]
        silent = bool(field) and is_number(getattr(event, field), 0)
        yield at_zero(relation=relation) if silent else make(event, relation), 1
    else:
        raise UnsupportedEvent(event, _MISSING.get(name, "it is not known here"))


def _require(event: Any, holds: bool, missing: str) -> None:
    if not holds:
        raise UnsupportedEvent(event, missing)


def _shifted(relation: NeighboringRelation) -> int:
    """The distance of neighbors in units of the norm of a record's contribution."""
    return 2 if relation is REPLACE_ONE else 1


# ------------------------------------------------------------------ single releases


def _plain(kind: Any, *fields: str) -> Callable[[Any, NeighboringRelation], Step]:
    """A mechanism whose parameters are fields of the event, of the same names."""
    return lambda event, relation: kind(
        **{name: getattr(event, name) for name in fields}, relation=relation
    )


def _additive(kind: Any, event: Any, relation: NeighboringRelation) -> Step:
    noise = _checks.positive("noise_multiplier", event.noise_multiplier)
    return kind(quotient(noise, _shifted(relation)), relation=relation)


def _discrete_laplace(event: Any, relation: NeighboringRelation) -> Step:
    rate = _checks.finite_positive("noise_parameter", event.noise_parameter)
    steps = event.sensitivity * _shifted(relation)
    return DiscreteLaplace(quotient(1, rate), sensitivity=steps, relation=relation)


def _discrete_gaussian(event: Any, relation: NeighboringRelation) -> Step:
    scale, steps = event.sigma, event.sensitivity * _shifted(relation)
    if event.dimension == 1:
        if isinstance(steps, float) and steps < math.inf:
            steps = math.ceil(steps)
        steps = _checks.whole("sensitivity", steps, 1, 4096)
        return DiscreteGaussian(scale, sensitivity=steps, relation=relation)
    # Of several dimensions the pair of the L2 sensitivity does not dominate.
    return ZCDP(_gaussian_rho(steps, _checks.finite_positive("sigma", scale)))


_gaussian_rho = at_full_precision(lambda steps, scale: 0.5 * (steps / scale) ** 2)


def _mixture(event: Any, relation: NeighboringRelation) -> Step:
    _require(
        event, relation is not REPLACE_ONE, "its pair is not one of replaced records"
    )
    shifts, noise = event.sensitivities, event.standard_deviation
    if not is_traced(shifts) and not np.any(np.asarray(shifts)):
        return PerfectPrivacy(relation=relation)
    if is_number(noise, 0):
        return BlatantNonPrivacy(relation=relation)
    shifts, probs = (
        jnp.stack(x) if is_traced(x) and isinstance(x, list | tuple) else x
        for x in (shifts, event.sampling_probs)
    )
    return MixtureOfGaussians(noise, shifts=shifts, probs=probs, relation=relation)


def _randomized_response(event: Any, relation: NeighboringRelation) -> Step:
    present = relation is not ADD_OR_REMOVE_ONE
    _require(event, present, "a report cannot be absent: add_or_remove_one")
    count = _checks.whole("num_buckets", event.num_buckets, 1, 10**9)
    prob = _checks.probability("noise_parameter", event.noise_parameter)
    if count == 1 or is_number(prob, 1):
        return PerfectPrivacy(relation=relation)
    if is_number(prob, 0):
        return BlatantNonPrivacy(relation=relation)
    epsilon = _epsilon_of_response(count, prob)
    if count == 2 and relation is REPLACE_ONE:
        return RandomizedResponse(epsilon, relation=relation)
    return KaryRandomizedResponse(epsilon, num_categories=count, relation=relation)


_epsilon_of_response = at_full_precision(
    lambda count, prob: (jnp if is_traced(prob) else np).log1p(
        count * (1 - prob) / prob
    )
)


def _tree(event: Any, relation: NeighboringRelation) -> Step:
    """A record is in as many nodes of its tree as that has levels."""
    _require(event, relation is ZERO_OUT, "trees need records that are zeroed out")
    counts = np.ravel(np.asarray(event.step_counts))
    counts = [_checks.whole("step_counts", int(x), 0, 2**62) for x in counts]
    levels, noise = max(counts, default=0).bit_length(), event.noise_multiplier
    if levels == 0:
        return PerfectPrivacy(relation=relation)
    if is_number(noise, 0):
        return BlatantNonPrivacy(relation=relation)
    noise = _checks.positive("noise_multiplier", noise)
    return Gaussian(quotient(noise, levels**0.5), relation=relation)


def _zcdp(event: Any, _relation: NeighboringRelation) -> Step:
    if is_number(event.xi, 0):
        return ZCDP(event.rho)
    rho, xi = (_checks.nonnegative(n, getattr(event, n)) for n in ("rho", "xi"))
    return RenyiDP(_ORDERS, _divergences(xi, rho))


_divergences = at_full_precision(lambda xi, rho: xi + rho * _ORDERS)


def _truncated(event: Any, relation: NeighboringRelation) -> Step:
    scheme = TruncatedPoisson(
        event.sampling_probability,
        batch_size=event.truncated_batch_size,
        dataset_size=event.dataset_size,
    )
    return _dpsgd(event.noise_multiplier, 1, relation, sampling=scheme)


def _dpsgd(
    noise: Any, steps: Any, relation: NeighboringRelation, **drawn: Any
) -> DPSGD:
    return DPSGD(noise_multiplier=noise, num_steps=steps, relation=relation, **drawn)


def _selected(event: Any, relation: NeighboringRelation) -> Any:
    """The best of a random number of runs; of what tells all or nothing, one run."""
    runs, law = Steps(relation), law_of(event.mean, event.shape)
    runs.add(read(event.event, relation))
    run = runs.mechanism()
    if law is None or not len(runs) or not runs.is_private:
        return run
    return SelectBest(run, repetitions=law)


# ---------------------------------------------------------------- releases on samples


class _Sample(NamedTuple):
    """A way to draw the records of a release."""

    share: Any
    """Share of the records, if 0 (nothing is released) or 1 (nothing is drawn)."""
    make: Callable[[Step], Step]
    """A release on a sample, from the one on all records."""
    kinds: Any
    """Classes of releases that are known on a sample."""
    otherwise: str
    """The reason why others are not, or several releases on one sample."""
    times: int = 1
    """Releases of a record that is always drawn."""


def _on_a_sample(
    event: Any, relation: NeighboringRelation, drawn: _Sample
) -> Iterator[tuple[Step, Any]]:
    parts = Steps(relation)
    parts.add(read(event.event, relation))
    if not len(parts) or is_number(drawn.share, 0):
        return
    (step, count), *others = parts
    if is_number(drawn.share, 1) or not parts.is_private:
        yield from ((step, count * drawn.times) for step, count in parts)
    else:
        once = not others and is_number(count, 1) and isinstance(step, drawn.kinds)
        _require(event, once, drawn.otherwise)
        yield drawn.make(step), 1


def _poisson(event: Any, _relation: NeighboringRelation) -> _Sample:
    prob = _checks.probability("sampling_probability", event.sampling_probability)
    make = functools.partial(_poisson_sample, event, prob)
    return _Sample(prob, make, Step, "a sample is used once: sample every step")


def _of_a_size(kind: Any, event: Any, relation: NeighboringRelation) -> _Sample:
    replaced = relation not in kind.refused
    _require(event, replaced, "samples of a size need a replaced record")
    sizes = event.sample_size, event.source_dataset_size
    scheme = kind(batch_size=sizes[0], dataset_size=sizes[1])
    make: Any = lambda step: Subsampled(step, scheme, 1)
    return _Sample(0.5, make, Gaussian, "samples of a size are known of one Gaussian")


def _allocated(event: Any, relation: NeighboringRelation) -> _Sample:
    counts = event.num_selected, event.num_steps
    selected, steps = (_checks.whole("num_selected", x, 0, 10**6) for x in counts)

    def make(step: Any) -> Step:
        known = relation is not REPLACE_ONE
        _require(event, known, "random allocation is not known of replace_one")
        scheme = RandomAllocation(steps, num_participations=selected)
        return _dpsgd(step.noise_multiplier, steps, relation, sampling=scheme)

    share = {0: 0.0, steps: 1.0}.get(selected, 0.5)
    otherwise = "random allocation is known of one Gaussian"
    return _Sample(share, make, Gaussian, otherwise, steps)


def _poisson_sample(event: Any, prob: Any, step: Any) -> Step:
    """A step on a sample; samples of samples are samples."""
    if isinstance(step, PoissonSubsampled):
        return PoissonSubsampled(step.mechanism, product(prob, step.sampling_prob))
    run = isinstance(step, DPSGD)
    for kinds, why in _NO_SAMPLE.items():
        _require(event, not isinstance(step, kinds), why)
    _require(event, not run or step.sampling is None, _NO_SAMPLE[Subsampled])
    if step.relation is not REPLACE_ONE:
        return PoissonSubsampled(step, prob)
    if isinstance(step, Gaussian):
        over_norm = product(step.noise_multiplier, 2)
        return _dpsgd(over_norm, 1, REPLACE_ONE, sampling_prob=prob)
    name = type(step).__name__
    _require(
        event, run, f"under replace_one samples of Gaussians are known, got {name}"
    )
    return dataclasses.replace(step, sampling_prob=product(prob, step.sampling_prob))


_NO_SAMPLE: dict[Any, str] = {
    Subsampled: "batches of a size have no samples here",
    RandomizedResponse: "randomized response has no sample of records",
    KaryRandomizedResponse: "randomized response has no sample of records",
    AbstractRenyi: "Renyi divergences of samples are not known",
    SelectBest: "a selection has no sample here: sample every run",
}
"""Releases that are not known on a sample."""
_NOISE = "noise_multiplier", BlatantNonPrivacy
_BOUND = "epsilon", PerfectPrivacy
_NEVER = "", PerfectPrivacy
_RELEASES: dict[str, tuple[Callable[[Any, NeighboringRelation], Any], str, Any]] = {
    "NoOpDpEvent": (_plain(PerfectPrivacy), *_NEVER),
    "NonPrivateDpEvent": (_plain(BlatantNonPrivacy), *_NEVER),
    "GaussianDpEvent": (functools.partial(_additive, Gaussian), *_NOISE),
    "LaplaceDpEvent": (functools.partial(_additive, Laplace), *_NOISE),
    # At 0 its noise has no end, but dp_accounting takes that for none.
    "DiscreteLaplaceDpEvent": (_discrete_laplace, "noise_parameter", BlatantNonPrivacy),
    "DiscreteGaussianDpEvent": (_discrete_gaussian, "sigma", BlatantNonPrivacy),
    "MixtureOfGaussiansDpEvent": (_mixture, *_NEVER),
    "RandomizedResponseDpEvent": (_randomized_response, *_NEVER),
    "SingleEpochTreeAggregationDpEvent": (_tree, *_NEVER),
    "ZCDpEvent": (_zcdp, *_NEVER),
    "EpsilonDeltaDpEvent": (_plain(ApproxDP, "epsilon", "delta"), *_NEVER),
    "ExponentialMechanismDpEvent": (_plain(ExponentialMechanism, "epsilon"), *_BOUND),
    "PermuteAndFlipDpEvent": (_plain(PermuteAndFlip, "epsilon"), *_BOUND),
    "TruncatedSubsampledGaussianDpEvent": (_truncated, *_NOISE),
}
"""Makers by events; the field that may be 0, and the mechanism that it is then."""
_SAMPLES: dict[str, Callable[[Any, NeighboringRelation], _Sample]] = {
    "PoissonSampledDpEvent": _poisson,
    "SampledWithoutReplacementDpEvent": functools.partial(_of_a_size, FixedSize),
    "SampledWithReplacementDpEvent": functools.partial(_of_a_size, WithReplacement),
    "RandomAllocationDpEvent": _allocated,
}
_MISSING = {
    "UnsupportedDpEvent": "it says of itself that nothing is known",
}
