"""Privacy loss of the Poisson-subsampled Gaussian mechanism, by quadrature.

P = N(0, s^2), Q = (1 - q) N(0, s^2) + q N(1, s^2), X(x) = log(1 - q + q e^u) with
u = (2 x - 1) / (2 s^2).  Everything is an integral of exp(l(x)), where
l(x) = log N(x; 0, s^2) + w X(x), over the line.  The integrands are analytic in
|Im x| < pi s^2, so the trapezoid rule converges exponentially (Trefethen & Weideman
2014, Theorem 5.1), with an error that is bounded by their size on a parallel line.
"""

import dataclasses
import functools
import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import Precision, fori_loop, optimization_barrier, stop_gradient
from jaxtyping import Array, Float, Int

from .._internal._blocked_sum import blocked_sum
from .._internal._fourier_sums import fourier_sums
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
_MAX_BLOCKS = 1024
_TRANSFORM = 4, 3000
"""Blocks of frequencies that cost as much as the nodes' part in a transform; product of
the others with the blocks of nodes from which on the transform is faster."""
_WEIGHT_ROUNDING = 512
"""Units in the last place of the weights of nodes, far more than their logarithms."""
_FEW_WIDTHS = 12
_COARSE_NODES = 256
_LINES, _LINE_NODES = 5, 64
"""Lines in the complex plane looked at closely, and nodes there."""
_SEARCH_NODES = 32
_ROUGH_NODES = 64
"""Nodes that show where an integrand lives: for a contour, for certified moments, and
for two digits of them, which they mostly give at once."""
_MOMENT_NODES = 64
_MOMENT_BLOCKS = 64
_WIDEST = 0.5
"""Spacing of the nodes of a moment, in standard deviations."""
_EXACT, _ROUGH = 40.0, 10.0
"""-log of the error of a moment's quadrature: certified, and for two digits."""
_REACH = 13.0
"""Standard deviations kept beyond the outermost modes of the tilted density."""
_ITERATIONS = 16
_GROWTH = 24.0
"""Largest growth (of a logarithm) allowed on the lines that bound the error."""
_DROP = 72.0
"""Least fall of l(x) from a mode to the end of the interval."""


@jax.jit
def _log_ratio(u: Array, q: Array) -> Array:
    """log(1 - q + q e^u) with full relative accuracy, for q in [0, 1]."""
    return _log_ratio_of(u, q)


@jax.custom_jvp
def _log_ratio_of(u: Array, q: Array) -> Array:
    change = q * jnp.expm1(jnp.minimum(u, 80))  # finite in float32 too
    small = (jnp.abs(change) < 0.5) & (u < 80)
    near = optimization_barrier(1 + change)
    # Elsewhere over e^max(u, 0), where nothing cancels or overflows.
    least = jnp.exp(-jnp.abs(u))
    far = jnp.where(u < 0, (1 - q) + q * least, (1 - q) * least + q)
    lost = jnp.where(small, change - (near - 1), 0) / jnp.where(small, near, 1)
    top = jnp.where(small, 0, jnp.maximum(u, 0))
    value = top + jnp.log(jnp.where(small, near, far)) + lost
    return jnp.where(q < 1, value, u)  # where e^u underflows


@_log_ratio_of.defjvp
def _log_ratio_jvp(primals, tangents):
    u, q = primals
    du, dq = tangents
    value = _log_ratio_of(u, q)
    # d/dq = (e^u - 1) / (1 - q + q e^u): finite at q = 0 and q = 1, where the
    # formula above is not.
    top = jnp.maximum(u, 0)
    slope = (jnp.exp(u - top) - jnp.exp(-top)) * jnp.exp(top - value)
    return value, _inclusion(u, q) * du + slope * dq


@jax.jit
def _inclusion(u: Array, q: Array) -> Array:
    """Posterior probability that the record was sampled; dX/du."""
    return q * jnp.exp(u - _log_ratio(u, q))


class _Interval(eqx.Module):
    start: Float[Array, ""]
    end: Float[Array, ""]
    mode: Float[Array, ""]
    """Largest |mode| of l(x)."""


