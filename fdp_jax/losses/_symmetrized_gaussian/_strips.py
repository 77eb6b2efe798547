"""Bounds on the trapezoid rule's error, from lines parallel to the real one.

For an integrand F that is analytic in |Im v| <= y and vanishes at both ends, the rule
with step h is off by at most 2 L / (e^{2 pi y / h} - 1), where L bounds the integral of
|F| along v +- i y (Trefethen & Weideman 2014, Theorem 5.1).  Here t = log(1 + e^v) maps
v + i y to a + i b with

    |1 + e^{v + i y}| = e^a,    b = arg(1 + e^{v + i y}),    |t'| = e^{v - a},

and for y <= pi / 2 all of a >= 0, 0 <= b <= y and |t'| <= min(1, e^v) increase with v.
There

    |phi(r + t)| = phi(r + a) e^{b^2 / 2},
    R(t) = R(a) (1 - p + p e^{i theta}),    p = p(a), theta = 2 r b,

which has no zero for theta < pi, and an argument that increases with p and theta.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._internal._special import log1p
from ._integrand import Integrand
from ._place import Location, right_tail

_WIDEST = 1.54
"""Half the width of the widest strip: below pi / 2, and 2 r times it below pi."""
_LINES, _CELLS = 8, 64
"""Lines looked at closely, each in so many cells."""
_FIRST = -4.0
_REAL_LINES = 10


def half_widths(one: Integrand, count: int, ratio: float) -> Float[Array, " k"]:
    """Distances of lines from the real one, the widest first."""
    widest = _WIDEST * jnp.minimum(1, 1 / one.half)
    return widest * jnp.power(ratio, jnp.arange(count, dtype=widest.dtype))


def rule_error(log_line: Array, y: Array, spacing: Array) -> Array:
    """The least bound on the rule's error that logs of L on some lines give."""
    decay = 2 * jnp.pi * y / spacing
    error = 2 * jnp.exp(log_line - decay) / -jnp.expm1(-decay)
    # Bounds of what is left out take it that nodes are at most 1 apart.
    unknown = jnp.isnan(error) | (spacing > 1)
    return jnp.min(jnp.where(unknown, jnp.inf, error))


def widest_spacing(log_line: Array, y: Array, log_tolerance: Array) -> Array:
    """The largest spacing, at most 1/2, whose error on some line is tolerable."""
    spacings = 2 * jnp.pi * y / jnp.maximum(log_line + 1 - log_tolerance, 1)
    spacings = jnp.where(jnp.isfinite(log_line), spacings, 0)
    return jnp.minimum(jnp.max(spacings), 0.5)


def log_line_of_real(
    one: Integrand, order: Array, log_total: Array, y: Array
) -> Float[Array, " k"]:
    """Log of a bound of L / T for a real order, in closed form.

    |R|^w <= R(a)^w for w >= 0, else R(a)^w times at most (1 - q (1 - cos theta))^w for
    theta <= pi / 2, as |R| >= Re R >= 1 - q + q cos(theta).  |t'| is at most 1 / cos(y)
    times the derivative of a; the integrals of phi R^w and phi R^{1-w} along the real
    line together are at most T, those of phi and phi R at most 2.
    """
    angle = 2 * one.half * y
    cosine = 1 - 2 * one.sampling_prob * jnp.square(jnp.sin(0.5 * angle))
    powers = jnp.maximum(jnp.maximum(order, 1 - order) - 1, 0)
    inside = angle < 1.57
    lifted = -powers * jnp.log(jnp.where(inside, cosine, 1))
    lifted = jnp.where(inside, lifted, jnp.inf)
    rest = jnp.logaddexp(0, jnp.log(2.0) - log_total)
    return 0.5 * jnp.square(y) - jnp.log(jnp.cos(y)) + lifted + rest


def real_lines(
    one: Integrand, order: Array, log_total: Array
) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """Some lines, with the logs of L / T for a real order."""
    y = half_widths(one, _REAL_LINES, 0.75)
    return log_line_of_real(one, order, log_total, y), y


def complex_lines(
    one: Integrand, located: Location, frequency: Array
) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """Some lines, with the logs of L / e^`log` for |Im w| <= frequency."""
    y = half_widths(one, _LINES, 0.55)
    log_line = jax.vmap(lambda y: _log_line(one, located, frequency, y))(y)
    return log_line, y


