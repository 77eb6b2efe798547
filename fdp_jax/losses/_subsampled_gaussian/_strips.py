"""Bounds on the trapezoid rule's error, from lines parallel to the real one.

The integrand is analytic in |Im x| < pi s^2, so the rule converges exponentially
(Trefethen & Weideman 2014, Theorem 5.1), with an error that is bounded by the
integrand's size on a parallel line.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._internal._logs import LOG_2
from ..._internal._special import log1p
from .._amplification import inclusion
from ._integrand import Integrand
from ._place import REACH, Interval, Location, beyond_iterates

_GROWTH = 24.0
"""Largest growth (of a logarithm) allowed on the lines that bound the error."""


def strip_growth(
    one: Integrand, place: Interval, order: Array, frequency: Array, v: Array
) -> Array:
    """Log of 2 max|integral over start <= Re x <= end, Im x = v| / e^Lambda.

    For half-widths v, with theta = v / s^2 and p at most its value at the end:
    the Gaussian factor grows by v theta / 2, the oscillating one by tau times the
    argument of 1 - p + p e^{i theta}, and for w < 0 the power of the likelihood
    ratio by |1 - p + p e^{i theta}|^w, or at most cos(theta)^-|E_w x|.
    """
    angle = v / jnp.square(one.noise_multiplier)
    # A few values; the library's functions compile sooner than `rotation`.
    versine, sine = -2 * jnp.square(jnp.sin(0.5 * angle)), jnp.sin(angle)
    p = inclusion(one.u(place.end), one.sampling_prob)
    turn = jnp.arctan2(p * sine, 1 + p * versine)
    # On the way there (at the ends of the strip) it may have been larger.
    most = jnp.arctan2(p, jnp.sqrt(jnp.maximum(1 - 2 * p, 0)))
    turn = jnp.where((1 - p) * (1 + versine) < -p, most, turn)
    worst = jnp.minimum(p, 0.5)
    modulus = 0.5 * log1p(2 * worst * (1 - worst) * versine)
    inside = versine > -0.999
    # |mean - mode| <= s, since the density is strongly log-concave for w < 0.
    mean = place.mode + one.noise_multiplier
    from_mean = -mean * log1p(jnp.where(inside, versine, 0))
    from_mean = jnp.where(inside, from_mean, jnp.inf)
    from_order = -jnp.maximum(-order, 0) * modulus
    power = jnp.where(order < 0, jnp.minimum(from_order, from_mean), 0)
    growth = LOG_2 + 0.5 * v * angle + frequency * turn + power
    # The ends of the rectangle must stay small too.
    return jnp.where(growth <= _GROWTH, growth, jnp.inf)


def strip_error(
    one: Integrand,
    place: Interval,
    order: Array,
    frequency: Array,
    spacing: Array,
    edge: Array,
    v: Array,
) -> Array:
    """Bound on the trapezoid rule's error over e^Lambda, the best of some strips.

    By the residue theorem on the rectangle over [start, end], whose ends lie midway
    between nodes: the horizontal sides count with 1 / (e^{2 pi v / h} - 1), the
    vertical ones, where the density is `edge` e^Lambda, with at most 1.
    """
    decay = 2 * jnp.pi * v / spacing
    growth = strip_growth(one, place, order, frequency, v)
    sides = jnp.exp(growth - decay - jnp.log(-jnp.expm1(-decay)))
    # Half a step inside the end the density is larger by at most this much.
    rise = jnp.exp(REACH * spacing / one.noise_multiplier)
    error = sides + v * rise * edge * jnp.exp(growth)
    # 0 inf, an edge below the least number on a strip that is ruled out.
    return jnp.min(jnp.where(jnp.isnan(error), jnp.inf, error))


def half_widths(one: Integrand, count: int = 40) -> Array:
    """Half widths of strips about the line, from the widest to a millionth of it."""
    strip = 0.98 * jnp.pi * jnp.square(one.noise_multiplier)
    exponents = jnp.arange(count, dtype=strip.dtype)
    return strip * jnp.exp2(-20 / count * exponents)


def certified_spacing(
    one: Integrand, located: Location, frequency: Array, log_tolerance: Array
) -> Array:
    """The widest spacing that some strip certifies."""
    widths = half_widths(one)
    growth = strip_growth(one, located.interval, located.order, frequency, widths)
    return jnp.max(widest_spacing(widths, growth, log_tolerance))


def quadrature_error(
    one: Integrand, located: Location, frequency: Array, spacing: Array
) -> Array:
    """Bound on the rule's error over e^Lambda, with what is beyond the interval."""
    place, order, edge = located.interval, located.order, located.edge
    widths = half_widths(one)
    error = strip_error(one, place, order, frequency, spacing, edge, widths)
    return error + beyond_iterates(one) * edge + located.beyond


def widest_spacing(
    half_width: Array, growth: Array, log_tolerance: Array
) -> Float[Array, " k"]:
    """The widest spacing whose error along a line is within tolerance."""
    return 2 * jnp.pi * half_width / jnp.maximum(growth - log_tolerance, 1)
