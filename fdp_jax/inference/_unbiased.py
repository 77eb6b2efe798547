"""The most powerful unbiased two-sided private test of a proportion."""

from typing import Any

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._calls import explained
from .._internal._precision import in_float64
from .._internal._record import Record
from .._internal._roots import bisect
from ..mechanisms import (
    as_float,
)
from ..noise import CanonicalNoise
from . import _sums
from ._binomial import Static, level, prob
from ._counts import binomial_window, record_count, window_length
from ._private import noise_of


class UnbiasedTest(Record):
    """The most powerful unbiased two-sided f-DP test: phi(x) = F(|x - k| - m)."""

    center: Float[Array, ""]
    """k."""
    threshold: Float[Array, ""]
    """m: reject if |X - k| + N >= m."""


@explained(num_records=record_count, null_prob=level, alpha=level, noise=noise_of)
def unbiased_test(
    noise: Any, num_records: Any, null_prob: Any, *, alpha: Any
) -> UnbiasedTest:
    """The two-sided test of a proportion with level alpha and no slope of power there.

    Args:
        noise: As in `most_powerful_test`.
        num_records: n, at least 1.
        null_prob: theta0 in (0, 1).
        alpha: In (0, 1), the level.

    Returns:
        `UnbiasedTest`, found by search (no derivatives).

    Raises:
        ValueError: If an argument is out of range.

    References:
        Awan and Slavkovic (2020).
    """
    static = Static(window_length(num_records))
    return _unbiased(noise, num_records, null_prob, alpha, static)


@explained(
    num_records=record_count,
    null_prob=level,
    true_prob=prob,
    alpha=level,
    noise=noise_of,
)
def unbiased_power(
    noise: Any, num_records: Any, null_prob: Any, true_prob: Any, *, alpha: Any
) -> Float[Array, ""]:
    """Power of the most powerful unbiased two-sided f-DP test of a proportion.

    Args:
        noise: As in `most_powerful_test`.
        num_records: n, at least 1.
        null_prob: theta0 in (0, 1).
        true_prob: theta1 in [0, 1], where the power is asked for.
        alpha: In (0, 1), the level.

    Returns:
        The probability of rejection under theta1, at least alpha.

    Differentiable in:
        true_prob.

    Raises:
        ValueError: If an argument is out of range.
    """
    static = Static(window_length(num_records))
    return _power(noise, num_records, (null_prob, true_prob), alpha, static)


@in_float64
def _power(noise: CanonicalNoise, n, probs, alpha, static: Static) -> Array:
    null, true = map(as_float, probs)
    test = _unbiased(noise, n, null, alpha, static)
    window = binomial_window(as_float(n), true, static.size)
    place = jnp.abs(window.values - test.center) - test.threshold
    return jnp.sum(window.probs * stop_gradient(noise).law.cdf(place))


@in_float64
def _unbiased(noise: CanonicalNoise, n, prob, alpha, static: Static) -> UnbiasedTest:
    noise, n, prob, alpha = stop_gradient(
        (noise, as_float(n), as_float(prob), as_float(alpha))
    )
    window = binomial_window(n, prob, static.size)

    def phi(k: Array, m: Array) -> Array:
        return noise.law.cdf(jnp.abs(window.values - k) - m)

    def threshold(k: Array) -> Array:
        size = lambda m: alpha - jnp.sum(window.probs * phi(k, m))
        return _sums.root_of(size, jnp.zeros_like(k), 56)

    def slope(k: Array) -> Array:
        """Positive where k is too large: the test rejects small counts then."""
        lean = (window.values - n * prob) * window.probs
        return -jnp.sum(lean * phi(k, threshold(k)))

    low, high = bisect(slope, -n, 2 * n, 56)
    k = 0.5 * (low + high)
    return UnbiasedTest(k, threshold(k))
