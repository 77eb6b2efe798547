"""Canonical noise for counts: rounded to whole numbers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import is_traced
from .._internal._precision import in_float64
from .._internal._record import Record
from .._internal._special import safe_log
from ..mechanisms import (
    as_float,
)
from ..tradeoff import PiecewiseLinear
from ._noise import CanonicalNoise, canonical_noise

_MOST_KNOTS = 2048
_CLOSEST, _ROUNDING = 1e-13, 1e-15


class RoundedNoise(Record):
    """Canonical noise rounded to the nearest whole number; made by `rounded_noise`.

    Rounding a release of a whole number is post-processing, so the release keeps
    `noise.tradeoff`.  At sensitivity 1 the law is the same for all canonical noises
    of f, and no integer noise with this guarantee is stochastically smaller.

    References:
        Awan and Ramasethu (2023).
    """

    noise: CanonicalNoise

    def pmf(self, value: Any) -> Float[Array, "..."]:
        """P(N = value), with full relative accuracy in both tails.

        Args:
            value: Whole numbers.

        Returns:
            The probabilities.

        Raises:
            ValueError: If a value is not a whole number.
        """
        return _pmf(self.noise, _whole(value))

    def cdf(self, value: Any) -> Float[Array, "..."]:
        """P(N <= value).

        Args:
            value: Whole numbers.

        Returns:
            The probabilities.

        Raises:
            ValueError: If a value is not a whole number.
        """
        return self.noise.cdf(_whole(value) + 0.5)

    def sample(self, key: Any, shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Draws, as whole numbers in floating point; no hardened release either.

        Args:
            key: Of `jax.random`.
            shape: Of the result.

        Returns:
            Independent values.
        """
        return jnp.round(self.noise.sample(key, shape))

    @explained(num_values=_checks.whole_in(1, _MOST_KNOTS))
    def tradeoff_function(self, num_values: int = 64) -> PiecewiseLinear:
        """T(N, N + s) for the largest move s: f at alpha = S(k + 1/2), chords between.

        Args:
            num_values: Knots on each side (static); beyond them the last chords are
                continued, below the true function, so that the result is a guarantee.

        Returns:
            A piecewise-linear trade-off function, nowhere above that of the release,
            and equal to it up to the last knots.  For known noise alone: how many
            knots can be told apart depends on the parameters of f.

        Raises:
            ValueError: If num_values is out of range.
            TypeError: If a parameter of the noise is traced.
        """
        _checks.require(
            not is_traced(self.noise),
            "noise must be known",
            "traced parameters",
            TypeError,
        )
        # Of known numbers, inside of a transformation as well.
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            return _interpolated(self.noise, num_values)


@explained(sensitivity=_checks.whole_in(1, 2**31))
def rounded_noise(
    f: Any, *, sensitivity: int | None = None, **options: Any
) -> RoundedNoise:
    """Discrete canonical noise for statistics that are whole numbers.

    Args:
        f: As in `canonical_noise`, or a `CanonicalNoise`.
        sensitivity: A whole number, how far the statistic can move; 1 if not given.
            `CanonicalNoise` has its own, which must be a whole number.
        **options: Of `canonical_noise`, if f is a guarantee.

    Returns:
        The law of round(sensitivity * N).

    Guarantee:
        The release is `noise.tradeoff`-DP.

    Raises:
        ValueError: If the sensitivity is not a positive whole number or not that of
            the noise, or there is no canonical noise.

    Example:
        >>> import fdp_jax as fdp
        >>> noise = fdp.noise.rounded_noise(fdp.tradeoff.Gaussian(1.0))
        >>> print(f"{noise.pmf(0):.6f}")  # of the rounded normal law
        0.382925
    """
    if isinstance(f, CanonicalNoise):
        _checks.require(
            not options, f"f is ready-made noise: it takes no {sorted(options)}"
        )
        noise = f.made_for(sensitivity)
        own = _checks.whole_number("f.sensitivity", noise.sensitivity)
        return RoundedNoise(dataclasses.replace(noise, sensitivity=own))
    size = float(1 if sensitivity is None else sensitivity)
    return RoundedNoise(canonical_noise(f, sensitivity=size, **options))


def _whole(value: Any) -> Any:
    return _checks.whole_number("value", value)


def _interpolated(noise: CanonicalNoise, size: int) -> PiecewiseLinear:
    move = float(np.asarray(noise.sensitivity))
    k = np.arange(size, -size - 1, -1) + 0.5 + np.floor(0.5 * move)
    alpha, beta = np.asarray(noise.sf(k)), np.asarray(noise.cdf(k - move))
    # Beyond, the digits of complements would be rounding errors.
    inner = lambda x: (x > 0) & (x < 1 - _CLOSEST)
    keep = inner(alpha) & inner(beta) & (np.diff(alpha, prepend=0.0) > 0)
    alpha, beta = _continued(alpha[keep], beta[keep])
    return PiecewiseLinear(alpha, beta)


def _continued(alpha: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A convex curve's knots with the outer chords drawn on to the axes: bounds."""
    if alpha.size < 2:  # the slopes are not known, so nothing is promised
        return np.asarray([0.0, 1.0]), np.asarray([0.0, 0.0])
    slope = np.diff(beta)[[0, -1]] / np.diff(alpha)[[0, -1]]
    start = max(min(beta[0] - slope[0] * alpha[0], 1.0) - _ROUNDING, beta[0])
    end = min(alpha[-1] - beta[-1] / slope[1], 1.0) - _ROUNDING
    if end <= alpha[-1]:
        alpha, beta, end = alpha[:-1], beta[:-1], alpha[-1]
    return np.r_[0.0, alpha, end, 1.0], np.r_[start, beta, 0.0, 0.0]


@in_float64
def _pmf(noise: CanonicalNoise, value: Array) -> Array:
    scale = as_float(noise.sensitivity)
    size = jnp.abs(as_float(value))
    low, high = (size - 0.5) / scale, (size + 0.5) / scale
    middle = 1 - 2 * noise.law.sf(0.5 / scale)
    log_low, log_high = noise.law.log_sf(low), noise.law.log_sf(high)
    gone = jnp.isneginf(log_low)
    drop = jnp.where(gone, -1.0, log_high - jnp.where(gone, 0.0, log_low))
    log_mass = safe_log(-jnp.expm1(drop)) + log_low
    return jnp.where(size < 0.5, middle, jnp.where(gone, 0.0, jnp.exp(log_mass)))
