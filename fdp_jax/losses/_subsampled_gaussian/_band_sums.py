"""Sums over the nodes of a band's contour: each is a block for `blocked_sum`."""

import dataclasses

import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array

from ..._internal._rotation import rotation
from ._band_place import Place, Plan
from ._integrand import Integrand

BLOCK = 64
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
    """Sums of weights, and of weights times (cos - 1) and sin, at m^2 frequencies.

    These are start + (m a + b) step: two tables of m rotations give all of them.
    """

    m: int

    def __call__(
        self, index: Array, step: Integrand, aux: tuple[Plan, Array, Array]
    ) -> tuple:
        plan, start, spacing = aux
        x = _nodes(index, plan)
        weights = _weights(step, x, plan)
        value = step.loss_at(x) - plan.center
        few = jnp.arange(self.m, dtype=x.dtype)
        rows = self._table((start + self.m * spacing * few)[:, None] * value)
        columns = self._table((spacing * few)[:, None] * value)
        # One product has the sums of all products of two entries.
        weighted = (weights[:, None] * rows).reshape(-1, x.size)
        sums = jnp.matmul(weighted, columns.T, precision=Precision.HIGHEST)
        sums = sums.reshape(2, len(rows), len(columns))
        one, cos, sin = slice(0, 1), slice(1, self.m + 1), slice(self.m + 1, None)
        at = lambda row, column: sums[:, row, column]
        versines = at(cos, one) + at(one, cos) + at(cos, cos) - at(sin, sin)
        sines = at(sin, one) + at(one, sin) + at(sin, cos) + at(cos, sin)
        flat = lambda each: each.reshape(2, -1)
        return (sums[:, 0, 0], flat(versines), flat(sines)), ()

    @staticmethod
    def _table(angles: Array) -> Array:
        """1, cos - 1 and sin."""
        versine, sine = rotation(angles)
        return jnp.concatenate([jnp.ones_like(angles[:1]), versine, sine])


def _nodes(index: Array, plan: Plan) -> Array:
    place = index * BLOCK + jnp.arange(BLOCK, dtype=index.dtype)
    return plan.start + plan.spacing * place.astype(plan.start.dtype)


def _weights(step: Integrand, x: Array, plan: Plan) -> Array:
    low, between = log_weights(step, x, plan.order, plan.place)
    logs = jnp.stack([low, between + plan.lift]) - plan.peak
    return plan.spacing * jnp.exp(logs)
