"""Mechanisms from dp_accounting's events."""

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import is_traced, known
from ..mechanisms import (
    ADD_OR_REMOVE_ONE,
    DPSGD,
    ZCDP,
    AbstractMechanism,
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
    PermuteAndFlip,
    PoissonSubsampled,
    RandomizedResponse,
    RenyiDP,
    Subsampled,
)
from ..sampling import FixedSize, RandomAllocation, TruncatedPoisson
from ._library import is_event, name_of, relation_of
from ._steps import Step, Steps, whole

REPLACE_ONE = NeighboringRelation.REPLACE_ONE
ZERO_OUT = NeighboringRelation.ZERO_OUT
_Found = list[tuple[Step, Any]]
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
      `Subsampled` with `sampling.FixedSize`; TruncatedSubsampledGaussian is a step with
      `sampling.TruncatedPoisson`, by a pair that is tighter than dp_accounting's;
    - Composed and SelfComposed are a run of `DPSGD`, a composition, or an `Accountant`
      of more than four different steps;
    - ZCDp is `ZCDP`, with an offset xi `RenyiDP` at 256 orders;
    - EpsilonDelta, ExponentialMechanism and PermuteAndFlip are `ApproxDP` and those of
      their names; DiscreteGaussian is so in one dimension, else of the `ZCDP` of the
      Gaussian one (Canonne, Kamath and Steinke 2020, Theorem 14);
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
    elif name in _RELEASES:
        yield from _RELEASES[name](event, relation)
    else:
        raise UnsupportedEvent(event, _MISSING.get(name, "it is not known here"))


def _nothing(_event: Any, _relation: NeighboringRelation) -> _Found:
    return []


def _all(_event: Any, relation: NeighboringRelation) -> _Found:
    return [(BlatantNonPrivacy(relation=relation), 1)]


def _is(value: Any, number: float) -> bool:
    found = known(value)
    return found is not None and bool(found == number)


def _shifted(relation: NeighboringRelation) -> int:
    """The distance of neighbors in units of the norm of a record's contribution."""
    return 2 if relation is REPLACE_ONE else 1


def _gaussian(event: Any, relation: NeighboringRelation) -> _Found:
    noise = event.noise_multiplier
    if _is(noise, 0):
        return _all(event, relation)
    noise = _checks.positive("noise_multiplier", noise)
    return [(Gaussian(noise / _shifted(relation), relation=relation), 1)]


def _laplace(event: Any, relation: NeighboringRelation) -> _Found:
    noise = event.noise_multiplier
    if _is(noise, 0):
        return _all(event, relation)
    noise = _checks.positive("noise_multiplier", noise)
    return [(Laplace(noise / _shifted(relation), relation=relation), 1)]


def _discrete_laplace(event: Any, relation: NeighboringRelation) -> _Found:
    rate = event.noise_parameter
    if _is(rate, 0):
        # Noise without end.  dp_accounting takes this one for none.
        return _all(event, relation)
    rate = _checks.finite_positive("noise_parameter", rate)
    steps = event.sensitivity * _shifted(relation)
    return [(DiscreteLaplace(1 / rate, sensitivity=steps, relation=relation), 1)]


def _mixture(event: Any, relation: NeighboringRelation) -> _Found:
    if relation is REPLACE_ONE:
        raise UnsupportedEvent(event, "its pair is not one of replaced records")
    shifts, noise = event.sensitivities, event.standard_deviation
    if not is_traced(shifts) and not np.any(np.asarray(shifts)):
        return []
    if _is(noise, 0):
        return _all(event, relation)
    probs = event.sampling_probs
    shifts, probs = (
        jnp.stack(x) if is_traced(x) and isinstance(x, list | tuple) else x
        for x in (shifts, probs)
    )
    found = MixtureOfGaussians(noise, shifts=shifts, probs=probs, relation=relation)
    return [(found, 1)]


