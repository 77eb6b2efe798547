"""dp_accounting's events from mechanisms."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

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
)
from ..sampling import RandomAllocation
from ._library import events
from ._steps import whole

REPLACE_ONE = NeighboringRelation.REPLACE_ONE


@explained
def to_dp_event(mechanism: AbstractMechanism | AbstractRenyi) -> Any:
    """The event of dp_accounting that describes a mechanism.

    An event does not tell its neighboring relation: account for it under the
    mechanism's own.  Units are converted, see `from_dp_event`.

    Args:
        mechanism: A Gaussian, Laplace, discrete Laplace or mixture-of-Gaussians
            mechanism, randomized response, DP-SGD, a Poisson-subsampled or composed
            mechanism, schedule or accountant of these, `PerfectPrivacy`,
            `BlatantNonPrivacy` or `ZCDP`; `ApproxDP`, `PureDP`, `DiscreteGaussian`,
            `ExponentialMechanism` or `PermuteAndFlip` if the installed version has
            events for them.

    Returns:
        A `dp_accounting.DpEvent`.

    Raises:
        ImportError: If dp_accounting is not installed.
        TypeError: If it is no mechanism.
        NotImplementedError: If a mechanism has no event; it is named.
        ValueError: If a number is traced or not set, or a number of steps not whole.
    """
    if not isinstance(mechanism, AbstractMechanism | AbstractRenyi):
        kind = type(mechanism).__name__
        raise TypeError(f"to_dp_event takes mechanisms, got {kind}")
    if isinstance(mechanism, AbstractMechanism):
        mechanism.require_complete()
    if is_traced(mechanism):
        raise ValueError("to_dp_event needs known numbers: call it outside of jit")
    return _event(mechanism, events("to_dp_event"))


def _event(mechanism: Any, events: Any) -> Any:
    kinds = [kind for kind in type(mechanism).__mro__ if kind in _EVENTS]
    make = _EVENTS[kinds[0]] if kinds else None
    if make is None:
        name = type(mechanism).__name__.lstrip("_")
        raise NotImplementedError(f"dp_accounting has no event for {name}")
    return make(mechanism, events)


def _refused(mechanism: Any, why: str) -> NotImplementedError:
    name = type(mechanism).__name__
    return NotImplementedError(f"dp_accounting has no event for {name} {why}")


def _shifted(mechanism: Any) -> int:
    """The distance of neighbors in units of the norm of a record's contribution."""
    return 2 if mechanism.relation is REPLACE_ONE else 1


def _additive(event: Any, noise: float, nothing: Any) -> Any:
    return event(noise) if np.isfinite(noise) else nothing()


def _gaussian(mechanism: Gaussian, events: Any) -> Any:
    noise = _number(mechanism.noise_multiplier) * _shifted(mechanism)
    return _additive(events.GaussianDpEvent, noise, events.NoOpDpEvent)


def _laplace(mechanism: Laplace, events: Any) -> Any:
    noise = _number(mechanism.noise_multiplier) * _shifted(mechanism)
    return _additive(events.LaplaceDpEvent, noise, events.NoOpDpEvent)


def _discrete_laplace(mechanism: DiscreteLaplace, events: Any) -> Any:
    steps, rest = divmod(mechanism.sensitivity, _shifted(mechanism))
    if rest:
        raise _refused(mechanism, "of an odd sensitivity under replace_one")
    return events.DiscreteLaplaceDpEvent(1 / _number(mechanism.scale), steps)


def _discrete_gaussian(mechanism: DiscreteGaussian, events: Any) -> Any:
    steps, rest = divmod(mechanism.sensitivity, _shifted(mechanism))
    if rest or mechanism.truncation is not None:
        raise _refused(mechanism, "that is truncated, or odd under replace_one")
    kind = _later(mechanism, events, "DiscreteGaussianDpEvent")
    return kind(_number(mechanism.scale), steps, 1)


def _selection(mechanism: ExponentialMechanism | PermuteAndFlip, events: Any) -> Any:
    kind = _later(mechanism, events, f"{type(mechanism).__name__}DpEvent")
    return kind(_number(mechanism.epsilon0) * (0.5 if mechanism.monotonic else 1.0))


def _known(mechanism: ApproxDP | PureDP, events: Any) -> Any:
    kind = _later(mechanism, events, "EpsilonDeltaDpEvent")
    delta = mechanism.delta0 if isinstance(mechanism, ApproxDP) else 0.0
    return kind(_number(mechanism.epsilon0), _number(delta))


def _later(mechanism: Any, events: Any, name: str) -> Any:
    """An event that not every version of dp_accounting has."""
    if not hasattr(events, name):
        raise _refused(mechanism, f"in this version: {name} is of a later one")
    return getattr(events, name)


