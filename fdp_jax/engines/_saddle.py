"""Choosing a contour: where the vertical line crosses the real axis.

The strip c > 0 gives delta(eps) directly, the strip -1 < c < 0 gives 1 - delta(eps)
(small where the composition leaks much).  Every c is exact; the saddle point of the
integrand makes it cheap and free of cancellation.  No choice here has a derivative,
and none needs more than two digits.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import while_loop
from jaxtyping import Array, Bool, Float

from .._internal._arithmetic import ULP
from ..losses import ComposedLoss

_ENOUGH = 0.05
"""Error of the logarithm of the value at which the search stops."""
_LOG_TOLERANCE = -7.0
"""log of by how much too large K may be in Chernoff's inequality."""
_STEPS, _REACH = 50, 25.0
"""Steps of the search, and where it ends."""
_FINEST = float(1 << 17)
"""Largest product of shift and loss."""


class Saddle(eqx.Module):
    """The saddle-point approximation on one contour."""

    shift: Float[Array, ""]
    epsilon: Float[Array, ""]
    """The threshold whose saddle point is at `shift`."""
    log_value: Float[Array, ""]
    """Approximate log delta (c > 0) or log(1 - delta) (c < 0) at that threshold."""
    deviation: Float[Array, ""]
    """Standard deviation of the tilted, composed loss."""
    width: Float[Array, ""]
    """Second derivative of the exponent, that is d epsilon / d shift."""


@jax.jit
def log_moments(
    loss: ComposedLoss, sign: Array, shift: Float[Array, " k"]
) -> Float[Array, " k"]:
    """K of the composed loss Y at real points, from above, for one direction.

    `sign` is 1 for the pair (P, Q) as given and -1 for it exchanged.
    """
    order = order_of(shift, sign)
    value = size = jnp.zeros_like(shift)
    for term, count in zip(loss.terms, loss.counts, strict=True):
        bounds = term.log_moment_bounds(order, _LOG_TOLERANCE - jnp.log1p(count))
        # What does not happen has no moments, not even infinite ones.
        part = jnp.where(count == 0, 0, count * bounds)
        value, size = value + part, size + jnp.abs(part)
    return value + 8 * ULP * size


