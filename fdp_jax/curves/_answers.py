"""Answers to all questions that a privacy profile settles, with outward rounding."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._internal._precision import in_float64
from .._internal._text import joined_methods
from ..engines import Interval
from ._bounds import DELTA, LOGARITHM, Bounds, bayes_error_range, clipped
from ._queries import ProfilePoint, bounds_of


@in_float64
def log_delta_of(point: ProfilePoint) -> Bounds:
    """Bounds of log delta."""
    found = point.log_delta
    return bounds_of(found, found.upper >= 0, LOGARITHM, point.method)


@in_float64
def log_rest_of(point: ProfilePoint) -> Bounds:
    """Bounds of log(1 - delta)."""
    vacuous = point.log_delta.upper >= 0
    return bounds_of(point.log_rest, vacuous, LOGARITHM, point.method)


@in_float64
def delta_of(point: ProfilePoint) -> Bounds:
    """Bounds of delta."""
    found = point.log_delta.exponential()
    return bounds_of(found, found.upper >= 1, DELTA, point.method)


@in_float64(cast_out=False)
def threshold_of(prior: Float[Array, "..."]) -> Float[Array, "..."]:
    """The threshold logit(prior) of the attack that is best at a prior of H0."""
    safe = _inside(jnp.asarray(prior))
    return jnp.log(safe) - jnp.log1p(-safe)


@in_float64
def bayes_error_of(point: ProfilePoint, prior: Float[Array, "..."]) -> Bounds:
    """Bounds of R(pi) = (1 - pi)(1 - delta(logit pi)), pi the weight of H0."""
    prior = jnp.asarray(prior)
    safe = _inside(prior)
    certain = safe != prior
    most = jnp.minimum(prior, 1 - prior)
    value = point.log_rest.shifted(jnp.log1p(-safe)).exponential()
    value = value.map(lambda x: jnp.where(certain, 0.0, jnp.minimum(x, most)))
    vacuous = (value.lower <= 0) & ~certain
    return bounds_of(value, vacuous, bayes_error_range(prior), point.method)


def _inside(prior: Array) -> Array:
    """The prior, or a safe one where the record is certainly present or absent."""
    return jnp.where((prior <= 0) | (prior >= 1), 0.5, prior)


@in_float64(cast_out=False)
def common_profile(one: ProfilePoint, other: ProfilePoint) -> ProfilePoint:
    """The intersection of two certified profiles of one guarantee."""

    def common(one: Interval, other: Interval) -> Interval:
        width = lambda x: jnp.where(jnp.isfinite(x.lower), x.upper - x.lower, jnp.inf)
        lower = jnp.maximum(one.lower, other.lower)
        upper = jnp.minimum(one.upper, other.upper)
        closer = width(other) < width(one)
        estimate = jnp.where(closer, other.estimate, one.estimate)
        return Interval(lower, clipped(estimate, lower, upper), upper)

    return ProfilePoint(
        common(one.log_delta, other.log_delta),
        common(one.log_rest, other.log_rest),
        joined_methods(one.method, other.method),
    )
