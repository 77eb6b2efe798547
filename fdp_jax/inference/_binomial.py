"""Most powerful private tests of a proportion, exact intervals, power."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._precision import in_float64
from .._internal._record import Record
from .._internal._search import least_whole
from ..mechanisms import (
    as_float,
)
from ..noise import CanonicalNoise
from . import _sums
from ._counts import LARGEST, Window, binomial_window, record_count, window_length
from ._private import noise_of

TAILS = ("greater", "less")
ALTERNATIVES = (*TAILS, "two-sided")
METHODS = ("unbiased", "bonferroni")


level, prob = _checks.one(_checks.open_share), _checks.one(_checks.probability)


class PrivateTest(Record):
    """The most powerful f-DP test at its level, in its three forms."""

    threshold: Float[Array, ""]
    """m: reject if X + N >= m, where phi(x) = F(x - m)."""
    rejection: Float[Array, " values"]
    """phi(x) for x = 0, 1, ..., the number of records."""

    @property
    def first(self) -> Float[Array, ""]:
        """y, the least x with phi(x) > 0; from there phi(x) = 1 - f(phi(x - 1))."""
        return jnp.argmax(self.rejection > 0)

    @property
    def at_first(self) -> Float[Array, ""]:
        """phi(y)."""
        return self.rejection[self.first]


class Static(eqx.Module):
    """The static facts of a program: another value means another program."""

    size: int = eqx.field(static=True)
    """Counts in the window that sums run over."""
    kind: str = eqx.field(static=True, default="")
    """The alternative and method, as `kind_of` names them."""


@explained(null=_checks.probabilities, alpha=level, noise=noise_of)
def most_powerful_test(noise: Any, null: Any, *, alpha: Any) -> PrivateTest:
    """The most powerful f-DP test for exchangeable bits, from the law of their sum.

    It is most powerful against every alternative under which larger sums are more
    likely: dQ/dP increasing in x.  Different canonical noises of one f give the same
    phi, with different thresholds.

    Args:
        noise: `CanonicalNoise` of unit sensitivity, or a guarantee f.
        null: P(X = x) for x = 0, ..., n under H0, a vector.
        alpha: In (0, 1), the level.

    Returns:
        `PrivateTest`.

    Differentiable in:
        alpha, null and the noise's parameters.

    Raises:
        ValueError: If alpha is out of range or null does not add to 1.

    Example:
        >>> import fdp_jax as fdp
        >>> f = fdp.tradeoff.Gaussian(1.0)
        >>> test = fdp.inference.most_powerful_test(f, [0.25, 0.5, 0.25], alpha=0.05)
        >>> print(f"{test.rejection[2]:.4f}")
        0.1549

    References:
        Awan and Vadhan (2023), Theorem 4.4.
    """
    return _most_powerful(noise, null, alpha)


@explained(
    alternative=_checks.one_of(TAILS),
    num_records=record_count,
    null_prob=prob,
    alpha=level,
    noise=noise_of,
)
def binomial_threshold(
    noise: Any, num_records: Any, null_prob: Any, *, alpha: Any, alternative="greater"
) -> Float[Array, ""]:
    """The m at which the most powerful test rejects: X + N >= m, or <= for "less".

    Args:
        noise: As in `most_powerful_test`.
        num_records: n, at least 1.
        null_prob: theta0 in [0, 1]; H0 is theta <= theta0 (>= for "less").
        alpha: In (0, 1), the level.
        alternative: "greater" or "less".

    Returns:
        The threshold for the released count.

    Differentiable in:
        null_prob, alpha and the noise's parameters.

    Raises:
        ValueError: If an argument is out of range.
    """
    static = Static(window_length(num_records), alternative)
    return _threshold(noise, num_records, null_prob, alpha, static)


@explained(
    alternative=_checks.one_of(ALTERNATIVES),
    method=_checks.one_of(METHODS),
    released=_checks.finite,
    num_records=record_count,
    null_prob=prob,
    noise=noise_of,
)
def binomial_p_value(
    released: Any,
    noise: Any,
    num_records: Any,
    null_prob: Any,
    *,
    alternative: str = "two-sided",
    method: str = "unbiased",
) -> Float[Array, "..."]:
    """The p-value of a released count Z = X + N; no further privacy loss.

    One-sided p-values are P(X + N >= Z), and reject exactly when the most powerful f-DP
    test does.  The two-sided one is approximately unbiased: it adds the other tail, at
    the same distance from n theta0; or Bonferroni's.

    Args:
        released: Z.
        noise: What was added: `CanonicalNoise` of unit sensitivity, or f.
        num_records: n, at least 1.
        null_prob: theta0 in [0, 1].
        alternative: "greater", "less" or "two-sided".
        method: "unbiased" or "bonferroni", for two-sided ones.

    Returns:
        The p-value, exact under theta0.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> f = fdp.tradeoff.ApproxDP(epsilon=1.0, delta=0.0)
        >>> p = fdp.inference.binomial_p_value(21.3, f, 30, 0.5)
        >>> print(f"{p:.6f}")
        0.040662

    References:
        Awan and Slavkovic (2020); Awan and Vadhan (2023), Theorem 4.4.
    """
    static = Static(window_length(num_records), kind_of(alternative, method))
    return p_value_of(noise, released, num_records, null_prob, static)


@explained(
    alternative=_checks.one_of(ALTERNATIVES),
    method=_checks.one_of(METHODS),
    released=_checks.one(_checks.finite),
    num_records=record_count,
    confidence=_checks.one(_checks.open_share),
    noise=noise_of,
)
def binomial_interval_from(
    released: Any,
    noise: Any,
    num_records: Any,
    *,
    confidence: Any = 0.95,
    alternative: str = "two-sided",
    method: str = "unbiased",
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Exact confidence limits of a proportion, from a released count Z = X + N.

    All proportions theta0 that the test does not reject: the p-value is inverted in
    theta0, so coverage is exact, whatever n.

    Args:
        released: Z, one number.
        noise: As in `binomial_p_value`.
        num_records: n, at least 1.
        confidence: In (0, 1).
        alternative: "greater" gives a lower limit (and 1), "less" an upper one (and 0).
        method: As in `binomial_p_value`.

    Returns:
        Lower and upper limit.

    Differentiable in:
        released, confidence and the noise's parameters.

    Raises:
        ValueError: If an argument is out of range.
    """
    static = Static(window_length(num_records), kind_of(alternative, method))
    return interval_of(noise, released, num_records, confidence, static)