def _randomized_response(event: Any, relation: NeighboringRelation) -> _Found:
    if relation is ADD_OR_REMOVE_ONE:
        raise UnsupportedEvent(event, "a report cannot be absent: add_or_remove_one")
    count, prob = event.num_buckets, event.noise_parameter
    count = _checks.whole("num_buckets", count, 1, 10**9)
    prob = _checks.probability("noise_parameter", prob)
    if count == 1 or _is(prob, 1):
        return []
    if _is(prob, 0):
        return _all(event, relation)
    log1p = jnp.log1p if is_traced(prob) else np.log1p
    epsilon = log1p(count * (1 - prob) / prob)
    if count == 2 and relation is REPLACE_ONE:
        return [(RandomizedResponse(epsilon, relation=relation), 1)]
    found = KaryRandomizedResponse(epsilon, num_categories=count, relation=relation)
    return [(found, 1)]


def _tree(event: Any, relation: NeighboringRelation) -> _Found:
    """A record is in as many nodes of its tree as that has levels."""
    if relation is not ZERO_OUT:
        raise UnsupportedEvent(event, "trees need records that are zeroed out")
    noise = event.noise_multiplier
    counts = np.ravel(np.asarray(event.step_counts))
    counts = [_checks.whole("step_counts", int(x), 0, 2**62) for x in counts]
    levels = max(counts, default=0).bit_length()
    if levels == 0:
        return []
    if _is(noise, 0):
        return _all(event, relation)
    noise = _checks.positive("noise_multiplier", noise)
    return [(Gaussian(noise / levels**0.5, relation=relation), 1)]


def _zcdp(event: Any, _relation: NeighboringRelation) -> _Found:
    if _is(event.xi, 0):
        return [(ZCDP(event.rho), 1)]
    rho, xi = (_checks.nonnegative(n, getattr(event, n)) for n in ("rho", "xi"))
    return [(RenyiDP(_ORDERS, xi + rho * _ORDERS), 1)]


def _known(event: Any, relation: NeighboringRelation) -> _Found:
    epsilon, delta = event.epsilon, event.delta
    return [(ApproxDP(epsilon=epsilon, delta=delta, relation=relation), 1)]


def _selection(kind: type[ExponentialMechanism | PermuteAndFlip]) -> Any:
    def read_one(event: Any, relation: NeighboringRelation) -> _Found:
        if _is(event.epsilon, 0):
            return []
        return [(kind(event.epsilon, relation=relation), 1)]

    return read_one


def _discrete_gaussian(event: Any, relation: NeighboringRelation) -> _Found:
    if _is(event.sigma, 0):
        return _all(event, relation)
    scale, steps = event.sigma, event.sensitivity * _shifted(relation)
    if event.dimension == 1:
        steps = _checks.whole("sensitivity", steps, 1, 4096)
        return [(DiscreteGaussian(scale, sensitivity=steps, relation=relation), 1)]
    # Of several dimensions the pair of the L2 sensitivity does not dominate.
    scale = _checks.finite_positive("sigma", scale)
    return [(ZCDP(0.5 * (steps / scale) ** 2), 1)]


def _sampled(event: Any, relation: NeighboringRelation) -> _Found:
    prob = _checks.probability("sampling_probability", event.sampling_probability)
    parts = Steps(relation)
    parts.add(read(event.event, relation))
    found = list(parts)
    if not found or _is(prob, 0):
        return []
    if _is(prob, 1) or not parts.is_private:
        return found if parts.is_private else _all(event, relation)
    (step, count), *others = found
    if others or not _is(count, 1):
        raise UnsupportedEvent(event, "a sample is used once: sample every step")
    return [(_sample_of(event, step, prob), 1)]


def _fixed_sample(event: Any, relation: NeighboringRelation) -> _Found:
    if relation is ADD_OR_REMOVE_ONE:
        raise UnsupportedEvent(event, "samples of a size need a replaced record")
    sizes = event.sample_size, event.source_dataset_size
    scheme = FixedSize(batch_size=sizes[0], dataset_size=sizes[1])
    parts = Steps(relation)
    parts.add(read(event.event, relation))
    found = list(parts)
    if not found or not parts.is_private:
        return found if parts.is_private else _all(event, relation)
    (step, count), *others = found
    if others or not _is(count, 1) or not isinstance(step, Gaussian):
        raise UnsupportedEvent(event, "samples of a size are known of one Gaussian")
    return [(Subsampled(step, scheme, 1), 1)]


