"""Privacy loss of the Poisson-subsampled Gaussian mechanism, by quadrature.

P = N(0, s^2), Q = (1 - q) N(0, s^2) + q N(1, s^2), X(x) = log(1 - q + q e^u) with
u = (2 x - 1) / (2 s^2).  Everything is an integral of exp(l(x)), where
l(x) = log N(x; 0, s^2) + w X(x), over the line.  The integrands are analytic in
|Im x| < pi s^2, so the trapezoid rule converges exponentially (Trefethen & Weideman
2014, Theorem 5.1), with an error that is bounded by their size on a parallel line.
"""

import dataclasses
import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import Precision, fori_loop, stop_gradient
from jaxtyping import Array, Float, Int

from .._internal._blocked_sum import blocked_sum
from .._internal._rotation import rotation
from .._internal._special import log1p
from ._base import (
    FREQUENCY_BLOCK,
    AnalyticLoss,
    CharacteristicBlock,
)
from ._gaussian import normal_cells

_NODES = 64
"""Quadrature nodes evaluated together."""
_MAX_BLOCKS = 128
_FEW_WIDTHS = 12
_COARSE_NODES = 256
_ROUGH_NODES = 96
_REACH = 13.0
"""Standard deviations kept beyond the outermost modes of the tilted density."""
_ITERATIONS = 16
_GROWTH = 24.0
"""Largest growth (of a logarithm) allowed on the lines that bound the error."""
_DROP = 72.0
"""Least fall of l(x) from a mode to the end of the interval."""


@jax.custom_jvp
def _log_ratio(u: Array, q: Array) -> Array:
    """log(1 - q + q e^u) with full relative accuracy, for q in [0, 1]."""
    change = q * jnp.expm1(jnp.minimum(u, 80))  # finite in float32 too
    small = jnp.abs(change) < 0.5
    near = log1p(jnp.where(small, change, 0))
    top = jnp.maximum(u, 0)
    far = top + jnp.log((1 - q) * jnp.exp(-top) + q * jnp.exp(u - top))
    far = jnp.where(q < 1, far, u)  # where e^u underflows
    return jnp.where(small & (u < 80), near, far)


@_log_ratio.defjvp
def _log_ratio_jvp(primals, tangents):
    u, q = primals
    du, dq = tangents
    value = _log_ratio(u, q)
    # d/dq = (e^u - 1) / (1 - q + q e^u): finite at q = 0 and q = 1, where the
    # formula above is not.
    top = jnp.maximum(u, 0)
    slope = (jnp.exp(u - top) - jnp.exp(-top)) * jnp.exp(top - value)
    return value, _inclusion(u, q) * du + slope * dq


def _inclusion(u: Array, q: Array) -> Array:
    """Posterior probability that the record was sampled; dX/du."""
    return q * jnp.exp(u - _log_ratio(u, q))


class _Interval(eqx.Module):
    start: Float[Array, ""]
    end: Float[Array, ""]
    mode: Float[Array, ""]
    """Largest |mode| of l(x)."""


class _Tilted(eqx.Module):
    """What a grid says of e^{w X} dP, at some orders w."""

    peak: Float[Array, " k"]
    """Log of the largest density at a node."""
    log: Float[Array, " k"]
    """Log of the integral."""
    mean: Float[Array, " k"]
    variance: Float[Array, " k"]
    edge: Float[Array, " k"]
    """Sum of the densities at both ends, relative to the whole integral."""


class _Location(eqx.Module):
    order: Float[Array, ""]
    interval: _Interval
    center: Float[Array, ""]
    """Tilted mean of X."""
    peak: Float[Array, ""]
    """Maximum of l(x) on a coarse grid: the shift before exponentiating."""
    edge: Float[Array, ""]
    """Sum of the densities at both ends, relative to the whole integral."""
    beyond: Float[Array, ""]
    """Bound on the integral between these ends and those of `_interval`, likewise."""
    loss_deviation: Float[Array, ""]
    loss_size: Float[Array, ""]
    """E_w|X - center| and E_w|X| + |center|, for the rounding bound."""


