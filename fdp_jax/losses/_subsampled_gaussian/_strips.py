"""Bounds on the trapezoid rule's error, from lines parallel to the real one.

The integrand is analytic in |Im x| < pi s^2, so the rule converges exponentially
(Trefethen & Weideman 2014, Theorem 5.1), with an error that is bounded by the
integrand's size on a parallel line.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._internal._logs import LOG_2
from ..._internal._rotation import rotation
from ..._internal._special import log1p, log_turned
from .._amplification import inclusion
from ._integrand import Integrand
from ._place import REACH, Interval, Location, beyond_iterates

_GROWTH = 24.0
"""Largest growth (of a logarithm) allowed on the lines that bound the error."""
_LINES, _LINE_NODES = 5, 64
"""Lines in the complex plane looked at closely, and nodes there."""


class Lines(eqx.Module):
    """Bounds for the quadrature's error from lines parallel to the real one."""

    half_width: Float[Array, " k"]
    growth: Float[Array, " k"]
    """Log of the integrals' sizes on both lines, over e^Lambda."""
    rate: Float[Array, " k"]
    """The integrand at the ends grows at most like e^{rate y} with the height y ..."""
    power: Float[Array, " k"]
    """... but for this much (a logarithm)."""


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


def lines_of(
    one: Integrand, located: Location, frequency: Array, v: Float[Array, " k"]
) -> Lines:
    """Integrals of the integrand's size along lines at distances v from the axis.

    On x + i v the integrand's logarithm is g(x) + v^2 / (2 s^2) with

        g(x) = -x^2 / (2 s^2) + w log|R(x + i v)| + tau |arg R(x + i v)|,

    where (log R)'' = 1 / (2 s^4 (1 + cosh(y + i theta))), theta = v / s^2.  That is
    at most 1 / (2 s^4 (1 + cos theta)), its imaginary part for theta <= pi / 2 at
    most sin theta times that.  Hence g exceeds the larger of its values at two
    nodes by little in between.
    """
    place, order = located.interval, located.order
    s = one.noise_multiplier
    spacing = (place.end - place.start) / _LINE_NODES
    # The nodes' own cells reach half a step beyond the start.
    cells = jnp.arange(-1, _LINE_NODES + 1, dtype=spacing.dtype)
    x = place.start + spacing * cells
    angle = v / jnp.square(s)
    modulus, turn = one.turned(x, v[:, None])
    along = one.log_integrand(x, order) + order * modulus + frequency * turn
    bent = jnp.where(angle < 0.5 * jnp.pi, jnp.sin(angle), 1)
    bend = 0.5 * (jnp.abs(order) + frequency * bent) / (1 + jnp.cos(angle))
    bend = (1 + bend / jnp.square(s)) / jnp.square(s)
    hidden = 0.125 * jnp.square(spacing) * bend
    highest = jnp.maximum(along[:, 1:], along[:, :-1])
    integral = jax.nn.logsumexp(highest, axis=1) + jnp.log(spacing) + hidden
    growth = LOG_2 + 0.5 * v * angle + integral - located.log
    # At the ends: |arg R| is concave in theta for p < 1/2, and convex for others.
    ends = jnp.asarray([1, _LINE_NODES + 1])
    p = inclusion(one.u(x[ends]), one.sampling_prob)
    steepest = jnp.maximum(p, turn[:, ends] / angle[:, None])
    rate = (0.5 * v[:, None] + frequency * steepest) / jnp.square(s)
    power = jnp.minimum(order, 0) * modulus[:, ends]
    return Lines(v, growth, jnp.max(rate, axis=1), jnp.max(power, axis=1))


def lines_error(one: Integrand, lines: Lines, edge: Array, spacing: Array) -> Array:
    """The error of `strip_error`, for lines.

    On the vertical sides, midway between nodes, the kernel is 1 / (1 + e^t) at
    height t h / (2 pi): that falls faster than the integrand grows.
    """
    decay = 2 * jnp.pi * lines.half_width / spacing
    sides = jnp.exp(lines.growth - decay - jnp.log(-jnp.expm1(-decay)))
    rise = jnp.exp(REACH * spacing / one.noise_multiplier)
    margin = 2 * jnp.pi / spacing - lines.rate
    height = jnp.where(margin > 0, 1 / jnp.where(margin > 0, margin, 1), jnp.inf)
    error = sides + 2 * height * rise * edge * jnp.exp(lines.power)
    return jnp.min(jnp.where(jnp.isnan(error), jnp.inf, error))


