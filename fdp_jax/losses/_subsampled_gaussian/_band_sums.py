"""Sums over the nodes of a band's contour: each is a block for `blocked_sum`."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array

from ..._internal._waves import wave_products
from ._band_place import Place, Plan
from ._integrand import Integrand

BLOCK = 256
"""Nodes evaluated together."""


def log_weights(
    step: Integrand, x: Array, order: Array, place: Place
) -> tuple[Array, Array]:
    """Logs of the tilted densities below the lower cut, and between both."""
    whole = step.log_integrand(x, order)
    low, between = place.log_cut(x)
    return whole + low, whole + between


def mass_block(index: Array, step: Integrand, plan: Plan) -> tuple:
    """Both integrals, up to a factor."""
    return jnp.sum(_weights(step, _nodes(index, plan), plan), axis=1), ()


@dataclasses.dataclass(frozen=True)
class WaveBlock:
    """Inputs of `wave_sums` from both integrals, for m^2 frequencies, m even."""

    m: int

    def __call__(
        self, index: Array, step: Integrand, aux: tuple[Plan, Array, Array]
    ) -> tuple:
        plan, start, spacing = aux
        x = _nodes(index, plan)
        value = step.loss_at(x) - plan.center
        weights = _weights(step, x, plan)
        return wave_products(weights, value, start, spacing, self.m), ()


def _nodes(index: Array, plan: Plan) -> Array:
    place = index * BLOCK + jnp.arange(BLOCK, dtype=index.dtype)
    return plan.start + plan.spacing * place.astype(plan.start.dtype)


def _weights(step: Integrand, x: Array, plan: Plan) -> Array:
    low, between = log_weights(step, x, plan.order, plan.place)
    logs = jnp.stack([low, between + plan.lift]) - plan.peak
    return plan.spacing * jnp.exp(logs)