class _Plan(eqx.Module):
    order: Float[Array, ""]
    center: Float[Array, ""]
    peak: Float[Array, ""]
    start: Float[Array, ""]
    spacing: Float[Array, ""]
    blocks: Int[Array, ""]
    quadrature_error: Float[Array, ""]
    """Bound on |error of E_P[(dQ/dP)^z]| / e^Lambda(order), for |Im z| <= frequency."""
    covers_base: Array
    """Whether the interval also holds all of P."""
    loss_deviation: Float[Array, ""]
    loss_size: Float[Array, ""]


class SubsampledGaussianLoss(AnalyticLoss):
    """See the module's docstring.  `sampling_prob` is in (0, 1]."""

    noise_multiplier: Float[Array, ""]
    sampling_prob: Float[Array, ""]

    symmetric: ClassVar[bool] = False
    decays: ClassVar[bool] = True
    tabulates_rotations: ClassVar[bool] = True

    # -- the integrand -------------------------------------------------------------

    def _u(self, x: Array) -> Array:
        return (x - 0.5) / jnp.square(self.noise_multiplier)

    def _loss(self, x: Array) -> Array:
        return _log_ratio(self._u(x), self.sampling_prob)

    def _log_base(self, x: Array) -> Array:
        s = self.noise_multiplier
        half_log_two_pi = 0.9189385332046727
        return -0.5 * jnp.square(x / s) - jnp.log(s) - half_log_two_pi

    def _log_integrand(self, x: Array, order: Array) -> Array:
        return self._log_base(x) + order * self._loss(x)

    # -- where the integrand lives -------------------------------------------------

    def _interval(self, order: Array) -> "_Interval":
        """An interval outside which exp(l) is negligible, and a bound on |modes|.

        The modes solve x = w p(x), p the increasing `_inclusion`.  For w > 0 the
        iteration x <- w p(x) from w (from 0) falls (rises) to the largest (smallest)
        mode, and l is monotone beyond every iterate.  For w < 0, l is strongly
        concave and its only mode, in [w p(0), 0], is found by bisection.
        """
        s = self.noise_multiplier
        reach = _REACH * s

        def far(inner, outer):
            inner, outer = self._log_integrand(jnp.stack([inner, outer]), order)
            return inner - outer >= _DROP

        def inclusion(x):
            return _inclusion(self._u(x), self.sampling_prob)

        def step(_, carry):
            high, low, end, start, left, right = carry
            end = jnp.where(far(high, high + reach), high + reach, end)
            start = jnp.where(far(low, low - reach), low - reach, start)
            middle = 0.5 * (left + right)
            high, low, balance = order * inclusion(jnp.stack([high, low, middle]))
            above = middle > balance
            left, right = (
                jnp.where(above, left, middle),
                jnp.where(above, middle, right),
            )
            return high, low, end, start, left, right

        zero = jnp.zeros_like(order)
        positive = jnp.maximum(order, 0)
        lowest = jnp.minimum(order, 0) * inclusion(zero)
        first = (positive, zero, positive + reach, -reach + zero, lowest, zero)
        high, low, end, start, left, right = fori_loop(0, _ITERATIONS, step, first)
        down = order < 0
        mode = jnp.where(down, jnp.abs(left), jnp.maximum(jnp.abs(high), jnp.abs(low)))
        start = jnp.where(down, left - reach, start)
        end = jnp.where(down, right + reach, end)
        return _Interval(start, end, mode)

    def _strip_growth(
        self, place: "_Interval", order: Array, frequency: Array, v: Array
    ) -> Array:
        """Log of 2 max|integral over start <= Re x <= end, Im x = v| / e^Lambda.

        For half-widths v, with theta = v / s^2 and p at most its value at the end:
        the Gaussian factor grows by v theta / 2, the oscillating one by tau times the
        argument of 1 - p + p e^{i theta}, and for w < 0 the power of the likelihood
        ratio by |1 - p + p e^{i theta}|^w, or at most cos(theta)^-|E_w x|.
        """
        angle = v / jnp.square(self.noise_multiplier)
        versine, sine = rotation(angle)
        p = _inclusion(self._u(place.end), self.sampling_prob)
        turn = jnp.arctan2(p * sine, 1 + p * versine)
        worst = jnp.minimum(p, 0.5)
        modulus = 0.5 * log1p(2 * worst * (1 - worst) * versine)
        inside = versine > -0.999
        # |mean - mode| <= s, since the density is strongly log-concave for w < 0.
        mean = place.mode + self.noise_multiplier
        from_mean = -mean * log1p(jnp.where(inside, versine, 0))
        from_mean = jnp.where(inside, from_mean, jnp.inf)
        from_order = -jnp.maximum(-order, 0) * modulus
        power = jnp.where(order < 0, jnp.minimum(from_order, from_mean), 0)
        growth = 0.6931471805599453 + 0.5 * v * angle + frequency * turn + power
        # The ends of the rectangle must stay small too.
        return jnp.where(growth <= _GROWTH, growth, jnp.inf)

    def _strip_error(
        self,
        place: "_Interval",
        order: Array,
        frequency: Array,
        spacing: Array,
        edge: Array,
        v: Array,
    ) -> Array:
        """Bound on the trapezoid rule's error over e^Lambda, the best of some strips.

        By the residue theorem on the rectangle over [start, end], whose ends lie midway
        between nodes: the horizontal sides count with 1 / (e^{2 pi v / h} - 1), the
        vertical ones, where the density is `edge` e^Lambda, with at most 1.
        """
        decay = 2 * jnp.pi * v / spacing
        growth = self._strip_growth(place, order, frequency, v)
        sides = jnp.exp(growth - decay - jnp.log(-jnp.expm1(-decay)))
        # Half a step inside the end the density is larger by at most this much.
        rise = jnp.exp(_REACH * spacing / self.noise_multiplier)
        error = sides + v * rise * edge * jnp.exp(growth)
        # 0 inf, an edge below the least number on a strip that is ruled out.
        return jnp.min(jnp.where(jnp.isnan(error), jnp.inf, error))

    def _half_widths(self, count: int = 40) -> Array:
        """Of strips about the line, from all that is analytic to a millionth of it."""
        strip = 0.98 * jnp.pi * jnp.square(self.noise_multiplier)
        exponents = jnp.arange(count, dtype=strip.dtype)
        return strip * jnp.exp2(-20 / count * exponents)

    # -- the interface of the engines ----------------------------------------------

    def moments(self, order):
        # One grid for all orders: the loss costs more than its tilting, and modes
        # increase with the order.
        ends = jnp.stack([jnp.min(order), jnp.max(order)])
        ends = jax.vmap(self._interval)(order if order.size == 1 else ends)
        place = _Interval(ends.start[0], ends.end[-1], ends.mode[0])
        grid = self._coarse(place, _COARSE_NODES * (1 if order.size == 1 else 2))
        found = self._tilted(grid, order)
        log_base, loss, spacing = grid
        growth, _ = _growth(log_base, order[:, None] * loss)
        small = (jnp.abs(found.log) < 0.5) & self._covers_base(place)
        growth = jnp.where(small[:, None], growth, 0) * spacing
        value = jnp.where(small, log1p(jnp.sum(growth, axis=1)), found.log)
        none = jnp.zeros_like(spacing)
        # These grids are fine: any strip that is not too wide will do.
        widths = self._half_widths(_FEW_WIDTHS)
        error = jax.vmap(
            lambda w, edge: self._strip_error(place, w, none, spacing, edge, widths)
        )(order, found.edge)
        rounding = jnp.finfo(value.dtype).eps * loss.size * 4
        size = jnp.sum(jnp.abs(growth), axis=1)
        size = jnp.where(small, size, 1 + jnp.abs(found.peak))
        upper = value + log1p(error) + rounding * size
        return upper, found.mean, found.variance

    def rough_moments(self, order):
        place = self._interval(order)
        found = self._tilted(self._coarse(place, _ROUGH_NODES), order[None])
        return found.log[0], found.mean[0], found.variance[0]

    def _tilted(
        self, grid: tuple[Array, Array, Array], order: Float[Array, " k"]
    ) -> "_Tilted":
        """Sums over a grid, at some orders."""
        log_base, loss, spacing = grid
        log_weight = log_base + order[:, None] * loss
        peak = jnp.max(log_weight, axis=1, keepdims=True)
        weight = jnp.exp(log_weight - peak)
        away = loss - loss[0]
        powers = jnp.stack([jnp.ones_like(away), away, jnp.square(away)], axis=1)
        total, mean, square = jnp.matmul(weight, powers, precision=Precision.HIGHEST).T
        mean, square = mean / total, square / total
        peak = peak[:, 0]
        return _Tilted(
            peak=peak,
            log=peak + jnp.log(total * spacing),
            mean=loss[0] + mean,
            variance=square - jnp.square(mean),
            edge=(weight[:, 0] + weight[:, -1]) / (total * spacing),
        )

    def _covers_base(self, place: _Interval) -> Array:
        return jnp.minimum(-place.start, place.end) >= 12 * self.noise_multiplier

    def _coarse(self, place: _Interval, count: int) -> tuple[Array, Array, Array]:
        """Log base density and loss on a grid of `count` steps, and the step."""
        x, spacing = _coarse_nodes(place, count)
        return self._log_base(x), self._loss(x), spacing

    def locate(self, order):
        self = stop_gradient(self)
        place = self._interval(order)
        x, _ = _coarse_nodes(place, _COARSE_NODES)
        log_base, loss, spacing = self._coarse(place, _COARSE_NODES)
        log_weight = log_base + order * loss
        peak = jnp.max(log_weight)
        weight = jnp.exp(log_weight - peak)
        total = jnp.sum(weight)
        center = jnp.sum(weight * loss) / total
        # An outer mode without mass need not be integrated over.  As l'' >= -1 / s^2,
        # l exceeds its values at two nodes by at most spacing^2 / (8 s^2) in between.
        hidden = 0.125 * jnp.square(spacing / self.noise_multiplier)
        kept = log_weight >= peak - _DROP - hidden
        first = jnp.maximum(jnp.argmax(kept) - 1, 0)
        last = jnp.minimum(_COARSE_NODES + 1 - jnp.argmax(kept[::-1]), _COARSE_NODES)
        edge = jnp.maximum(weight[first], weight[last])
        return _Location(
            order=order,
            interval=_Interval(x[first], x[last], place.mode),
            center=center,
            peak=peak,
            edge=2 * edge / (total * spacing),
            beyond=(place.end - place.start) * math.exp(-_DROP) / (total * spacing),
            loss_deviation=jnp.sum(weight * jnp.abs(loss - center)) / total,
            loss_size=jnp.sum(weight * jnp.abs(loss)) / total + jnp.abs(center),
        )

    def prepare(self, located, frequency, log_tolerance):
        self = stop_gradient(self)
        order, place = located.order, located.interval
        length = place.end - place.start
        # The widest spacing that some half-width certifies.
        widths = self._half_widths()
        growth = self._strip_growth(place, order, frequency, widths)
        exponent = jnp.maximum(growth - log_tolerance, 1)
        spacing = jnp.max(2 * jnp.pi * widths / exponent)
        blocks = jnp.clip(jnp.ceil(length / (spacing * _NODES)), 1, _MAX_BLOCKS)
        spacing = length / (blocks * _NODES)
        error = self._strip_error(
            place, order, frequency, spacing, located.edge, widths
        )
        # Beyond every iterate l falls at least like -(x - iterate)^2 / (2 s^2).
        beyond = (_ITERATIONS + 2) * 1.2533141373155 * self.noise_multiplier
        return _Plan(
            order=order,
            center=located.center,
            peak=located.peak,
            start=place.start,
            spacing=spacing,
            blocks=blocks.astype(jnp.int32),
            quadrature_error=error + beyond * located.edge + located.beyond,
            covers_base=self._covers_base(place),
            loss_deviation=located.loss_deviation,
            loss_size=located.loss_size,
        )

    def center(self, plan):
        return plan.center

    def relative_error(self, plan):
        return plan.quadrature_error

    def log_mgf(self, plan):
        sums, sizes = blocked_sum(_mgf_block, plan.blocks, self, plan)
        growth, total = sums
        growth_size, total_size = sizes
        direct = plan.peak + jnp.log(total)
        small = plan.covers_base & (jnp.abs(direct) < 0.5)
        near = log1p(jnp.where(small, growth, 0))
        value = jnp.where(small, near, direct)
        unit = jnp.finfo(value.dtype).eps
        terms = plan.blocks * _NODES + 16
        rounding = unit * jnp.where(
            small,
            terms * growth_size,
            terms + jnp.abs(plan.peak) + 4 * total_size / total,
        )
        return value, stop_gradient(2 * rounding + plan.quadrature_error)

    def log_characteristic(self, plan, start, step, count=FREQUENCY_BLOCK):
        block = _CharacteristicBlock(math.isqrt(count))
        sums, _ = blocked_sum(block, plan.blocks, self, (plan, start, step))
        total, versine, sine = sums[0], *jnp.split(sums[1:], 2)
        versine, sine = versine / total, sine / total
        # |phi|^2 - 1, without forming |phi|.
        excess = 2 * versine + jnp.square(versine) + jnp.square(sine)
        modulus = jnp.maximum(1 + excess, 1e-30)
        dead = excess <= -1 + 1e-30
        real = 0.5 * log1p(jnp.where(dead, -0.5, excess))
        angle = jnp.arctan2(jnp.where(dead, 0, sine), jnp.where(dead, 1, 1 + versine))
        tau = start + step * jnp.arange(count, dtype=start.dtype)
        unit = jnp.finfo(start.dtype).eps
        terms = plan.blocks * _NODES + 16
        error = unit * (
            terms * jnp.minimum(2.5, 1.5 * tau * plan.loss_deviation)
            + 4 * tau * plan.loss_size
        )
        error = (error + plan.quadrature_error) / jnp.sqrt(modulus)
        error = error + 4 * unit * jnp.hypot(real, angle)
        real = jnp.where(dead, -35.0, real)
        return CharacteristicBlock(real, angle, stop_gradient(error))

    def log_envelope(self, located, frequency):
        """Bounds |phi(tau)| for all tau >= `frequency` by moving the line of x.

        On x + i v(x), 0 <= v < pi s^2, the factor e^{i tau X} has modulus
        exp(-tau arg(1 - p + p e^{i v / s^2})), which falls with tau; the other
        factors are the same for every tau.
        """
        place = located.interval
        length = place.end - place.start
        s = self.noise_multiplier
        widest = jnp.minimum(0.25 * s, 0.5 * jnp.square(s))
        blocks = jnp.clip(jnp.ceil(length / (widest * _NODES)), 1, _MAX_BLOCKS)
        aux = (located, frequency, length / (blocks * _NODES))
        count = blocks.astype(jnp.int32)
        _, (total, change) = blocked_sum(_envelope_block, count, self, aux)
        # The trapezoid rule on a smooth positive function, and rounding.
        allowance = 64 * jnp.finfo(total.dtype).eps
        bound = jnp.min(change) / total + allowance
        return log1p(jnp.clip(bound, -1 + allowance, 0))

    def cells(self, low, high):
        s, q = self.noise_multiplier, self.sampling_prob
        low, high = (self._normal(t) / s for t in (low, high))
        return normal_cells(low, high, 1 / s, lambda ratio: _log_ratio(ratio, q))

    def _normal(self, loss: Array) -> Array:
        """The x at which X is a given loss: 1/2 + s^2 log((e^t - (1 - q)) / q)."""
        s, q = self.noise_multiplier, self.sampling_prob
        large = loss > 1
        ratio = 1 + jnp.expm1(jnp.where(large, 0, loss)) / q
        reached = ratio > 0
        near = jnp.log(jnp.where(reached, ratio, 1))
        rest = log1p(-(1 - q) * jnp.exp(-jnp.where(large, loss, 1)))
        far = jnp.minimum(loss, 1e30) - jnp.log(q) + rest
        x = 0.5 + jnp.square(s) * jnp.where(large, far, near)
        return jnp.where(reached, x, -1e30)

    def loss_range(self):
        s, q = self.noise_multiplier, self.sampling_prob
        return log1p(-q) + 0 * s, jnp.full_like(s, jnp.inf)


