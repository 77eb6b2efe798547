"""One step, found out while a program runs.

A single step has a closed form, and contour integrals say little of it.  Where the
number of steps is traced the program holds both, and looks at the number.
"""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array

from .._internal._batching import anywhere
from .._internal._interval import Interval
from ..losses import ComposedLoss
from ._bounds import Profile, capped, capped_profile, select, worst_of
from ._closed_form_engine import closed_profile

_Answer = TypeVar("_Answer", Interval, Profile)
_Asked = TypeVar("_Asked")
_BESIDE = 1 + 2.0**-40


def first_step(loss: ComposedLoss) -> ComposedLoss | None:
    """One step of a composition that may be just that; None without a closed form."""
    if len(loss.terms) > 1 or loss.method.name != "auto" or loss.repeated:
        return None
    one = jnp.ones_like(loss.counts[0])
    step = dataclasses.replace(loss, counts=(one,), single=True, repeated=False)
    return step if step.has_closed_form else None


def one_step_profile(step: ComposedLoss, signs: Array, epsilons: Array) -> Profile:
    """The profile of a single step, for the worst of some directions."""

    def one(sign: Array) -> Profile:
        return closed_profile(step.closed_form(sign), epsilons)

    found = jax.vmap(one)(signs)
    worst = worst_of(jnp.max(stop_gradient(found.log_delta.estimate), axis=1), signs)
    at_worst = jax.tree.map(lambda x: x[worst], found)
    log_delta, log_rest = found.log_delta, found.log_rest
    return Profile(
        Interval(
            jnp.max(log_delta.lower, axis=0),
            at_worst.log_delta.estimate,
            jnp.max(log_delta.upper, axis=0),
        ),
        Interval(
            jnp.min(log_rest.lower, axis=0),
            at_worst.log_rest.estimate,
            jnp.min(log_rest.upper, axis=0),
        ),
        at_worst.log_alpha,
    )


def unless_one_step(
    loss: ComposedLoss,
    asked: _Asked,
    many: Callable[[ComposedLoss, _Asked], _Answer],
    single: Callable[[ComposedLoss, _Asked], _Answer],
) -> _Answer:
    """The answer of `many` for a loss, but of a single step that of `single`.

    A part of a step is no worse than the whole one, by the definition of fractional
    numbers (see `DPSGD`).  Of a single step `many` gives the derivative in the number
    of steps, and `single` all others: each is handed on once.

    Args:
        loss: The composition.
        asked: What the answer is of, besides the loss: a PyTree of arrays.
        many: The answer for a loss and what is asked of it.
        single: The same for a loss of one step.
    """
    step = first_step(loss)
    if step is None:
        return many(loss, asked)
    (count,) = loss.counts
    is_one = count == 1
    terms, fixed = jax.tree.map(
        lambda x: jnp.where(is_one, stop_gradient(x), x), (loss.terms, asked)
    )
    # Whole powers do not follow angles over whole turns, which slopes in them need.
    beside = jnp.where(is_one, count * _BESIDE, count)
    found = many(dataclasses.replace(loss, terms=terms, counts=(beside,)), fixed)
    needed = anywhere(count <= 1)
    constant = stop_gradient(found)
    exact = lax.cond(needed, single, lambda *_: constant, step, asked)

    def change(estimate: Array) -> Array:
        known = jnp.isfinite(estimate)
        safe = jnp.where(known, estimate, 0)
        return safe - stop_gradient(safe)

    moved = lambda x, y: Interval(x.lower, x.estimate + change(y.estimate), x.upper)
    if isinstance(found, Interval):
        part = capped(found, stop_gradient(exact))
        exact = moved(exact, found)
    else:
        part = capped_profile(found, stop_gradient(exact))
        exact = Profile(
            moved(exact.log_delta, found.log_delta),
            moved(exact.log_rest, found.log_rest),
            exact.log_alpha,
        )
    return select(is_one, exact, select(count < 1, part, found))
