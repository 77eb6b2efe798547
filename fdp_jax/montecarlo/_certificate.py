"""Confidence limits of a mean of independent numbers in [0, 1]."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from .._internal._roots import bisect

_STEPS = 60


class Moments(NamedTuple):
    """Number of samples, their mean and their sample variance."""

    size: Array
    mean: Array
    variance: Array


def limits(moments: Moments, log_inverse: float) -> tuple[Array, Array]:
    """Lower and upper limit; each fails with a probability of at most e^-log_inverse.

    The tighter one of two, each of which fails half as often: the empirical Bernstein
    bound of Maurer and Pontil (2009), Theorem 4, and Hoeffding's (1963), Theorem 1,
    n KL(mean, limit) <= log(1 / probability).

    Args:
        moments: Of the numbers.
        log_inverse: The logarithm of one over the probability of failure, of an end.
    """
    log_twice = log_inverse + jnp.log(2.0)
    n, mean = moments.size, moments.mean
    log_bernstein = log_twice + jnp.log(2.0)  # the theorem's log(2 / probability)
    room = jnp.sqrt(2 * moments.variance * log_bernstein / n)
    room = room + 7 * log_bernstein / (3 * (n - 1))
    missing = lambda limit: n * _divergence(mean, limit) - log_twice
    _, above = bisect(missing, mean, jnp.ones_like(mean), _STEPS)
    below, _ = bisect(lambda x: -missing(x), jnp.zeros_like(mean), mean, _STEPS)
    lower = jnp.maximum(jnp.maximum(mean - room, below), 0.0)
    return lower, jnp.minimum(jnp.minimum(mean + room, above), 1.0)


def _divergence(mean: Array, other: Array) -> Array:
    """KL(Bernoulli(mean), Bernoulli(other)), infinite where it is."""
    some, rest = mean > 0, mean < 1
    inside = jnp.where(some, mean, 1.0), jnp.where(rest, mean, 0.0)
    first = jnp.where(some, mean * jnp.log(inside[0] / other), 0.0)
    last = (1 - mean) * (jnp.log1p(-inside[1]) - jnp.log1p(-other))
    return first + jnp.where(rest, last, 0.0)
