"""Certified Bayes errors of two guarantees at common priors."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._precision import in_float64
from ..curves import (
    Bounds,
    Range,
    Status,
    classify,
    uncrossed,
)
from ..engines import Interval
from .delta import NEGLIGIBLE, halves_of, search, sources
from .explore import Nodes
from .sources import Request, pair, share


class BayesErrors(eqx.Module):
    """Certified Bayes errors of both guarantees at common priors, rising."""

    prior: Float[Array, " m"]
    a: Bounds
    b: Bounds


def certified_bayes_errors(a: Any, b: Any, *, priors: Any = None) -> BayesErrors:
    """Bayes errors of two guarantees at common priors, with bounds.

    Args:
        a: A guarantee.
        b: Another one.
        priors: Where, in (0, 1); by default at all priors that `delta_divergence` looks
            at, dense where the two differ most.

    Returns:
        `BayesErrors`.

    Guarantee:
        Both ends are proved.

    Raises:
        ValueError: If the neighboring relations differ.
        TypeError: If an argument is not a guarantee.
    """
    first, second = pair(a, b)
    if priors is None:
        return _all_errors(first, second)
    priors = _checks.vector("priors", _checks.open_share, priors)
    return _errors_at(first, second, priors)


def _with_status(ends: Interval) -> Bounds:
    """Bounds of Bayes errors; narrow also if that is little for a probability."""
    lower, upper, crossed = uncrossed(ends.lower, ends.upper, Range(0.0, 0.5, 1.0))
    status = classify(lower, upper, (lower <= 0) & (upper > 0))
    narrow = (upper - lower <= NEGLIGIBLE) & ~crossed
    status = jnp.where(narrow, int(Status.TIGHT), status)
    return Bounds(lower, ends.estimate, upper, status)


@in_float64
def _all_errors(first: Request, second: Request) -> BayesErrors:
    return _errors_of(search(first, second).nodes)


@in_float64
def _errors_at(first: Request, second: Request, priors: Array) -> BayesErrors:
    prepared = sources(first, second).prepared()
    return errors_from(first, second, prepared, priors)


def errors_from(
    first: Request, second: Request, prepared: tuple, priors: Array
) -> BayesErrors:
    """The Bayes errors, inside a program that has prepared both guarantees."""
    chosen, halves = sources(first, second), halves_of(first, second)
    priors = jnp.asarray(priors)
    q = jnp.minimum(priors, 1 - priors)
    epsilon = jnp.abs(jnp.log(priors) - jnp.log1p(-priors))
    at = jnp.broadcast_to(epsilon, (halves, priors.size))
    one, other = chosen.deficits(prepared, at)
    row = jnp.where(priors >= 0.5, 0, halves - 1)
    here = jnp.arange(priors.size)

    def bounds(deficit: Interval) -> Bounds:
        ends = deficit.map_down(lambda t: jnp.clip(q - t[row, here], 0, q))
        return _with_status(ends)

    return BayesErrors(priors, bounds(one), bounds(other))


def _errors_of(nodes: Nodes) -> BayesErrors:
    q = nodes.q

    def whole(values: Array) -> Array:
        return jnp.concatenate([values[-1], values[0][::-1]])

    def bounds(deficit: Interval) -> Bounds:
        ends = deficit.map_down(lambda t: jnp.clip(q - t, 0, q)).map(whole)
        return _with_status(ends)

    prior = jnp.concatenate([share(nodes.epsilon[-1]), 1 - q[0][::-1]])
    return BayesErrors(prior, bounds(nodes.one), bounds(nodes.other))
