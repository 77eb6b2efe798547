"""Sums over the nodes: each is a block for `blocked_sum`."""

import dataclasses
import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..._internal._blocked_sum import blocked_sum
from ..._internal._special import log1p
from ..._internal._tolerances import ELEMENTARY
from ..._internal._waves import wave_products, wave_sums
from ._integrand import (
    NODES,
    Integrand,
    growth_at,
    loss_uncertainty,
    nodes_of,
    place_of,
    tilted_at,
    uncertainty_at,
)


class Mesh(eqx.Module):
    """Nodes for the integrals at one order."""

    order: Float[Array, ""]
    peak: Float[Array, ""]
    """The shift before exponentiating: zero, or log T where that is large."""
    start: Float[Array, ""]
    spacing: Float[Array, ""]
    blocks: Int[Array, ""]


class Sums(eqx.Module):
    """Integrals over the nodes, times e^-peak."""

    growth: Float[Array, ""]
    """T - 1."""
    rounding: Float[Array, ""]
    """Bound on its rounding, in units in the last place."""
    spread: Float[Array, ""]
    """Of |X|, ..."""
    turn: Float[Array, ""]
    """... of the rounding of X, in units in the last place, ..."""
    weight: Float[Array, ""]
    """... and of the rounding of the tilted densities, ..."""
    weighted: Float[Array, ""]
    """... the same times |X|."""


def sums_of(one: Integrand, mesh: Mesh) -> Sums:
    """All integrals of a mesh, without derivative but for the first's."""
    (growth, *_), others = blocked_sum(_sums_block, mesh.blocks, (one,), mesh)
    return Sums(growth, *others)


def _sums_block(index: Array, args: tuple, mesh: Mesh) -> tuple:
    (one,) = args
    t, slope = place_of(nodes_of(index, mesh.start, mesh.spacing))
    loss, slope = one.loss_at(t), slope * mesh.spacing
    growth = growth_at(one, t, loss, mesh.order, mesh.peak) * slope
    more, less = tilted_at(one, t, loss, mesh.order, mesh.peak)
    unsure = uncertainty_at(one, t, loss, mesh.order) + _additions(mesh)
    both = (more + less) * slope
    others = (
        jnp.sum(jnp.abs(growth) * unsure),
        jnp.sum(both * loss),
        jnp.sum(both * ELEMENTARY * loss_uncertainty(one, t, loss)),
        jnp.sum(both * unsure),
        jnp.sum(both * unsure * loss),
    )
    return (jnp.sum(growth),), others


def _additions(mesh: Mesh) -> Array:
    """Roundings of a sum's terms: in a block, then of the blocks; a few products."""
    return mesh.blocks + NODES + 16


def log_total(growth: Array, peak: Array) -> Array:
    """Log T, from e^-peak (T - 1)."""
    large = peak > 0
    direct = jnp.exp(-peak) + jnp.where(large, growth, 1)
    near = jnp.where(large, 0, growth)
    return jnp.where(large, peak + jnp.log(direct), log1p(near))


def moment_block(index: Array, args: tuple[Integrand, Array], mesh: Mesh) -> tuple:
    """T - 1, the integrals of X and X^2, and the first one's rounding."""
    one, order = args
    t, slope = place_of(nodes_of(index, mesh.start, mesh.spacing))
    loss, slope = one.loss_at(t), slope * mesh.spacing
    growth = growth_at(one, t, loss, order, mesh.peak) * slope
    more, less = tilted_at(one, t, loss, order, mesh.peak)
    unsure = uncertainty_at(one, t, loss, order) + _additions(mesh)
    first = (more - less) * loss * slope
    second = (more + less) * jnp.square(loss) * slope
    sums = jnp.sum(growth), jnp.sum(first), jnp.sum(second)
    return sums, jnp.sum(jnp.abs(growth) * unsure)


@dataclasses.dataclass(frozen=True)
class CharacteristicBlock:
    """T - 1, and what `wave_sums` needs for (T(w + i tau) - T(w)) e^-peak.

    At m^2 frequencies, m even; of two weights, for the real part and the imaginary one.
    """

    m: int

    def __call__(
        self, index: Array, args: tuple[Integrand], aux: tuple[Mesh, Array, Array]
    ) -> tuple:
        (one,), (mesh, start, step) = args, aux
        t, slope = place_of(nodes_of(index, mesh.start, mesh.spacing))
        value, slope = one.loss_at(t), slope * mesh.spacing
        more, less = tilted_at(one, t, value, mesh.order, mesh.peak)
        weights = jnp.stack([more + less, more - less]) * slope
        growth = growth_at(one, t, value, mesh.order, mesh.peak) * slope
        products = wave_products(weights, value, start, step, self.m)
        return (jnp.sum(growth), products), ()


def characteristic_sums(
    count: int, one: Integrand, mesh: Mesh, start: Array, step: Array
) -> tuple[Array, Array, Array]:
    """T - 1, and real and imaginary part of T(w + i tau) - T(w), times e^-peak."""
    block = CharacteristicBlock(math.isqrt(count))
    sums, _ = blocked_sum(block, mesh.blocks, (one,), (mesh, start, step))
    growth, products = sums
    _, versine, sine = wave_sums(products, block.m)
    return growth, versine[0], sine[1]
