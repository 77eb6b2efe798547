"""E_P[e^{w X}] and its derivatives at real orders w, by the trapezoid rule.

One mesh serves all orders of Chernoff's inequality, so that the loss is evaluated once
for all of them, and it is no finer than a tolerance asks for: few digits will do.  On
an analytic integrand the rule converges exponentially (Trefethen and Weideman 2014,
Theorem 5.1).
"""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import fori_loop, stop_gradient
from jaxtyping import Array, Bool, Float, Int

from ..._internal._arithmetic import ULP
from ..._internal._blocked_sum import blocked_sum
from ..._internal._logs import LOG_2
from ..._internal._special import log1p
from ._integrand import Integrand, growth_of
from ._place import Interval, beyond_iterates, covers_base, interval_of
from ._strips import half_widths, strip_growth, widest_spacing

_NODES, _BLOCKS = 64, 256
_COARSE = 64
"""Nodes that show where the integrands live."""
_WIDTHS = 12
_ROUGH, _EXACT = -20.0, -46.0
"""Log of a quadrature's relative error: for two digits of sums over many steps, and for
all digits of the logarithm of a number next to one."""
_DIGITS = 10.0
"""Log of the tolerance over a rounding from which on sums are taken of what exceeds P.
"""
_OVERFLOW = 200.0
"""By how much integrands may exceed what a few nodes show of them."""


class Mesh(eqx.Module):
    """Nodes midway between two ends, and the strip that certifies their sums."""

    place: Interval
    spacing: Float[Array, ""]
    blocks: Int[Array, ""]
    complete: Bool[Array, ""]
    """Whether it has all the nodes that the tolerance asks for."""
    half_width: Float[Array, ""]
    growth: Float[Array, ""]
    """Log of the integrals' sizes on the strip's sides, over the integral."""
    center: Float[Array, " k"]
    """About the tilted means of X."""
    peak: Float[Array, " k"]
    """Logs of about the largest densities at a node."""

    def nodes(self, index: Array) -> Float[Array, " n"]:
        """The nodes of a block."""
        offsets = 0.5 + jnp.arange(_NODES, dtype=self.spacing.dtype)
        return self.place.start + self.spacing * (index * _NODES + offsets)


def mesh_for(
    one: Integrand,
    order: Float[Array, " k"],
    log_tolerance: Array | float,
    most: int = _BLOCKS,
) -> Mesh:
    """The widest mesh that some strip certifies at every order; no derivative."""
    one, order = stop_gradient((one, order))
    # Modes increase with the order, and the lowest one's integrand grows fastest.
    ends = jnp.stack([jnp.min(order), jnp.max(order)])
    places = interval_of(one, ends)
    place = Interval(places.start[0], places.end[1], jnp.max(places.mode))
    widths = half_widths(one, _WIDTHS)
    growth = strip_growth(one, place, ends[0], jnp.zeros_like(ends[0]), widths)
    spacings = widest_spacing(widths, growth, log_tolerance)
    best = jnp.argmax(spacings)
    length = place.end - place.start
    wanted = jnp.ceil(length / (spacings[best] * _NODES))
    blocks = jnp.clip(wanted, 1, most)
    x = place.start + length / _COARSE * jnp.arange(_COARSE + 1.0)
    loss = one.loss_at(x)
    logs = one.log_base(x) + order[:, None] * loss
    peak = jnp.max(logs, axis=1)
    weights = jnp.exp(logs - peak[:, None])
    mesh = Mesh(
        place=place,
        spacing=length / (blocks * _NODES),
        blocks=blocks.astype(jnp.int32),
        complete=wanted <= blocks,
        half_width=widths[best],
        growth=growth[best],
        center=weights @ loss / jnp.sum(weights, axis=1),
        peak=peak,
    )
    # Between two nodes l may be larger: as l'' >= -1 / narrowest^2, by so much.
    hidden = 0.125 * jnp.square(length / (_COARSE * one.narrowest(ends[0])))
    unseen = jnp.where(hidden > _OVERFLOW, mesh.blocks, 0)

    def highest(index: Array, peak: Array) -> Array:
        x = mesh.nodes(index)
        logs = one.log_base(x) + order[:, None] * one.loss_at(x)
        return jnp.maximum(peak, jnp.max(logs, axis=1))

    return dataclasses.replace(mesh, peak=fori_loop(0, unseen, highest, peak))


def rough_moments(
    one: Integrand, order: Float[Array, ""]
) -> tuple[Array, Array, Array]:
    """Lambda, Lambda' and Lambda'' at one order, to two digits."""
    one, order = stop_gradient((one, order[None]))
    found = tilted(one, order, mesh_for(one, order, _ROUGH))
    return found[0][0], found[1][0], found[2][0]


