"""The integrand of everything, and the trapezoid rule for it.

Noise s, r = 1 / (2 s): the first pair's loss is X(t) = log(1 - q + q e^(2 r t)) at the
output r + t in units of the noise, zero at t = 0 whatever q is.  The glued pair has the
losses X(t), t > 0, and -X(t) with the same tilted masses, and none else:

    T(w) = E_P (dQ/dP)^w = 1 + integral_0^inf phi(r + t) G(t) dt,
    G = R^w + R^(1-w) - 1 - R = -(R^w - 1) (R^(1-w) - 1),    R = e^X.

With t = log(1 + e^v) the integrand falls like e^(3 v) on the left and like a normal
density on the right, and is analytic in a strip around the real line: the trapezoid
rule in v has an error that falls exponentially with the number of nodes (`_lines.py`).
"""

import dataclasses
import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..._internal._blocked_sum import blocked_sum
from ..._internal._logs import LOG_SQRT_2PI
from ..._internal._special import log1p, safe_log
from ..._internal._tolerances import ELEMENTARY
from ..._internal._waves import wave_products
from .._amplification import inclusion, log_ratio

_NODES, _BLOCKS = 64, 256
"""Nodes evaluated together, and how often at most."""
_COARSE = 256
"""Nodes that show where an integrand is largest."""
_FIRST = -15.0
"""The first node."""
_REACH, _DEPTH = 10.0, 50.0
"""Standard deviations beyond the largest mode, and log of what is left out before it.
"""


class Integrand(eqx.Module):
    """See the module's docstring; `sampling_prob` is in (0, 1]."""

    noise_multiplier: Float[Array, ""]
    sampling_prob: Float[Array, ""]

    @property
    def half(self) -> Array:
        """r: half the distance of the two normal laws."""
        return 0.5 / self.noise_multiplier

    def loss_at(self, t: Array) -> Array:
        """X(t)."""
        return log_ratio(2 * self.half * t, self.sampling_prob)

    def share(self, t: Array) -> Array:
        """Posterior probability that the record was sampled: X' = 2 r times it."""
        return inclusion(2 * self.half * t, self.sampling_prob)

    def log_base(self, t: Array) -> Array:
        """Log of phi(r + t)."""
        return -0.5 * jnp.square(self.half + t) - LOG_SQRT_2PI

    def size(self, t: Array, loss: Array, order: Array, peak: Array) -> Array:
        """e^-peak times the density of P times G, for a real order; of one sign."""
        more, less = jnp.maximum(order, 1 - order), jnp.minimum(order, 1 - order)
        base, exponent = self.log_base(t) - peak, more * loss
        # Where e^(w X) may overflow, in one exponent.
        big = exponent > 1
        near = jnp.exp(base) * jnp.expm1(jnp.where(big, 0, exponent))
        far = jnp.exp(base + jnp.where(big, exponent, 0)) - jnp.exp(base)
        return -jnp.where(big, far, near) * jnp.expm1(less * loss)

    def tilted(
        self, t: Array, loss: Array, order: Array, peak: Array
    ) -> tuple[Array, Array]:
        """e^-peak times the density of P times R^w, and times R^(1-w)."""
        base = self.log_base(t) - peak
        return jnp.exp(base + order * loss), jnp.exp(base + (1 - order) * loss)


def mapped(v: Array) -> tuple[Array, Array]:
    """The output t = log(1 + e^v), and its derivative."""
    least = jnp.exp(-jnp.abs(v))
    # Of a moderate number: the library's own is exact enough where it is small, too.
    t = jnp.maximum(v, 0) + jnp.log1p(least)
    return t, jnp.where(v > 0, 1, least) / (1 + least)


class Place(eqx.Module):
    """The place of phi(r + t) R^top, which all parts of an integrand are below."""

    order: Float[Array, ""]
    top: Float[Array, ""]
    """The largest power of R: of w, 1 - w and 1."""
    start: Float[Array, ""]
    end: Float[Array, ""]
    """Of the v where it is not negligible: there to `far` it is below e^-`_DEPTH`."""
    far: Float[Array, ""]
    """The v beyond which it falls by e^-`_REACH` per unit."""
    peak: Float[Array, ""]
    """Its largest logarithm, about, or zero."""


def place_of(one: Integrand, order: Float[Array, ""]) -> Place:
    """The place of the integrand of a real order.

    phi(r + t) R^top is below phi(r + t) e^(2 r t top), whose mode is 2 r top - r, and
    there above q^top times that.  Second derivatives of its logarithm are at least -1,
    so that it exceeds two values by at most an eighth of their distance's square.
    """
    top = jnp.maximum(jnp.maximum(order, 1 - order), 1)
    mode = one.half * (2 * top - 1)
    depth = jnp.sqrt(2 * (_DEPTH - top * jnp.log(one.sampling_prob)))
    start = jnp.where(mode > depth + 1, mode - depth - 1, _FIRST)
    far = mode + _REACH
    v = jnp.linspace(start, far, _COARSE)
    t = jnp.append(mapped(v)[0], mode)
    high = one.log_base(t) + top * one.loss_at(t)
    peak = jnp.maximum(jnp.max(high), 0)
    seen = high[:-1] > peak - _DEPTH - 0.125 * jnp.square(v[1] - v[0])
    last = jnp.max(jnp.where(seen, jnp.arange(_COARSE), 0))
    end = v[jnp.minimum(last + 1, _COARSE - 1)]
    return Place(order, top, start, end, far, peak)


def log_head(one: Integrand, place: Place, t: Array) -> Array:
    """Log of a bound of phi(r + .) R^top e^-peak on [0, t]."""
    level = one.log_base(jnp.zeros_like(t)) + place.top * one.loss_at(t)
    slope = 2 * one.half * place.top
    rising = one.log_base(t) + slope * t
    some = t < slope - one.half
    return jnp.where(some, jnp.minimum(level, rising), level) - place.peak


