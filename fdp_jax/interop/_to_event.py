"""dp_accounting's events from mechanisms."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import is_traced
from ..accounting import Accountant
from ..mechanisms import (
    DPSGD,
    ZCDP,
    AbstractMechanism,
    AbstractRenyi,
    ApproxDP,
    BlatantNonPrivacy,
    Composition,
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
    PureDP,
    RandomizedResponse,
    RenyiComposition,
    Schedule,
    Subsampled,
)
from ..sampling import (
    FixedSize,
    Poisson,
    RandomAllocation,
    TruncatedPoisson,
    WithReplacement,
)
from ..selection import SelectBest
from ._library import events
from ._selection import mean_and_shape
from ._steps import whole

REPLACE_ONE = NeighboringRelation.REPLACE_ONE


@explained
def to_dp_event(mechanism: AbstractMechanism | AbstractRenyi | SelectBest) -> Any:
    """The event of dp_accounting that describes a mechanism.

    An event does not tell its neighboring relation: account for it under the
    mechanism's own.  Units are converted, see `from_dp_event`.

    Args:
        mechanism: A Gaussian, Laplace, discrete Laplace or mixture-of-Gaussians
            mechanism, randomized response, DP-SGD, a subsampled or composed mechanism,
            schedule or accountant of these, `PerfectPrivacy`,
            `BlatantNonPrivacy`, `ZCDP` or `SelectBest`; `ApproxDP`, `PureDP`,
            `DiscreteGaussian`, `ExponentialMechanism` or `PermuteAndFlip` if the
            installed version has events for them.

    Returns:
        A `dp_accounting.DpEvent`.

    Raises:
        ImportError: If dp_accounting is not installed.
        TypeError: If it is no mechanism.
        NotImplementedError: If a mechanism has no event; it is named.
        ValueError: If a number is traced or not set, or a number of steps not whole.
    """
    if not isinstance(mechanism, AbstractMechanism | AbstractRenyi | SelectBest):
        kind = type(mechanism).__name__
        raise TypeError(f"to_dp_event takes mechanisms, got {kind}")
    if not isinstance(mechanism, AbstractRenyi):
        mechanism.require_complete()
    _checks.require(
        not is_traced(mechanism),
        "to_dp_event needs known numbers: call it outside of jit",
    )
    return _event(mechanism, events("to_dp_event"))


def _event(mechanism: Any, events: Any) -> Any:
    kinds = [kind for kind in type(mechanism).__mro__ if kind in _EVENTS]
    make = _EVENTS[kinds[0]] if kinds else None
    if make is None:
        name = type(mechanism).__name__.lstrip("_")
        raise NotImplementedError(f"dp_accounting has no event for {name}")
    return make(mechanism, events)


def _require(mechanism: Any, holds: Any, otherwise: str) -> None:
    name = type(mechanism).__name__
    rule = f"dp_accounting has no event for {name} {otherwise}"
    _checks.require(holds, rule, wrong=NotImplementedError)


def _shifted(mechanism: Any) -> int:
    """The distance of neighbors in units of the norm of a record's contribution."""
    return 2 if mechanism.relation is REPLACE_ONE else 1


def _later(mechanism: Any, events: Any, name: str) -> Any:
    """An event that not every version of dp_accounting has."""
    known = hasattr(events, name)
    _require(mechanism, known, f"in this version: {name} is of a later one")
    return getattr(events, name)


def _additive(mechanism: Gaussian | Laplace, events: Any) -> Any:
    noise = _number(mechanism.noise_multiplier) * _shifted(mechanism)
    if not np.isfinite(noise):
        return events.NoOpDpEvent()
    gaussian = isinstance(mechanism, Gaussian)
    return (events.GaussianDpEvent if gaussian else events.LaplaceDpEvent)(noise)


def _discrete(mechanism: DiscreteLaplace | DiscreteGaussian, events: Any) -> Any:
    steps, rest = divmod(mechanism.sensitivity, _shifted(mechanism))
    whole = not rest and getattr(mechanism, "truncation", None) is None
    why = "that is truncated, or of an odd sensitivity under replace_one"
    _require(mechanism, whole, why)
    scale = _number(mechanism.scale)
    if isinstance(mechanism, DiscreteLaplace):
        return events.DiscreteLaplaceDpEvent(1 / scale, steps)
    return _later(mechanism, events, "DiscreteGaussianDpEvent")(scale, steps, 1)


def _selection(mechanism: ExponentialMechanism | PermuteAndFlip, events: Any) -> Any:
    kind = _later(mechanism, events, f"{type(mechanism).__name__}DpEvent")
    return kind(_number(mechanism.epsilon0) * (0.5 if mechanism.monotonic else 1.0))


def _chosen(mechanism: SelectBest, events: Any) -> Any:
    _require(mechanism, mechanism.direction == "both", "of one direction")
    run = _event(mechanism.run, events)
    return events.RepeatAndSelectDpEvent(run, *mean_and_shape(mechanism.repetitions))


def _known(mechanism: ApproxDP | PureDP, events: Any) -> Any:
    kind = _later(mechanism, events, "EpsilonDeltaDpEvent")
    delta = mechanism.delta0 if isinstance(mechanism, ApproxDP) else 0.0
    return kind(_number(mechanism.epsilon0), _number(delta))


def _mixture(mechanism: MixtureOfGaussians, events: Any) -> Any:
    _require(mechanism, mechanism.relation is not REPLACE_ONE, "under replace_one")
    shifts, probs = (np.ravel(x).tolist() for x in (mechanism.shifts, mechanism.probs))
    noise = _number(mechanism.noise_multiplier)
    return events.MixtureOfGaussiansDpEvent(noise, shifts, probs)


