"""E_P[e^{w X}] and its derivatives at real orders w, by the trapezoid rule."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import fori_loop, stop_gradient
from jaxtyping import Array, Float, Int

from ..._internal._arithmetic import ULP
from ..._internal._blocked_sum import blocked_sum
from ..._internal._special import log1p
from ._integrand import Integrand, growth_of
from ._place import (
    Coarse,
    Interval,
    Location,
    beyond_iterates,
    coarse_grid,
    covers_base,
    interval_of,
    locate_on,
)
from ._strips import half_widths, strip_error

_FEW_WIDTHS = 12
_SEARCH_NODES = 32
_ROUGH_NODES = 64
"""Nodes that show where an integrand lives: for certified moments, and for two digits
of them, which they mostly give at once."""
_NODES = 64
_BLOCKS = 64
_WIDEST = 0.5
"""Spacing of the nodes of a moment, in standard deviations."""
_EXACT, _ROUGH = 40.0, 10.0
"""-log of the error of a moment's quadrature: certified, and for two digits."""


class Mesh(eqx.Module):
    """Nodes for the moments at one order."""

    order: Float[Array, ""]
    center: Float[Array, ""]
    """About the tilted mean of X."""
    peak: Float[Array, ""]
    """Log of about the largest density at a node."""
    start: Float[Array, ""]
    spacing: Float[Array, ""]
    blocks: Int[Array, ""]

    def nodes(self, index: Array) -> Float[Array, " n"]:
        offsets = jnp.arange(_NODES, dtype=self.start.dtype)
        return self.start + self.spacing * (index * _NODES + offsets)


