"""Sums over the nodes of a contour: each is a block for `blocked_sum`."""

import dataclasses
import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..._internal._blocked_sum import blocked_sum
from ..._internal._special import log1p
from ..._internal._waves import wave_products, wave_sums
from ._integrand import Integrand
from ._strips import along_bent_line

NODES = 64
"""Quadrature nodes evaluated together."""


class Plan(eqx.Module):
    """The quadrature on one contour."""

    order: Float[Array, ""]
    center: Float[Array, ""]
    peak: Float[Array, ""]
    start: Float[Array, ""]
    spacing: Float[Array, ""]
    blocks: Int[Array, ""]
    quadrature_error: Float[Array, ""]
    """Bound on |error of E_P[(dQ/dP)^z]| / e^Lambda(order), for |Im z| <= frequency."""
    loss_deviation: Float[Array, ""]
    loss_size: Float[Array, ""]


def nodes_of(index: Array, start: Array, spacing: Array) -> Array:
    """The nodes of one block."""
    position = index * NODES + jnp.arange(NODES, dtype=index.dtype)
    return start + spacing * position.astype(start.dtype)


def origin(one: Integrand, plan: Plan) -> Array:
    """The loss where the record takes no part, if that is where most of it is."""
    rare = one.sampling_prob < 0.5
    without = log1p(-jnp.where(rare, one.sampling_prob, 0))
    return jnp.where(rare, without, plan.center)


def _weighted(one: Integrand, x: Array, plan: Plan) -> tuple[Array, Array]:
    """X - center, and the tilted density up to a factor."""
    value = one.loss_at(x)
    weight = jnp.exp(one.log_base(x) + plan.order * value - plan.peak)
    return value - plan.center, weight


def characteristic_sums(
    count: int, one: Integrand, plan: Plan, start: Array, step: Array
) -> tuple[Array, Array, Array]:
    """Sums of weight, weight (cos - 1) and weight sin, at `count` frequencies."""
    block = _CharacteristicBlock(math.isqrt(count))
    products, _ = blocked_sum(block, plan.blocks, one, (plan, start, step))
    total, versine, sine = (x[0] for x in wave_sums(products, block.m))
    return total, versine, sine


@dataclasses.dataclass(frozen=True)
class _CharacteristicBlock:
    """Inputs of `wave_sums` for m^2 frequencies, m even."""

    m: int

    def __call__(
        self,
        index: Array,
        one: Integrand,
        aux: tuple[Plan, Array, Array],
    ) -> tuple:
        plan, start, step = aux
        x = nodes_of(index, plan.start, plan.spacing)
        value, weight = _weighted(one, x, plan)
        return wave_products(weight[None], value, start, step, self.m), ()


def points(
    index: Array, one: Integrand, aux: tuple[Plan, Array]
) -> tuple[Array, Array]:
    """Turns per frequency, and weights, for `fourier_sums`."""
    plan, step = aux
    value, weight = _weighted(one, nodes_of(index, plan.start, plan.spacing), plan)
    turns = (value + (plan.center - origin(one, plan))) * (step / (2 * jnp.pi))
    return turns, weight[None]


def envelope_block(index: Array, one: Integrand, aux: tuple) -> tuple:
    """Sizes of the integrand on lines that leave the axis as far as is best."""
    located, frequency, spacing = aux
    x = nodes_of(index, located.interval.start, spacing)
    log_weight = one.log_integrand(x, located.order) - located.peak
    scale = frequency * jnp.asarray([[1.0], [0.5]], x.dtype)
    exponent = along_bent_line(one, x, located.order, frequency, scale)
    # Both sums with errors of a few units in the last place, which are allowed for.
    moved = jnp.exp(jnp.minimum(log_weight + exponent, 60))
    return (), (jnp.sum(jnp.exp(log_weight)), jnp.sum(moved, axis=1))
