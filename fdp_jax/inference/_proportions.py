"""Two proportions: the private test, and the bound that no unbiased one exceeds."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import is_traced, known
from .._internal._precision import in_float64
from .._internal._roots import bisect
from ..mechanisms import (
    as_float,
)
from ..noise import CanonicalNoise
from . import _sums
from ._binomial import level, prob
from ._cells import difference_p, noisy
from ._counts import (
    Window,
    binomial_window,
    hypergeometric_window,
    log_binomial,
    record_count,
    success_count,
    window_length,
)
from ._private import noise_of

ALTERNATIVES = ("greater", "less", "two-sided")
_MOST_FOR_POWER = 2048
_LARGEST_PAD, _DEFAULT_PAD = 2**16, 2**10
_NEGLIGIBLE = 1e-18
_STEPS = 50


class _Sizes(eqx.Module):
    """The static sizes: lengths of the windows, and the reach of the noise."""

    x: int = eqx.field(static=True)
    y: int = eqx.field(static=True)
    pad: int = eqx.field(static=True)
    """Units to which the noise's tails are followed."""
    padded: bool = eqx.field(static=True, default=True)
    """Whether that is known to be far enough."""
    swapped: bool = eqx.field(static=True, default=False)
    kind: str = eqx.field(static=True, default="")


@explained(alternative=_checks.one_of(ALTERNATIVES), noise=noise_of)
def two_proportion_p_value(
    released_x: Any,
    released_y: Any,
    noise: Any,
    num_records_x: int,
    num_records_y: int,
    *,
    alternative: str = "two-sided",
) -> Float[Array, ""]:
    """Test theta_X = theta_Y from two noisy counts, each with canonical noise.

    The statistic is the difference of the noisy proportions, Y / m - X / n; its law is
    computed exactly (no normal approximation) at the common proportion estimated from
    the same release.  Since that is an estimate, the level is approximate; it is close
    unless n theta (1 - theta) is small.

    Args:
        released_x: X + N1, one number.
        released_y: Y + N2, with independent noise.
        noise: `CanonicalNoise` of unit sensitivity, or f.
        num_records_x: n, records in the first group.
        num_records_y: m, records in the second.
        alternative: "greater" (theta_Y > theta_X), "less", or "two-sided" (twice the
            smaller one).

    Returns:
        The p-value, an estimate, to about 1e-15 absolutely: smaller ones are rounding.

    Raises:
        ValueError: If an argument is out of range, or the noise has tails that are too
            long (more than 2^16 records, 2^10 where its parameters are traced).

    References:
        Awan and Vadhan (2023) describe such a test by inversion of characteristic
        functions; this is a reconstruction with the same statistic and plug-in.
    """
    given = released_x, released_y, num_records_x, num_records_y
    return p_value_of(noise, *two_groups(noise, *given, alternative))