class _Coarse(eqx.Module):
    """Densities and losses at a few nodes from end to end."""

    x: Float[Array, " n"]
    log_base: Float[Array, " n"]
    loss: Float[Array, " n"]
    spacing: Float[Array, ""]
    mode: Float[Array, ""]


class _Mesh(eqx.Module):
    """Nodes for the moments at one order."""

    order: Float[Array, ""]
    center: Float[Array, ""]
    """About the tilted mean of X."""
    peak: Float[Array, ""]
    """Log of about the largest density at a node."""
    start: Float[Array, ""]
    spacing: Float[Array, ""]
    blocks: Int[Array, ""]

    def nodes(self, index: Array) -> Float[Array, " n"]:
        offsets = jnp.arange(_MOMENT_NODES, dtype=self.start.dtype)
        return self.start + self.spacing * (index * _MOMENT_NODES + offsets)


class _Tilted(eqx.Module):
    """Integrals of e^{w X} dP at one order w, by the trapezoid rule."""

    mesh: _Mesh
    sums: Float[Array, "3"]
    """Integral over e^peak, and of X - center and its square."""

    def log(self) -> Float[Array, ""]:
        return self.mesh.peak + jnp.log(self.sums[0])

    def moments(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Mean of X - center, and variance."""
        mean, square = self.sums[1] / self.sums[0], self.sums[2] / self.sums[0]
        floor = jnp.finfo(square.dtype).eps * square
        return mean, jnp.maximum(square - jnp.square(mean), floor)


class _Location(eqx.Module):
    order: Float[Array, ""]
    interval: _Interval
    center: Float[Array, ""]
    variance: Float[Array, ""]
    """Tilted mean and variance of X."""
    peak: Float[Array, ""]
    """Maximum of l(x) on a coarse grid: the shift before exponentiating."""
    hidden: Float[Array, ""]
    """Bound on how far l(x) exceeds it between the nodes."""
    log: Float[Array, ""]
    """Log of the whole integral, from that grid."""
    edge: Float[Array, ""]
    """Sum of the densities at both ends, relative to the whole integral."""
    beyond: Float[Array, ""]
    """Bound on the integral between these ends and those of `_interval`, likewise."""
    loss_deviation: Float[Array, ""]
    loss_size: Float[Array, ""]
    """E_w|X - center| and E_w|X| + |center|, for the rounding bound."""


class _Lines(eqx.Module):
    """Bounds for the quadrature's error from lines parallel to the real one."""

    half_width: Float[Array, " k"]
    growth: Float[Array, " k"]
    """Log of the integrals' sizes on both lines, over e^Lambda."""
    rate: Float[Array, " k"]
    """The integrand at the ends grows at most like e^{rate y} with the height y ..."""
    power: Float[Array, " k"]
    """... but for this much (a logarithm)."""


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
    cheap_together: ClassVar[bool] = True

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
        # A few values; the library's functions compile sooner than `rotation`.
        versine, sine = -2 * jnp.square(jnp.sin(0.5 * angle)), jnp.sin(angle)
        p = _inclusion(self._u(place.end), self.sampling_prob)
        turn = jnp.arctan2(p * sine, 1 + p * versine)
        # On the way there (at the ends of the strip) it may have been larger.
        most = jnp.arctan2(p, jnp.sqrt(jnp.maximum(1 - 2 * p, 0)))
        turn = jnp.where((1 - p) * (1 + versine) < -p, most, turn)
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

    def _lines(
        self, located: "_Location", frequency: Array, v: Float[Array, " k"]
    ) -> "_Lines":
        """Integrals of the integrand's size along lines at distances v from the axis.

        On x + i v the integrand's logarithm is g(x) + v^2 / (2 s^2) with

            g(x) = -x^2 / (2 s^2) + w log|R(x + i v)| + tau |arg R(x + i v)|,

        where (log R)'' = 1 / (2 s^4 (1 + cosh(y + i theta))), theta = v / s^2.  That is
        at most 1 / (2 s^4 (1 + cos theta)), its imaginary part for theta <= pi / 2 at
        most sin theta times that.  Hence g exceeds the larger of its values at two
        nodes by little in between.
        """
        place, order = located.interval, located.order
        s = self.noise_multiplier
        spacing = (place.end - place.start) / _LINE_NODES
        # The nodes' own cells reach half a step beyond the start.
        cells = jnp.arange(-1, _LINE_NODES + 1, dtype=spacing.dtype)
        x = place.start + spacing * cells
        p = _inclusion(self._u(x), self.sampling_prob)
        angle = v / jnp.square(s)
        versine, sine = -2 * jnp.square(jnp.sin(0.5 * angle)), jnp.sin(angle)
        versine, sine = versine[:, None], sine[:, None]
        modulus = 0.5 * log1p(2 * p * (1 - p) * versine)
        turn = jnp.arctan2(p * sine, 1 + p * versine)
        along = self._log_integrand(x, order) + order * modulus + frequency * turn
        bent = jnp.where(versine > -1, sine, 1)[:, 0]
        bend = 0.5 * (jnp.abs(order) + frequency * bent) / (2 + versine[:, 0])
        bend = (1 + bend / jnp.square(s)) / jnp.square(s)
        hidden = 0.125 * jnp.square(spacing) * bend
        highest = jnp.maximum(along[:, 1:], along[:, :-1])
        integral = jax.nn.logsumexp(highest, axis=1) + jnp.log(spacing) + hidden
        growth = 0.6931471805599453 + 0.5 * v * angle + integral - located.log
        # At the ends: |arg R| is concave in theta for p < 1/2, and convex for others.
        ends = jnp.asarray([1, _LINE_NODES + 1])
        steepest = jnp.maximum(p[ends], turn[:, ends] / angle[:, None])
        rate = (0.5 * v[:, None] + frequency * steepest) / jnp.square(s)
        power = jnp.minimum(order, 0) * modulus[:, ends]
        return _Lines(v, growth, jnp.max(rate, axis=1), jnp.max(power, axis=1))

    def _lines_error(self, lines: "_Lines", edge: Array, spacing: Array) -> Array:
        """As `_strip_error`, for lines.

        On the vertical sides, midway between nodes, the kernel is 1 / (1 + e^t) at
        height t h / (2 pi): that falls faster than the integrand grows.
        """
        decay = 2 * jnp.pi * lines.half_width / spacing
        sides = jnp.exp(lines.growth - decay - jnp.log(-jnp.expm1(-decay)))
        rise = jnp.exp(_REACH * spacing / self.noise_multiplier)
        margin = 2 * jnp.pi / spacing - lines.rate
        height = jnp.where(margin > 0, 1 / jnp.where(margin > 0, margin, 1), jnp.inf)
        error = sides + 2 * height * rise * edge * jnp.exp(lines.power)
        return jnp.min(jnp.where(jnp.isnan(error), jnp.inf, error))

    def _half_widths(self, count: int = 40) -> Array:
        """Of strips about the line, from all that is analytic to a millionth of it."""
        strip = 0.98 * jnp.pi * jnp.square(self.noise_multiplier)
        exponents = jnp.arange(count, dtype=strip.dtype)
        return strip * jnp.exp2(-20 / count * exponents)

    # -- the interface of the engines ----------------------------------------------

    def moments(self, order):
        # One grid shows where all of them live: modes increase with the order.
        ends = jnp.stack([jnp.min(order), jnp.max(order)])
        ends = jax.vmap(self._interval)(ends)
        place = _Interval(ends.start[0], ends.end[-1], jnp.max(ends.mode))
        grid = self._coarse(place, _SEARCH_NODES)
        return jax.vmap(self._moments, in_axes=(0, None))(order, grid)

    def _moments(self, order: Float[Array, ""], grid: "_Coarse") -> tuple:
        located = self._located(order, grid)
        place = located.interval
        found, growth, growth_size = self._tilted(located)
        direct, mesh = found.log(), found.mesh
        small = (jnp.abs(direct) < 0.5) & self._covers_base(place)
        value = jnp.where(small, log1p(jnp.where(small, growth, 0)), direct)
        # These grids are fine: any strip that is not too wide will do.
        widths, none = self._half_widths(_FEW_WIDTHS), jnp.zeros_like(order)
        scale = jnp.exp(located.log - direct)
        edge, beyond = located.edge * scale, located.beyond * scale
        error = self._strip_error(place, order, none, mesh.spacing, edge, widths)
        error = error + self._beyond_iterates() * edge + beyond
        # The growth has the error of P's own integral besides.
        error = jnp.where(small, 3 * error, error)
        error = jnp.where(error < 0.5, -log1p(-jnp.minimum(error, 0.5)), jnp.inf)
        size = 1 + jnp.abs(mesh.peak) + jnp.abs(direct)
        size = jnp.where(small, growth_size, size)
        nodes = mesh.blocks * _MOMENT_NODES
        rounding = jnp.finfo(value.dtype).eps * nodes * 4 * size
        mean, variance = found.moments()
        return value + stop_gradient(error + rounding), mesh.center + mean, variance

    def rough_moments(self, order):
        self = stop_gradient(self)
        grid = self._coarse(self._interval(order), _ROUGH_NODES)
        located = self._located(order, grid)
        mesh = self._mesh(located, 2 * _WIDEST, _ROUGH)
        # Mostly this first grid will do.
        narrow = 1.2 * self._narrowest(order)
        fine = grid.spacing <= jnp.minimum(narrow, self._widest(_ROUGH))

        def add(index: Array, sums: Array) -> Array:
            return sums + _tilted_sums(mesh.nodes(index), self, mesh)[0]

        blocks, none = jnp.where(fine, 0, mesh.blocks), jnp.zeros(3, order.dtype)
        finer = _Tilted(mesh, fori_loop(0, blocks, add, none) * mesh.spacing)
        mean, variance = finer.moments()
        return (
            jnp.where(fine, located.log, finer.log()),
            jnp.where(fine, located.center, mesh.center + mean),
            jnp.where(fine, located.variance, variance),
        )

    def _tilted(self, located: "_Location") -> tuple["_Tilted", Array, Array]:
        """The integrals of a moment; that less P's, and the sum of its terms' sizes."""
        mesh = self._mesh(stop_gradient(located), _WIDEST, _EXACT)
        args = self, located.order
        sums, _ = blocked_sum(_moment_block, mesh.blocks, args, mesh)
        sums, growth, size = (mesh.spacing * x for x in sums)
        return _Tilted(stop_gradient(mesh), sums), growth, size

    def _narrowest(self, order: Array) -> Array:
        """The least standard deviation: -l'' <= 1 / s^2 + max(-w, 0) / (4 s^4)."""
        s = self.noise_multiplier
        return s / jnp.sqrt(1 + 0.25 * jnp.maximum(-order, 0) / jnp.square(s))

    def _widest(self, log_accuracy: float) -> Array:
        """The spacing for some -log of the error, as far as the strip goes."""
        strip = 0.98 * jnp.pi * jnp.square(self.noise_multiplier)
        return 2 * jnp.pi * strip / log_accuracy

    def _mesh(
        self, located: "_Location", widest: float, log_accuracy: float
    ) -> "_Mesh":
        """Nodes over an interval, in as many blocks as its length asks for.

        Not more than `_MOMENT_BLOCKS`: the error bound speaks for what is missing then.
        """
        self = stop_gradient(self)
        place, s = located.interval, self.noise_multiplier
        spacing = jnp.minimum(widest * s, self._widest(log_accuracy))
        length = place.end - place.start
        blocks = jnp.ceil(length / (spacing * _MOMENT_NODES))
        blocks = jnp.clip(blocks, 1, _MOMENT_BLOCKS)
        mesh = _Mesh(
            order=located.order,
            center=located.center,
            peak=located.peak,
            start=place.start,
            spacing=length / (blocks * _MOMENT_NODES),
            blocks=blocks.astype(jnp.int32),
        )
        # The coarse grid's peak will do unless terms relative to it might overflow.
        near = located.hidden <= 0.3 * math.log(jnp.finfo(length.dtype).max)

        def highest(index: Array, peak: Array) -> Array:
            values = self._log_integrand(mesh.nodes(index), mesh.order)
            return jnp.maximum(peak, jnp.max(values))

        least = jnp.full_like(length, -jnp.inf)
        found = fori_loop(0, jnp.where(near, 0, mesh.blocks), highest, least)
        return dataclasses.replace(mesh, peak=jnp.where(near, mesh.peak, found))

    def _covers_base(self, place: _Interval) -> Array:
        return jnp.minimum(-place.start, place.end) >= 12 * self.noise_multiplier

    def locate(self, order):
        self = stop_gradient(self)
        grid = self._coarse(self._interval(order), _COARSE_NODES)
        return self._located(order, grid)

    def _coarse(self, place: _Interval, count: int) -> "_Coarse":
        spacing = (place.end - place.start) / count
        x = place.start + spacing * jnp.arange(count + 1, dtype=spacing.dtype)
        return _Coarse(x, self._log_base(x), self._loss(x), spacing, place.mode)

    def _located(self, order: Float[Array, ""], grid: "_Coarse") -> "_Location":
        """Where e^{w X} dP lives, from a grid that holds all of it."""
        x, spacing, loss = grid.x, grid.spacing, grid.loss
        log_weight = grid.log_base + order * loss
        count = x.size - 1
        peak = jnp.max(log_weight)
        weight = jnp.exp(log_weight - peak)
        total = jnp.sum(weight)
        center = jnp.sum(weight * loss) / total
        # An outer mode without mass need not be integrated over.  As l'' >= -1 / s^2,
        # l exceeds its values at two nodes by at most spacing^2 / (8 s^2) in between.
        # (For w < 0 there is one mode.)
        flat = 0.125 * jnp.square(spacing / self.noise_multiplier)
        kept = log_weight >= peak - _DROP - flat
        first = jnp.maximum(jnp.argmax(kept) - 1, 0)
        last = jnp.minimum(count + 1 - jnp.argmax(kept[::-1]), count)
        edge = jnp.maximum(weight[first], weight[last])
        return _Location(
            order=order,
            interval=_Interval(x[first], x[last], grid.mode),
            center=center,
            peak=peak,
            hidden=0.125 * jnp.square(spacing / self._narrowest(order)),
            log=peak + jnp.log(total * spacing),
            edge=2 * edge / (total * spacing),
            beyond=count * math.exp(-_DROP) / total,
            variance=jnp.sum(weight * jnp.square(loss - center)) / total,
            loss_deviation=jnp.sum(weight * jnp.abs(loss - center)) / total,
            loss_size=jnp.sum(weight * jnp.abs(loss)) / total + jnp.abs(center),
        )

    def _beyond_iterates(self) -> Array:
        """Bound on the integral beyond the ends over the density there.

        Beyond every iterate of `_interval` l falls at least like
        -(x - iterate)^2 / (2 s^2).
        """
        return (_ITERATIONS + 2) * 1.2533141373155 * self.noise_multiplier

    def prepare(self, located, frequency, log_tolerance):
        self = stop_gradient(self)
        order, place = located.order, located.interval
        length = place.end - place.start
        # The widest spacing that some half-width certifies: first by a bound that costs
        # little, then by the integrals along a few lines farther out.
        widths = self._half_widths()
        growth = self._strip_growth(place, order, frequency, widths)
        spacings = _widest_spacing(widths, growth, log_tolerance)
        farther = jnp.exp2(0.75 * jnp.arange(_LINES, dtype=widths.dtype))
        farther = widths[jnp.argmax(spacings)] * farther
        lines = self._lines(located, frequency, jnp.minimum(farther, widths[0]))
        finer = _widest_spacing(lines.half_width, lines.growth, log_tolerance)
        # Nothing may be gained at the ends.
        finer = jnp.minimum(
            finer, 2 * jnp.pi / (lines.rate + 1 / self.noise_multiplier)
        )
        finer = jnp.where(lines.power <= _GROWTH, finer, 0)
        spacing = jnp.maximum(jnp.max(spacings), jnp.max(finer))
        blocks = jnp.clip(jnp.ceil(length / (spacing * _NODES)), 1, _MAX_BLOCKS)
        spacing = length / (blocks * _NODES)
        error = self._strip_error(
            place, order, frequency, spacing, located.edge, widths
        )
        error = jnp.minimum(error, self._lines_error(lines, located.edge, spacing))
        error = error + self._beyond_iterates() * located.edge + located.beyond
        return _Plan(
            order=order,
            center=located.center,
            peak=located.peak,
            start=place.start,
            spacing=spacing,
            blocks=blocks.astype(jnp.int32),
            quadrature_error=3 * error,
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
        total, versine, sine = _characteristic_sums(count, self, plan, start, step)
        tau = start + step * jnp.arange(count, dtype=start.dtype)
        terms = plan.blocks * _NODES + 16
        unit = jnp.finfo(tau.dtype).eps
        # Each sum's terms add up to at most 3 (4) weights, and to 3 tau |X - center| of
        # them (where tau is least, 2 m - b of 2 m + b times the step).
        error = unit * terms * jnp.minimum(2.5, 2 * tau * plan.loss_deviation)
        versine, sine = versine / total, sine / total
        return self._logarithm(plan, tau, versine, sine, error)

    def pays_to_transform(self, plan, blocks):
        few, most = _TRANSFORM
        return plan.blocks * (blocks - few) > most

    def log_transformed(self, plan, step, count):
        aux = plan, step
        sums, error = fourier_sums(_points, plan.blocks, count, self, aux)
        versine, sine, total = (x[0] for x in sums)
        versine, sine = versine / total, sine / total
        tau = step * jnp.arange(count, dtype=step.dtype)
        unit = jnp.finfo(tau.dtype).eps
        # Of the weights, as in `log_characteristic`, of their sum, and of the origin.
        spread = jnp.minimum(2.5, 1.5 * tau * plan.loss_deviation)
        error = error + unit * _WEIGHT_ROUNDING * spread
        error = error + unit * (plan.blocks + _NODES) * jnp.hypot(versine, sine)
        error = error + unit * 4 * tau * jnp.abs(self._origin(plan))
        found = self._logarithm(plan, tau, versine, sine, error)
        turned = found.imag + tau * (self._origin(plan) - plan.center)
        return CharacteristicBlock(found.real, turned, found.error)

    def _origin(self, plan: "_Plan") -> Array:
        """The loss where the record takes no part, if that is where most of it is."""
        rare = self.sampling_prob < 0.5
        without = log1p(-jnp.where(rare, self.sampling_prob, 0))
        return jnp.where(rare, without, plan.center)

    def _weighted(self, x: Array, plan: "_Plan") -> tuple[Array, Array]:
        """X - center, and the tilted density up to a factor."""
        value = self._loss(x)
        weight = jnp.exp(self._log_base(x) + plan.order * value - plan.peak)
        return value - plan.center, weight

    def _derivatives(self, x: Array, plan: "_Plan") -> Array:
        """The weights times (e^u - 1) / e^X and times the inclusion's square."""
        u, q = self._u(x), self.sampling_prob
        value, top = _log_ratio(u, q), jnp.maximum(u, 0)
        log_weight = self._log_base(x) + plan.order * value - plan.peak
        # In one exponent: e^-X alone may overflow.
        lifted = jnp.exp(log_weight + top - value)
        change = jnp.exp(u - top) - jnp.exp(-top)
        kept = jnp.exp(log_weight) * jnp.square(q * jnp.exp(u - value))
        return jnp.stack([lifted * change, kept])

    def _logarithm(
        self,
        plan: "_Plan",
        tau: Array,
        versine: Array,
        sine: Array,
        error: Array,
    ) -> CharacteristicBlock:
        """From phi - 1 and a bound on the rounding of its sums."""
        # |phi|^2 - 1, without forming |phi|; and |phi|^2 where that is small.
        excess = 2 * versine + jnp.square(versine) + jnp.square(sine)
        square = jnp.square(1 + versine) + jnp.square(sine)
        close, dead = excess > -0.5, square < 1e-30
        modulus = jnp.maximum(square, 1e-30)
        near = 0.5 * log1p(jnp.where(close, excess, 0.0))
        far = 0.5 * jnp.log(jnp.where(close | dead, 1.0, square))
        real = jnp.where(close, near, far)
        angle = jnp.arctan2(jnp.where(dead, 0, sine), jnp.where(dead, 1, 1 + versine))
        unit = jnp.finfo(tau.dtype).eps
        error = error + unit * 4 * tau * plan.loss_size
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


def _widest_spacing(
    half_width: Array, growth: Array, log_tolerance: Array
) -> Float[Array, " k"]:
    """For which the error along a line is within tolerance."""
    return 2 * jnp.pi * half_width / jnp.maximum(growth - log_tolerance, 1)


def _nodes(index: Array, start: Array, spacing: Array) -> Array:
    position = index * _NODES + jnp.arange(_NODES, dtype=index.dtype)
    return start + spacing * position.astype(start.dtype)


def _moment_block(
    index: Array, args: tuple[SubsampledGaussianLoss, Array], mesh: _Mesh
) -> tuple:
    loss, order = args
    mesh = dataclasses.replace(mesh, order=order)
    sums, log_base, exponent = _tilted_sums(mesh.nodes(index), loss, mesh)
    growth, _ = _growth(log_base, exponent)
    return (sums, jnp.sum(growth), jnp.sum(jnp.abs(growth))), ()


def _tilted_sums(
    x: Array, loss: SubsampledGaussianLoss, mesh: _Mesh
) -> tuple[Array, Array, Array]:
    """Sums of e^{w X} dP, that times X - center and its square; log dP and w X."""
    log_base, value = loss._log_base(x), loss._loss(x)
    exponent = mesh.order * value
    weight = jnp.exp(log_base + exponent - mesh.peak)
    away = value - mesh.center
    rows = weight, weight * away, weight * jnp.square(away)
    # Sums first: XLA would evaluate every row for each entry of a stack.
    return jnp.stack([jnp.sum(row) for row in rows]), log_base, exponent


def _mgf_block(index: Array, loss: SubsampledGaussianLoss, plan: _Plan) -> tuple:
    x = _nodes(index, plan.start, plan.spacing)
    log_base = loss._log_base(x)
    exponent = plan.order * loss._loss(x)
    growth, lifted = _growth(log_base, exponent)
    weight = jnp.exp(log_base + exponent - plan.peak)
    size = jnp.abs(growth) * (1 + jnp.abs(log_base)) + lifted * jnp.abs(exponent)
    scale = 1 + jnp.abs(log_base) + jnp.abs(exponent)
    sizes = plan.spacing * jnp.sum(size), plan.spacing * jnp.sum(weight * scale)
    sums = jnp.sum(growth) * plan.spacing, jnp.sum(weight) * plan.spacing
    return sums, sizes


def _growth(log_base: Array, exponent: Array) -> tuple[Array, Array]:
    """e^base (e^exponent - 1) and e^(base + exponent), without overflow.

    A sum of the first that is small has no term above the cap.
    """
    base = jnp.exp(log_base)
    lifted = jnp.exp(jnp.minimum(log_base + exponent, 60))
    big = exponent > 1
    change = base * jnp.expm1(jnp.where(big, 0, exponent))
    return jnp.where(big, lifted - base, change), lifted


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _characteristic_sums(
    count: int, loss: SubsampledGaussianLoss, plan: _Plan, start: Array, step: Array
) -> tuple[Array, Array, Array]:
    """Sums of weight, weight (cos - 1) and weight sin, at `count` frequencies."""
    block = _CharacteristicBlock(math.isqrt(count), 1)
    sums, _ = blocked_sum(block, plan.blocks, loss, (plan, start, step))
    total, versine, sine = (x[0] for x in sums)
    return total, versine, sine


@_characteristic_sums.defjvp
def _characteristic_sums_jvp(count: int, primals: tuple, tangents: tuple) -> tuple:
    """With the derivatives of the integrals, on the same nodes.

    With z the complex order, R = e^X and p the inclusion,

        d E[R^z] / dq = z E[R^z (e^u - 1) / R],
        d E[R^z] / ds = -z (z - 1) / s^3 E[R^z p^2]

    (the second by parts: E[x h(x)] = s^2 E[h'(x)] under P).
    """
    loss, plan, start, step = primals
    block = _CharacteristicBlock(math.isqrt(count), 3)
    sums, _ = blocked_sum(block, plan.blocks, loss, (plan, start, step))
    total, versine, sine = sums
    tau = start + step * jnp.arange(count, dtype=start.dtype)
    w = plan.order
    # Both derivatives of the sums less those at frequency 0.
    drifting = (
        w * versine[1] - tau * sine[1],
        w * sine[1] + tau * (total[1] + versine[1]),
    )
    still, real, imag = w * (w - 1), -jnp.square(tau), tau * (2 * w - 1)
    spread = (
        still * versine[2] + real * (total[2] + versine[2]) - imag * sine[2],
        (still + real) * sine[2] + imag * (total[2] + versine[2]),
    )
    by_prob = tangents[0].sampling_prob
    by_noise = -tangents[0].noise_multiplier / loss.noise_multiplier**3
    tangent = (
        by_prob * w * total[1] + by_noise * still * total[2],
        by_prob * drifting[0] + by_noise * spread[0],
        by_prob * drifting[1] + by_noise * spread[1],
    )
    return (total[0], versine[0], sine[0]), tangent


@dataclasses.dataclass(frozen=True)
class _CharacteristicBlock:
    """Sums of weight, weight (cos - 1) and weight sin at m^2 frequencies, m even.

    These are start + (2 m a +- b) step: two short tables of rotations give all of them,
    with 1 - cos kept as such.  The same for the first `weights` of three weights: the
    tilted density, and what stands in its derivatives.
    """

    m: int
    weights: int

    def __call__(
        self,
        index: Array,
        loss: SubsampledGaussianLoss,
        aux: tuple[_Plan, Array, Array],
    ) -> tuple:
        plan, start, step = aux
        x = _nodes(index, plan.start, plan.spacing)
        value, weight = loss._weighted(x, plan)
        weight = weight[None]
        if self.weights > 1:
            weight = jnp.concatenate([weight, loss._derivatives(x, plan)])
        rows = 2 * self.m * jnp.arange(self.m // 2 + 1, dtype=x.dtype)
        rows = start + step * rows
        columns = step * jnp.arange(1, self.m + 1, dtype=x.dtype)
        row_versine, row_sine = rotation(rows[:, None] * value)
        column_versine, column_sine = rotation(columns[:, None] * value)
        weights = weight[:, None]
        row_versine, row_sine = weights * row_versine, weights * row_sine
        cosine = weights + row_versine
        center = jnp.sum(row_versine, axis=-1)[..., None]
        even = center + _pair(cosine, column_versine)
        odd = _pair(row_sine, column_sine)
        versine = self._in_order(center, even - odd, even + odd)
        center = jnp.sum(row_sine, axis=-1)[..., None]
        even = center + _pair(row_sine, column_versine)
        odd = _pair(cosine, column_sine)
        sine = self._in_order(center, even + odd, even - odd)
        return (jnp.sum(weight, axis=-1), versine, sine), ()

    def _in_order(self, center: Array, after: Array, before: Array) -> Array:
        """By frequency, from the first row's center on."""
        before = before[..., : self.m - 1]
        each = jnp.concatenate([before[..., ::-1], center, after], axis=-1)
        flat = each.reshape(*each.shape[:-2], -1)
        return flat[..., self.m - 1 :][..., : self.m**2]


def _points(
    index: Array, loss: SubsampledGaussianLoss, aux: tuple[_Plan, Array]
) -> tuple[Array, Array]:
    plan, step = aux
    value, weight = loss._weighted(_nodes(index, plan.start, plan.spacing), plan)
    turns = (value + (plan.center - loss._origin(plan))) * (step / (2 * jnp.pi))
    return turns, weight[None]


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
    return (), sums
