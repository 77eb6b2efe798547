"""Certified Bayes errors of two guarantees at common priors."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._precision import in_float64
from .._internal._record import Record
from ..curves import (
    Bounds,
    Range,
    Status,
    classify,
    uncrossed,
)
from ..engines import Interval
from .delta import NEGLIGIBLE, search
from .sources import Request, pair, share


class BayesErrors(Record):
    """Certified Bayes errors of both guarantees at common priors, rising."""

    prior: Float[Array, " m"]
    a: Bounds
    b: Bounds


@explained(priors=_checks.vector_of(_checks.open_share))
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
    one, other = (g._bounds_of("bayes_error", priors)._differentiable() for g in (a, b))
    return BayesErrors(jnp.asarray(priors), one, other)


def _with_status(ends: Interval) -> Bounds:
    """Bounds of Bayes errors; narrow also if that is little for a probability."""
    lower, upper, crossed = uncrossed(ends.lower, ends.upper, Range(0.0, 0.5, 1.0))
    status = classify(lower, upper, (lower <= 0) & (upper > 0))
    narrow = (upper - lower <= NEGLIGIBLE) & ~crossed
    status = jnp.where(narrow, int(Status.TIGHT), status)
    return Bounds(lower, ends.estimate, upper, status)


@in_float64
def _all_errors(first: Request, second: Request) -> BayesErrors:
    nodes = search(first, second).nodes
    q = nodes.q

    def whole(values: Array) -> Array:
        return jnp.concatenate([values[-1], values[0][::-1]])

    def bounds(deficit: Interval) -> Bounds:
        ends = deficit.map_down(lambda t: jnp.clip(q - t, 0, q)).map(whole)
        return _with_status(ends)

    prior = jnp.concatenate([share(nodes.epsilon[-1]), 1 - q[0][::-1]])
    return BayesErrors(prior, bounds(nodes.one), bounds(nodes.other))
