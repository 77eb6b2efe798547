"""Privacy loss of a record that may displace another one, with Gaussian noise.

The pair of N(0) and (1 - q) N(0) + q N(1) for losses above zero, the exchanged one for
those below, an atom at zero for the rest: see `losses/_glued.py`.  Batches of a fixed
size have it where a record is replaced.
"""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ..._internal._arithmetic import ULP
from ..._internal._blocked_sum import blocked_sum
from ..._internal._special import log1p, log_one_plus, safe_log
from ..._internal._tolerances import DEAD_SQUARE, LINE_SUM
from ..._internal._waves import wave_sums
from .._analytic import (
    FREQUENCY_BLOCK,
    AnalyticLoss,
    CharacteristicBlock,
    every_other_of,
)
from .._glued import GluedLoss
from .._normal_form import NormalForm, NormalPair
from .._subsampled_gaussian import SubsampledGaussianLoss
from ._lines import (
    Lines,
    lines_along,
    log_line_of,
    log_real_line,
    rule_error,
    widest_spacing,
    widths,
)
from ._rule import (
    Integrand,
    Mesh,
    Place,
    Sums,
    Waves,
    mesh_of,
    omitted,
    place_of,
    sums_of,
)

_FARTHEST = 1e8
"""Mode of an integrand, about, up to which its exponents have digits."""
_EXACT = -40.0
"""Log of the relative error of a moment's quadrature."""


class Location(eqx.Module):
    """The place of an integrand, its size and lines, of which the last is real."""

    place: Place
    log: Float[Array, ""]
    """log T, from above."""
    lines: Lines


class Plan(eqx.Module):
    """A rule for all frequencies up to one."""

    order: Float[Array, ""]
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
    # Each of many frequencies takes as long as a hundred of the grid.
    most_blocks: ClassVar[int] = 128
    gaussian_precision_adds: ClassVar[bool] = True

    @property
    def decays(self) -> bool:
        return self.many

    def moments(self, order):
        return jax.vmap(lambda w: moments_at(self, w))(order)

    def rough_moments(self, order):
        return every_other_of(self.moments, order)

    def locate(self, order):
        one, order = stop_gradient((self, order))
        place = place_of(one, order)
        log, _, _ = moments_at(one, order)
        lines = lines_along(one, place, widths(one))
        return stop_gradient(Location(place, log, lines))

    def prepare(self, located, frequency, log_tolerance):
        one = stop_gradient(self)
        place, y = located.place, widths(one)
        orders = jnp.abs(jnp.stack([place.order, 1 - place.order]))
        log_line = log_line_of(one, place, located.lines, frequency)
        mesh = mesh_of(place, widest_spacing(log_line, y, log_tolerance))
        sums = sums_of(one, place.order, mesh)
        log = sums.log(mesh.peak)
        error = omitted(one, place, jnp.prod(orders + frequency))
        error = error + rule_error(log_line, y, mesh.spacing)
        # Of phi, whose denominator is off by as much; T itself by its own error.
        error = 3 * error * jnp.exp(mesh.peak - log)
        error = jnp.where(error < 0.1, error, jnp.inf)
        return stop_gradient(Plan(place.order, mesh, log, sums, error))

    def fastest_turn(self, plan):
        return 1.1 * plan.sums.spread * jnp.exp(plan.mesh.peak - plan.log)

    def center(self, plan):
        # Most of the mass has no loss at all.
        return jnp.zeros_like(plan.log)

    def log_mgf(self, plan):
        sums, peak = sums_of(self, plan.order, plan.mesh), plan.mesh.peak
        value = sums.log(peak)
        rounding = sums.rounding * jnp.exp(peak - value) + 8 * jnp.abs(value)
        return value, stop_gradient(2 * ULP * rounding + plan.quadrature_error)

    def log_characteristic(self, plan, start, step, count=FREQUENCY_BLOCK):
        block, peak = Waves(math.isqrt(count)), plan.mesh.peak
        aux = plan.order, plan.mesh, start, step
        (growth, products), _ = blocked_sum(block, plan.mesh.blocks, self, aux)
        total = jnp.exp(-peak) + growth
        _, versine, sine = wave_sums(products, block.m)
        versine, sine = versine[0] / total, sine[1] / total
        tau = start + step * jnp.arange(count, dtype=start.dtype)
        real, angle, square = log_one_plus(versine, sine)
        # Each sum has terms of at most 4 weights, and of at most 4 tau |X| times them;
        # angles are rounded as X is; the denominator counts with |phi - 1|.
        sums, scale = plan.sums, jnp.exp(peak - plan.log)
        own = jnp.minimum(4 * sums.weight, 4 * tau * sums.weighted)
        own = (own + 2 * tau * sums.turn) * scale
        own = own + (sums.rounding * scale + 4) * jnp.hypot(versine, sine)
        modulus = jnp.sqrt(jnp.maximum(square, DEAD_SQUARE))
        error = (ULP * own + plan.quadrature_error) / modulus
        error = error + 4 * ULP * jnp.hypot(real, angle)
        return CharacteristicBlock(real, angle, stop_gradient(error))

    def log_envelope(self, located, frequency):
        place, lines = located.place, located.lines
        powers = jnp.stack([place.order, 1 - place.order])[:, None, None]
        exponent = powers * lines.log_ratio - frequency * lines.turn
        sizes = jnp.exp(lines.log_base + exponent)
        change = sizes - sizes[:, -1:]
        rise, fall = (jnp.sum(jnp.maximum(x, 0), axis=-1) for x in (change, -change))
        change = (1 + LINE_SUM) * rise - (1 - LINE_SUM) * fall
        change = lines.spacing * change + jnp.exp(lines.log_outside)
        bound = jnp.sum(jnp.min(change, axis=1))
        # The sums' own roundings, of sizes that are at most a few times e^peak.
        allowance = 512 * ULP
        bound = (bound + allowance) * jnp.exp(place.peak - located.log) + allowance
        return log1p(jnp.clip(bound, -1 + allowance, 0))

    # ------------------------------------------------------------------ on the grid

    in_closed_form: ClassVar[str] = "one release"

    @classmethod
    def closed_form(cls, terms, counts, sign):
        (term,) = terms
        q, none = term.sampling_prob, jnp.zeros_like(term.sampling_prob)
        # A third center as in other pairs of replaced records, whose form is the same.
        laws = safe_log(jnp.stack([jnp.eye(3)[0], jnp.stack([1 - q, q, none])]))
        pair = NormalPair.of(term.noise_multiplier, jnp.arange(3.0), *laws)
        return NormalForm(pair, pair)

    @property
    def _glued(self) -> GluedLoss:
        """This loss by its masses alone."""
        # They are all that is asked for of its half.
        half: Any = SubsampledGaussianLoss(self.noise_multiplier, self.sampling_prob)
        return GluedLoss(half, half, symmetric=True)

    def cells(self, low, high):
        return self._glued.cells(low, high)

    def atoms(self):
        return self._glued.atoms()

    def loss_range(self):
        return self._glued.loss_range()

    def log_moment_ceiling(self, sign):
        # Quasi-convexity, of both halves.
        return 0.5 / jnp.square(self.noise_multiplier)

    def log_moment_limit(self, sign):
        return self.log_moment_ceiling(sign)

    def gaussian_precision(self):
        # The slope of f at 0 is that of the Gaussian pair, which dominates.
        return 1 / jnp.square(self.noise_multiplier)