def _log_line(one: Integrand, located: Location, frequency: Array, y: Array) -> Array:
    """Log of a bound of L over e^`log`, from the ends of cells.

    The first cell is all that is left of the first edge, where |t'| <= e^v; what is
    right of the last edge has tails of normal densities.
    """
    spacing = (located.end - _FIRST) / _CELLS
    v = _FIRST + spacing * jnp.arange(_CELLS + 1, dtype=spacing.dtype)
    a, b, log_slope = _image(v, y)
    left = jnp.concatenate([jnp.zeros_like(a[:1]), a[:-1]])
    width = jnp.full_like(a, spacing).at[0].set(1)
    log_width = jnp.log(width) + jnp.where(jnp.arange(a.size) == 0, v, log_slope)
    growth = 0.5 * jnp.square(b) - located.log
    cells = _log_parts(one, located, frequency, (left, a, b)) + growth + log_width
    return jnp.logaddexp(
        jax.nn.logsumexp(cells), _log_beyond(one, located, frequency, y)
    )


def _image(v: Array, y: Array) -> tuple[Array, Array, Array]:
    """a, b and log|t'| at v + i y."""
    least, cosine, sine = jnp.exp(-jnp.abs(v)), jnp.cos(y), jnp.sin(y)
    size = 0.5 * jnp.log1p(least * (2 * cosine + least))
    a = jnp.maximum(v, 0) + size
    up = v > 0
    b = jnp.arctan2(
        sine * jnp.where(up, 1, least),
        jnp.where(up, least, 1) + cosine * jnp.where(up, 1, least),
    )
    return a, b, v - a


def _log_parts(
    one: Integrand, located: Location, frequency: Array, cell: tuple[Array, ...]
) -> Array:
    """Log of the largest |phi| (|R^w| + |R^{1-w}| + 1 + |R|) e^{-b^2/2} of cells.

    For powers w >= 0, the second derivative of log(phi R^w) is at least -1, so that it
    exceeds its values at both ends of a cell by at most an eighth of the square of the
    width; for w < 0 it falls.
    """
    left, right, b = cell
    x, y = one.loss_at(left), one.loss_at(right)
    base, other = one.log_base(left), one.log_base(right)
    hidden = 0.125 * jnp.square(right - left)
    p, first = one.share(right), one.share(left)
    versine, sine = _turned(one, b)
    turn = frequency * jnp.arctan2(p * sine, 1 + p * versine)
    # 2 p (1 - p) at its largest in the cell.
    spread = jnp.where(
        (first < 0.5) & (p > 0.5),
        0.5,
        2 * jnp.maximum(p * (1 - p), first * (1 - first)),
    )
    modulus = 0.5 * log1p(spread * versine)

    def part(power: Array) -> Array:
        up = jnp.maximum(base + power * x, other + power * y) + hidden
        down = base + power * (x + modulus)
        return jnp.where(power < 0, down, up)

    order, one_ = located.order, jnp.ones_like(located.order)
    tilted = jnp.logaddexp(part(order), part(1 - order)) + turn
    return jnp.logaddexp(tilted, jnp.logaddexp(base, part(one_)))


def _turned(one: Integrand, b: Array) -> tuple[Array, Array]:
    """cos(theta) - 1 and sin(theta)."""
    angle = 2 * one.half * b
    return -2 * jnp.square(jnp.sin(0.5 * angle)), jnp.sin(angle)


def _log_beyond(one: Integrand, located: Location, frequency: Array, y: Array) -> Array:
    """Log of a bound of the part of L beyond `end`, over e^`log`.

    a moves at least half as fast as v there, and every part is at most
    phi R^top e^{y^2/2} times e^{tau theta} or times ((1 + cos theta) / 2)^{w/2}, w < 0.
    """
    versine, _ = _turned(one, y)
    power = jnp.maximum(located.top - 1, 0)
    lifted = -0.5 * power * log1p(0.5 * versine) + 2 * one.half * y * frequency
    tail = jnp.log(8 * right_tail(one, located))
    return tail + 0.5 * jnp.square(y) + lifted
