"""The smallest rho of zero-concentrated differential privacy."""

from typing import Any

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._calls import explained
from .._internal._precision import Outward, in_float64
from ..curves import (
    elementwise,
    with_gradient,
)
from ..losses import ComposedLoss
from ..losses.log_moment import (
    bounding,
    counted,
    directions,
    finite_mass,
    log_moment_tail,
    log_unseen,
    normalized,
    oriented,
)
from .log_moment import loss_and_direction

_FIRST, _LAST = -14.0, 14.0
_COARSE, _FINE = 113, 65
_ROUNDING, _CLOSED_FORM = 1e-12, 4e-15


@explained
def zcdp(mechanism: Any) -> Float[Array, ""]:
    """The smallest rho with D_t <= rho t for all orders t > 1: rho-zCDP.

    With Poisson sampling this is num_steps / (2 noise_multiplier^2), as without:
    sampling does not improve zCDP (at large orders).

    Args:
        mechanism: A mechanism (both directions), or its `.remove` or `.add`.

    Returns:
        rho in [0, inf]; inf if a loss can be infinite.

    Guarantee:
        Upper bound.  Orders between those evaluated are covered by the convexity of
        (t - 1) D_t, which costs less than 1e-3 relative, and nothing for one kind of
        mechanism run any number of times (but for `.add` with sampling).

    Differentiable in:
        All parameters (once).

    Raises:
        TypeError: If `mechanism` is not a mechanism or view.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.divergences.zcdp(fdp.Gaussian(2.0).repeat(4)):.9f}")
        0.500000000

    References:
        Bun and Steinke (2016), Definition 1.1 and Proposition 1.6.
    """
    loss, direction = loss_and_direction(mechanism, "zcdp")
    return _zcdp(loss, direction=direction).upper


@in_float64
def _zcdp(loss: ComposedLoss, *, direction: str) -> Outward:
    loss = bounding(loss)
    worst = "remove" if loss.symmetric else direction
    found = [_one_direction(loss, sign) for sign in directions(worst)]
    upper, estimate = (jnp.max(jnp.stack(x)) for x in zip(*found, strict=True))
    upper = with_gradient(upper, estimate)
    return Outward(upper, upper)


def _one_direction(loss: ComposedLoss, sign: float) -> tuple[Array, Array]:
    """Upper bound of the supremum of L over t > 1, and its estimate."""
    fixed = stop_gradient(loss)
    mass = finite_mass(loss, sign)

    def ratio(order: Array) -> Array:
        """D_t / t."""
        return normalized(fixed, oriented(sign, order))

    coarse = jnp.linspace(_FIRST, _LAST, _COARSE)
    rough = elementwise(lambda s: ratio(1 + jnp.exp(s)), coarse)
    at = jnp.argmax(rough)
    width = (_LAST - _FIRST) / (_COARSE - 1)
    fine = coarse[at] + width * jnp.linspace(-1.0, 1.0, _FINE)
    fine = jnp.clip(fine, _FIRST, _LAST)
    grid = jnp.sort(jnp.concatenate([coarse, fine]))
    values = elementwise(lambda s: ratio(1 + jnp.exp(s)), grid)
    between = jnp.maximum(
        jnp.max(_cells(jnp.exp(grid), values)),
        counted(fixed, lambda t: log_moment_tail(t, sign, 1 + jnp.exp(grid[-1]))),
    )
    ceiling = counted(loss, lambda t: t.log_moment_ceiling(sign))
    # Moments of high order are not known where the loss has an artificial end.
    ended = ~jnp.isneginf(log_unseen(fixed, sign))
    between = jnp.where(ended, jnp.inf, between)
    upper = jnp.minimum(
        between * (1 + _ROUNDING), stop_gradient(ceiling) * (1 + _CLOSED_FORM)
    )

    best = jnp.argmax(values)
    limit = counted(loss, lambda t: t.log_moment_limit(sign))
    exact = stop_gradient(ceiling) <= between
    # Where that is not used it may have no derivative.
    place = jnp.where(exact, 0.0, grid[best])
    inside = normalized(loss, oriented(sign, 1 + jnp.exp(place)))
    inside = jnp.where(values[best] > limit, inside, limit)
    estimate = jnp.where(exact, jnp.where(jnp.isfinite(ceiling), ceiling, 0.0), inside)
    # What overflows is not known.
    lost = (mass.base < 0) | (mass.included < 0) | jnp.isnan(upper)
    estimate = jnp.where(jnp.isfinite(estimate), estimate, 0.0)
    return jnp.where(lost, jnp.inf, upper), estimate


def _cells(excess: Float[Array, " n"], values: Float[Array, " n"]) -> Array:
    """Bounds of Lambda / (t (t - 1)) between nodes t = 1 + h, by chords of Lambda."""
    order = 1 + excess
    moments = order * excess * values
    slope = (moments[1:] - moments[:-1]) / jnp.maximum(excess[1:] - excess[:-1], 1e-300)
    # The chord B (h - z), z >= 0, over h (1 + h) has one maximum, at z + sqrt(z + z^2).
    zero = jnp.maximum(excess[:-1] - moments[:-1] / jnp.maximum(slope, 1e-300), 0.0)
    best = jnp.clip(zero + jnp.sqrt(zero * (1 + zero)), excess[:-1], excess[1:])
    inner = slope * (best - zero) / (best * (1 + best))
    inner = jnp.where(excess[1:] > excess[:-1], inner, values[1:])
    return jnp.append(inner, order[0] * values[0])
