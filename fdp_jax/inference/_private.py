"""Tests that are private, and p-values that come with them for free."""

from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import is_traced
from .._internal._precision import in_float64
from ..curves import Bound
from ..curves.pointwise import both_logs, rates_at
from ..mechanisms import (
    as_float,
)
from ..noise import CanonicalNoise, canonical_noise
from ..noise.sources import exact_tradeoff
from ..tradeoff import AbstractTradeOff


def noise_of(name: str, source: Any) -> CanonicalNoise:
    """Canonical noise for a count, from a guarantee or ready-made."""
    noise = source if isinstance(source, CanonicalNoise) else canonical_noise(source)
    if is_traced(noise.sensitivity):
        # All of it hangs on the check: not every use looks at the sensitivity.
        size = lambda x: x.sensitivity
        return _checks.error_if(noise, lambda x: size(x) != 1, _UNIT, size)
    _checks.error_if(noise.sensitivity, lambda x: x != 1, _UNIT)
    return noise


_UNIT = "noise must have sensitivity 1 for counts"


@explained(phi=_checks.vector_of(_checks.probability))
def privacy_excess(phi: Any, f: Any, *, pairs: Any = None) -> Float[Array, ""]:
    """The excess of a test over f-DP: the largest phi(x) - (1 - f(phi(x'))).

    A test, phi(x) = P(reject | x), is f-DP if and only if this is at most 0.

    Args:
        phi: Probabilities of rejection, a vector over the data sets (or over the values
            of a statistic that determines them).
        f: As in `canonical_noise`.
        pairs: Neighbors, an integer array of two columns, both orders meant; by
            default entries next to each other, as for the sum of n bits.

    Returns:
        The excess, negative for a test with room to spare.

    Raises:
        ValueError: If a probability is outside [0, 1], or a pair is not an index pair.

    Example:
        >>> import fdp_jax as fdp
        >>> f = fdp.tradeoff.ApproxDP(epsilon=1.0, delta=0.0)
        >>> print(f"{fdp.inference.privacy_excess([0.1, 0.2, 0.6], f):.4f}")
        0.0563

    References:
        Awan and Vadhan (2023), Lemma 4.1.
    """
    if pairs is None:
        k = np.arange(phi.size - 1)
        pairs = np.stack([k, k + 1], axis=1)
    pairs = np.asarray(pairs)
    _checks.require(
        pairs.ndim == 2 and pairs.shape[1] == 2 and pairs.dtype.kind in "iu",
        "pairs must be an integer array with two columns",
    )
    _checks.require(
        not pairs.size or (pairs.min() >= 0 and pairs.max() < phi.size),
        f"pairs must be in [0, {phi.size - 1}]",
        pairs.max(initial=0),
    )
    return _excess(exact_tradeoff(f, Bound.PESSIMISTIC), phi, pairs)


@explained(phi=_checks.vector_of(_checks.probability))
def is_private_test(
    phi: Any, f: Any, *, pairs: Any = None, tolerance: float = 1e-12
) -> bool:
    """Whether a test is f-DP, up to rounding.

    Args:
        phi: As in `privacy_excess`.
        f: As in `privacy_excess`; of a guarantee known between bounds, the certified
            one.
        pairs: As in `privacy_excess`.
        tolerance: Absolute, for rounding errors; at least those of phi's precision.

    Returns:
        True or False.

    Raises:
        ValueError: As in `privacy_excess`.
    """
    return bool(privacy_excess(phi, f, pairs=pairs) <= _checks.rounding(phi, tolerance))


@explained(phi=_checks.probability, noise=noise_of)
def private_statistic(key: Any, noise: Any, phi: Any) -> Float[Array, "..."]:
    """T = F^-1(phi(x)) + N: an f-DP summary of the data from an f-DP test.

    T >= 0 is the test's decision, and functions of T are free: `free_p_value`.

    Args:
        key: Of `jax.random`.
        noise: `CanonicalNoise` of the f for which the test is f-DP, or f.
        phi: P(reject | x) of the data at hand, in [0, 1].

    Returns:
        The statistic; infinite if phi is 0 or 1 and the noise unbounded, which an f-DP
        test allows only if it is so for all data.

    Guarantee:
        f-DP if the test is.

    Raises:
        ValueError: If phi is outside [0, 1].

    References:
        Awan and Vadhan (2023), Theorem 4.3.
    """
    return _statistic(noise, key, phi)


@explained(
    statistic=_checks.one(_checks.real),
    phi=_checks.vector_of(_checks.probability),
    noise=noise_of,
)
def free_p_value(
    statistic: Any, noise: Any, phi: Any, null: Any
) -> Float[Array, "..."]:
    """The p-value that T = F^-1(phi(x)) + N gives without further privacy loss.

    Args:
        statistic: T, one number.
        noise: As in `private_statistic`.
        phi: P(reject | x) for all x, a vector.
        null: Probabilities of the x under H0, a vector; or a matrix with a row for
            every distribution in H0.

    Returns:
        The largest over H0 of E F(F^-1(phi(X)) - T); valid under every row.

    Raises:
        ValueError: If there are no probabilities in `phi`, or a row of `null` does not
            add to 1.

    References:
        Awan and Vadhan (2023), Theorem 4.3.
    """
    traced = is_traced(null)
    rows = jnp.atleast_2d(null) if traced else np.atleast_2d(np.asarray(null, float))
    _checks.require(
        rows.ndim == 2 and rows.shape[1:] == phi.shape,
        f"null must have {phi.size} columns like phi",
        f"shape {rows.shape}",
    )
    rows = _checks.probability("null", rows)
    np_or_jnp = jnp if traced else np
    rows = np_or_jnp.stack([_checks.total("null", row, 1e-8) for row in rows])
    return _free_p(noise, phi, rows, statistic)


@in_float64
def _statistic(noise: CanonicalNoise, key: Any, phi: Any) -> Array:
    # Added here: rounded to float32 before, the quantile might move by more than 1.
    phi = as_float(phi)
    return noise.quantile(phi) + noise.sample(key, phi.shape)


@in_float64
def _excess(f: AbstractTradeOff, phi: Array, pairs: Array) -> Array:
    log_alpha, log_tnr = jax.vmap(both_logs)(as_float(phi))
    rates = jax.vmap(lambda a, b: rates_at(f, a, b))(log_alpha, log_tnr)
    most = jnp.exp(rates.log_tpr.estimate)
    one, other = pairs[:, 0], pairs[:, 1]
    phi = as_float(phi)
    ways = phi[one] - most[other], phi[other] - most[one]
    return jnp.max(jnp.concatenate([*ways, jnp.full(1, -1.0)]))


@in_float64
def _free_p(noise: CanonicalNoise, phi: Any, rows: Any, statistic: Any) -> Array:
    law = noise.law
    place = -law.isf(as_float(phi))
    moved = jnp.where(jnp.isinf(place), place, place - as_float(statistic))
    rows = as_float(rows)
    return jnp.max(rows @ law.cdf(moved) / jnp.sum(rows, axis=1))