def _renyi_composition(mechanism: RenyiComposition, events: Any) -> Any:
    both = mechanism.known, mechanism.mechanism
    return _composed([(_event(part, events), 1) for part in both], events)


def _mixture(mechanism: MixtureOfGaussians, events: Any) -> Any:
    if mechanism.relation is REPLACE_ONE:
        raise _refused(mechanism, "under replace_one")
    shifts, probs = (
        [float(x) for x in np.asarray(value)]
        for value in (mechanism.shifts, mechanism.probs)
    )
    noise = _number(mechanism.noise_multiplier)
    return events.MixtureOfGaussiansDpEvent(noise, shifts, probs)


def _randomized_response(mechanism: RandomizedResponse, events: Any) -> Any:
    if mechanism.relation is not REPLACE_ONE:
        raise _refused(mechanism, f"under {mechanism.relation.value}")
    return _response(_number(mechanism.epsilon0), 2, events)


def _kary(mechanism: KaryRandomizedResponse, events: Any) -> Any:
    return _response(_number(mechanism.epsilon0), mechanism.num_categories, events)


def _response(epsilon: float, count: int, events: Any) -> Any:
    noise = count / (np.expm1(epsilon) + count)
    return events.RandomizedResponseDpEvent(float(noise), count)


def _subsampled(mechanism: PoissonSubsampled, events: Any) -> Any:
    inner = _event(mechanism.mechanism, events)
    return events.PoissonSampledDpEvent(_number(mechanism.sampling_prob), inner)


def _dpsgd(mechanism: DPSGD, events: Any) -> Any:
    scheme = mechanism.sampling
    if isinstance(scheme, RandomAllocation) and not scheme.same_every_epoch:
        kind = _later(mechanism, events, "RandomAllocationDpEvent")
        inner = events.GaussianDpEvent(_number(mechanism.noise_multiplier))
        batches = int(_number(scheme.num_batches))
        epoch = kind(inner, scheme.num_participations, batches)
        epochs, rest = divmod(_number(mechanism.num_steps), batches)
        if rest:
            raise _refused(mechanism, "that ends within an epoch")
        return _composed([(epoch, epochs)], events)
    if scheme is not None:
        steps = mechanism.as_steps()
        return _composed([(_event(step, events), n) for step, n in steps], events)
    # Its noise is in units of the clipping norm under each relation.
    noise = _number(mechanism.noise_multiplier)
    inner = _additive(events.GaussianDpEvent, noise, events.NoOpDpEvent)
    step = events.PoissonSampledDpEvent(_number(mechanism.sampling_prob), inner)
    return _composed([(step, mechanism.num_steps)], events)


def _composition(mechanism: Composition, events: Any) -> Any:
    pairs = zip(mechanism.parts, mechanism.num_steps, strict=True)
    return _composed([(_event(part, events), n) for part, n in pairs], events)


def _accountant(mechanism: Accountant, events: Any) -> Any:
    return _composed(
        [(_event(step, events), n) for step, n in mechanism.history], events
    )


def _schedule(mechanism: Schedule, events: Any) -> Any:
    count = jax.tree.leaves(mechanism.steps)[-1].shape[0]
    steps = [
        jax.tree.map(lambda x, i=i: np.asarray(x)[i], mechanism.steps)
        for i in range(count)
    ]
    return _composed([(_event(step, events), 1) for step in steps], events)


def _composed(parts: list[tuple[Any, Any]], events: Any) -> Any:
    found = []
    for event, count in parts:
        count = whole("num_steps", count)
        if count == 1:
            found.append(event)
        elif count > 1:
            found.append(events.SelfComposedDpEvent(event, count))
    if not found:
        return events.NoOpDpEvent()
    return found[0] if len(found) == 1 else events.ComposedDpEvent(found)


def _number(value: Any) -> float:
    return float(np.asarray(value))


_EVENTS: dict[type, Callable[[Any, Any], Any]] = {
    PerfectPrivacy: lambda _, events: events.NoOpDpEvent(),
    BlatantNonPrivacy: lambda _, events: events.NonPrivateDpEvent(),
    ZCDP: lambda mechanism, events: events.ZCDpEvent(_number(mechanism.rho)),
    Gaussian: _gaussian,
    Laplace: _laplace,
    DiscreteLaplace: _discrete_laplace,
    DiscreteGaussian: _discrete_gaussian,
    ExponentialMechanism: _selection,
    PermuteAndFlip: _selection,
    ApproxDP: _known,
    PureDP: _known,
    RenyiComposition: _renyi_composition,
    MixtureOfGaussians: _mixture,
    RandomizedResponse: _randomized_response,
    KaryRandomizedResponse: _kary,
    PoissonSubsampled: _subsampled,
    DPSGD: _dpsgd,
    Composition: _composition,
    Accountant: _accountant,
    Schedule: _schedule,
}
