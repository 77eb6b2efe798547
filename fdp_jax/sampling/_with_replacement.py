"""Batches of a fixed size, drawn with replacement.

A record is in a batch k times with the probability b_k = P(Bin(B, 1 / n) = k).  Draw
other records for all B places, and put the record in place of some k of these: given
that draw and the places, the batch's sum moves by at most k / s in units of the noise,
where s is the noise over the sensitivity (twice the clipping norm), and by as much
again where another record stands in for the one in question.  Let an event have the
probability Phi(u) with the record in k places, Phi(v) with the other one there, and
Phi(t) where neither is drawn.
Both u - v and u - t are at most k / s (Gaussian laws a distance d apart are d-GDP), so
that for eps >= 0, with a = e^eps and for either of the data sets, delta is at most

    D = max_t (1 - a) b_0 Phi(t) + sum_{k>0} b_k max_{u <= t + k/s} G_k(u),
    G_k(u) = Phi(u) - a Phi(u - k/s).

Averages of profiles are profiles, and so is this maximum of functions that are convex
in a: it is that of a symmetric pair, which is composed over the steps.  G_k rises up to
where r_k = e^((k/s) x - (k/s)^2 / 2) is a at x = k/s - u.  So with x = -t the inner
maximum is at u = k/s - x where r_k(x) >= a, and elsewhere the profile of k records that
are told apart from k others.  The outer one is where

    b_0 (a - 1) = sum_{k>0} b_k max(r_k(x) - a, 0):

a is the mean of r_k(x) over the k whose own is not below it and 0, with r_0 = 1.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks
from .._internal._binomial import log_binomial_tail
from .._internal._counts import log_binomial
from .._internal._precision import in_float64
from .._internal._special import (
    log1mexp,
    log1p,
    log_ndtr_difference,
    log_sum_exp,
    safe_log,
)
from ..losses import AtomicLoss, ComposedLoss
from ..mechanisms import (
    COUNT,
    AbstractMechanism,
    AbstractSampling,
    AbstractWrapped,
    Gaussian,
    NeighboringRelation,
    Sampling,
    as_float,
    parameter,
    where_released,
)

_COPIES = np.arange(1.0, 33.0)
"""Copies of a record in a batch, more of which count as telling it."""
_NODES = 1024
_DEPTH = 100.0
"""-log of the probability of outputs that are left out, about."""
_MULTIPLES = np.unique(np.append(0.0, np.round(np.geomspace(1.0, 2.0**30, 2048))))
"""Losses of the list, over the least one."""
_LARGE, _FARTHEST = 500.0, 1e30
_ROOM = 1e-12
"""Relative rounding of probabilities."""


class WithReplacement(AbstractSampling):
    """Every step draws a batch of a fixed size, each place of it from all records.

    For replacing a record, and Gaussian noise.  A record may be in a batch several
    times and then counts as often; another one stands in each of its places, up to
    twice the clipping norm away.  Of a step and of several steps the numbers are a
    bound from above; from below it is known what the data sets leak whose other records
    are all equal; `bounds` has both ends.  The pair above is a list of losses, about
    1e-4 wider than what is proved; outputs of a probability below e^-100 count as
    telling all, as does a record that is drawn more than 32 times, so that its Rényi
    divergences are infinite.

    Args:
        batch_size: Places of a batch, whole; may exceed the number of records.
        dataset_size: Number of records, whole.  There is no derivative in the sizes.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> scheme = fdp.sampling.WithReplacement(batch_size=100, dataset_size=10_000)
        >>> run = fdp.DPSGD(
        ...     noise_multiplier=4.0, sampling=scheme, num_steps=100,
        ...     relation="replace_one",
        ... )
        >>> print(f"{run.epsilon(delta=1e-5):.3f}")
        0.210

    References:
        Balle, Barthe, Gaboardi (2018), Theorem 10, tells how often the record was
        drawn; what is proved in the notes of this class's module is never above that.
        Zhu, Dong, Wang (2022), Proposition 9 and Theorem 10, for the pair of a profile
        and compositions.
    """

    batch_size: Real[ArrayLike, ""] | None = parameter(
        "batch_size", _checks.positive_count, COUNT, default=None, kw_only=True
    )
    dataset_size: Real[ArrayLike, ""] | None = parameter(
        "dataset_size", _checks.positive_count, COUNT, default=None, kw_only=True
    )
    scheme: ClassVar[Sampling] = Sampling.WITH_REPLACEMENT
    shared: ClassVar = frozenset()  # every step draws anew
    refused: ClassVar[dict[NeighboringRelation, str]] = dict.fromkeys(
        (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.ZERO_OUT),
        "the theorem is for a record that is replaced",
    )
    _gaussian_alone: ClassVar[str] = (
        "for sampling with replacement (what several copies of a record leak is known "
        "for such noise)"
    )
    in_place_of_it: ClassVar[str] = (
        ", for flags do not tell how often a record is drawn: FixedSize(batch_size=, "
        "dataset_size=) draws as many, and leaks less"
    )

    def _step(self, release):
        return _Step.unchecked(mechanism=release, sampling=self)


class _Step(AbstractWrapped):
    """One release of such a batch, by the pair that dominates."""

    mechanism: Gaussian
    sampling: WithReplacement
    _scheme: ClassVar = Sampling.WITH_REPLACEMENT
    _for_one_record = "batches drawn with replacement", "the theorem is for one record"

    def attained(self) -> AbstractMechanism | None:
        return _AttainedStep.unchecked(mechanism=self.mechanism, sampling=self.sampling)

    def loss(self) -> ComposedLoss:
        return self._released(_dominating)

    def _released(self, pair: Any) -> ComposedLoss:
        noise = as_float(self.mechanism.noise_multiplier)
        released, noise, _ = where_released(noise, jnp.ones_like(noise))
        law = _law(self.sampling.batch_size, self.sampling.dataset_size)
        count = jnp.where(released, 1.0, 0.0)
        return ComposedLoss((pair(noise, *law),), (count,), single=True)


class _AttainedStep(_Step):
    """By the pair of data sets that are all the same but for the record."""

    def attained(self) -> AbstractMechanism | None:
        return None

    def loss(self) -> ComposedLoss:
        return self._released(_attained)


@in_float64(cast_out=False)
def _law(size: Any, records: Any) -> tuple[Array, Array]:
    """Logarithms of P(k) for k = 0, 1, ... copies and of the probability of more."""
    size, prob = stop_gradient((size, 1 / records))
    some = size >= _COPIES
    each = log_binomial(jnp.where(some, _COPIES, 0.0), size, prob)
    lost = log_binomial_tail(_COPIES[-1] + 1, size, prob) * (1 - 1e-9) + 1e-9
    none = log_binomial(jnp.zeros_like(size), size, prob)
    return jnp.append(none, jnp.where(some, each, -jnp.inf)), jnp.minimum(lost, 0)


@jax.jit
def _attained(noise: Array, logs: Array, _: Array) -> AtomicLoss:
    """N(0) without, the mixture of N(k) with: in which interval their output is.

    More copies count as none.
    """
    shift = jnp.append(0.0, _COPIES) / noise
    start, x = _outputs(shift, logs)
    x = jnp.concatenate([2 * start - x[::-1], x[1:]])[:, None]
    end = jnp.full_like(x[:1], jnp.inf)
    low, high = jnp.concatenate([-end, x]), jnp.concatenate([x, end])
    weights = jnp.exp(logs) * (1 - _ROOM)
    logs = safe_log(weights.at[0].set(1 - jnp.sum(weights[1:])))
    log_p, error = log_ndtr_difference(low, high)
    log_q, more = _log_masses(logs, low - shift, high - shift)
    error = jnp.max(error) + jnp.max(jnp.where(jnp.isfinite(log_q), more, 0))
    return AtomicLoss(log_p[:, 0], log_q, mass_error=error)


def _log_masses(logs: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Logarithms of mixtures' masses of intervals, and bounds of their errors."""
    parts, errors = log_ndtr_difference(low, high)
    found = log_sum_exp(logs + parts, ~jnp.isneginf(parts))
    shares = jnp.exp(stop_gradient(logs + parts - found[:, None]))
    return found, jnp.sum(jnp.where(shares > 0, shares * errors, 0), axis=1)


