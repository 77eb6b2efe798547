"""The least epsilon of a composition for a given delta, whichever the engine."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

from .._internal._arithmetic import ULP
from .._internal._interval import Interval, log_complement, sound, without
from ..losses import ComposedLoss, where
from ._bounds import largest_loss, select
from ._contour_engine import place_of
from ._interface import Target
from ._route import engine_of, neutral, numbers_alone


def epsilon(
    loss: ComposedLoss, signs: Float[Array, " s"], log_delta: Float[Array, ""]
) -> Interval:
    """The least real epsilon with delta(epsilon) at most the given one.

    For the worst of some directions.
    """
    nothing, loss = neutral(loss)
    infinite, _, safe, share = _shared(loss, signs, log_delta)
    finite = safe + log_complement(share)
    # Little is left of a delta that is mostly infinite losses, and so few digits.
    known = where(jnp.isneginf(share), 0.0, 1 + jnp.abs(safe) + jnp.abs(infinite))
    left = -jnp.expm1(jnp.minimum(share, -1e-300))
    odds = jnp.exp(share) / left
    slack = stop_gradient(8 * ULP * known * odds)
    # Left of the lower end delta is larger by what was left out, at least.
    truncated = stop_gradient(loss.log_truncated_mass(signs))
    sure = without(infinite, truncated)
    more = jnp.log1p(jnp.exp(truncated - safe) / left)
    slack = jnp.stack([slack + stop_gradient(more), slack], axis=1)
    target = Target(safe, finite, slack, jnp.logaddexp(safe, truncated))
    result = engine_of(loss).epsilon(loss, signs, target)
    # No mechanism has less than what releases nothing; no maximum, for derivatives.
    idle = _idle(log_delta)
    result = sound(numbers_alone(result, loss), -jnp.inf, jnp.inf)
    result = jax.tree.map(lambda x, y: where(x < y, y, x), result, idle)
    result = Interval(stop_gradient(result.lower), result.estimate, result.upper)
    each = stop_gradient(largest_loss(loss, signs))
    most = jnp.max(each)
    # Where delta is just the infinite losses: the largest finite one of a direction.
    inner = each - 16 * ULP * where(jnp.isfinite(each), jnp.abs(each), 0.0)
    inner = inner - stop_gradient(loss.range_error())
    attained = jnp.max(where(log_delta == sure, inner, idle.lower))
    at_end = jnp.any(log_delta == infinite)
    estimate = lax.cond(
        at_end & jnp.isfinite(most), lambda: most + _move(loss, signs), lambda: most
    )
    result = select(at_end, Interval(attained, estimate, most), result)
    # Also where the infinite losses are not known.
    beyond = where(jnp.any(log_delta < sure), jnp.inf, idle.lower)
    none = _point(jnp.inf)
    result = select(
        ~jnp.all(log_delta >= infinite),
        Interval(beyond, none.estimate, none.upper),
        result,
    )
    result = select(nothing, idle, result)
    return select(log_delta >= 0, _point(-jnp.inf), result)


def _idle(log_delta: Array) -> Interval:
    """The epsilon of what releases nothing: log(1 - delta), for delta < 1."""
    log_delta = where(log_delta < 0, log_delta, -1.0)
    idle = log_complement(log_delta)
    # The logarithm of delta is rounded; a share of epsilon does not underflow.
    share = 1 + jnp.exp(-idle) * (1 + jnp.minimum(jnp.abs(log_delta), 800))
    share = 8 * ULP * share
    lower, upper = (stop_gradient(idle * (1 + x)) for x in (share, -share))
    return Interval(lower, idle, upper)


def _point(value: ArrayLike) -> Interval:
    value = jnp.asarray(value, float)
    return Interval(value, value, value)


def span(
    loss: ComposedLoss, signs: Float[Array, " s"], log_delta: Float[Array, ""]
) -> Float[Array, ""]:
    """About the epsilon of a given delta, for choosing a grid; at least 1e-6."""
    _, loss = neutral(stop_gradient(loss))
    near = lambda sign: place_of(loss, sign, log_delta, inverse=True).epsilon
    rough, most = lax.map(near, signs), largest_loss(loss, signs)
    return jnp.maximum(jnp.max(jnp.minimum(rough, most)), 1e-6)


def largest_epsilon(
    loss: ComposedLoss, signs: Float[Array, " s"], log_delta: Float[Array, ""]
) -> Float[Array, ""]:
    """An upper bound of the epsilon of a given delta, by Chernoff's inequality.

    It costs next to nothing.  Infinite where delta is below that of infinite losses.
    """
    nothing, loss = neutral(stop_gradient(loss))
    _, possible, safe, share = _shared(loss, signs, log_delta)
    # Less than what is left for the finite losses, whatever is rounded.
    targets = safe + log_complement(jnp.minimum(share * (1 - 1e-9), 0)) - 1e-9

    def most(direction: tuple[Array, Array]) -> Array:
        sign, target = direction
        return place_of(loss, sign, target, inverse=True).largest_epsilon(target)

    each = lax.map(most, (signs, targets))
    each = where(possible, jnp.minimum(each, largest_loss(loss, signs)), jnp.inf)
    return where(nothing | (log_delta >= 0), 0.0, jnp.max(each))


def _shared(
    loss: ComposedLoss, signs: Float[Array, " s"], log_delta: Array
) -> tuple[Array, Array, Array, Array]:
    """Log of the infinite losses' mass; whether delta leaves some for the finite ones.

    Then log delta, or another one where it does not, and log of the infinite share.
    """
    infinite = loss.log_infinite_mass(signs)
    possible = (log_delta > infinite) & (log_delta < 0)
    safe = where(possible, log_delta, -5.0)
    return infinite, possible, safe, where(possible, infinite, -jnp.inf) - safe


def _move(loss: ComposedLoss, signs: Float[Array, " d"]) -> Array:
    """Zero, with the derivative of the largest loss."""
    low, high = loss.moving_range()
    largest = jnp.max(where(signs > 0, high, -low))
    return largest - stop_gradient(largest)
