"""Approximations of a composition by its first cumulants.  None of them is a bound."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._implicit import implicit_root
from .._internal._precision import in_float64
from .._internal._roots import bisect
from ..curves import (
    elementwise,
)
from ..losses import ComposedLoss
from ..losses.log_moment import counted, directions, finite_mass
from .log_moment import loss_and_direction

_FARTHEST = 40.0


@explained
def clt_gdp(mechanism: Any) -> Float[Array, ""]:
    """Mu of the central limit theorem: the mechanism is *about* mu-GDP.

    An approximation; it can under-report the privacy loss (use `gdp` for a bound).

        mu = 2 sum_i KL(P_i||Q_i) / sqrt(sum_i Var_P X_i),

    where a step of DP-SGD counts with its limit for weak sampling, so that
    mu = q sqrt(N (e^(1/s^2) - 1)): the "GDP accountant" of other libraries.

    Args:
        mechanism: A mechanism (the larger mu of both directions), or a view.

    Returns:
        mu in [0, inf]; inf if a loss can be infinite.

    Differentiable in:
        All parameters.

    Raises:
        TypeError: If `mechanism` is not a mechanism or view.

    Example:
        >>> import fdp_jax as fdp
        >>> run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=1e4)
        >>> print(f"{fdp.divergences.clt_gdp(run):.6f}")
        1.310832

    References:
        Dong, Roth, Su (2022), Theorem 3.5; Bu, Dong, Long, Su (2020), Theorem 5.
    """
    loss, direction = loss_and_direction(mechanism, "clt_gdp")
    return _clt(loss, direction=direction)


@in_float64
def _clt(loss: ComposedLoss, *, direction: str) -> Array:
    found = []
    for sign in directions(direction):
        mean, variance = counted(loss, lambda t, s=sign: t.clt_cumulants(s))
        released = variance > 0
        deviation = jnp.sqrt(jnp.where(released, variance, 1.0))
        mu = jnp.where(released, 2 * mean / deviation, 0.0)
        found.append(jnp.where(finite_mass(loss, sign).base < 0, jnp.inf, mu))
    return jnp.max(jnp.stack(found))


class _Law(NamedTuple):
    """A law near the normal one, by its cumulants."""

    mean: Array
    deviation: Array
    skewness: Array
    kurtosis: Array

    def below(self, x: Array) -> Array:
        """Edgeworth's distribution function, of second order."""
        return norm.cdf(x) - self._correction(x)

    def above(self, x: Array) -> Array:
        """Its complement."""
        return norm.cdf(-x) + self._correction(x)

    def _correction(self, x: Array) -> Array:
        square = jnp.square(x)
        first = self.skewness / 6 * (square - 1)
        second = self.kurtosis / 24 * x * (square - 3)
        third = jnp.square(self.skewness) / 72 * x * (square * (square - 10) + 15)
        return norm.pdf(x) * (first + second + third)


@explained(alpha=_checks.probability)
def edgeworth_beta(mechanism: Any, *, alpha: Any) -> Float[Array, "..."]:
    """Trade-off function by Edgeworth's expansion: `clt_gdp` with two corrections.

    An approximation; it can under-report the privacy loss (use `beta` for a bound), and
    is meant for many weak steps and alpha that are not tiny.

    Args:
        mechanism: A mechanism (the smaller of both directions), or a view.
        alpha: False positive rate, in [0, 1]; broadcasts.

    Returns:
        About f(alpha), in [0, 1 - alpha]; 0 if a loss can be infinite.

    Differentiable in:
        alpha and all parameters (once).

    Raises:
        ValueError: If alpha is outside [0, 1].
        TypeError: If `mechanism` is not a mechanism or view.

    Example:
        >>> import fdp_jax as fdp
        >>> run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=1e4)
        >>> print(f"{fdp.divergences.edgeworth_beta(run, alpha=0.1):.5f}")
        0.49494
        >>> print(f"{run.beta(alpha=0.1):.5f}")
        0.49493

    References:
        Zheng, Dong, Long, Su (2020), Section 3; Wang et al. (2022) for its error.
    """
    loss, direction = loss_and_direction(mechanism, "edgeworth_beta")
    return _edgeworth(loss, alpha, direction=direction)


@in_float64
def _edgeworth(loss: ComposedLoss, alpha: Array, *, direction: str) -> Array:
    alpha = jnp.asarray(alpha)
    found = []
    for sign in directions(direction):
        base = _law(loss, sign, included=sign < 0)
        other = _law(loss, sign, included=sign > 0)
        rates = elementwise(lambda a, b=base, o=other: _type_two(b, o, a), alpha)
        lost = finite_mass(loss, sign).base < 0
        found.append(jnp.where(lost, 0.0, rates))
    return jnp.min(jnp.stack(found), axis=0)


def _law(loss: ComposedLoss, sign: float, *, included: bool) -> _Law:
    first, second, third, fourth = counted(
        loss, lambda term: term.cumulants(included=included)
    )
    released = second > 0
    variance = jnp.where(released, second, 1.0)
    return _Law(
        sign * first,
        jnp.where(released, jnp.sqrt(variance), 0.0),
        sign * third / variance**1.5,
        fourth / jnp.square(variance),
    )


def _type_two(base: _Law, other: _Law, alpha: Array) -> Array:
    released = base.deviation > 0
    edge = (alpha <= 0) | (alpha >= 1)
    inner = jnp.where(edge, 0.5, alpha)
    args = base, inner
    ends = jnp.full_like(inner, -_FARTHEST), jnp.full_like(inner, _FARTHEST)
    fixed = stop_gradient(args)
    found = bisect(lambda x: _miss(x, fixed, ()), *ends)[0]
    x = implicit_root(_miss, found, args, ())
    threshold = base.mean + base.deviation * x
    scale = jnp.where(released, other.deviation, 1.0)
    beta = other.below((threshold - other.mean) / scale)
    value = jnp.clip(jnp.where(released, beta, 1 - inner), 0, 1 - inner)
    return jnp.where(edge, 1 - alpha, value)


def _miss(x: Array, args: tuple[_Law, Array], aux: tuple) -> Array:
    """Increasing in x; zero where the false positive rate is alpha."""
    law, alpha = args
    return alpha - law.above(x)