class Tilted(eqx.Module):
    """Integrals of e^{w X} dP at one order w, by the trapezoid rule."""

    mesh: Mesh
    sums: Float[Array, "3"]
    """Integral over e^peak, and of X - center and its square."""

    def log(self) -> Float[Array, ""]:
        return self.mesh.peak + jnp.log(self.sums[0])

    def moments(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Mean of X - center, and variance."""
        mean, square = self.sums[1] / self.sums[0], self.sums[2] / self.sums[0]
        floor = ULP * square
        return mean, jnp.maximum(square - jnp.square(mean), floor)


def moments(one: Integrand, order: Float[Array, " k"]) -> tuple[Array, Array, Array]:
    """Lambda from above, Lambda' and Lambda''."""
    # One grid shows where all of them live: modes increase with the order.
    ends = interval_of(one, jnp.stack([jnp.min(order), jnp.max(order)]))
    place = Interval(ends.start[0], ends.end[-1], jnp.max(ends.mode))
    grid = coarse_grid(one, place, _SEARCH_NODES)
    return jax.vmap(lambda w: _moments_at(one, w, grid))(order)


def _moments_at(one: Integrand, order: Float[Array, ""], grid: Coarse) -> tuple:
    located = locate_on(one, order, grid)
    place = located.interval
    found, growth, growth_size = _tilted(one, located)
    direct, mesh = found.log(), found.mesh
    small = (jnp.abs(direct) < 0.5) & covers_base(one, place)
    value = jnp.where(small, log1p(jnp.where(small, growth, 0)), direct)
    # These grids are fine: any strip that is not too wide will do.
    widths, none = half_widths(one, _FEW_WIDTHS), jnp.zeros_like(order)
    scale = jnp.exp(located.log - direct)
    edge, beyond = located.edge * scale, located.beyond * scale
    error = strip_error(one, place, order, none, mesh.spacing, edge, widths)
    error = error + beyond_iterates(one) * edge + beyond
    # The growth has the error of P's own integral besides.
    error = jnp.where(small, 3 * error, error)
    error = jnp.where(error < 0.5, -log1p(-jnp.minimum(error, 0.5)), jnp.inf)
    size = 1 + jnp.abs(mesh.peak) + jnp.abs(direct)
    size = jnp.where(small, growth_size, size)
    nodes = mesh.blocks * _NODES
    rounding = ULP * nodes * 4 * size
    mean, variance = found.moments()
    return value + stop_gradient(error + rounding), mesh.center + mean, variance


def rough_moments(
    one: Integrand, order: Float[Array, ""]
) -> tuple[Array, Array, Array]:
    """Lambda, Lambda' and Lambda'' at one order, to two digits."""
    one = stop_gradient(one)
    grid = coarse_grid(one, interval_of(one, order), _ROUGH_NODES)
    located = locate_on(one, order, grid)
    mesh = _mesh(one, located, 2 * _WIDEST, _ROUGH)
    # Mostly this first grid will do.
    narrow = 1.2 * one.narrowest(order)
    fine = grid.spacing <= jnp.minimum(narrow, _widest(one, _ROUGH))

    def add(index: Array, sums: Array) -> Array:
        return sums + _tilted_sums(mesh.nodes(index), one, mesh)[0]

    blocks, none = jnp.where(fine, 0, mesh.blocks), jnp.zeros(3, order.dtype)
    finer = Tilted(mesh, fori_loop(0, blocks, add, none) * mesh.spacing)
    mean, variance = finer.moments()
    return (
        jnp.where(fine, located.log, finer.log()),
        jnp.where(fine, located.center, mesh.center + mean),
        jnp.where(fine, located.variance, variance),
    )


def _tilted(one: Integrand, located: Location) -> tuple[Tilted, Array, Array]:
    """The integrals of a moment; that less P's, and the sum of its terms' sizes."""
    mesh = _mesh(one, stop_gradient(located), _WIDEST, _EXACT)
    args = one, located.order
    sums, _ = blocked_sum(_moment_block, mesh.blocks, args, mesh)
    sums, growth, size = (mesh.spacing * x for x in sums)
    return Tilted(stop_gradient(mesh), sums), growth, size


def _widest(one: Integrand, log_accuracy: float) -> Array:
    """The spacing for some -log of the error, as far as the strip goes."""
    strip = 0.98 * jnp.pi * jnp.square(one.noise_multiplier)
    return 2 * jnp.pi * strip / log_accuracy


def _mesh(
    one: Integrand, located: Location, widest: float, log_accuracy: float
) -> Mesh:
    """Nodes over an interval, in as many blocks as its length asks for.

    Not more than `_BLOCKS`: the error bound speaks for what is missing then.
    """
    one = stop_gradient(one)
    place, s = located.interval, one.noise_multiplier
    spacing = jnp.minimum(widest * s, _widest(one, log_accuracy))
    length = place.end - place.start
    blocks = jnp.ceil(length / (spacing * _NODES))
    blocks = jnp.clip(blocks, 1, _BLOCKS)
    mesh = Mesh(
        order=located.order,
        center=located.center,
        peak=located.peak,
        start=place.start,
        spacing=length / (blocks * _NODES),
        blocks=blocks.astype(jnp.int32),
    )
    # The coarse grid's peak will do unless terms relative to it might overflow.
    near = located.hidden <= 0.3 * math.log(jnp.finfo(length.dtype).max)

    def highest(index: Array, peak: Array) -> Array:
        values = one.log_integrand(mesh.nodes(index), mesh.order)
        return jnp.maximum(peak, jnp.max(values))

    least = jnp.full_like(length, -jnp.inf)
    found = fori_loop(0, jnp.where(near, 0, mesh.blocks), highest, least)
    return dataclasses.replace(mesh, peak=jnp.where(near, mesh.peak, found))


def _moment_block(index: Array, args: tuple[Integrand, Array], mesh: Mesh) -> tuple:
    loss, order = args
    mesh = dataclasses.replace(mesh, order=order)
    sums, log_base, exponent = _tilted_sums(mesh.nodes(index), loss, mesh)
    growth, _ = growth_of(log_base, exponent)
    return (sums, jnp.sum(growth), jnp.sum(jnp.abs(growth))), ()


def _tilted_sums(x: Array, loss: Integrand, mesh: Mesh) -> tuple[Array, Array, Array]:
    """Sums of e^{w X} dP, that times X - center and its square; log dP and w X."""
    log_base, value = loss.log_base(x), loss.loss_at(x)
    exponent = mesh.order * value
    weight = jnp.exp(log_base + exponent - mesh.peak)
    away = value - mesh.center
    rows = weight, weight * away, weight * jnp.square(away)
    # Sums first: XLA would evaluate every row for each entry of a stack.
    return jnp.stack([jnp.sum(row) for row in rows]), log_base, exponent
