"""Where an integrand lives, and what the nodes leave out on either side."""

import math

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ..._internal._special import safe_log
from .._subsampled_gaussian._integrand import Integrand as OneSided
from .._subsampled_gaussian._place import beyond_iterates, interval_of
from ._integrand import Integrand, growth_at, place_of, preimage

_DROP = 80.0
"""Fall from the whole transform to a density that need not be integrated over."""
_FIRST = -5.0
"""Where the coarse nodes begin."""
_COARSE = 128
_LEAST = -40.0, -3.0
"""Where the nodes of a quadrature may begin."""


class Location(eqx.Module):
    """Place of phi(r + t) R^top, which all parts of the integrand are below."""

    order: Float[Array, ""]
    top: Float[Array, ""]
    """The largest power of R: of w, 1 - w and 1."""
    log: Float[Array, ""]
    """log T(order), about."""
    end: Float[Array, ""]
    """The v beyond which little is left ..."""
    far: Float[Array, ""]
    """... and that beyond which the integrand falls."""
    log_far: Float[Array, ""]
    """Log of the density there; between the two it is e^-`_DROP` times e^`log`."""
    lean: Float[Array, "2"]
    """The best small lines of the envelope over `shape_at` and tau, of w and 1 - w."""


def top_of(order: Array) -> Array:
    """The largest power of R in G."""
    return jnp.maximum(jnp.maximum(order, 1 - order), 1)


def farthest(one: Integrand, order: Array) -> Array:
    """A t > 0 beyond which the integrand of an order falls, and so does its log.

    All of P R^top lives before it (`interval_of`).
    """
    s = one.noise_multiplier
    place = interval_of(OneSided(s, one.sampling_prob), top_of(order))
    return jnp.maximum(place.end / s - one.half, 1)


def locate_before(
    one: Integrand, order: Float[Array, ""], far: Float[Array, ""], count: int
) -> Location:
    """The place of an integrand that falls beyond t = `far`, from a few nodes."""
    right = preimage(far)
    spacing = (right - _FIRST) / count
    v = _FIRST + spacing * jnp.arange(count + 1, dtype=spacing.dtype)
    t, slope = place_of(v)
    loss = one.loss_at(t)
    top = top_of(order)
    high = one.log_base(t) + top * loss
    peak = jnp.maximum(jnp.max(high), 0)
    total = jnp.sum(growth_at(one, t, loss, order, peak) * slope) * spacing
    log = peak + safe_log(jnp.maximum(jnp.exp(-peak) + total, 1e-6))
    # As the logarithm's second derivative is at least -1, it exceeds its values at two
    # nodes by at most an eighth of the square of their distance in between.
    least = log - _DROP
    kept = high >= least - 0.125 * jnp.square(spacing)
    last = jnp.clip(count + 1 - jnp.argmax(kept[::-1]), 1, count)
    last = jnp.where(jnp.any(kept), last, count)
    return stop_gradient(
        Location(
            order=order,
            top=top,
            log=log,
            end=v[last],
            far=right,
            log_far=high[-1],
            lean=_lean(one, t, slope, order),
        )
    )


def shape_at(one: Integrand, t: Array, p: Array) -> tuple[Array, Array]:
    """The shape p t / (1 + t) of the envelope's lines, and its derivative.

    About what is best: where X is nearly linear the best lines rise and level off.
    """
    share = t / (1 + t)
    slope = 2 * one.half * p * (1 - p) * share + p / jnp.square(1 + t)
    return p * share, slope


def _lean(one: Integrand, t: Array, slope: Array, order: Array) -> Float[Array, "2"]:
    """The alpha with the least b^2 / 2 + b'^2 / 2 - tau X' b, b = alpha tau `shape_at`.

    On average over the densities phi R^w and phi R^{1-w}; any other is as valid.
    """
    p, powers = one.share(t), jnp.stack([order, 1 - order])
    log_weight = one.log_base(t) + powers[:, None] * one.loss_at(t)
    weight = slope * jnp.exp(log_weight - jnp.max(log_weight, axis=1, keepdims=True))
    shape, bend = shape_at(one, t, p)
    gain = jnp.sum(weight * 2 * one.half * p * shape, axis=1)
    cost = jnp.sum(weight * (jnp.square(shape) + jnp.square(bend)), axis=1)
    return gain / jnp.maximum(cost, jnp.finfo(cost.dtype).tiny)


def locate(one: Integrand, order: Float[Array, ""]) -> Location:
    """The place of the integrand of an order, without derivative."""
    one = stop_gradient(one)
    return locate_before(one, order, farthest(one, order), _COARSE)


def beginning(
    one: Integrand, located: Location, size: Array, log_tolerance: Array
) -> Array:
    """First node, such that the rest to the left of it is within tolerance.

    `size` is a bound of |w (1 - w)|.
    """
    log_scale = safe_log(size * jnp.square(2 * one.half * one.sampling_prob))
    log_scale = log_scale - 0.5 * jnp.square(one.half)
    wanted = (located.log + log_tolerance - log_scale) / 3
    return jnp.clip(wanted, *_LEAST)


def omitted(one: Integrand, located: Location, size: Array, start: Array) -> Array:
    """Bound on h times the integrand's sum over nodes left out, over e^`log`.

    On the left |R^w - 1| <= |w| X R^max(Re w, 0), and X(t) <= 2 r p(t) t, t <= e^v:
    the terms are below a multiple of e^{3 v}, and their sum times h below a third of
    what that is at the first node.  On the right the integrand is below
    4 phi(r + t) R^top, the slope of t between 1/2 and 1; nodes are at most 1 apart.
    """
    t, _ = place_of(start)
    steep = jnp.square(2 * one.half * one.share(t))
    power = located.top * one.loss_at(t) - 0.5 * jnp.square(one.half) - located.log
    left = size * steep * jnp.exp(power + 3 * start) / 3
    between = (located.far - located.end + 1) * math.exp(-_DROP)
    beyond = (1 + 2 * _tail(one)) * jnp.exp(located.log_far - located.log)
    return left + 4 * (between + beyond)


def right_tail(one: Integrand, located: Location) -> Array:
    """Bound on the integral of phi(r + t) R^top beyond `end`, over e^`log`."""
    between = (located.far - located.end) * math.exp(-_DROP)
    return between + _tail(one) * jnp.exp(located.log_far - located.log)


def _tail(one: Integrand) -> Array:
    """Bound on an integral beyond `far` over the density there."""
    s = one.noise_multiplier
    return beyond_iterates(OneSided(s, one.sampling_prob)) / s
