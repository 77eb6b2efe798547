"""What an engine returns: privacy profiles with certified bounds."""

import functools
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._interval import Interval, without
from ..losses import ComposedLoss, where

_Tree = TypeVar("_Tree")
_LEAST = -700.0
"""log delta below which no width matters."""


class Profile(eqx.Module):
    """Privacy profile of one direction at some thresholds, in logarithms."""

    log_delta: Interval
    """log delta(eps)."""
    log_rest: Interval
    """log(1 - delta(eps)), accurate where delta is near one."""
    log_alpha: Float[Array, "..."]
    """log P(X > eps): an estimate without derivative."""


@functools.partial(jax.jit, inline=True)
def select(condition: Array, yes: _Tree, no: _Tree) -> _Tree:
    """The one or the other of two PyTrees of one structure."""
    return jax.tree.map(lambda a, b: where(condition, a, b), yes, no)


def width_of(found: Profile) -> Float[Array, "..."]:
    """The width of the bracket of min(delta, 1 - delta), where that matters."""
    small = found.log_delta.estimate < found.log_rest.estimate
    less = select(small, found.log_delta, found.log_rest)
    width = less.upper - less.lower
    width = jnp.where(jnp.isnan(width), jnp.inf, width)
    return stop_gradient(jnp.where(found.log_delta.upper < _LEAST, 0, width))


def capped(found: Interval, other: Interval) -> Interval:
    """Bounds with the upper end of other ones, of what is more."""
    upper = jnp.maximum(jnp.minimum(found.upper, other.upper), found.lower)
    estimate = jnp.where(found.estimate <= upper, found.estimate, upper)
    return Interval(found.lower, estimate, upper)


def capped_profile(found: Profile, other: Profile) -> Profile:
    """A profile with the upper bounds of delta of another one, of what leaks more."""
    return Profile(
        capped(found.log_delta, other.log_delta),
        capped(
            found.log_rest.map_down(jnp.negative), other.log_rest.map_down(jnp.negative)
        ).map_down(jnp.negative),
        found.log_alpha,
    )


@jax.jit
def with_infinite(
    log_delta: Interval, infinite: Array, truncated: Array, none: Array
) -> Interval:
    """Adds the infinite losses to log delta of the finite ones.

    Args:
        log_delta: Of the finite losses.
        infinite: Log of the mass of the infinite ones, -inf if there are none.
        truncated: Log of the mass of outputs that were left out, in either of them.
        none: Where no finite loss counts.
    """
    never = jnp.isneginf(infinite)
    mass = jnp.where(never, 0, infinite)

    def add(x: Array) -> Array:
        empty = none | jnp.isneginf(x)
        safe = jnp.where(empty, 0, x)
        total = jnp.where(never, safe, jnp.logaddexp(safe, mass))
        return jnp.minimum(jnp.where(empty, infinite, total), 0)

    total = log_delta.map(add)
    return Interval(without(total.lower, truncated), total.estimate, total.upper)


def worst_of(estimates: Float[Array, " s"], signs: Float[Array, " s"]) -> Array:
    """Index of the largest one; of about equal ones that of "remove".

    Both directions leak the same where every record takes part in every step; the
    slopes in `sampling_prob` on its way there are those of "remove".
    """
    most = jnp.max(estimates)
    near = (estimates >= most - 1e-11 * (1 + jnp.abs(most))) | (estimates == most)
    return jnp.argmax(jnp.where(near, signs, -jnp.inf))


def largest_loss(loss: ComposedLoss, sign: Array) -> Array:
    """Essential supremum of the finite loss in one direction, rounded upward."""
    low, high = loss.loss_range()
    return jnp.where(sign > 0, high, -low)
