"""One call from data to a private result that can be read."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from .._internal import _checks
from ..noise import CanonicalNoise, canonical_noise
from ..tradeoff import AbstractTradeOff, TradeOff
from . import _binomial, _proportions
from ._private import noise_of


class Release(eqx.Module):
    """What was learned from the data, at what price.

    Everything in it may be published: `released` is the only access to the data, and
    the rest is computed from it.
    """

    released: tuple[Float[Array, ""], ...]
    """The noisy counts."""
    estimate: Float[Array, ""]
    """Of the count, the proportion, or the difference of proportions."""
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
            f"estimate   {float(np.asarray(self.estimate)):.6g}",
            f"interval   [{low:.6g}, {high:.6g}] ({kind}{self.confidence:.4g})",
        ]
        if self.p_value is not None:
            lines.append(f"p-value    {float(np.asarray(self.p_value)):.6g}")
        return "\n".join([*lines, f"guarantee  {_described(self.guarantee)}"])


def release_count(
    key: Any, count: Any, f: Any, *, sensitivity: Any = 1.0, confidence: float = 0.95
) -> Release:
    """Publish a count with canonical noise.

    Args:
        key: Of `jax.random`; used once, never again.
        count: The statistic, one number.
        f: The guarantee to be spent, as in `canonical_noise`, or `CanonicalNoise`.
        sensitivity: In (0, inf), how far the count can move between neighbors; with
            `CanonicalNoise` that of the noise is taken.
        confidence: In (0, 1).

    Returns:
        `Release`; the interval covers the count with exactly this probability.

    Guarantee:
        `guarantee`-DP, as long as nothing else of the data is shown.  See the warning
        of `CanonicalNoise` about floating-point numbers.

    Raises:
        ValueError: If an argument is out of range.
    """
    confidence = _confidence(confidence)
    made = isinstance(f, CanonicalNoise)
    noise = f if made else canonical_noise(f, sensitivity=sensitivity)
    count = _checks.checked_scalar("count", _checks.finite, count)
    released = count + noise.sample(key)
    half = noise.isf(0.5 * (1 - confidence))
    interval = released - half, released + half
    return Release((released,), released, interval, None, noise, confidence, True)


def binomial_test(
    key: Any,
    count: Any,
    num_records: Any,
    null_prob: Any,
    f: Any,
    *,
    alternative: str = "two-sided",
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
    confidence, noise = _confidence(confidence), noise_of(f)
    count = _checks.checked_scalar("count", _checks.whole_number, count)
    count = _checks.nonnegative("count", count)
    released = count + noise.sample(key)
    given = released, noise, num_records
    p = _binomial.binomial_p_value(*given, null_prob, alternative=alternative)
    return _proportion(given, p, alternative, confidence)


def binomial_interval(
    key: Any,
    count: Any,
    num_records: Any,
    f: Any,
    *,
    alternative: str = "two-sided",
    confidence: float = 0.95,
) -> Release:
    """An exact private confidence interval of a proportion.

    Args:
        key: Of `jax.random`; used once, never again.
        count: Successes in the data, a whole number.
        num_records: n, not secret.
        f: The guarantee to be spent, or `CanonicalNoise` of unit sensitivity.
        alternative: "greater" for a lower limit only, "less" for an upper one.
        confidence: In (0, 1).

    Returns:
        `Release`.

    Guarantee:
        `guarantee`-DP for a change of one record.

    Raises:
        ValueError: If an argument is out of range.
    """
    confidence, noise = _confidence(confidence), noise_of(f)
    count = _checks.checked_scalar("count", _checks.whole_number, count)
    count = _checks.nonnegative("count", count)
    given = count + noise.sample(key), noise, num_records
    return _proportion(given, None, alternative, confidence)


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
    confidence, noise = _confidence(confidence), noise_of(f)
    counts = []
    for name, count in (("count_x", count_x), ("count_y", count_y)):
        count = _checks.checked_scalar(name, _checks.whole_number, count)
        counts.append(_checks.nonnegative(name, count))
    drawn = noise.sample(key, (2,))
    released = counts[0] + drawn[0], counts[1] + drawn[1]
    given = *released, noise, num_records_x, num_records_y
    p = _proportions.two_proportion_p_value(*given, alternative=alternative)
    interval = _proportions.two_proportion_interval_from(*given, confidence=confidence)
    estimate = released[1] / num_records_y - released[0] / num_records_x
    estimate = jax.numpy.clip(estimate, -1.0, 1.0)
    return Release(released, estimate, interval, p, noise, confidence, False)


def _described(f: AbstractTradeOff) -> str:
    """The name of a trade-off function with its numbers."""
    if isinstance(f, TradeOff):
        return "the certified curve"
    numbers = (f"{float(np.asarray(x)):.6g}" for x in jax.tree.leaves(f))
    return f"{type(f).__name__}({', '.join(numbers)})"


def _proportion(given: tuple, p: Any, alternative: str, confidence: float) -> Release:
    released, noise, n = given
    interval = _binomial.binomial_interval_from(
        *given, confidence=confidence, alternative=alternative
    )
    estimate = jax.numpy.clip(released / n, 0.0, 1.0)
    return Release((released,), estimate, interval, p, noise, confidence, True)


def _confidence(value: Any) -> float:
    return float(_checks.checked_scalar("confidence", _checks.open_share, value))