@jax.jit
def _dominating(noise: Array, logs: Array, lost: Array) -> AtomicLoss:
    """The pair as a list of outputs: its profile, with straight lines between nodes."""
    # More copies leak more: of those there are as many as rounding may have lost.
    none = jnp.exp(logs[0]) - _ROOM * -jnp.expm1(logs[0])
    logs = jnp.append(safe_log(jnp.maximum(none, 1e-300)), logs[1:] + _ROOM)
    shift = jnp.append(0.0, _COPIES) / noise
    x, loss, unit = _nodes(shift, logs)
    own = loss[:, None] / shift[1:] + 0.5 * shift[1:]
    y = jnp.concatenate([x[:, None], jnp.maximum(x[:, None], own)], axis=1)
    far = jnp.concatenate([y[1:], jnp.full_like(y[:1], jnp.inf)])
    log_p, error = _log_masses(logs, -far, -y)
    log_q, more = _log_masses(logs, shift - far, shift - y)
    # To both ends of a cell, so that its masses of both laws are kept.
    every = jnp.exp(log_q)
    some = log_q[:-1] > -_DEPTH
    error = jnp.where(some, (error + more)[:-1], 0.0)
    mass = jnp.where(some, every[:-1] * (1 + 2 * error), 0.0)
    known = some & jnp.isfinite(log_p[:-1])
    gap = jnp.where(known, (log_q - log_p - loss)[:-1], _LARGE)
    share = (4 * error - jnp.expm1(-gap)) / -jnp.expm1(-jnp.diff(loss))
    upper = mass * jnp.clip(share, 0, 1)
    mass, loss = upper + jnp.append((mass - upper)[1:], 0.0), loss[1:]
    beyond = jnp.sum(jnp.where(jnp.append(some, False), 0, every)) + jnp.exp(lost)
    idle = 1 - jnp.sum(mass * (1 + jnp.exp(-loss))) - beyond
    idle = jnp.maximum(idle, 0) + 8 * jnp.finfo(loss.dtype).eps
    high, idle = safe_log(mass), safe_log(idle)[None]
    log_p = jnp.concatenate([high - loss, high, idle])
    log_q = jnp.concatenate([high, high - loss, idle])
    loss = jnp.concatenate([loss, -loss, jnp.zeros_like(idle)])
    missing = safe_log(beyond), safe_log(beyond)
    return AtomicLoss(log_p, log_q, unit, missing, loss=loss, symmetric=True)