def _coarse_nodes(place: _Interval, count: int) -> tuple[Array, Array]:
    spacing = (place.end - place.start) / count
    return place.start + spacing * jnp.arange(count + 1, dtype=spacing.dtype), spacing


def _nodes(index: Array, start: Array, spacing: Array) -> Array:
    position = index * _NODES + jnp.arange(_NODES, dtype=index.dtype)
    return start + spacing * position.astype(start.dtype)


def _mgf_block(index: Array, loss: SubsampledGaussianLoss, plan: _Plan) -> tuple:
    x = _nodes(index, plan.start, plan.spacing)
    log_base = loss._log_base(x)
    exponent = plan.order * loss._loss(x)
    growth, lifted = _growth(log_base, exponent)
    weight = jnp.exp(log_base + exponent - plan.peak)
    size = jnp.abs(growth) * (1 + jnp.abs(log_base)) + lifted * jnp.abs(exponent)
    scale = 1 + jnp.abs(log_base) + jnp.abs(exponent)
    sizes = jnp.stack([jnp.sum(size), jnp.sum(weight * scale)]) * plan.spacing
    sums = jnp.stack([jnp.sum(growth), jnp.sum(weight)]) * plan.spacing
    return sums, (sizes[0], sizes[1])


def _growth(log_base: Array, exponent: Array) -> tuple[Array, Array]:
    """e^base (e^exponent - 1) and e^(base + exponent), without overflow.

    A sum of the first that is small has no term above the cap.
    """
    base = jnp.exp(log_base)
    lifted = jnp.exp(jnp.minimum(log_base + exponent, 60))
    big = exponent > 1
    change = base * jnp.expm1(jnp.where(big, 0, exponent))
    return jnp.where(big, lifted - base, change), lifted


