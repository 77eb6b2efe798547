"""Privacy loss of logistic noise, which is also that of bounded range.

With c = 1 - e^-mu and h = e^{-(mu - eps) / 2}, the profile of one release is

    delta(eps) = (1 - h)^2 / c,    1 - delta(eps) = h ((1 - h) + (1 - h e^-eps)) / c

for |eps| <= mu (Dong, Durfee and Rogers 2020).
"""

from typing import ClassVar

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._arithmetic import ULP
from .._internal._logs import log_add
from .._internal._special import log1mexp
from ._base import outward
from ._cells import Cells, exponential_cells
from ._closed_form import AbstractClosedForm, settled
from ._closed_transform import (
    ClosedTransformLoss,
    hyperbolic,
    principal_logs,
    turned_hyperbolic,
)


class LogisticLoss(ClosedTransformLoss):
    """P = Logistic(0, 1), Q = Logistic(mu, 1): P(X > t) = (e^{-(t+mu)/2} - e^-mu) / c.

    c = 1 - e^-mu and |t| <= mu.  If a mechanism has mu-bounded range (Durfee and Rogers
    2019), the odds of any event under Q are at most e^mu times those under P, which is
    this pair's trade-off function f(a) = (1 - a) / (1 + (e^mu - 1) a): it dominates.
    """

    mu: Float[Array, ""]

    symmetric: ClassVar[bool] = True
    # Like 1 / tau: too slowly alone, where the grid answers first.
    decays: ClassVar[bool] = False

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

    def log_mgf(self, plan):
        value, _, _ = self.moments(plan.order)
        scale = 8 + (jnp.abs(plan.order) + 1) * self.mu
        return value, stop_gradient(4 * ULP * scale)

    def log_transform(self, plan, tau):
        a, mu = plan.order - 0.5, self.mu
        _, turned = turned_hyperbolic(a, mu, tau)
        _, base = hyperbolic(a, mu)
        real, imag = (x / base for x in turned)
        return principal_logs(real, imag, tau * plan.center, 2 + tau * mu)

    def log_envelope(self, located, frequency):
        # |sinh(v mu)| is at most cosh(a mu), and |v| at least tau.
        a = located.order - 0.5
        cosh, sinh = hyperbolic(a, self.mu)
        return jnp.minimum(jnp.log(cosh / (sinh * jnp.hypot(a, frequency))), 0)

    def cells(self, low, high):
        found = exponential_cells(low, high, self.mu)
        return Cells(found.log_mass - log1mexp(self.mu), found.loss, found.error)

    def loss_range(self):
        return outward(-self.mu, self.mu)

    in_closed_form: ClassVar[str] = "one release"

    @classmethod
    def closed_form(cls, terms, counts, sign):
        return LogisticForm(terms[0].mu)


class LogisticForm(AbstractClosedForm):
    """One release with logistic noise, for mu in [0, inf) and every eps."""

    mu: Float[Array, ""]

    def logs(self, epsilon):
        inside = (epsilon >= -self.mu) & (epsilon < self.mu)
        mu = jnp.where(inside, self.mu, 1.0)
        left = 0.5 * (mu - jnp.where(inside, epsilon, 0.0))
        log_gap, log_other, whole = log1mexp(left), log1mexp(mu - left), log1mexp(mu)
        log_delta = 2 * log_gap - whole
        log_rest = log_add(log_gap, log_other) - left - whole
        log_alpha = left + log_gap - mu - whole
        found = log_delta, log_rest, log_alpha
        return settled(inside, found, epsilon, epsilon < -self.mu)

    def epsilon(self, log_delta):
        some = self.mu > 0
        whole = log1mexp(jnp.where(some, self.mu, 1.0))
        inside = some & (log_delta <= whole)
        root = 0.5 * (jnp.where(inside, log_delta, 0.0) + whole)
        value = self.mu + 2 * log1mexp(-root)
        return jnp.where(inside, value, log1mexp(-jnp.where(inside, -1.0, log_delta)))

    def log_rates(self, log_alpha, log_tnr):
        odds = self.mu + log_alpha
        total = log_add(log_tnr, odds)
        return log_tnr - total, odds - total

    def loss_error(self, epsilon):
        # Delta falls to zero at mu.
        return self._rounding(epsilon, self.mu)


def _log_sinhc(x: Array) -> Array:
    """log(sinh(x) / x) for x >= 0."""
    small = x < 1e-4
    safe = jnp.where(small, 1.0, x)
    far = safe + log1mexp(2 * safe) - jnp.log(2 * safe)
    return jnp.where(small, jnp.square(x) / 6, far)
