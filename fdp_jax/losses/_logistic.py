"""Privacy loss of logistic noise, which is also that of bounded range."""

from typing import ClassVar

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._special import log1mexp
from ._base import AbstractLoss, outward
from ._cells import Cells


class LogisticLoss(AbstractLoss):
    """P = Logistic(0, 1), Q = Logistic(mu, 1): P(X > t) = (e^{-(t+mu)/2} - e^-mu) / c.

    c = 1 - e^-mu and |t| <= mu.  If a mechanism has mu-bounded range (Durfee and Rogers
    2019), the odds of any event under Q are at most e^mu times those under P, which is
    this pair's trade-off function f(a) = (1 - a) / (1 + (e^mu - 1) a): it dominates.
    """

    mu: Float[Array, ""]

    symmetric: ClassVar[bool] = True

    def moments(self, order):
        # E_P[e^{wX}] = sinh(a mu) / (2 a sinh(mu / 2)) with a = w - 1/2.
        mu = self.mu
        a = jnp.abs(order - 0.5) * mu
        value = _log_sinhc(a) - _log_sinhc(0.5 * mu)
        near = a < 1e-2
        safe = jnp.where(near, 1.0, a)
        slope = jnp.where(near, a / 3, 1 / jnp.tanh(safe) - 1 / safe)
        curvature = 1 / jnp.square(safe) - 1 / jnp.square(
            jnp.sinh(jnp.minimum(safe, 300.0))
        )
        curvature = jnp.where(near, 1 / 3 - jnp.square(a) / 15, curvature)
        sign = jnp.sign(order - 0.5)
        return value, sign * mu * slope, jnp.square(mu) * curvature

    def cells(self, low, high):
        mu = self.mu
        low, high = (jnp.clip(x, -mu, mu) for x in (low, high))
        width = high - low
        empty = width <= 0
        share = log1mexp(0.5 * jnp.where(empty, 1, width)) - log1mexp(mu)
        log_mass = jnp.where(empty, -jnp.inf, share - 0.5 * (low + mu))
        unit = 8 * jnp.finfo(width.dtype).eps
        # The ends are rounded, and logarithms of numbers as small as the width.
        ends = (jnp.abs(low) + jnp.abs(high)) / jnp.where(empty, 1, width)
        error = unit * (4 + mu + ends - jnp.log(jnp.where(empty, 1, width)))
        return Cells(log_mass, low + 0.5 * width, stop_gradient(error))

    def loss_range(self):
        return outward(-self.mu, self.mu)


def _log_sinhc(x: Array) -> Array:
    """log(sinh(x) / x) for x >= 0."""
    small = x < 1e-4
    safe = jnp.where(small, 1.0, x)
    far = safe + log1mexp(2 * safe) - jnp.log(2 * safe)
    return jnp.where(small, jnp.square(x) / 6, far)