@dataclasses.dataclass(frozen=True)
class _CharacteristicBlock:
    """Sums of weight, weight (cos - 1) and weight sin at `side` squared frequencies.

    tau_{side a + b} = start + side a step + b step: two short tables of rotations give
    all of them, with 1 - cos kept as such.
    """

    side: int

    def __call__(
        self,
        index: Array,
        loss: SubsampledGaussianLoss,
        aux: tuple[_Plan, Array, Array],
    ) -> tuple:
        plan, start, step = aux
        x = _nodes(index, plan.start, plan.spacing)
        value = loss._loss(x)
        weight = jnp.exp(loss._log_base(x) + plan.order * value - plan.peak)
        value = value - plan.center
        columns = jnp.arange(self.side, dtype=x.dtype) * step
        row_versine, row_sine = rotation((start + self.side * columns)[:, None] * value)
        column_versine, column_sine = rotation(columns[:, None] * value)
        row_versine, row_sine = weight * row_versine, weight * row_sine
        ones = jnp.broadcast_to(weight, row_versine.shape)
        versine = (
            jnp.sum(row_versine, axis=1)[:, None]
            + _pair(ones + row_versine, column_versine)
            - _pair(row_sine, column_sine)
        )
        sine = (
            jnp.sum(row_sine, axis=1)[:, None]
            + _pair(row_sine, column_versine)
            + _pair(ones + row_versine, column_sine)
        )
        total = jnp.sum(weight)[None]
        return jnp.concatenate([total, versine.ravel(), sine.ravel()]), ()


