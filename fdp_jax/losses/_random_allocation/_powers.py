r"""The law of a sum of t copies on the lattice, with relative accuracy in both tails.

Masses are tilted by e^{theta x}, transformed, raised to the power t and transformed
back, with one tilt below the mean of the sum and another one above.  Errors:

- Rounding is bounded at all points alike on the tilted scale.
- What lies outside the window appears inside of it: that is more than there should be,
  so it counts in the law below alone, by Chernoff bounds.
"""

import math
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jax.lax import complex as to_complex, optimization_barrier, stop_gradient
from jaxtyping import Array, Float

from ._place import Place

_FLOOR = 1e-300


class Power(eqx.Module):
    """The t-fold sum under one tilt: masses e^(log_scale) values at each point."""

    values: Float[Array, " n"]
    log_scale: Float[Array, " n"]
    error: Float[Array, ""]
    """Of `values`, without what the window leaves out."""
    exponent_error: Float[Array, " n"]
    """Of `log_scale`."""


class Tilted(eqx.Module):
    """One component, tilted and transformed."""

    tilt: Float[Array, ""]
    log_mass: Float[Array, ""]
    """Log of the sum of the tilted masses."""
    log_size: Float[Array, " f"]
    angle: Float[Array, " f"]
    """After the mean has been taken off."""
    turned: Float[Array, ""]
    """By how many points that was."""
    rounding: Float[Array, ""]
    """Bound on the error of the transform, whose largest value is 1."""


def log_total(masses: Array, tilt: Array, spacing: Array) -> Array:
    """Log of the sum of masses e^{tilt x}, x from the first point on."""
    logs, peak, _ = _exponents(masses, tilt, spacing)
    return peak + jnp.log(jnp.sum(jnp.exp(logs - peak)))


def _exponents(
    masses: Array, tilt: Array, spacing: Array
) -> tuple[Array, Array, Array]:
    lift = tilt * spacing * jnp.arange(masses.size)
    logs = jnp.where(masses > 0, jnp.log(jnp.where(masses > 0, masses, 1)) + lift, -1e5)
    return logs, stop_gradient(jnp.max(logs)), lift


def tilted(
    masses: Float[Array, " m"], tilt: Array, at: Place, *, continuous: bool
) -> Tilted:
    """The transform of tilted masses; principal angles will do for whole powers."""
    logs, peak, lift = _exponents(masses, tilt, at.spacing)
    values = jnp.exp(logs - peak)
    total = jnp.sum(values)
    values = values / total
    unit = jnp.finfo(tilt.dtype).eps
    sizes = 2 + jnp.abs(logs) + jnp.abs(lift) + jnp.abs(peak)
    rounding = unit * (_noise(at.points) + 4 * stop_gradient(values @ sizes))
    transform = jnp.fft.rfft(values, at.points)
    turned = stop_gradient(jnp.round(values @ jnp.arange(masses.size)))
    phase = _turns(turned.astype(int), at.points)
    cos, sin = jnp.cos(phase), jnp.sin(phase)
    re, im = optimization_barrier((transform.real, transform.imag))
    re, im = re * cos - im * sin, re * sin + im * cos
    square = jnp.square(re) + jnp.square(im)
    some = square > _FLOOR
    log_size = 0.5 * jnp.log(jnp.where(some, square, _FLOOR))
    angle = jnp.arctan2(jnp.where(some, im, 0), jnp.where(some, re, 1))
    angle = jnp.unwrap(angle) if continuous else angle
    return Tilted(
        stop_gradient(tilt), peak + jnp.log(total), log_size, angle, turned, rounding
    )


def _noise(points: int) -> float:
    """Units in the last place of a transform of masses with sum 1."""
    return 8 * math.log2(points)


def _turns(steps: Array, points: int) -> Array:
    """2 pi j steps / n for all frequencies j, exactly but for one rounding."""
    j = jnp.arange(points // 2 + 1)
    return (2 * jnp.pi / points) * jnp.mod(j * jnp.mod(steps, points), points)


def power(factors: Sequence[tuple[Tilted, Array]], at: Place) -> Power:
    """The sum of so many copies of each, with one tilt."""
    h, tilt = at.spacing, factors[0][0].tilt
    total = lambda value: sum(t * value(one) for one, t in factors)
    # Points of the window over that of the least sum, less the mean's.
    shift = at.window - total(lambda x: x.turned)
    whole = stop_gradient(jnp.round(shift))
    omega = (2 * jnp.pi / at.points) * jnp.arange(at.points // 2 + 1)
    log_size, angle = total(lambda x: x.log_size), total(lambda x: x.angle)
    angle = angle + _turns(whole.astype(int), at.points) + omega * (shift - whole)
    size = jnp.exp(log_size)
    spectrum = to_complex(size * jnp.cos(angle), size * jnp.sin(angle))
    values = jnp.fft.irfft(spectrum, at.points)
    error = stop_gradient(_rounding(factors, size, at.points))
    place = (at.window + jnp.arange(at.points)) * h
    exponent = total(lambda x: x.log_mass) - tilt * place
    unit = 8 * jnp.finfo(h.dtype).eps
    sizes = total(lambda x: jnp.abs(x.log_mass)) + jnp.abs(tilt * place)
    return Power(values, exponent, error, stop_gradient(unit * (1 + sizes)))


def _rounding(
    factors: Sequence[tuple[Tilted, Array]], size: Array, points: int
) -> Array:
    unit = jnp.finfo(size.dtype).eps
    # Factor by factor, with the others as large as they may be.
    most = [
        jnp.minimum(jnp.logaddexp(x.log_size, jnp.log(x.rounding)), 0)
        for x, _ in factors
    ]
    whole = sum(t * log for log, (_, t) in zip(most, factors, strict=True))
    slope, each = jnp.zeros_like(size), jnp.full_like(size, 16 + _noise(points))
    for log, (one, t) in zip(most, factors, strict=True):
        slope = slope + t * one.rounding * jnp.exp(whole - log)
        steps = 8 * (1 + jnp.abs(one.log_size)) + 4 * jnp.abs(one.angle)
        each = each + t * steps
    each = unit * each
    return 2 / points * jnp.sum(slope + size * each)
