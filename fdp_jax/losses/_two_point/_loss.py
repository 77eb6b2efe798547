"""Privacy loss of (epsilon, delta)-DP itself: two finite values and infinity."""

from typing import ClassVar

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ..._internal._divided import is_small, log_moment_ratio, psi, sinhc
from ..._internal._logs import log_cosh
from ..._internal._special import log_ndtri, safe_log
from .._analytic import FREQUENCY_BLOCK
from .._cells import Atoms, Cells
from .._closed_transform import ClosedTransformLoss, principal_logs
from .._loss_moments import LossMoments
from ._closed_form import TwoPointForm


class TwoPointLoss(ClosedTransformLoss):
    """The worst pair of an (epsilon, delta)-DP mechanism (Kairouz, Oh, Viswanath 2015).

    Y is infinite with probability delta, else epsilon or -epsilon with odds e^epsilon.
    Lambda(w) = log(1 - delta) + log cosh((w - 1/2) epsilon) - log cosh(epsilon / 2),
    over the finite losses.  Randomized response is the case delta = 0.
    """

    epsilon: Float[Array, ""]
    delta: Float[Array, ""]

    symmetric: ClassVar[bool] = True
    decays: ClassVar[bool] = False

    def _log_moment(self, order: Array) -> Array:
        tilted = log_cosh((order - 0.5) * self.epsilon)
        return self._log_finite_mass() + tilted - log_cosh(0.5 * self.epsilon)

    def moments(self, order):
        slope = jnp.tanh((order - 0.5) * self.epsilon)
        curvature = jnp.square(self.epsilon) * (1 - jnp.square(slope))
        return self._log_moment(order), self.epsilon * slope, curvature

    def log_mgf(self, plan):
        value = self._log_moment(plan.order)
        scale = 8 + (jnp.abs(plan.order) + 1) * self.epsilon
        return value, stop_gradient(4 * jnp.finfo(value.dtype).eps * scale)

    def log_characteristic(self, plan, start, step, count=FREQUENCY_BLOCK):
        tau = start + step * jnp.arange(count, dtype=start.dtype)
        angle = tau * self.epsilon
        real, slope = jnp.cos(angle), jnp.tanh((plan.order - 0.5) * self.epsilon)
        imag = slope * jnp.sin(angle)
        return principal_logs(real, imag, tau * plan.center, 1 + angle)

    def cells(self, low, high):
        inside = jnp.clip(jnp.zeros_like(low), low, high)
        return Cells(jnp.full_like(low, -jnp.inf), inside, jnp.zeros_like(low))

    def atoms(self):
        loss = jnp.stack([-self.epsilon, self.epsilon])
        # Probabilities e^eps / (1 + e^eps) and 1 / (1 + e^eps) under P.
        log_mass = -jnp.log1p(jnp.exp(-self.epsilon)) - jnp.maximum(loss, 0)
        return Atoms(loss, self._log_finite_mass() + log_mass)

    def loss_range(self):
        return -self.epsilon, self.epsilon

    def log_finite_masses(self):
        mass = self._log_finite_mass()
        return mass, mass

    def log_infinite_masses(self):
        mass = safe_log(self.delta)
        return mass, mass

    def _log_finite_mass(self) -> Array:
        return jnp.log1p(-self.delta)

    def has_closed_form(self, kinds, *, single):
        return kinds == 1

    @classmethod
    def closed_form(cls, terms, counts, sign):
        (term,), (count,) = terms, counts
        return TwoPointForm(term.epsilon, term.delta, count)

    def normalized_log_moment(self, order):
        # E_P r^w - 1 = 2 sinh(w eps / 2) sinh((w - 1) eps / 2) / cosh(eps / 2).
        epsilon = self.epsilon
        direct = log_cosh((order - 0.5) * epsilon) - log_cosh(0.5 * epsilon)
        moderate = is_small(direct)
        x, y, z = (
            jnp.where(moderate, 0.5 * w * epsilon, 0.0) for w in (order, order - 1, 1.0)
        )
        # e^-|x| sinh(x) / x = psi(-2 |x|), where the plain product would overflow.
        huge = epsilon > 500
        lift = jnp.abs(x) + jnp.abs(y) - z
        scaled = psi(-2 * jnp.abs(x)) * psi(-2 * jnp.abs(y)) * 2 * jnp.exp(lift)
        x, y, z = (jnp.where(huge, 0.0, v) for v in (x, y, z))
        ratio = jnp.where(huge, scaled, sinhc(x) * sinhc(y) / jnp.cosh(z))
        return log_moment_ratio(order, direct, 0.5 * jnp.square(epsilon) * ratio)

    def log_moment_ceiling(self, sign):
        # As of a Laplace pair: L decreases beyond 1.
        return self.normalized_log_moment(jnp.ones_like(self.epsilon))

    def gaussian_precision(self):
        mu = 2 * log_ndtri(-jnp.logaddexp(0.0, self.epsilon))
        return jnp.where(self.delta > 0, jnp.inf, jnp.square(mu))

    def cumulants(self, *, included):
        t = (1.0 if included else -1.0) * jnp.tanh(0.5 * self.epsilon)
        rest = 1 - jnp.square(t)
        shapes = t, rest, -2 * t * rest, -2 * rest * (1 - 3 * jnp.square(t))
        return jnp.stack([self.epsilon**k * x for k, x in enumerate(shapes, 1)])

    def loss_moments(self, sign):
        e = self.epsilon
        tanh = jnp.tanh(0.5 * e)
        rest = 1 - jnp.square(tanh)
        variance = jnp.square(e) * rest
        # The two places -e and e lie e (1 - tanh) and e (1 + tanh) from the mean.
        v3 = e**3 * 0.5 * rest * (jnp.square(1 - tanh) + jnp.square(1 + tanh))
        v4 = jnp.where(self.delta > 0, jnp.inf, e**3)
        return LossMoments(e * tanh, jnp.square(e), v3, v4, variance)