def _response(
    mechanism: RandomizedResponse | KaryRandomizedResponse, events: Any
) -> Any:
    of_two = isinstance(mechanism, RandomizedResponse)
    known = not of_two or mechanism.relation is REPLACE_ONE
    _require(mechanism, known, f"under {mechanism.relation.value}")
    count = 2 if of_two else mechanism.num_categories
    noise = count / (np.expm1(_number(mechanism.epsilon0)) + count)
    return events.RandomizedResponseDpEvent(float(noise), count)


def _subsampled(mechanism: PoissonSubsampled, events: Any) -> Any:
    inner = _event(mechanism.mechanism, events)
    return events.PoissonSampledDpEvent(_number(mechanism.sampling_prob), inner)


def _dpsgd(mechanism: DPSGD, events: Any) -> Any:
    # Its noise is in units of the clipping norm under each relation.
    inner = _additive(Gaussian(mechanism.noise_multiplier), events)
    scheme = mechanism.sampling or Poisson(mechanism.sampling_prob)
    return _on_batches(mechanism, scheme, inner, events)


def _on_batches(
    mechanism: DPSGD | Subsampled, scheme: Any, inner: Any, events: Any
) -> Any:
    """The event of releases on batches, from that of one on all records."""
    steps, make = mechanism.num_steps, _SCHEMES.get(type(scheme))
    if make is None or getattr(scheme, "same_every_epoch", False):
        return _steps(mechanism, events)
    if isinstance(scheme, RandomAllocation):
        steps, rest = divmod(_number(steps), _whole(scheme.num_batches))
        _require(mechanism, not rest, "that ends within an epoch")
    return _composed([(make(scheme, inner, events), steps)], events)


def _allocated(scheme: RandomAllocation, inner: Any, events: Any) -> Any:
    kind = _later(scheme, events, "RandomAllocationDpEvent")
    return kind(inner, scheme.num_participations, _whole(scheme.num_batches))


def _truncated(scheme: TruncatedPoisson, inner: Any, events: Any) -> Any:
    return events.TruncatedSubsampledGaussianDpEvent(
        _whole(scheme.dataset_size),
        _number(scheme.prob),
        _whole(scheme.batch_size),
        getattr(inner, "noise_multiplier", np.inf),  # none where nothing is released
    )


def _of_a_size(scheme: FixedSize, inner: Any, events: Any) -> Any:
    sizes = scheme.sizes()
    _require(scheme, sizes, "with a share: give batch_size and dataset_size")
    return events.SampledWithoutReplacementDpEvent(*sizes[::-1], inner)


def _with_replacement(scheme: WithReplacement, inner: Any, events: Any) -> Any:
    sizes = _whole(scheme.dataset_size), _whole(scheme.batch_size)
    return events.SampledWithReplacementDpEvent(*sizes, inner)


def _steps(mechanism: AbstractMechanism, events: Any) -> Any:
    """The event of a mechanism that consists of others."""
    pairs = mechanism.as_steps()
    return _composed([(_event(step, events), n) for step, n in pairs], events)


def _renyi_composition(mechanism: RenyiComposition, events: Any) -> Any:
    both = mechanism.known, mechanism.mechanism
    return _composed([(_event(part, events), 1) for part in both], events)


def _schedule(mechanism: Schedule, events: Any) -> Any:
    count = jax.tree.leaves(mechanism.steps)[-1].shape[0]
    steps = [
        jax.tree.map(lambda x, i=i: np.asarray(x)[i], mechanism.steps)
        for i in range(count)
    ]
    return _composed([(_event(step, events), 1) for step in steps], events)


def _composed(parts: list[tuple[Any, Any]], events: Any) -> Any:
    counts = [(event, whole("num_steps", count)) for event, count in parts]
    repeat = events.SelfComposedDpEvent
    found = [x if n == 1 else repeat(x, n) for x, n in counts if n > 0]
    if not found:
        return events.NoOpDpEvent()
    return found[0] if len(found) == 1 else events.ComposedDpEvent(found)


def _number(value: Any) -> float:
    return float(np.asarray(value))


def _whole(value: Any) -> int:
    return int(_number(value))


_SCHEMES: dict[type, Callable[[Any, Any, Any], Any]] = {
    Poisson: lambda scheme, inner, events: events.PoissonSampledDpEvent(
        _number(scheme.prob), inner
    ),
    FixedSize: _of_a_size,
    WithReplacement: _with_replacement,
    TruncatedPoisson: _truncated,
    RandomAllocation: _allocated,
}

_EVENTS: dict[type, Callable[[Any, Any], Any]] = {
    PerfectPrivacy: lambda _, events: events.NoOpDpEvent(),
    BlatantNonPrivacy: lambda _, events: events.NonPrivateDpEvent(),
    ZCDP: lambda mechanism, events: events.ZCDpEvent(_number(mechanism.rho)),
    Gaussian: _additive,
    Laplace: _additive,
    DiscreteLaplace: _discrete,
    DiscreteGaussian: _discrete,
    ExponentialMechanism: _selection,
    PermuteAndFlip: _selection,
    SelectBest: _chosen,
    ApproxDP: _known,
    PureDP: _known,
    RenyiComposition: _renyi_composition,
    MixtureOfGaussians: _mixture,
    RandomizedResponse: _response,
    KaryRandomizedResponse: _response,
    PoissonSubsampled: _subsampled,
    DPSGD: _dpsgd,
    Subsampled: lambda mechanism, events: _on_batches(
        mechanism, mechanism.sampling, _event(mechanism.mechanism, events), events
    ),
    Composition: lambda mechanism, events: _composed(
        [
            (_event(part, events), n)
            for part, n in zip(mechanism.parts, mechanism.num_steps, strict=True)
        ],
        events,
    ),
    Accountant: _steps,
    Schedule: _schedule,
}