def _pair(row: Array, column: Array) -> Array:
    return jnp.matmul(row, column.T, precision=Precision.HIGHEST)


def _envelope_block(index: Array, loss: SubsampledGaussianLoss, aux: tuple) -> tuple:
    located, frequency, spacing = aux
    order = located.order
    variance = jnp.square(loss.noise_multiplier)
    x = _nodes(index, located.interval.start, spacing)
    log_weight = loss._log_integrand(x, order) - located.peak
    p = _inclusion(loss._u(x), loss.sampling_prob)
    cap = 0.9 * jnp.pi * variance
    # The best small shift is u = tau p / (1 + (1 + max(-w, 0) p (1 - p)) / s^2); then
    # saturate, for the strip.  For w < 0 the power of the ratio grows with the shift.
    steep = jnp.maximum(-order, 0) / variance
    flat = 1 + 1 / variance
    damping = flat + steep * p * (1 - p)
    scale = frequency * jnp.asarray([[1.0], [0.5]], x.dtype)
    u = scale * p / damping
    u_slope = scale * (flat + steep * jnp.square(p)) / jnp.square(damping)
    u_slope = u_slope * p * (1 - p) / variance
    saturation = 1 + u / cap
    v, slope = u / saturation, u_slope / jnp.square(saturation)
    angle = v / variance
    versine, sine = rotation(angle)
    modulus = 0.5 * log1p(2 * p * (1 - p) * versine)
    turn = jnp.arctan2(p * sine, 1 + p * versine)
    exponent = 0.5 * v * angle + order * modulus - frequency * turn
    exponent = exponent + 0.5 * log1p(jnp.square(slope))
    change, _ = _growth(jnp.broadcast_to(log_weight, exponent.shape), exponent)
    sums = jnp.sum(jnp.exp(log_weight)), jnp.sum(change, axis=1)
    return jnp.zeros(1, x.dtype), sums