def log_tail(one: Integrand, place: Place, t: Array) -> Array:
    """Log of a bound of phi(r + .) R^top e^-peak from t >= `far` on, and its integral.

    It falls by e^-`_REACH` per unit there, and t moves at least half as fast as v.
    """
    return one.log_base(t) + place.top * one.loss_at(t) - place.peak


def omitted(one: Integrand, place: Place, size: Array) -> Array:
    """Bound on h times the integrand's sum over nodes left out, over e^peak.

    `size` is a bound of |w (1 - w)|.  On the left |R^w - 1| <= |w| X R^max(Re w, 0),
    and X(t) <= 2 r p(t) t: the terms are below a multiple of t^2 t', which increases
    with v and whose integral is t^3 / 3.  On the right |G| <= 4 R^top.
    """
    t, _ = mapped(place.start)
    steep = size * jnp.square(2 * one.half * one.share(t)) * t**3 / 3
    head = steep * jnp.exp(log_head(one, place, t))
    between = (place.far - place.end + 1) * math.exp(-_DEPTH)
    return head + 4 * (between + jnp.exp(log_tail(one, place, place.far)))


class Mesh(eqx.Module):
    """The nodes of a trapezoid rule."""

    peak: Float[Array, ""]
    start: Float[Array, ""]
    spacing: Float[Array, ""]
    blocks: Int[Array, ""]

    def nodes(self, index: Array) -> tuple[Array, Array]:
        """Outputs at the nodes of a block, and their weights."""
        position = index * _NODES + jnp.arange(_NODES, dtype=index.dtype)
        t, slope = mapped(self.start + self.spacing * position)
        return t, slope * self.spacing


def mesh_of(place: Place, spacing: Array) -> Mesh:
    """Nodes from end to end, at most so far apart, if they are not too many.

    The error bounds speak for what is too coarse.  Spacings have so few binary digits
    that nodes are exact: off their places they would count as errors of t.
    """
    length = place.end - place.start
    mantissa, exponent = jnp.frexp(
        jnp.maximum(spacing, 1.1 * length / (_BLOCKS * _NODES))
    )
    spacing = jnp.ldexp(jnp.floor(64 * mantissa) / 64, exponent)
    start = spacing * jnp.floor(place.start / spacing)
    blocks = jnp.ceil(((place.end - start) / spacing + 1) / _NODES)
    return Mesh(place.peak, start, spacing, blocks.astype(jnp.int32))


class Sums(NamedTuple):
    """Integrals by a rule, over e^peak; the first three are differentiable."""

    growth: Float[Array, ""]
    """T - 1."""
    first: Float[Array, ""]
    second: Float[Array, ""]
    """The integrals of the loss and of its square."""
    rounding: Float[Array, ""]
    """Bound on the rounding of T - 1, in units in the last place."""
    spread: Float[Array, ""]
    """The integral of |X|, ..."""
    turn: Float[Array, ""]
    """... of the rounding of X, in units in the last place, ..."""
    weight: Float[Array, ""]
    """... and of the rounding of the tilted densities, ..."""
    weighted: Float[Array, ""]
    """... the same times |X|."""

    def log(self, peak: Array) -> Array:
        """Log T."""
        large = peak > 0
        direct = jnp.exp(-peak) + jnp.where(large, self.growth, 1)
        near = jnp.where(large, 0, self.growth)
        return jnp.where(large, peak + safe_log(direct), log1p(near))


def sums_of(one: Integrand, order: Array, mesh: Mesh) -> Sums:
    """All integrals by a rule at a real order."""
    main, others = blocked_sum(sums_block, mesh.blocks, (one, order), mesh)
    return Sums(*main, *others)


def sums_block(index: Array, args: tuple[Integrand, Array], mesh: Mesh) -> tuple:
    one, order = args
    t, weight = mesh.nodes(index)
    loss = one.loss_at(t)
    size = one.size(t, loss, order, mesh.peak) * weight
    more, less = (x * weight for x in one.tilted(t, loss, order, mesh.peak))
    # Relative roundings in units in the last place: t has the errors of two functions
    # where it is small, and of one sum elsewhere; exponents have that of t, times their
    # elasticity, and their own; then those of sums in a block and of the blocks.
    slip = ELEMENTARY * (loss + 2 * one.half * t * one.share(t))
    orders = 1 + jnp.abs(order) + jnp.abs(1 - order)
    unsure = ELEMENTARY * (2 + jnp.square(one.half + t)) + orders * slip
    unsure = unsure + mesh.blocks + _NODES + 16
    both = more + less
    main = size, (more - less) * loss, both * jnp.square(loss)
    others = jnp.abs(size) * unsure, both * loss, both * slip, both * unsure
    each = lambda rows: tuple(jnp.sum(row) for row in rows)
    return each(main), each((*others, both * unsure * loss))


@dataclasses.dataclass(frozen=True)
class Waves:
    """T - 1, and what `wave_sums` needs for (T(w + i tau) - T(w)) e^-peak.

    At m^2 frequencies, m even; of two weights, for the real part and the imaginary one.
    """

    m: int

    def __call__(
        self,
        index: Array,
        one: Integrand,
        aux: tuple[Array, Mesh, Array, Array],
    ) -> tuple:
        order, mesh, start, step = aux
        t, weight = mesh.nodes(index)
        loss = one.loss_at(t)
        size = one.size(t, loss, order, mesh.peak) * weight
        more, less = one.tilted(t, loss, order, mesh.peak)
        weights = jnp.stack([more + less, more - less]) * weight
        products = wave_products(weights, loss, start, step, self.m)
        return (jnp.sum(size), products), ()