def _outputs(shift: Array, logs: Array) -> tuple[Array, Array]:
    """The first output with a positive loss, and outputs from there to far ones."""
    used = stop_gradient(jnp.where(logs > -_DEPTH, shift, 0))
    deep = used + jnp.sqrt(2 * jnp.maximum(_DEPTH + logs, 0))
    start = 0.5 * stop_gradient(shift[1])
    end = jnp.maximum(jnp.max(jnp.where(used > 0, deep, 0)), start + 1)
    share = np.sinh(np.linspace(0.0, 4.0, _NODES)) / np.sinh(4.0)
    return start, start + (end - start) * share


def _nodes(shift: Array, logs: Array) -> tuple[Array, Array, Array]:
    """Outputs, the losses there, and the number that those are multiples of."""
    start = 0.5 * shift[1]
    level, _ = _level(start[None] + 1, shift, logs)
    # Where more copies are certain there is none.
    unit = jnp.where(level[0] > 0, level[0] / 32, 1.0)
    loss = unit * _MULTIPLES
    fixed, known = stop_gradient((shift, loss[1:, None]))
    # The level of 0 and k copies alone is not above that of all, which is convex.
    odds = known + log1mexp(known) + logs[0] - logs[1:]
    each = jnp.logaddexp(known, odds) / fixed[1:] + 0.5 * fixed[1:]

    def nearer(x: Array, loss: Array, shift: Array) -> Array:
        level, slope = _level(x, shift, logs)
        return x + (loss - level) / slope

    x = jnp.minimum(jnp.min(each, axis=1), _FARTHEST)
    x = lax.fori_loop(0, 8, lambda _, x: nearer(x, known[:, 0], fixed), x)
    return jnp.append(start, nearer(x, loss[1:], shift)), loss, unit


def _level(x: Array, shift: Array, logs: Array) -> tuple[Array, Array]:
    """Log a at outputs, and its slope."""
    ratios = shift * (x[:, None] - 0.5 * shift)
    fixed = stop_gradient(ratios)

    def fewer(state: tuple[Array, Array]) -> tuple[Array, Array]:
        mean = _log_mean(fixed, logs, state[0])[:, None]
        return state[0] & ((fixed >= mean - _ROOM) | (shift == 0)), state[0]

    first = fixed >= 0
    merged, _ = lax.while_loop(
        lambda s: jnp.any(s[0] != s[1]), fewer, fewer((first, first))
    )
    level = _log_mean(ratios, logs, merged)
    shares = jnp.exp(logs + fixed - log_sum_exp(logs + fixed, merged)[:, None])
    slope = stop_gradient(jnp.where(merged, shares, 0) @ shift)
    return level, jnp.where(slope > 0, slope, 1.0)


def _log_mean(ratios: Array, logs: Array, chosen: Array) -> Array:
    """Log of the mean of some ratios with weights, all by logarithms; also near 0."""
    every = log_sum_exp(logs + 0 * ratios, chosen)
    far = jnp.max(stop_gradient(ratios), axis=1) > _LARGE
    shares = jnp.where(chosen, jnp.exp(logs - every[:, None]), 0)
    near = log1p(jnp.sum(shares * jnp.expm1(jnp.minimum(ratios, _LARGE)), axis=1))
    return jnp.where(far, log_sum_exp(logs + ratios, chosen) - every, near)