@explained(
    alternative=_checks.one_of(TAILS),
    num_records=record_count,
    null_prob=prob,
    true_prob=prob,
    alpha=level,
    noise=noise_of,
)
def binomial_power(
    noise: Any,
    num_records: Any,
    null_prob: Any,
    true_prob: Any,
    *,
    alpha: Any,
    alternative: str = "greater",
) -> Float[Array, ""]:
    """Power of the most powerful one-sided f-DP test of a proportion.

    Args:
        noise: As in `most_powerful_test`.
        num_records: n, at least 1.
        null_prob: theta0 in [0, 1].
        true_prob: theta1 in [0, 1], where the power is asked for.
        alpha: In (0, 1), the level.
        alternative: "greater" or "less".

    Returns:
        The probability of rejection under theta1.

    Differentiable in:
        null_prob, true_prob, alpha and the noise's parameters.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> power = fdp.inference.binomial_power(
        ...     fdp.tradeoff.Gaussian(1.0), 10, 0.5, 0.7, alpha=0.05)
        >>> print(f"{power:.6f}")
        0.277203
    """
    static = Static(window_length(num_records), alternative)
    return _power(noise, num_records, (null_prob, true_prob), alpha, static)


@explained(
    null_prob=_checks.number(_checks.probability),
    true_prob=_checks.number(_checks.probability),
    power=_checks.number(_checks.open_share),
    max_records=_checks.whole_in(1, LARGEST),
    noise=noise_of,
)
def binomial_sample_size(
    noise: Any,
    null_prob: Any,
    true_prob: Any,
    *,
    alpha: Any,
    power: Any,
    max_records: int = 10**6,
) -> int:
    """The least number of records with which the f-DP test has a given power.

    More records never hurt (a test may ignore some), so the power increases in n.

    Args:
        noise: As in `most_powerful_test`; its parameters must be known.
        null_prob: theta0 in [0, 1].
        true_prob: theta1 != theta0; the test is one-sided towards it.
        alpha: In (0, 1), the level.
        power: In (0, 1), wanted under theta1.
        max_records: Where the search gives up.

    Returns:
        n.

    Raises:
        ValueError: If an argument is out of range, or max_records are not enough.
    """
    ends = null_prob, true_prob
    _checks.require(ends[0] != ends[1], "true_prob must differ from null_prob", ends[1])
    kind = "greater" if ends[1] > ends[0] else "less"

    def enough(n: int) -> bool:
        with jax.enable_x64(True):  # not to be rounded up to what is wanted
            found = binomial_power(noise, n, *ends, alpha=alpha, alternative=kind)
            return float(found) >= power

    found = least_whole(enough, max_records)
    _checks.require(found <= max_records, "max_records must be larger", max_records)
    return found