def along_bent_line(
    one: Integrand,
    x: Array,
    order: Array,
    frequency: Array,
    scale: Array,
    softness: Array | float = 0.0,
) -> Array:
    """The integrand's growth, a logarithm, on a line that leaves the axis.

    On x + i v(x), 0 <= v < pi s^2, the factor e^{i tau X} has modulus
    exp(-tau arg(1 - p + p e^{i v / s^2})), which falls with tau; the other factors are
    the same for every tau.

    Args:
        one: The integrand.
        x: Places on the axis.
        order: The real order w.
        frequency: tau.
        scale: The frequency for which the line is best, or about that.
        softness: One over the square of the width in which a cut falls, which grows
            like e^{v^2 softness / 2}.
    """
    variance = jnp.square(one.noise_multiplier)
    p = inclusion(one.u(x), one.sampling_prob)
    # The best small shift is u = tau p / (1 + softness s^2 + (1 + max(-w, 0) p (1 - p))
    # / s^2); then saturate, for the strip.  For w < 0 the power of the ratio grows with
    # the shift.
    steep = jnp.maximum(-order, 0) / variance
    flat = 1 + 1 / variance + variance * softness
    damping = flat + steep * p * (1 - p)
    u = scale * p / damping
    u_slope = scale * (flat + steep * jnp.square(p)) / jnp.square(damping)
    u_slope = u_slope * p * (1 - p) / variance
    saturation = 1 + u / (0.9 * jnp.pi * variance)
    v, slope = u / saturation, u_slope / jnp.square(saturation)
    modulus, turn = log_turned(p, *rotation(v / variance))
    grown = 0.5 * jnp.square(v) * (1 / variance + softness)
    return grown + order * modulus - frequency * turn + 0.5 * log1p(jnp.square(slope))


def half_widths(one: Integrand, count: int = 40) -> Array:
    """Half widths of strips about the line, from the widest to a millionth of it."""
    strip = 0.98 * jnp.pi * jnp.square(one.noise_multiplier)
    exponents = jnp.arange(count, dtype=strip.dtype)
    return strip * jnp.exp2(-20 / count * exponents)


def certified_spacing(
    one: Integrand, located: Location, frequency: Array, log_tolerance: Array
) -> tuple[Array, Lines]:
    """The widest spacing that some line certifies, and the lines looked at closely.

    First by a bound that costs little, then by integrals along some lines farther out.
    """
    place, order = located.interval, located.order
    widths = half_widths(one)
    growth = strip_growth(one, place, order, frequency, widths)
    spacings = widest_spacing(widths, growth, log_tolerance)
    farther = jnp.exp2(0.75 * jnp.arange(_LINES, dtype=widths.dtype))
    farther = widths[jnp.argmax(spacings)] * farther
    lines = lines_of(one, located, frequency, jnp.minimum(farther, widths[0]))
    finer = widest_spacing(lines.half_width, lines.growth, log_tolerance)
    # Nothing may be gained at the ends.
    finer = jnp.minimum(finer, 2 * jnp.pi / (lines.rate + 1 / one.noise_multiplier))
    finer = jnp.where(lines.power <= _GROWTH, finer, 0)
    return jnp.maximum(jnp.max(spacings), jnp.max(finer)), lines


def quadrature_error(
    one: Integrand, located: Location, frequency: Array, spacing: Array, lines: Lines
) -> Array:
    """Bound on the rule's error over e^Lambda, with what is beyond the interval."""
    place, edge = located.interval, located.edge
    widths = half_widths(one)
    error = jnp.minimum(
        strip_error(one, place, located.order, frequency, spacing, edge, widths),
        lines_error(one, lines, edge, spacing),
    )
    return error + beyond_iterates(one) * edge + located.beyond


def widest_spacing(
    half_width: Array, growth: Array, log_tolerance: Array | float
) -> Float[Array, " k"]:
    """The widest spacing whose error along a line is within tolerance."""
    return 2 * jnp.pi * half_width / jnp.maximum(growth - log_tolerance, 1)
