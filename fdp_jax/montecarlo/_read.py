"""From a mechanism to the strategy, the noise and the participation of a record."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._internal import _checks
from .._internal._concrete import is_traced, known
from ..mechanisms import DPSGD, REPLACE_ONE, MatrixMechanism, as_known
from ..sampling import Poisson
from ..sampling.participation import Dealt, Participation, Separated
from ._model import bands_of
from ._overlaps import words

_MOST_STEPS = 1 << 16
_MOST_COLUMNS = 1 << 12
"""Where columns are a matrix, and not bands of a Toeplitz one."""


class Shape(eqx.Module):
    """Numbers that fix shapes."""

    num_steps: int = eqx.field(static=True)
    bands: int = eqx.field(static=True)


class Run(NamedTuple):
    """Parts of a model."""

    strategy: Any
    noise: Any
    how: Participation
    shape: Shape


def read(mechanism: Any) -> Run:
    """Facts of a mechanism that Monte Carlo accounting needs.

    Raises:
        TypeError: If it is no run of steps, or has no sampling.
        ValueError: If there is no theorem for it, or a parameter is not set.
    """
    if isinstance(mechanism, DPSGD):
        strategy, sampling = np.ones(1), mechanism.sampling
        steps = _checks.known_whole("num_steps", as_known(mechanism.num_steps))
        if sampling is None:
            sampling = Poisson(mechanism.sampling_prob)
    elif isinstance(mechanism, MatrixMechanism) and mechanism.sampling is not None:
        strategy, sampling = mechanism.strategy, mechanism.sampling
        steps = mechanism.num_steps
    else:
        raise TypeError(
            "mechanism must be a DPSGD or a MatrixMechanism with sampling, got "
            f"{mechanism!r}"
        )
    if mechanism.noise_multiplier is None:
        mechanism.require_complete()
    sampling.require_complete()
    _checks.require(
        mechanism.relation is not REPLACE_ONE,
        "relation must be ADD_OR_REMOVE_ONE or ZERO_OUT for Monte Carlo accounting",
        "REPLACE_ONE: no pair is known that dominates",
    )
    steps = _checks.whole("num_steps", steps, 1, _MOST_STEPS)
    how = sampling.participation(steps)
    strategy = _nonnegative(strategy)
    shape = Shape(steps, bands_of(strategy, steps))
    _require_supported(strategy, how, shape)
    return Run(strategy, mechanism.noise_multiplier, how, shape)


def _nonnegative(strategy: Any) -> Any:
    message = "strategy must be at least 0 in every entry for Monte Carlo accounting"
    if is_traced(strategy):
        return _checks.error_if(strategy, lambda x: x < 0, message)
    entries = np.asarray(strategy, np.float64)
    _checks.require(
        not np.any(entries < 0),
        message,
        f"{entries.min()}: contributions of a record that cancel are not known to be "
        "the worst",
    )
    return entries


def _require_supported(strategy: Any, how: Participation, shape: Shape) -> None:
    """Raises `ValueError` where no recursion is at hand, or it would be too long."""
    if isinstance(how, Dealt):
        _checks.require(
            how.same_every_epoch or shape.bands <= how.num_batches + 1,
            "strategy must have at most num_batches + 1 = "
            f"{how.num_batches + 1} bands where epochs deal anew, of C^T C",
            f"{shape.bands}; give same_every_epoch=True if they do not",
        )
    elif isinstance(how, Separated):
        if how.stride > 1 and strategy.ndim == 2:
            _require_first_group_worst(strategy, how.stride)
        bands = (shape.bands - 1) // how.stride + 1
        if bands > how.min_separation:
            words(bands - 1, how.min_separation)
    if strategy.ndim == 1 and isinstance(how, Separated) and how.stride == 1:
        return
    _checks.require(
        shape.num_steps <= _MOST_COLUMNS,
        f"num_steps must be at most {_MOST_COLUMNS} where Monte Carlo "
        "accounting needs the strategy as a matrix",
        shape.num_steps,
    )


def _require_first_group_worst(strategy: Any, groups: int) -> None:
    """Raises `ValueError` unless the first group's products are the largest."""
    entries: Any = known(strategy)
    _checks.require(
        entries is not None,
        "strategy must be known, or the first column of a Toeplitz matrix, "
        "for Monte Carlo accounting of groups that take turns",
    )
    first = entries[:, ::groups]
    most = first.T @ first
    for group in range(1, groups):
        own = entries[:, group::groups]
        size = own.shape[1]
        _checks.require(
            not np.any(own.T @ own > most[:size, :size] * (1 + 1e-12)),
            "strategy must have products of the columns of the first group's "
            "steps that are largest",
            f"larger ones of group {group}: which group leaks most is not known",
        )


def noise_of(value: Any) -> Any:
    """The noise, for which infinitely much is as good as any large number."""
    return jnp.minimum(value, 1e300)