# ------------------------------------------------------------------------- checks


def kind_of(alternative: str, method: str) -> str:
    twice = alternative == "two-sided" and method == "bonferroni"
    return "bonferroni" if twice else alternative


# ----------------------------------------------------------------- inside float64


@in_float64
def _most_powerful(noise: CanonicalNoise, null: Array, alpha: Array) -> PrivateTest:
    null = as_float(null)
    window = Window(jnp.arange(null.size, dtype=null.dtype), null / jnp.sum(null))
    m = _sums.threshold(noise.law, window, as_float(alpha))
    return PrivateTest(m, noise.law.cdf_on_lattice(-m, null.size))


def _threshold_in(noise, n: Array, prob: Array, alpha: Array, static: Static) -> Array:
    """Threshold of the test for "greater"; the other test counts failures."""
    flip = static.kind == "less"
    window = binomial_window(n, 1 - prob if flip else prob, static.size)
    return _sums.threshold(noise.law, window, alpha)


@in_float64
def _threshold(noise: CanonicalNoise, n, prob, alpha, static: Static) -> Array:
    n, prob, alpha = as_float(n), as_float(prob), as_float(alpha)
    m = _threshold_in(noise, n, prob, alpha, static)
    return n - m if static.kind == "less" else m


@in_float64
def _power(noise: CanonicalNoise, n, probs, alpha, static: Static) -> Array:
    n, (null, true), alpha = as_float(n), map(as_float, probs), as_float(alpha)
    m = _threshold_in(noise, n, null, alpha, static)
    true = 1 - true if static.kind == "less" else true
    return _sums.upper_p(noise.law, binomial_window(n, true, static.size), m)


@in_float64
def p_value_of(noise: CanonicalNoise, released, n, prob, static: Static) -> Array:
    n, prob = as_float(n), as_float(prob)
    window = binomial_window(n, prob, static.size)

    def one(z: Array) -> Array:
        return _sums.tests_p(noise.law, window, z, n * prob, static.kind)

    flat = jnp.atleast_1d(as_float(released))
    found = jax.lax.map(one, flat.ravel()).reshape(flat.shape)
    return found.reshape(jnp.shape(released))


@in_float64
def interval_of(noise: CanonicalNoise, released, n, confidence, static: Static):
    law, z, n = noise.law, as_float(released), as_float(n)
    alpha = 1 - as_float(confidence)
    limit = lambda side: _sums.probability_root(
        law, z, n, alpha, static.kind, side, static.size
    )
    zero = jnp.zeros_like(alpha)
    lower = zero if static.kind == "less" else limit("lower")
    upper = zero + 1 if static.kind == "greater" else limit("upper")
    return lower, upper
