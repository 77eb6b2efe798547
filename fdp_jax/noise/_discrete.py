"""Canonical noise for counts: rounded to whole numbers."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._precision import in_float64
from .._internal._special import safe_log
from ..mechanisms._fields import as_float
from ..tradeoff import PiecewiseLinear
from ._noise import CanonicalNoise, canonical_noise

_MOST_KNOTS = 2048


class RoundedNoise(eqx.Module):
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

    def tradeoff_function(self, num_values: int = 64) -> PiecewiseLinear:
        """T(N, N + 1) at sensitivity 1: f itself at alpha = S(k + 1/2), chords between.

        Args:
            num_values: Knots on each side (static); beyond them f is bounded by the
                chord to the end, which makes the result an upper bound of f only.

        Returns:
            A piecewise-linear trade-off function, nowhere below f.

        Raises:
            ValueError: If num_values is out of range.
        """
        size = _checks.whole("num_values", num_values, 1, _MOST_KNOTS)
        with jax.enable_x64(True):
            return _interpolated(self.noise, size)


def rounded_noise(f: Any, *, sensitivity: int = 1, **options: Any) -> RoundedNoise:
    """Discrete canonical noise for statistics that are whole numbers.

    Args:
        f: As in `canonical_noise`, or a `CanonicalNoise`.
        sensitivity: A whole number, how far the statistic can move.
        **options: Of `canonical_noise`.

    Returns:
        The law of round(sensitivity * N).

    Guarantee:
        The release is `noise.tradeoff`-DP.

    Raises:
        ValueError: If the sensitivity is not a positive whole number, or there is no
            canonical noise.

    Example:
        >>> import fdp_jax as fdp
        >>> noise = fdp.noise.rounded_noise(fdp.tradeoff.Gaussian(1.0))
        >>> print(f"{noise.pmf(0):.6f}")  # of the rounded normal law
        0.382925
    """
    sensitivity = _checks.whole("sensitivity", sensitivity, 1, 2**31)
    if isinstance(f, CanonicalNoise):
        return RoundedNoise(f)
    return RoundedNoise(canonical_noise(f, sensitivity=float(sensitivity), **options))


def _whole(value: Any) -> Any:
    return _checks.whole_number("value", value)


def _interpolated(noise: CanonicalNoise, size: int) -> PiecewiseLinear:
    k = np.arange(size, -size - 1, -1) + 0.5
    scale = as_float(noise.sensitivity)
    alpha = np.asarray(noise.sf(k * scale))
    beta = np.asarray(noise.cdf((k - 1) * scale))
    rising = np.diff(alpha, prepend=0.0) > 0
    keep = (alpha > 0) & (alpha < 1) & rising
    alpha = np.concatenate([[0.0], alpha[keep], [1.0]])
    return PiecewiseLinear(alpha, np.concatenate([[1.0], beta[keep], [0.0]]))


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
