"""Questions put to a trade-off function, in float64 whatever the caller's precision."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._internal._implicit import implicit_root
from .._internal._precision import in_float64
from .._internal._roots import root_between
from ..curves import (
    Bounds,
    Range,
    at_any_length,
    bayes_error_range,
    bounds_of,
    elementwise,
)
from ..curves.pointwise import both_logs, three
from ..engines import Interval, select


@at_any_length
@in_float64
def slope(tradeoff: Any, alpha: Array) -> Array:
    """log|f'(alpha)|, the threshold of the best test."""

    def one(alpha: Array) -> Array:
        edge = (alpha <= 0) | (alpha >= 1)
        found = tradeoff._log_slope(*both_logs(jnp.where(edge, 0.5, alpha)))
        nearly = jnp.where(alpha <= 0, -700.0, 700.0)
        limit = tradeoff._log_slope(
            -jnp.logaddexp(0, -nearly), -jnp.logaddexp(0, nearly)
        )
        return jnp.where(edge, stop_gradient(limit), found)

    return elementwise(one, alpha)


@at_any_length
@in_float64
def bayes_gain_bounds(tradeoff: Any, prior: Array) -> Bounds:
    """Bounds of min(pi, 1 - pi) - R(pi)."""

    def one(prior: Array) -> Bounds:
        certain = (prior <= 0) | (prior >= 1)
        safe = jnp.where(certain, 0.5, prior)
        log_prior, log_other = jnp.log(safe), jnp.log1p(-safe)
        point = tradeoff._point(log_prior - log_other)
        most = jnp.minimum(safe, 1 - safe)
        logs = select(
            safe >= 0.5,
            point.log_delta.shifted(log_other),
            point.log_reverse.shifted(log_prior),
        )
        value = logs.exponential().map(lambda x: jnp.minimum(x, most))
        value = value.map(lambda x: jnp.where(certain, 0.0, x))
        trivial = value.upper >= most
        return bounds_of(value, trivial & ~certain, bayes_error_range(prior))

    return elementwise(one, prior)


@in_float64
def fixed_point_bounds(tradeoff: Any, like: Any) -> Bounds:
    """Bounds of the alpha with f(alpha) = alpha."""
    fixed = stop_gradient(tradeoff)

    def excess(alpha: Array) -> Array:
        log_alpha, log_tnr = both_logs(alpha)
        return log_alpha - three(jax.vmap(fixed._rates)(log_alpha, log_tnr).log_beta)

    zero = jnp.zeros_like(like, shape=3)
    below, above = root_between(excess, zero, zero + 0.5)
    low, middle, high = below[0], above[1], above[2]
    # Identical distributions: f(1/2) = 1/2, and a rounding error decides.
    tiny = jnp.finfo(middle.dtype).tiny
    none = middle <= 10 * tiny
    safe = jnp.where(none, 0.25, middle)
    estimate = jnp.where(none, 0.0, implicit_root(_crossing, safe, tradeoff, ()))
    found = Interval(low, jnp.clip(estimate, low, high), high)
    return bounds_of(found, (low <= 0) & ~none, Range(0.0, 0.5, 0.0))


def _crossing(alpha: Array, tradeoff: Any, aux: tuple[()]) -> Array:
    log_alpha, log_tnr = both_logs(alpha)
    return log_alpha - tradeoff._rates(log_alpha, log_tnr).log_beta.estimate
