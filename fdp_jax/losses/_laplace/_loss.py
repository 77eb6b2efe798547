"""Privacy loss of the Laplace mechanism: bounded, with a point mass at each end."""

from typing import ClassVar

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ..._internal._arithmetic import ULP
from ..._internal._divided import exp_divided, is_small, log_moment_ratio, psi
from ..._internal._logs import LOG_2
from ..._internal._quadrature import on_intervals
from ..._internal._special import log_ndtri
from .._base import outward
from .._cells import Atoms, Cells, exponential_cells
from .._closed_transform import (
    ClosedTransformLoss,
    hyperbolic,
    principal_logs,
    turned_hyperbolic,
)
from .._loss_moments import excess, moments_of, panels
from ._closed_form import LaplaceForm


class LaplaceLoss(ClosedTransformLoss):
    """P and Q Laplace of scale b, one apart; mu = 1 / b bounds the loss.

    With a = w - 1/2: Lambda(w) = -mu/2 + log(cosh(a mu) + sinh(a mu) / (2 a)).
    """

    noise_multiplier: Float[Array, ""]

    symmetric: ClassVar[bool] = True
    decays: ClassVar[bool] = False

    def _log_moment(self, order: Array) -> Array:
        mu = 1 / self.noise_multiplier
        a = order - 0.5
        cosh, sinh = hyperbolic(a, mu)
        return (jnp.abs(a) - 0.5) * mu + jnp.log(cosh + 0.5 * sinh)

    def moments(self, order):
        mu = 1 / self.noise_multiplier
        a = jnp.abs(order - 0.5)
        cosh, sinh = hyperbolic(a, mu)
        # Derivatives in a of M = cosh(a mu) + sinh(a mu) / (2 a), both scaled.
        near = a * mu < 1e-3
        safe = jnp.where(near, 1, a)
        first = jnp.where(near, a * mu**3 / 3, (mu * cosh - sinh) / safe)
        second = jnp.where(
            near, mu**3 / 3, mu**2 * sinh - 2 * (mu * cosh - sinh) / safe**2
        )
        total = cosh + 0.5 * sinh
        slope = (mu * a * sinh + 0.5 * first) / total
        curvature = (mu**2 * cosh + 0.5 * second) / total - jnp.square(slope)
        sign = jnp.sign(order - 0.5)
        return self._log_moment(order), sign * slope, jnp.maximum(curvature, 0)

    def log_mgf(self, plan):
        value = self._log_moment(plan.order)
        scale = 8 + (jnp.abs(plan.order) + 1) / self.noise_multiplier
        return value, stop_gradient(4 * ULP * scale)

    def log_transform(self, plan, tau):
        mu = 1 / self.noise_multiplier
        a = plan.order - 0.5
        cosh, sinh = turned_hyperbolic(a, mu, tau)
        base_cosh, base_sinh = hyperbolic(a, mu)
        base = base_cosh + 0.5 * base_sinh
        real, imag = ((x + 0.5 * y) / base for x, y in zip(cosh, sinh, strict=True))
        return principal_logs(real, imag, tau * plan.center, 1 + tau * mu)

    def log_envelope(self, located, frequency):
        # The atoms do not decay; the density's part does, as 1 / (2 tau).
        mu = 1 / self.noise_multiplier
        cosh, sinh = hyperbolic(located.order - 0.5, mu)
        bound = cosh * (1 + 0.5 / frequency) / (cosh + 0.5 * sinh)
        return jnp.minimum(jnp.log(bound), 0)

    def cells(self, low, high):
        # X = 2 x - mu for x in (0, mu), where P has density e^-x / 2.
        mu = 1 / self.noise_multiplier
        # An end up to rounding is the end: it moves with mu, as its derivative says.
        near = 1e-12 * mu
        moved = sum(
            jnp.where((jnp.abs(x) > mu - near) & (jnp.abs(x) < mu), near, 0)
            for x in (low, high)
        )
        low, high = (
            jnp.where(x >= mu - near, mu, jnp.where(x <= near - mu, -mu, x))
            for x in (low, high)
        )
        found = exponential_cells(low, high, mu)
        width = high - low
        ends = stop_gradient(2 * moved / jnp.where(width > 0, width, 1))
        return Cells(found.log_mass - LOG_2, found.loss, found.error + ends)

    def atoms(self):
        mu = 1 / self.noise_multiplier
        log_half = jnp.full_like(mu, -LOG_2)
        return Atoms(jnp.stack([-mu, mu]), jnp.stack([log_half, log_half - mu]))

    def lattice(self):
        return 1 / self.noise_multiplier

    def twice_total_variation(self):
        # 2 AUC - 1, with the area under the three pieces of f.
        mu = 1 / self.noise_multiplier
        return -jnp.expm1(-mu) - 0.5 * mu * jnp.exp(-mu)

    def loss_range(self):
        mu = 1 / self.noise_multiplier
        # One over a power of two is exact.
        whole = jnp.frexp(stop_gradient(self.noise_multiplier))[0] == 0.5
        least, most = outward(-mu, mu)
        return jnp.where(whole, -mu, least), jnp.where(whole, mu, most)

    in_closed_form: ClassVar[str] = "one release"

    @classmethod
    def closed_form(cls, terms, counts, sign):
        (term,) = terms
        return LaplaceForm(1 / term.noise_multiplier)

    def normalized_log_moment(self, order):
        # E_P r^w - 1 = w (w - 1) mu^2 exp[0, (w - 1) mu, -w mu], and the same in logs.
        mu = 1 / self.noise_multiplier
        a = jnp.abs(order - 0.5)
        decay = -2 * a * mu
        direct = jnp.log(0.5 * (1 + jnp.exp(decay)) + 0.5 * mu * psi(decay))
        direct = direct + (a - 0.5) * mu
        moderate = is_small(direct)
        x, y = (jnp.where(moderate, z * mu, 0.0) for z in (order - 1, -order))
        excess = jnp.square(mu) * exp_divided(x, y)
        return log_moment_ratio(order, direct, excess)

    def log_moment_ceiling(self, sign):
        # E_P r^w is an entire function of (w - 1/2)^2 with negative zeros only, so its
        # logarithm is concave there and its divided differences L decrease beyond 1.
        return self.normalized_log_moment(jnp.ones_like(self.noise_multiplier))

    def gaussian_precision(self):
        half = -0.5 / self.noise_multiplier - LOG_2
        return jnp.square(2 * log_ndtri(half))

    def cumulants(self, *, included):
        # Under Q the loss is minus what it is under P.
        side = 1.0 if included else -1.0
        odd = jnp.asarray([-side, 1.0, -side, 1.0])
        return odd * self._cumulants()

    def _cumulants(self) -> Float[Array, " 4"]:
        """Under P: atoms at -mu and mu, and 2 x - mu with density e^-x / 2 between."""
        mu = 1 / self.noise_multiplier
        values, masses = self._law(*on_intervals(0 * mu, jnp.minimum(mu, 40.0), 48))
        mean = values @ masses
        second, third, fourth = (((values - mean) ** k) @ masses for k in (2, 3, 4))
        return jnp.stack([mean, second, third, fourth - 3 * jnp.square(second)])

    def loss_moments(self, sign):
        mu = 1 / self.noise_multiplier
        v1 = excess(-mu)
        # X = 2 x - mu for noise x in [0, mu], with kinks of |X| and |X + v1| inside.
        cuts = jnp.stack([0 * mu, 0.5 * (mu - v1), 0.5 * mu, mu])
        return moments_of(*self._law(*panels(cuts)), v1)

    def _law(self, x: Array, weights: Array) -> tuple[Array, Array]:
        """Losses and their masses under P, by a rule for the noise from 0 to mu."""
        mu = 1 / self.noise_multiplier
        values = jnp.concatenate([jnp.stack([-mu, mu]), 2 * x - mu])
        ends = jnp.stack([jnp.ones_like(mu), jnp.exp(-mu)])
        return values, 0.5 * jnp.concatenate([ends, weights * jnp.exp(-x)])
