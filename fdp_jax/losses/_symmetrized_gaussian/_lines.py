"""Lines beside the real one: the error of the rule, and how T decays along contours.

The trapezoid rule in v with step h is off by at most 2 L / (e^(2 pi y / h) - 1), where
L bounds the integral of the integrand's modulus along v +- i y (Trefethen and Weideman
2014, Theorem 5.1).  There t = a + i b with

    e^a = |1 + e^(v + iy)|,    0 <= b = arg(1 + e^(v + iy)) <= y,    |t'| = e^(v - a),
    |phi(r + t)| = phi(r + a) e^(b^2 / 2),
    R(t) = R(a) (1 - p + p e^(i theta)),    p = p(a), theta = 2 r b,

which has no zero for theta < pi.  R^(i tau) has the modulus e^(-tau arg R) there, and
arg R >= 0: it falls with tau, so that a bound of T(w + i tau) for one frequency is one
for all beyond.  (For R^(1 - w - i tau) the line is mirrored.)
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ..._internal._logs import LOG_2
from ..._internal._rotation import rotation
from ..._internal._special import log_turned
from ..._internal._tolerances import LINE_SUM
from ._rule import Integrand, Place, log_head, log_tail, mapped

_WIDTHS = np.append(1.54 * 0.7 ** np.arange(14.0), 0)
"""Half the widths of strips: below pi / 2, and 2 r times them below pi."""
_NODES, _BEFORE, _AFTER = 512, 17.0, 24.0
"""Nodes of a line, and by how much they begin before those of a rule and end after."""


def widths(one: Integrand) -> Float[Array, " y"]:
    """Distances of lines from the real one, the widest first, and its own."""
    return jnp.asarray(_WIDTHS) * jnp.minimum(1, 1 / one.half)


def rule_error(log_line: Array, y: Array, spacing: Array) -> Array:
    """The least bound on the rule's error that logs of L on some lines give."""
    decay = 2 * jnp.pi * y / spacing
    error = 2 * jnp.exp(log_line - decay) / -jnp.expm1(-decay)
    return jnp.min(jnp.where(jnp.isnan(error), jnp.inf, error))


def widest_spacing(log_line: Array, y: Array, log_tolerance: Array | float) -> Array:
    """The largest spacing, at most 1/2, whose error on some line is tolerable."""
    spacings = 2 * jnp.pi * y / jnp.maximum(log_line + 1 - log_tolerance, 1)
    spacings = jnp.where(jnp.isfinite(log_line), spacings, 0)
    return jnp.minimum(jnp.max(spacings), 0.5)


def log_real_line(one: Integrand, order: Array, log_total: Array) -> Float[Array, " y"]:
    """Log of a bound of L / T for a real order, in closed form.

    |t'| is at most 1 / cos(y) times the derivative of a; the integrals of phi R^w and
    phi R^(1-w) along the real line together are at most T, those of phi and phi R at
    most 2.  |R|^w <= R(a)^w for w >= 0, else at most (1 - q (1 - cos theta))^w for
    theta <= pi / 2, as |R| >= Re R >= 1 - q + q cos(theta).
    """
    y = widths(one)
    angle = 2 * one.half * y
    cosine = 1 - 2 * one.sampling_prob * jnp.square(jnp.sin(0.5 * angle))
    powers = jnp.maximum(jnp.maximum(order, 1 - order) - 1, 0)
    inside = angle < 1.57
    lifted = -powers * jnp.log(jnp.where(inside, cosine, 1))
    lifted = jnp.where(inside, lifted, jnp.inf)
    rest = jnp.logaddexp(0, jnp.logaddexp(LOG_2, lifted) - log_total)
    return 0.5 * jnp.square(y) - jnp.log(jnp.cos(y)) + rest


class Lines(NamedTuple):
    """The parts of an integrand along lines beside the real one, over e^peak."""

    spacing: Float[Array, ""]
    log_base: Float[Array, "y n"]
    """Log of |phi t'|."""
    log_ratio: Float[Array, "y n"]
    turn: Float[Array, "y n"]
    """Log |R| and arg R."""
    log_outside: Float[Array, " y"]
    """Log of what each part is beside the nodes at most, but for its turn."""


def lines_along(one: Integrand, place: Place, y: Float[Array, " y"]) -> Lines:
    """The parts of an integrand along some lines.

    Beside the nodes |t'| is at most 1 and e^v: its integral is below 2 log(1 + e^v) on
    the left.  Every part is at most phi(r + a) R(a)^top e^(y^2/2), or times |R / R(a)|
    >= cos(theta / 2) to its power where that is negative.
    """
    start = place.start - _BEFORE
    end = place.far + _AFTER
    spacing = (end - start) / (_NODES - 1)
    v = start + spacing * jnp.arange(_NODES, dtype=spacing.dtype)
    z = lax.complex(*jnp.broadcast_arrays(v, y[:, None]))
    right = v > 0
    t = jnp.where(right, z, 0) + jnp.log1p(jnp.exp(jnp.where(right, -z, z)))
    a, b = jnp.real(t), jnp.imag(t)
    versine, sine = rotation(2 * one.half * b)
    modulus, turn = log_turned(one.share(a), versine, sine)
    log_base = one.log_base(a) + 0.5 * jnp.square(b) + v - a - place.peak
    first, _ = mapped(start)
    outside = log_head(one, place, first) + jnp.log(2 * first)
    outside = jnp.logaddexp(outside, log_tail(one, place, end))
    # Nodes as far apart as densities are wide tell nothing.
    outside = jnp.where(spacing < 1, outside, jnp.inf)
    lifted = 0.5 * jnp.square(y) - (place.top - 1) * jnp.log(jnp.cos(one.half * y))
    return Lines(spacing, log_base, one.loss_at(a) + modulus, turn, outside + lifted)


def log_line_of(
    one: Integrand, place: Place, lines: Lines, frequency: Array
) -> Float[Array, " y"]:
    """Log of a bound of L e^-peak for |Im w| <= frequency, on each line."""
    powers = jnp.stack([place.order, 1 - place.order])[:, None, None]
    tilted = powers * lines.log_ratio + frequency * lines.turn
    parts = jnp.stack([*tilted, 0 * lines.turn, lines.log_ratio])
    inside = jax.nn.logsumexp(lines.log_base + parts, axis=(0, 2))
    inside = inside + jnp.log(lines.spacing * (1 + LINE_SUM))
    farthest = 2 * one.half * widths(one) * frequency
    return jnp.logaddexp(inside, math.log(4) + lines.log_outside + farthest)
