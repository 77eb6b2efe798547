"""Certified Bayes errors of two guarantees at common priors."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import outside_transformations
from .._internal._precision import in_float64
from .._internal._record import Record
from ..curves import (
    Bounds,
    Range,
    Status,
    classify,
    uncrossed,
    with_gradient,
)
from ..engines import Interval
from .delta import NEGLIGIBLE, halves_of, search, sources
from .explore import Nodes
from .sources import Request, pair, share


class BayesErrors(Record):
    """Certified Bayes errors of both guarantees at common priors, rising."""

    prior: Float[Array, " m"]
    a: Bounds
    b: Bounds


@explained
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

    Differentiable in:
        `priors` and the parameters of both, through all ends.  At the default priors,
        which are found by search, nothing has a derivative: it is zero.

    Raises:
        ValueError: If the neighboring relations differ.
        TypeError: If an argument is not a guarantee.
    """
    first, second = pair(a, b)
    if priors is None:
        return _all_errors(first, second)
    priors = _checks.vector("priors", _checks.open_share, priors)
    # A plain call has no derivative, so it need not pay for one.
    return _errors_at(first, second, priors, plain=outside_transformations())


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
def _errors_at(
    first: Request, second: Request, priors: Array, *, plain: bool
) -> BayesErrors:
    priors = jnp.asarray(priors, float)
    fixed = stop_gradient((first, second))
    prepared = sources(*fixed).prepared()
    found = errors_from(*fixed, prepared, stop_gradient(priors))
    if plain:
        return found
    q, epsilon = _half_axis(priors)
    chosen = sources(first, second)
    deficits = chosen.estimates(prepared, epsilon, priors < 0.5)
    one, other = (
        _with_slope(bounds, q - deficit)
        for bounds, deficit in zip((found.a, found.b), deficits, strict=True)
    )
    return BayesErrors(priors, one, other)


def _half_axis(priors: Array) -> tuple[Array, Array]:
    """min(pi, 1 - pi) and |logit pi|."""
    odds = jnp.log(priors) - jnp.log1p(-priors)
    return jnp.minimum(priors, 1 - priors), jnp.abs(odds)


def _with_slope(bounds: Bounds, error: Array) -> Bounds:
    """All ends have the derivative of the estimate."""
    ends = "lower", "estimate", "upper"
    changes = {name: with_gradient(getattr(bounds, name), error) for name in ends}
    return dataclasses.replace(bounds, **changes)


def errors_from(
    first: Request, second: Request, prepared: tuple, priors: Array
) -> BayesErrors:
    """The Bayes errors, inside a program that has prepared both guarantees."""
    chosen, halves = sources(first, second), halves_of(first, second)
    priors = jnp.asarray(priors)
    q, epsilon = _half_axis(priors)
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