def moments_at(
    one: SymmetrizedGaussianLoss, order: Float[Array, ""]
) -> tuple[Array, Array, Array]:
    """Lambda from above, Lambda' and Lambda'' at one order."""
    # Where exponents have no digits the rule serves another order, and is not used.
    some = jnp.abs(order) * one.half < _FARTHEST
    used = jnp.where(some, order, 1.0)
    fixed, at = stop_gradient((one, used))
    place, y = place_of(fixed, at), widths(fixed)
    log_line = log_real_line(fixed, at, place.peak)
    mesh = mesh_of(place, widest_spacing(log_line, y, _EXACT))
    sums = sums_of(one, used, mesh)
    value = sums.log(mesh.peak)
    scale = jnp.exp(mesh.peak - value)
    mean, square = sums.first * scale, sums.second * scale
    variance = jnp.maximum(square - jnp.square(mean), ULP * square)
    log_line = log_real_line(fixed, at, stop_gradient(value))
    left_out = omitted(fixed, place, jnp.abs(at * (1 - at)))
    error = (left_out + ULP * sums.rounding) * scale + 8 * ULP * jnp.abs(value)
    error = error + rule_error(log_line, y, mesh.spacing)
    error = stop_gradient(-jnp.log1p(-jnp.where(error < 0.5, error, 1)))
    # At orders that no rule resolves: that of noise alone, rounded up.
    most = jnp.maximum(order * (order - 1), 0) * one.log_moment_ceiling(1.0)
    most = most * (1 + 8 * ULP)
    some = some & (error < jnp.inf)
    return jnp.where(some, value + error, most), mean, variance