@jax.jit
def cumulants(
    loss: ComposedLoss, sign: Array, shift: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """K, K' and K'' at one point, to about two digits."""
    order = order_of(shift, sign)
    value = slope = curvature = jnp.zeros_like(shift)
    for term, count in zip(loss.terms, loss.counts, strict=True):
        moments = term.rough_moments(order)
        value = value + count * moments[0]
        slope = slope + sign * count * moments[1]
        curvature = curvature + count * moments[2]
    return value, slope, curvature


def order_of(shift: Array, sign: Array) -> Array:
    """The order w of a contour: 1 + c for the pair as given, -c for it exchanged."""
    return jnp.where(sign > 0, 1 + shift, -shift)


def saddle_at(loss: ComposedLoss, sign: Array, shift: Float[Array, ""]) -> Saddle:
    """The saddle-point approximation (Lugannani & Rice 1980) at a shift."""
    value, slope, curvature = cumulants(loss, sign, shift)
    epsilon = slope - 1 / shift - 1 / (1 + shift)
    width = curvature + 1 / jnp.square(shift) + 1 / jnp.square(1 + shift)
    poles = jnp.log(jnp.abs(shift)) + jnp.log1p(shift)
    log_value = value - shift * epsilon - poles - 0.5 * jnp.log(2 * jnp.pi * width)
    return Saddle(shift, epsilon, log_value, jnp.sqrt(curvature), width)


def find_saddle(
    loss: ComposedLoss,
    sign: Array,
    middle: Bool[Array, ""],
    score: Callable[[Saddle], tuple[Array, Array, Array]],
    stride: float = 1.0,
) -> Saddle:
    """Solves `score(saddle) = 0` over one strip, by Newton's method in a bracket.

    Args:
        loss: The composed loss.
        sign: Direction.
        middle: Whether -1 < c < 0, parametrized by t = -logit(-c), else c > 0 with
            t = log c.
        score: Value, increasing in c, (about) its derivative in c, and what it amounts
            to as an error of the logarithm of delta.
        stride: Longest step of t: short where far out the slope is unreliable.
    """

    def shift_of(t: Array) -> tuple[Array, Array]:
        right = jnp.exp(t)
        inner = -1 / (1 + right)
        slope = jnp.where(middle, -inner * (1 + inner), right)
        return jnp.where(middle, inner, right), slope

    def body(state):
        step, low, high, t, _, _, below = state
        shift, scale = shift_of(t)
        here = saddle_at(loss, sign, shift)
        value, slope, miss = score(here)
        # Towards a largest loss the saddle runs away, until all is rounding.
        too_far = ~middle & (shift * jnp.abs(here.epsilon) > _FINEST)
        value = jnp.where(too_far, jnp.maximum(value, 1), value)
        below = jax.tree.map(lambda x, y: jnp.where(value < 0, x, y), here, below)
        low = jnp.where(value < 0, t, low)
        high = jnp.where(value < 0, high, t)
        target = t - jnp.clip(value / (slope * scale), -stride, stride)
        inside = (target > low) & (target < high)
        target = jnp.where(inside, target, 0.5 * (low + high))
        # Beyond the last finite moment nothing is known but that it is too far.
        miss = jnp.where(jnp.isnan(miss), jnp.inf, jnp.abs(miss))
        return step + 1, low, high, target, miss, here, below

    def unfinished(state):
        step, low, high, _, miss, *_ = state
        return (step < _STEPS) & (miss > _ENOUGH) & (high - low > 1e-3)

    zero, one = jnp.zeros(()), jnp.ones(())
    empty = Saddle(zero, zero, zero, zero, zero)
    ends = -_REACH * one, _REACH * one
    state = (jnp.zeros((), jnp.int32), *ends, zero, one, empty, empty)
    *_, miss, last, below = while_loop(unfinished, body, state)
    # Where rare large losses take over, the saddle leaps: then stay below the leap.
    stay = (miss > _ENOUGH) & (below.width > 0)
    return jax.tree.map(lambda x, y: jnp.where(stay, x, y), below, last)


def leaks_much(loss: ComposedLoss, sign: Array, epsilon: Array) -> Bool[Array, ""]:
    """Whether delta(epsilon) is near one, so that the middle strip should be used."""
    _, mean, variance = cumulants(loss, sign, jnp.zeros_like(sign))
    return epsilon < mean - jnp.sqrt(variance)


@jax.jit
def saddle_for_epsilon(
    loss: ComposedLoss,
    sign: Array,
    middle: Array,
    epsilon: Array,
) -> Saddle:
    """The contour for a threshold."""
    return find_saddle(loss, sign, middle, lambda at: _epsilon_score(at, epsilon))


@jax.jit
def saddle_for_log_delta(loss: ComposedLoss, sign: Array, log_delta: Array) -> Saddle:
    """The contour, with c > 0, on which delta is (about) a given value."""
    return find_saddle(
        loss,
        sign,
        jnp.zeros((), bool),
        lambda at: _log_delta_score(at, log_delta),
        stride=2.0,
    )


def _epsilon_score(at: Saddle, epsilon: Array) -> tuple[Array, Array, Array]:
    value = at.epsilon - epsilon
    return value, at.width, value * at.shift


def _log_delta_score(at: Saddle, log_delta: Array) -> tuple[Array, Array, Array]:
    miss = log_delta - at.log_value
    slope = at.shift * at.width
    # In the tail -log delta is about a power of c: then Newton's method on logarithms
    # is exact.
    tail = (at.log_value < -0.5) & (log_delta < -0.5)
    size = jnp.where(tail, -at.log_value, 1)
    ratio = jnp.log(size) - jnp.log(jnp.where(tail, -log_delta, 1))
    return jnp.where(tail, ratio, miss), jnp.where(tail, slope / size, slope), miss
