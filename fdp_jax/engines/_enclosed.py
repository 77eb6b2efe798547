"""Compositions with losses that are known by pairs above and below them.

Upper ends come from the pair that dominates, lower ends from the one that is dominated:
composition keeps both orders.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ..losses import ComposedLoss, EnclosedLoss, Method
from ._closed_form_engine import closed_epsilon, closed_profile


def is_bracketed(loss: Any) -> bool:
    """Whether some part of a loss is known by pairs around it."""
    leaves = jax.tree.leaves(loss, is_leaf=lambda x: isinstance(x, EnclosedLoss))
    return any(isinstance(x, EnclosedLoss) for x in leaves)


def is_one(loss: ComposedLoss) -> bool:
    """Whether it is a single release, of one bracketed loss and nothing else."""
    first = loss.terms[0]
    return loss.single and len(loss.terms) == 1 and isinstance(first, EnclosedLoss)


def _replaced(loss: ComposedLoss, change: Callable[[Any], Any]) -> ComposedLoss:
    terms = jax.tree.map(
        lambda x: change(x) if isinstance(x, EnclosedLoss) else x,
        loss.terms,
        is_leaf=lambda x: isinstance(x, EnclosedLoss),
    )
    return dataclasses.replace(loss, terms=terms, ends=None)


def bracketed(loss: ComposedLoss) -> ComposedLoss:
    """The composition with the pairs around every enclosed part."""
    return _replaced(loss, lambda x: x.bracketed(points_asked(loss)))


def points_asked(loss: ComposedLoss) -> int | None:
    """The number of points that the user asked for."""
    asked = loss.method.points
    return None if asked == Method.points else asked


def estimated(loss: ComposedLoss) -> ComposedLoss:
    """The composition with the estimate of every bracketed part."""
    if not is_bracketed(loss):
        return loss
    return _replaced(loss, lambda x: x.estimate).with_ends()


def sides(loss: ComposedLoss) -> ComposedLoss:
    """Those with the pair above, the estimate and the pair below, stacked."""
    names = "upper", "estimate", "lower"
    each = [_replaced(loss, lambda x, n=name: getattr(x, n)) for name in names]
    return jax.tree.map(lambda *x: jnp.stack(x), *each)


def _ceiling(loss: ComposedLoss) -> ComposedLoss | None:
    """One release that dominates all of it, if that is known."""
    terms = [x for x in loss.terms if isinstance(x, EnclosedLoss)]
    if len(terms) < len(loss.terms):
        return None
    whole = EnclosedLoss.dominating(terms, loss.counts)
    return ComposedLoss((whole,), (jnp.ones_like(loss.counts[0]),), single=True)


def most_log_delta(
    loss: ComposedLoss, sign: Array, epsilons: Float[Array, " e"]
) -> Float[Array, " e"]:
    """A bound of log delta without any lattice."""
    ceiling = _ceiling(loss)
    if ceiling is None:
        return jnp.zeros_like(epsilons)
    form = ceiling.closed_form(sign)
    return stop_gradient(closed_profile(form, epsilons).log_delta.upper)


def most_epsilon(loss: ComposedLoss, log_delta: Float[Array, ""]) -> Float[Array, ""]:
    """A bound of epsilon without any lattice, the same in both directions."""
    ceiling = _ceiling(loss)
    if ceiling is None:
        return jnp.full_like(log_delta, jnp.inf)
    sign = jnp.ones_like(log_delta)[None]
    found = closed_epsilon(ceiling, sign, log_delta[None], log_delta[None])
    return stop_gradient(found.upper)