def moments(one: Integrand, order: Float[Array, " k"]) -> tuple[Array, Array, Array]:
    """Lambda from above, Lambda' and Lambda'', of each order on a mesh of its own."""
    each = jax.vmap(lambda w: certified(one, w[None]))(order)
    value, error, mean, variance = (x[:, 0] for x in each)
    return value + error, mean, variance


def certified(
    one: Integrand, order: Float[Array, " k"], log_tolerance: Array | float = _EXACT
) -> tuple[Array, Array, Array, Array]:
    """Lambda, by how much it may be too small, Lambda' and Lambda''."""
    mesh = mesh_for(one, order, log_tolerance)
    direct, mean, variance = tilted(one, order, mesh)
    # The logarithm of a number near one has its digits, and they are too few for some.
    few = log_tolerance < _DIGITS + math.log(ULP)
    few = few & covers_base(one, mesh.place)
    blocks = jnp.where(few, mesh.blocks, 0)
    sums, _ = blocked_sum(_growth_block, blocks, (one, order), mesh)
    growth, growth_size = (mesh.spacing * x for x in sums)
    small = few & (jnp.abs(direct) < 0.5)
    value = jnp.where(small, log1p(jnp.where(small, growth, 0)), direct)
    # I <= T + sides I + ends T, of the integral I and its sum T.
    decay = 2 * jnp.pi * mesh.half_width / mesh.spacing
    sides = jnp.exp(mesh.growth - decay - jnp.log(-jnp.expm1(-decay)))
    ends = jnp.exp(_log_ends(one, order, mesh) - direct[:, None]).sum(axis=1)
    error = log1p(ends) - log1p(-jnp.minimum(sides, 0.5))
    error = jnp.where((sides < 0.5) & (error < 1), error, jnp.inf)
    # The growth has the error of P's own integral besides.
    error = jnp.where(small, 3 * error, error)
    # Every term is one of so many in its block, and that of so many blocks.
    size = 1 + jnp.abs(mesh.peak) + jnp.abs(direct)
    size = 2 * jnp.where(small, growth_size, 2 * size)
    rounding = ULP * (mesh.blocks + _NODES + 16) * size
    return value, stop_gradient(error + rounding), mean, variance


def tilted(
    one: Integrand, order: Float[Array, " k"], mesh: Mesh
) -> tuple[Array, Array, Array]:
    """Log of the integrals of e^{w X} dP, and tilted means and variances of X."""
    sums, _ = blocked_sum(_tilted_block, mesh.blocks, (one, order), mesh)
    total, mean, square = sums[0], sums[1] / sums[0], sums[2] / sums[0]
    variance = jnp.maximum(square - jnp.square(mean), ULP * square)
    direct = mesh.peak + jnp.log(mesh.spacing * total)
    return direct, mesh.center + mean, variance


def _tilted_block(index: Array, args: tuple[Integrand, Array], mesh: Mesh) -> tuple:
    one, order = args
    x = mesh.nodes(index)
    loss, peak = one.loss_at(x), mesh.peak[:, None]
    weight = jnp.exp(one.log_base(x) + order[:, None] * loss - peak)
    away = loss - mesh.center[:, None]
    rows = weight, weight * away, weight * jnp.square(away)
    return tuple(jnp.sum(row, axis=1) for row in rows), ()


def _growth_block(index: Array, args: tuple[Integrand, Array], mesh: Mesh) -> tuple:
    """Sums for the integrals less P's, and of the sizes that their roundings have."""
    one, order = args
    x = mesh.nodes(index)
    log_base, exponent = one.log_base(x), order[:, None] * one.loss_at(x)
    change, lifted = growth_of(log_base, exponent)
    size = jnp.abs(change) * (1 + jnp.abs(log_base)) + lifted * jnp.abs(exponent)
    return (jnp.sum(change, axis=1), jnp.sum(size, axis=1)), ()


def _log_ends(one: Integrand, order: Array, mesh: Mesh) -> Float[Array, "k 2"]:
    """Log of what is at both ends: the strip's vertical sides, and all beyond.

    There the integrand's modulus exceeds that on the axis by at most what it does at
    the strip's height, for the kernel is at most 1/2.
    """
    x, v = jnp.stack([mesh.place.start, mesh.place.end]), mesh.half_width
    modulus, _ = one.turned(x, v)
    density = one.log_base(x) + order[:, None] * one.loss_at(x)
    lifted = 0.5 * jnp.square(v / one.noise_multiplier)
    grown = jnp.minimum(order, 0)[:, None] * modulus + lifted
    sides = density + grown + LOG_2 + jnp.log(v)
    return jnp.logaddexp(sides, density + jnp.log(beyond_iterates(one)))