@explained(confidence=_checks.one(_checks.open_share), noise=noise_of)
def two_proportion_interval_from(
    released_x: Any,
    released_y: Any,
    noise: Any,
    num_records_x: int,
    num_records_y: int,
    *,
    confidence: Any = 0.95,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Limits of theta_Y - theta_X: the differences that the two-sided test accepts.

    Args:
        released_x: As in `two_proportion_p_value`.
        released_y: As in `two_proportion_p_value`.
        noise: As in `two_proportion_p_value`.
        num_records_x: n.
        num_records_y: m.
        confidence: In (0, 1).

    Returns:
        Lower and upper limit, found by search (no derivatives); the coverage is
        approximate, as the level of the test (the other parameter is estimated under
        every difference).

    Raises:
        ValueError: If an argument is out of range.
    """
    given = released_x, released_y, num_records_x, num_records_y
    groups, sizes = two_groups(noise, *given, "")
    return interval_of(noise, groups, confidence, sizes)


@explained(
    num_records_x=record_count, num_records_y=record_count, alpha=level, noise=noise_of
)
def semi_private_threshold(
    noise: Any, num_records_x: Any, num_records_y: Any, total: Any, *, alpha: Any
) -> Float[Array, ""]:
    """c(z) of the best conditional test: phi(x, y) = F(y - x - c(z)), z = x + y.

    This test keeps z to itself, so it is private only given z ("semi-private"): every
    f-DP test fulfils its constraint, and no unbiased f-DP test of theta_X >= theta_Y
    has more power.

    Args:
        noise: As in `two_proportion_p_value`.
        num_records_x: n.
        num_records_y: m.
        total: z, from 0 to n + m.
        alpha: In (0, 1), the level.

    Returns:
        c(z).

    Raises:
        ValueError: If an argument is out of range.

    References:
        Awan and Vadhan (2023), the semi-private framework; the form is derived from
        Lemma 4.1 (one step in y at fixed z changes two records) and is a
        reconstruction.
    """
    n, m = num_records_x, num_records_y
    total = success_count("total", total, "num_records_x + num_records_y", n + m)
    sizes = _Sizes(0, window_length(m), 0)
    return _semi_threshold(noise, n, m, total, alpha, sizes)


@explained(
    num_records_x=_checks.whole_in(1, _MOST_FOR_POWER),
    num_records_y=_checks.whole_in(1, _MOST_FOR_POWER),
    prob_x=prob,
    prob_y=prob,
    alpha=level,
    noise=noise_of,
)
def semi_private_power(
    noise: Any,
    num_records_x: int,
    num_records_y: int,
    prob_x: Any,
    prob_y: Any,
    *,
    alpha: Any,
) -> Float[Array, ""]:
    """An upper bound of the power of every unbiased f-DP test of theta_X >= theta_Y.

    Args:
        noise: As in `two_proportion_p_value`.
        num_records_x: n, at most 2048.
        num_records_y: m, at most 2048.
        prob_x: theta_X in [0, 1].
        prob_y: theta_Y in [0, 1].
        alpha: In (0, 1), the level.

    Returns:
        The power of the semi-private test.

    Differentiable in:
        prob_x, prob_y, alpha and the noise's parameters.

    Raises:
        ValueError: If an argument is out of range.
    """
    sizes = _Sizes(
        _power_of_two(num_records_x + num_records_y + 1),
        _power_of_two(num_records_y + 1),
        0,
    )
    return _semi_power(
        noise,
        float(num_records_x),
        float(num_records_y),
        (prob_x, prob_y),
        alpha,
        sizes,
    )


# ------------------------------------------------------------------------- checks


def _power_of_two(least: float) -> int:
    return 1 << max(4, math.ceil(math.log2(least)))


def two_groups(
    noise: CanonicalNoise, released_x: Any, released_y: Any, n: Any, m: Any, kind: str
) -> tuple[tuple, _Sizes]:
    """Checked arguments, with the larger group first."""
    n = known(record_count("num_records_x", n))
    m = known(record_count("num_records_y", m))
    if n is None or m is None:
        raise TypeError("num_records_x and num_records_y must be known, not traced")
    x = _checks.checked_scalar("released_x", _checks.finite, released_x)
    y = _checks.checked_scalar("released_y", _checks.finite, released_y)
    swapped = bool(m > n)
    if swapped:
        # Failures in exchanged groups have the same difference of proportions.
        x, y, n, m = m - y, n - x, m, n
    lengths = window_length(n), window_length(m)
    leaves = jax.tree.leaves(noise)
    traced = is_traced(leaves)
    pad = _DEFAULT_PAD if traced else _pad(noise)
    return (x, y, n, m), _Sizes(*lengths, pad, not traced, swapped, kind)


_ALLOWED = f"noise must have P(N > {{}}) <= {_NEGLIGIBLE:g}"


def _pad(noise: CanonicalNoise) -> int:
    """Units after which the noise's tail is negligible."""
    with jax.ensure_compile_time_eval():  # a shape, so known inside of jit as well
        reach = float(np.asarray(noise.isf(_NEGLIGIBLE)))
    _checks.require(
        reach <= _LARGEST_PAD - 2,
        _ALLOWED.format(_LARGEST_PAD - 2),
        f"P(N > {reach:.6g}) = {_NEGLIGIBLE:g}",
    )
    return _power_of_two(reach + 2)


def _within_reach(noise: CanonicalNoise, value: Array, sizes: _Sizes) -> Array:
    """A number, if noise with traced parameters is padded far enough."""
    if sizes.padded:
        return value
    reach = noise.law.isf(jnp.full_like(value, _NEGLIGIBLE))
    message = _ALLOWED.format(sizes.pad - 2) + " where its parameters are traced"
    wide = lambda _: reach > sizes.pad - 2
    return _checks.error_if(value, wide, message, lambda _: reach, kind="that at N =")


# ----------------------------------------------------------------- inside float64


def _upper_p(law, x, y, n, m, prob_x, prob_y, sizes: _Sizes) -> Array:
    """P(Y~' / m - X~' / n >= y / m - x / n)."""
    first = noisy(law, binomial_window(n, prob_x, sizes.x), sizes.pad, "pdf")
    second = noisy(law, binomial_window(m, prob_y, sizes.y), sizes.pad, "sf")
    ratio = m / n
    return jnp.clip(difference_p(first, second, ratio, y - ratio * x), 0.0, 1.0)


@in_float64
def p_value_of(noise: CanonicalNoise, groups: tuple, sizes: _Sizes) -> Array:
    x, y, n, m = map(as_float, groups)
    x = _within_reach(noise, x, sizes)
    pooled = jnp.clip((x + y) / (n + m), 0.0, 1.0)
    p = _upper_p(noise.law, x, y, n, m, pooled, pooled, sizes)
    if sizes.kind == "greater":
        return p
    return 1 - p if sizes.kind == "less" else jnp.minimum(2 * jnp.minimum(p, 1 - p), 1)


@in_float64
def interval_of(noise: CanonicalNoise, groups: tuple, confidence, sizes: _Sizes):
    law, (x, y, n, m) = stop_gradient((noise.law, tuple(map(as_float, groups))))
    x = _within_reach(noise, x, sizes)
    tail = 0.5 * (1 - stop_gradient(as_float(confidence)))

    def p(shift: Array) -> Array:
        prob_x = (x + y - m * shift) / (n + m)
        prob_x = jnp.clip(prob_x, jnp.maximum(-shift, 0), jnp.minimum(1 - shift, 1))
        prob_y = jnp.clip(prob_x + shift, 0.0, 1.0)
        return _upper_p(law, x, y, n, m, prob_x, prob_y, sizes)

    # One program for both limits: p increases with the shift.
    goals = jnp.stack([tail, 1 - tail])
    missing = lambda shifts: jax.lax.map(p, shifts) - goals
    one = jnp.ones_like(goals)
    low, high = bisect(missing, -one, one, _STEPS)
    return low[0], high[1]


def _semi_c(law, n, m, total, alpha, length: int) -> Array:
    window = hypergeometric_window(m, n, total, length)
    steps = Window(2 * window.values - total, window.probs)
    return _sums.threshold(law, steps, alpha, _sums.apart_p)


@in_float64
def _semi_threshold(noise: CanonicalNoise, n, m, total, alpha, sizes: _Sizes) -> Array:
    n, m, total, alpha = map(as_float, (n, m, total, alpha))
    return _semi_c(noise.law, n, m, total, alpha, sizes.y)


@in_float64
def _semi_power(noise: CanonicalNoise, n, m, probs, alpha, sizes: _Sizes) -> Array:
    n, m, alpha = map(as_float, (n, m, alpha))
    prob_x, prob_y = map(as_float, probs)
    y = jnp.arange(sizes.y, dtype=n.dtype)

    def one(total: Array) -> Array:
        c = _semi_c(noise.law, n, m, total, alpha, sizes.y)
        x = total - y
        valid = (x >= 0) & (x <= n) & (y <= m)
        own = log_binomial(jnp.where(valid, x, 0.0), n, prob_x)
        own = own + log_binomial(jnp.where(valid, y, 0.0), m, prob_y)
        weight = jnp.where(valid, jnp.exp(own), 0.0)
        return jnp.sum(weight * noise.law.cdf(2 * y - total - c))

    totals = jnp.arange(sizes.x, dtype=n.dtype)
    found = jax.lax.map(lambda z: one(jnp.minimum(z, n + m)), totals)
    return jnp.sum(jnp.where(totals <= n + m, found, 0.0))