def _truncated(event: Any, relation: NeighboringRelation) -> _Found:
    noise = event.noise_multiplier
    if _is(noise, 0):
        return _all(event, relation)
    scheme = TruncatedPoisson(
        event.sampling_probability,
        batch_size=event.truncated_batch_size,
        dataset_size=event.dataset_size,
    )
    step = DPSGD(
        noise_multiplier=noise, sampling=scheme, num_steps=1, relation=relation
    )
    return [(step, 1)]


def _allocated(event: Any, relation: NeighboringRelation) -> _Found:
    counts = event.num_selected, event.num_steps
    selected, steps = (_checks.whole("num_selected", x, 0, 10**6) for x in counts)
    parts = Steps(relation)
    parts.add(read(event.event, relation))
    found = list(parts)
    if not found or selected == 0:
        return []
    if selected == steps or not parts.is_private:
        return [(step, times * steps) for step, times in found]
    (step, count), *others = found
    if others or not _is(count, 1) or not isinstance(step, Gaussian):
        raise UnsupportedEvent(event, "random allocation is known of one Gaussian")
    if relation is REPLACE_ONE:
        raise UnsupportedEvent(event, "random allocation is not known of replace_one")
    scheme = RandomAllocation(steps, num_participations=selected)
    run = DPSGD(
        noise_multiplier=step.noise_multiplier,
        sampling=scheme,
        num_steps=steps,
        relation=relation,
    )
    return [(run, 1)]


def _sample_of(event: Any, step: Step, prob: Any) -> AbstractMechanism:
    """A step on a sample; samples of samples are samples."""
    if isinstance(step, PoissonSubsampled):
        return PoissonSubsampled(step.mechanism, prob * _number(step.sampling_prob))
    sampled = isinstance(step, DPSGD) and step.sampling is not None
    if sampled or isinstance(step, Subsampled):
        raise UnsupportedEvent(event, "batches of a size have no samples here")
    if isinstance(step, DPSGD | Gaussian) and step.relation is REPLACE_ONE:
        noise, first = _number(step.noise_multiplier), 1.0
        if isinstance(step, DPSGD):
            first = _number(step.sampling_prob)
        else:
            noise = noise * 2
        return DPSGD(
            noise_multiplier=noise,
            sampling_prob=prob * first,
            num_steps=1,
            relation=REPLACE_ONE,
        )
    if isinstance(step, RandomizedResponse | KaryRandomizedResponse):
        raise UnsupportedEvent(event, "randomized response has no sample of records")
    if not isinstance(step, AbstractMechanism):
        raise UnsupportedEvent(event, "Renyi divergences of samples are not known")
    if step.relation is REPLACE_ONE:
        raise UnsupportedEvent(
            event,
            f"under replace_one samples of Gaussians are known, got {_name(step)}",
        )
    return PoissonSubsampled(step, prob)


def _number(value: Any) -> Any:
    assert value is not None
    return value


def _name(step: Any) -> str:
    return type(step).__name__


_RELEASES: dict[str, Callable[[Any, NeighboringRelation], _Found]] = {
    "NoOpDpEvent": _nothing,
    "NonPrivateDpEvent": _all,
    "GaussianDpEvent": _gaussian,
    "LaplaceDpEvent": _laplace,
    "DiscreteLaplaceDpEvent": _discrete_laplace,
    "MixtureOfGaussiansDpEvent": _mixture,
    "RandomizedResponseDpEvent": _randomized_response,
    "SingleEpochTreeAggregationDpEvent": _tree,
    "ZCDpEvent": _zcdp,
    "RandomAllocationDpEvent": _allocated,
    "EpsilonDeltaDpEvent": _known,
    "ExponentialMechanismDpEvent": _selection(ExponentialMechanism),
    "PermuteAndFlipDpEvent": _selection(PermuteAndFlip),
    "DiscreteGaussianDpEvent": _discrete_gaussian,
    "PoissonSampledDpEvent": _sampled,
    "SampledWithoutReplacementDpEvent": _fixed_sample,
    "TruncatedSubsampledGaussianDpEvent": _truncated,
}
_MISSING = {
    "UnsupportedDpEvent": "it says of itself that nothing is known",
    "SampledWithReplacementDpEvent": "there is no sampling with replacement here",
    "RepeatAndSelectDpEvent": (
        "a selection is fdp.SelectBest(run, repetitions=...) of the run's mechanism"
    ),
}
