"""One call from data to a private result that can be read."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import is_traced
from .._internal._precision import Outward, in_float64
from .._internal._record import Record
from ..mechanisms import (
    as_float,
)
from ..noise import CanonicalNoise, canonical_noise
from ..tradeoff import AbstractTradeOff, TradeOff
from . import _binomial, _proportions
from ._counts import record_count, success_count, window_length
from ._private import noise_of


class Release(Record):
    """The result of a private test or interval, and its price.

    Everything in it may be published: the noisy counts are the only access to the data,
    and the rest is computed from them, in float64 whatever the caller's precision.
    With x64 off the results are rounded at the end, the interval outwards.
    """

    released: tuple[Float[Array, ""], ...]
    """The noisy counts."""
    estimate: Float[Array, ""]
    """Estimate of the count, the proportion, or the difference of proportions."""
    interval: tuple[Float[Array, ""], Float[Array, ""]]
    p_value: Float[Array, ""] | None
    noise: CanonicalNoise
    confidence: float = eqx.field(static=True)
    exact: bool = eqx.field(static=True)
    """Whether level and coverage are exact (else the nuisance was estimated)."""

    @property
    def guarantee(self) -> AbstractTradeOff:
        """The trade-off function of the whole release."""
        return self.noise.tradeoff

    def __str__(self) -> str:
        low, high = (float(np.asarray(x)) for x in self.interval)
        kind = "" if self.exact else "about "
        lines = [
            f"estimate   {_shown(float(np.asarray(self.estimate)), high - low)}",
            f"interval   [{_shown(low, high - low)}, {_shown(high, high - low)}] "
            f"({kind}{self.confidence:.4g})",
        ]
        if self.p_value is not None:
            lines.append(f"p-value    {float(np.asarray(self.p_value)):.6g}")
        return "\n".join([*lines, f"guarantee  {_described(self.guarantee)}"])


def _confidence(name: str, value: Any) -> float:
    _checks.require(
        not is_traced(value), f"{name} must be known", "a traced number", TypeError
    )
    return float(_checks.checked_scalar(name, _checks.open_share, value))


def _key(name: str, value: Any) -> Any:
    """A key, named before it is traced."""
    return _checks.random_key(value)


@explained(key=_key, count=_checks.one(_checks.finite), confidence=_confidence)
def release_count(
    key: Any, count: Any, f: Any, *, sensitivity: Any = None, confidence: float = 0.95
) -> Release:
    """Publish a count with canonical noise.

    Args:
        key: Of `jax.random`; used once, never again.
        count: The statistic, one number.
        f: The guarantee to be spent, as in `canonical_noise`, or `CanonicalNoise`.
        sensitivity: In (0, inf), how far the count can move between neighbors; 1 if
            not given.  `CanonicalNoise` has its own.
        confidence: In (0, 1).

    Returns:
        `Release`; the interval covers the count with exactly this probability.  (With
        x64 off a count above 2^24 is rounded to float32, after the noise was added.)

    Guarantee:
        `guarantee`-DP, as long as nothing else of the data is shown.  See the warning
        of `CanonicalNoise` about floating-point numbers.

    Raises:
        ValueError: If an argument is out of range, or ready-made noise has another
            sensitivity.
    """
    if isinstance(f, CanonicalNoise):
        noise = f.made_for(sensitivity)
    else:
        unit = 1.0 if sensitivity is None else sensitivity
        noise = canonical_noise(f, sensitivity=unit)
    released, interval = _count(noise, key, count, confidence)
    return Release((released,), released, interval, None, noise, confidence, True)


@explained(
    alternative=_checks.one_of(_binomial.ALTERNATIVES),
    method=_checks.one_of(_binomial.METHODS),
    num_records=record_count,
    null_prob=_checks.one(_checks.probability),
    confidence=_confidence,
    f=noise_of,
    key=_key,
)
def binomial_test(
    key: Any,
    count: Any,
    num_records: Any,
    null_prob: Any,
    f: Any,
    *,
    alternative: str = "two-sided",
    method: str = "unbiased",
    confidence: float = 0.95,
) -> Release:
    """Test a proportion privately: one noisy count, its p-value and interval.

    Args:
        key: Of `jax.random`; used once, never again.
        count: Successes in the data, a whole number.
        num_records: n, not secret.
        null_prob: theta0 in [0, 1].
        f: The guarantee to be spent, or `CanonicalNoise` of unit sensitivity.
        alternative: "greater", "less" or "two-sided".
        method: Of the two-sided one, as in `binomial_p_value`.
        confidence: In (0, 1).

    Returns:
        `Release`, with the estimate clipped to [0, 1].

    Guarantee:
        `guarantee`-DP for a change of one record.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> import jax
        >>> import fdp_jax as fdp
        >>> f = fdp.tradeoff.Gaussian(1.0)
        >>> found = fdp.inference.binomial_test(jax.random.key(0), 62, 100, 0.5, f)
        >>> bool(found.interval[0] < found.estimate < found.interval[1])
        True
    """
    kind = _binomial.kind_of(alternative, method)
    given = key, count, num_records, null_prob, f
    return _proportion_release(*given, kind, confidence)


@explained(
    alternative=_checks.one_of(_binomial.ALTERNATIVES),
    method=_checks.one_of(_binomial.METHODS),
    num_records=record_count,
    confidence=_confidence,
    f=noise_of,
    key=_key,
)
def binomial_interval(
    key: Any,
    count: Any,
    num_records: Any,
    f: Any,
    *,
    alternative: str = "two-sided",
    method: str = "unbiased",
    confidence: float = 0.95,
) -> Release:
    """An exact private confidence interval of a proportion.

    Args:
        key: Of `jax.random`; used once, never again.
        count: Successes in the data, a whole number.
        num_records: n, not secret.
        f: The guarantee to be spent, or `CanonicalNoise` of unit sensitivity.
        alternative: "greater" for a lower limit only, "less" for an upper one.
        method: As in `binomial_p_value`.
        confidence: In (0, 1).

    Returns:
        `Release`.

    Guarantee:
        `guarantee`-DP for a change of one record.

    Raises:
        ValueError: If an argument is out of range.
    """
    kind = _binomial.kind_of(alternative, method)
    return _proportion_release(key, count, num_records, None, f, kind, confidence)


@explained(
    alternative=_checks.one_of(_binomial.ALTERNATIVES),
    num_records_x=record_count,
    num_records_y=record_count,
    confidence=_confidence,
    f=noise_of,
    key=_key,
)
def two_proportion_test(
    key: Any,
    count_x: Any,
    num_records_x: int,
    count_y: Any,
    num_records_y: int,
    f: Any,
    *,
    alternative: str = "two-sided",
    confidence: float = 0.95,
) -> Release:
    """Compare two proportions privately: theta_Y - theta_X.

    Args:
        key: Of `jax.random`; used once, never again.
        count_x: Successes in the first group.
        num_records_x: n, not secret.
        count_y: Successes in the second group.
        num_records_y: m, not secret.
        f: The guarantee to be spent, or `CanonicalNoise` of unit sensitivity.
        alternative: "greater" (theta_Y > theta_X), "less" or "two-sided".
        confidence: In (0, 1).

    Returns:
        `Release`; level and coverage are approximate.

    Guarantee:
        `guarantee`-DP for a change of one record: a record is in one group only.

    Raises:
        ValueError: If an argument is out of range.
    """
    n, m = num_records_x, num_records_y
    counts = (
        success_count("count_x", count_x, "num_records_x", n),
        success_count("count_y", count_y, "num_records_y", m),
    )
    groups, sizes = _proportions.two_groups(f, *counts, n, m, alternative)
    released, estimate, interval, p = _two_proportions(
        f, key, groups, confidence, sizes
    )
    return Release(released, estimate, interval, p, f, confidence, False)


def _described(f: AbstractTradeOff) -> str:
    """The name of a trade-off function with its numbers."""
    if isinstance(f, TradeOff):
        return "the certified curve"
    numbers = (f"{float(np.asarray(x)):.6g}" for x in jax.tree.leaves(f))
    return f"{type(f).__name__}({', '.join(numbers)})"


def _proportion_release(
    key: Any,
    count: Any,
    num_records: Any,
    null_prob: Any,
    noise: CanonicalNoise,
    kind: str,
    confidence: float,
) -> Release:
    count = success_count("count", count, "num_records", num_records)
    static = _binomial.Static(window_length(num_records), kind)
    given = count, num_records, null_prob, confidence
    released, estimate, interval, p = _proportion(noise, key, given, static)
    return Release((released,), estimate, interval, p, noise, confidence, True)


def _shown(value: float, width: float) -> str:
    """With digits enough to tell the ends of an interval apart."""
    ratio = abs(value) / width if 0 < width < math.inf else 1.0
    digits = 6 + max(0, math.ceil(math.log10(max(ratio, 1.0)) - 2))
    return f"{value:.{min(digits, 17)}g}"


# ----------------------------------------------------------------- inside float64
# The sum of a count and its noise is formed here: a count that is rounded to float32
# before would move by more than its sensitivity.


@in_float64
def _count(noise: CanonicalNoise, key: Any, count, confidence) -> tuple:
    released = as_float(count) + noise.sample(key)
    half = noise.isf(0.5 * (1 - as_float(confidence)))
    return released, Outward(released - half, released + half)


@in_float64
def _proportion(noise: CanonicalNoise, key: Any, given: tuple, static: Any) -> tuple:
    count, n, null_prob, confidence = given
    released = as_float(count) + noise.sample(key)
    p = None
    if null_prob is not None:
        p = _binomial.p_value_of(noise, released, n, null_prob, static)
    ends = _binomial.interval_of(noise, released, n, confidence, static)
    estimate = jnp.clip(released / as_float(n), 0.0, 1.0)
    return released, estimate, Outward(*ends), p


@in_float64
def _two_proportions(
    noise: CanonicalNoise, key: Any, groups: tuple, confidence, sizes: Any
) -> tuple:
    x, y, n, m = map(as_float, groups)
    drawn = noise.sample(key, (2,))
    x, y = x + drawn[0], y + drawn[1]
    p = _proportions.p_value_of(noise, (x, y, n, m), sizes)
    ends = _proportions.interval_of(noise, (x, y, n, m), confidence, sizes)
    estimate = jnp.clip(y / m - x / n, -1.0, 1.0)
    released = (m - y, n - x) if sizes.swapped else (x, y)
    return released, estimate, Outward(*ends), p
