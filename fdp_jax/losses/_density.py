"""Privacy loss of two densities on a line."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PyTree

from .._internal._arithmetic import ULP
from .._internal._quadrature import unit_rule
from ._cells import Cells
from ._monotone import MonotoneLoss

_NODES = 4097
_PANELS = 64
"""Number of panels, for intervals that are few and may be long."""
_FEW = 2
_FINE, _COARSE = 10, 7
"""Orders of the rule and of the one that its error is estimated with."""


class DensityLoss(MonotoneLoss):
    """P and Q by their log-densities; the likelihood ratio must increase.

    Masses are Gauss-Legendre sums; their error is estimated with a second rule of lower
    order, not proved.
    """

    log_p: Callable[[Array, PyTree], Array] = eqx.field(static=True)
    """Log-density of P at outputs, given the parameters."""
    log_q: Callable[[Array, PyTree], Array] = eqx.field(static=True)
    parameters: PyTree
    low: Float[Array, ""]
    high: Float[Array, ""]
    log_beyond: Float[Array, ""]
    """Log of a bound on the mass outside (low, high), under P and under Q."""
    symmetric: bool = eqx.field(static=True, default=False)

    def outputs(self):
        share = jnp.linspace(0.0, 1.0, _NODES, dtype=self.low.dtype)
        return self.low + share * (self.high - self.low)

    def loss_at(self, x):
        return self.log_q(x, self.parameters) - self.log_p(x, self.parameters)

    def masses(self, low, high):
        panels = _PANELS if low.size <= _FEW else 1
        share = jnp.arange(panels + 1, dtype=low.dtype) / panels
        ends = low[:, None] + share * (high - low)[:, None]
        fine, coarse = (
            self._log_masses(ends[:, :-1], ends[:, 1:], order)
            for order in (_FINE, _COARSE)
        )
        empty = low >= high
        log_p, log_q = (jnp.where(empty, 0, x) for x in fine)
        errors = [jnp.abs(a - b) for a, b in zip(fine, coarse, strict=True)]
        rounded = 64 * ULP * (1 + jnp.abs(log_p))
        error = jnp.where(empty, 0, jnp.maximum(*errors) + rounded)
        log_mass = jnp.where(empty, -jnp.inf, log_p)
        return Cells(log_mass, log_q - log_p, stop_gradient(error))

    def _log_masses(self, low: Array, high: Array, order: int) -> tuple[Array, Array]:
        """Log masses of P and Q, summed over the last axis of panels."""
        nodes, weights = unit_rule(order)
        width = high - low
        x = low[..., None] + width[..., None] * nodes
        wide = width > 0
        scale = jnp.log(jnp.where(wide, width, 1))[..., None] + np.log(weights)
        logs = (
            jnp.where(wide[..., None], f(x, self.parameters) + scale, -1e5)
            for f in (self.log_p, self.log_q)
        )
        log_p, log_q = (logsumexp(x, axis=(-2, -1)) for x in logs)
        return log_p, log_q

    def log_infinite_masses(self):
        return self.log_beyond, self.log_beyond

    def log_truncated_masses(self):
        return self.log_infinite_masses()
