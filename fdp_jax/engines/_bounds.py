"""What an engine returns: an estimate between two certified bounds."""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._special import log1mexp

_Tree = TypeVar("_Tree")


class Interval(eqx.Module):
    """A number with certified bounds; only the estimate has a derivative."""

    lower: Float[Array, "..."]
    estimate: Float[Array, "..."]
    upper: Float[Array, "..."]

    def map(self, increasing: Callable[[Array], Array]) -> "Interval":
        """Applies an increasing function."""
        return Interval(
            increasing(self.lower), increasing(self.estimate), increasing(self.upper)
        )

    def map_down(self, decreasing: Callable[[Array], Array]) -> "Interval":
        """Applies a decreasing function."""
        return Interval(
            decreasing(self.upper), decreasing(self.estimate), decreasing(self.lower)
        )


def sound(bounds: Interval, least: float, most: float) -> Interval:
    """The trivial bounds where a bound is not a number: never a silent claim."""
    return Interval(
        jnp.where(jnp.isnan(bounds.lower), least, bounds.lower),
        bounds.estimate,
        jnp.where(jnp.isnan(bounds.upper), most, bounds.upper),
    )


class Profile(eqx.Module):
    """Privacy profile of one direction at some thresholds, in logarithms."""

    log_delta: Interval
    """log delta(eps)."""
    log_rest: Interval
    """log(1 - delta(eps)), accurate where delta is near one."""
    log_alpha: Float[Array, "..."]
    """log P(X > eps): an estimate without derivative."""


def log_complement(log_value: Array) -> Array:
    """log(1 - e^x) for x <= 0, and -inf at x = 0."""
    return log1mexp(-jnp.minimum(log_value, 0))


def select(condition: Array, yes: _Tree, no: _Tree) -> _Tree:
    """`jnp.where` over two PyTrees of one structure."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def with_infinite(
    log_delta: Interval, infinite: Array, unsure: Array, none: Array
) -> Interval:
    """Adds the infinite losses to log delta of the finite ones.

    Args:
        log_delta: Of the finite losses.
        infinite: Log of the mass of the infinite ones, -inf if there are none.
        unsure: Log of the mass of outputs that were left out, in either of them.
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
    return Interval(without(total.lower, unsure), total.estimate, total.upper)


def without(logs: Array, unsure: Array) -> Array:
    """Log of e^logs - e^unsure from below, -inf if that is nothing; no derivative."""
    logs, unsure = stop_gradient((logs, unsure))
    share = unsure - logs + 1e-12  # nothing is left of what rounding may have made
    some = share < -1e-9
    left = logs + log1mexp(jnp.where(some, -share, 1.0))
    left = jnp.where(some, left, -jnp.inf)
    return jnp.where(jnp.isneginf(unsure), logs, left)


def exactly(value: Array, relative: Array | float) -> Interval:
    """A closed form's value of a logarithm with a bound on its absolute error."""
    error = stop_gradient(relative * (1 + jnp.abs(value)))
    error = jnp.where(jnp.isfinite(value), error, 0)
    return Interval(stop_gradient(value) - error, value, stop_gradient(value) + error)


def worst_of(estimates: Float[Array, " s"], signs: Float[Array, " s"]) -> Array:
    """Index of the largest one; of about equal ones that of "remove".

    Both directions leak the same where every record takes part in every step; the
    slopes in `sampling_prob` on its way there are those of "remove".
    """
    most = jnp.max(estimates)
    near = (estimates >= most - 1e-11 * (1 + jnp.abs(most))) | (estimates == most)
    return jnp.argmax(jnp.where(near, signs, -jnp.inf))
