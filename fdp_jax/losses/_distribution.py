"""A privacy loss given by its own distribution functions."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float, PyTree

from .._internal._arithmetic import ULP
from .._internal._special import log1mexp
from ._cells import Cells
from ._mass import MassLoss


class DistributionLoss(MassLoss):
    """X under P and Y under Q by log P(X <= t), log P(X > t), and the same of Y.

    A difference is taken in the tail that does not cancel.
    """

    log_cdf_p: Callable[[Array, PyTree], Array] = eqx.field(static=True)
    log_sf_p: Callable[[Array, PyTree], Array] = eqx.field(static=True)
    log_cdf_q: Callable[[Array, PyTree], Array] = eqx.field(static=True)
    log_sf_q: Callable[[Array, PyTree], Array] = eqx.field(static=True)
    parameters: PyTree
    low: Float[Array, ""]
    high: Float[Array, ""]
    symmetric: bool = eqx.field(static=True, default=False)

    def cells(self, low, high):
        low, high = (jnp.clip(x, self.low, self.high) for x in (low, high))
        log_p, error = self._log_mass(self.log_cdf_p, self.log_sf_p, low, high)
        log_q, other = self._log_mass(self.log_cdf_q, self.log_sf_q, low, high)
        empty = jnp.isneginf(log_p) | jnp.isneginf(log_q)
        ratio = jnp.where(empty, 0, log_q) - jnp.where(empty, 0, log_p)
        # The mean likelihood ratio of an interval lies in it.
        inside = jnp.clip(ratio, low, high)
        log_mass = jnp.where(empty, -jnp.inf, log_p)
        return Cells(log_mass, inside, jnp.maximum(error, other))

    def _log_mass(
        self, log_cdf: Callable, log_sf: Callable, low: Array, high: Array
    ) -> tuple[Array, Array]:
        upper = log_cdf(low, self.parameters) > log_sf(low, self.parameters)
        more = jnp.where(
            upper, log_sf(low, self.parameters), log_cdf(high, self.parameters)
        )
        less = jnp.where(
            upper, log_sf(high, self.parameters), log_cdf(low, self.parameters)
        )
        gap = more - jnp.where(jnp.isneginf(less), -1e5, less)
        empty = (low >= high) | ~(gap > 0) | jnp.isneginf(more)
        value = jnp.where(empty, 0, more) + log1mexp(jnp.where(empty, 1, gap))
        scale = jnp.expm1(jnp.minimum(jnp.where(empty, 1, gap), 700))
        error = 16 * ULP * (1 + jnp.abs(jnp.where(empty, 0, more))) * (1 + 1 / scale)
        error = jnp.where(empty, 0, stop_gradient(error))
        return jnp.where(empty, -jnp.inf, value), error

    def loss_range(self):
        return self.low, self.high
