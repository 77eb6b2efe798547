"""Privacy loss of a record that may displace another one, with Gaussian noise.

The pair of N(0) and (1 - q) N(0) + q N(1) for losses above zero, the exchanged one for
those below, an atom at zero for the rest: see `losses/_glued.py`.  Batches of a fixed
size have it where a record is replaced.

What everything is an integral of is in `_integrand.py`, where that is in `_place.py`,
the error of the trapezoid rule in `_strips.py`, real orders in `_moments.py`, sums
along a contour in `_sums.py`, and their decay in `_envelope.py`.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ..._internal._special import log_one_plus
from ..._internal._tolerances import DEAD_SQUARE
from .._analytic import FREQUENCY_BLOCK, AnalyticLoss, CharacteristicBlock
from .._glued import ExchangedLoss, GluedLoss
from .._subsampled_gaussian import SubsampledGaussianLoss
from . import _moments
from ._envelope import log_envelope
from ._integrand import Integrand
from ._moments import mesh_of
from ._place import locate, omitted
from ._strips import complex_lines, rule_error, widest_spacing
from ._sums import Mesh, Sums, characteristic_sums, log_total, sums_of

_MAX_BLOCKS = 256


class _Plan(eqx.Module):
    mesh: Mesh
    log: Float[Array, ""]
    """log T, from the mesh."""
    sums: Sums
    quadrature_error: Float[Array, ""]
    """Bound on |error of T(z)| / T(order), for |Im z| <= frequency."""


class SymmetrizedGaussianLoss(Integrand, AnalyticLoss):
    """See the module's docstring.  `sampling_prob` is in (0, 1]."""

    many: bool = eqx.field(static=True, default=True)
    """Whether steps may be so many that their characteristic function decays: that of
    one is not below the atom's mass.  The grid answers first where it is not set."""

    symmetric: ClassVar[bool] = True

    @property
    def decays(self) -> bool:
        return self.many

    def moments(self, order):
        return _moments.moments(self, order)

    def rough_moments(self, order):
        return _moments.rough_moments(self, order)

    def locate(self, order):
        return locate(self, order)

    def prepare(self, located, frequency, log_tolerance):
        self = stop_gradient(self)
        order = located.order
        size = (jnp.abs(order) + frequency) * (jnp.abs(1 - order) + frequency)
        log_line, y = complex_lines(self, located, frequency)
        spacing = widest_spacing(log_line, y, log_tolerance)
        mesh = mesh_of(self, located, size, log_tolerance - 3, spacing, _MAX_BLOCKS)
        sums = sums_of(self, mesh)
        log = log_total(sums.growth, mesh.peak)
        error = rule_error(log_line, y, mesh.spacing)
        error = error + omitted(self, located, size, mesh.start)
        # Of phi, whose denominator is off by as much; T itself by its own error.
        error = 3 * error * jnp.exp(located.log - log)
        error = jnp.where(error < 0.1, error, jnp.inf)
        return stop_gradient(_Plan(mesh, log, sums, error))

    def fastest_turn(self, plan):
        return 1.1 * plan.sums.spread * jnp.exp(plan.mesh.peak - plan.log)

    def center(self, plan):
        # Most of the mass has no loss at all.
        return jnp.zeros_like(plan.log)

    def relative_error(self, plan):
        return plan.quadrature_error

    def log_mgf(self, plan):
        sums = sums_of(self, plan.mesh)
        value = log_total(sums.growth, plan.mesh.peak)
        unit = jnp.finfo(value.dtype).eps
        rounding = sums.rounding * jnp.exp(plan.mesh.peak - value) + 8 * jnp.abs(value)
        return value, stop_gradient(2 * unit * rounding + plan.quadrature_error)

    def log_characteristic(self, plan, start, step, count=FREQUENCY_BLOCK):
        growth, versine, sine = characteristic_sums(count, self, plan.mesh, start, step)
        total = jnp.exp(-plan.mesh.peak) + growth
        versine, sine = versine / total, sine / total
        tau = start + step * jnp.arange(count, dtype=start.dtype)
        error = self._rounding(plan, tau, jnp.hypot(versine, sine))
        return _logarithm(versine, sine, error, plan.quadrature_error)

    def _rounding(self, plan: _Plan, tau: Array, away: Array) -> Array:
        """Rounding of phi - 1, each of whose sums has terms of at most 4 weights.

        And of at most 4 tau |X| times them; angles are rounded as X is; the denominator
        counts with |phi - 1|.
        """
        sums = plan.sums
        unit = jnp.finfo(tau.dtype).eps
        own = jnp.minimum(4 * sums.weight, 4 * tau * sums.weighted)
        own = (own + 2 * tau * sums.turn) * jnp.exp(plan.mesh.peak - plan.log)
        base = sums.rounding * jnp.exp(plan.mesh.peak - plan.log) + 4
        return stop_gradient(unit * (own + base * away))

    def log_envelope(self, located, frequency):
        return log_envelope(stop_gradient(self), located, frequency)

    # ------------------------------------------------------------------ on the grid

    @property
    def _glued(self) -> GluedLoss:
        """This loss by its masses alone."""
        # They are all that is asked for of its half.
        half: Any = SubsampledGaussianLoss(self.noise_multiplier, self.sampling_prob)
        return GluedLoss(half, ExchangedLoss(half), symmetric=True)

    def cells(self, low, high):
        return self._glued.cells(low, high)

    def atoms(self):
        return self._glued.atoms()

    def lattice(self):
        return None

    def loss_range(self):
        return self._glued.loss_range()

    def log_moment_ceiling(self, sign):
        # Quasi-convexity, of both halves.
        return 0.5 / jnp.square(self.noise_multiplier)

    def log_moment_limit(self, sign):
        return self.log_moment_ceiling(sign)

    gaussian_precision_adds: ClassVar[bool] = True

    def gaussian_precision(self):
        # The slope of f at 0 is that of the Gaussian pair, which dominates.
        return 1 / jnp.square(self.noise_multiplier)


def _logarithm(
    versine: Array, sine: Array, error: Array, quadrature_error: Array
) -> CharacteristicBlock:
    """From phi - 1 and bounds on its errors, as of the subsampled Gaussian."""
    real, angle, square = log_one_plus(versine, sine)
    unit = jnp.finfo(real.dtype).eps
    modulus = jnp.sqrt(jnp.maximum(square, DEAD_SQUARE))
    error = (error + quadrature_error) / modulus + 4 * unit * jnp.hypot(real, angle)
    return CharacteristicBlock(real, angle, stop_gradient(error))
