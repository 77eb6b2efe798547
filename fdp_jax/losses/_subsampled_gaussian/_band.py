r"""Runs of a Poisson-subsampled Gaussian in which some step leaves a larger loss.

A characteristic function decays slowly where most steps leave next to no loss: rare
participations, or few steps.  What decays slowly is the part of the law in which no
step leaves more than a small loss.  With a smooth step c(x), the normal distribution
function, let

    phi_low(z)  = E_P[R^z (1 - c((x - a) / v))],
    phi_high(z) = E_P[R^z (1 - c((x - b) / v))],    R = dQ/dP,    a < b.

phi_high^N - phi_low^N is the transform of a positive measure: the runs of N steps whose
observations all are (smoothly) below b, one of them at least above a.  It decays as
soon as the transform between a and b does.  `engines/_rare.py` adds what is left out.

The step is an entire function with |c(x + i y)| <= c(x) e^{y^2 / 2}, so the trapezoid
rule converges as without it.
"""

import dataclasses
import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ..._internal._arithmetic import ULP
from ..._internal._blocked_sum import blocked_sum
from ..._internal._rotation import rotation
from ..._internal._special import (
    log1mexp,
    log_one_plus,
)
from ..._internal._tolerances import (
    BAND_QUADRATURE,
    DEAD_SQUARE,
    ENVELOPE,
    VOID,
)
from ..._internal._waves import wave_sums
from .._amplification import inclusion
from .._analytic import (
    FREQUENCY_BLOCK,
    AnalyticLoss,
    CharacteristicBlock,
    every_other_of,
)
from ._band_place import NODES, Located, Masses, OnNodes, Place, Plan
from ._band_sums import BLOCK, WaveBlock, mass_block
from ._bent_line import along_bent_line
from ._integrand import Integrand

_MOST_BLOCKS = 64
_HEIGHT = 7.0
"""Distance of the line that certifies them, in spacings."""
_HEIGHTS, _CHOOSING = 32, 16
"""How many lines there are to choose from, and by one in how many of the nodes."""
_DEAD = -700.0
"""A logarithm of what does not matter."""
_CUT_OFF = 60.0
"""-log of the density, relative to its maximum, where an integral may end."""


class BandLoss(AnalyticLoss):
    """A part of the law of N steps; see the module's docstring.

    Its masses add up to less than one.
    """

    step: Integrand
    count: Float[Array, ""]
    """N, a whole number."""
    placed: Place | None = None
    """Not needed where there is a plan."""
    table: OnNodes | None = None
    """What no order enters, if it is at hand."""

    symmetric: ClassVar[bool] = False
    decays: ClassVar[bool] = True
    together: ClassVar[int] = 576
    # Of 1,500 random runs none took more than 42 where a split was of use.
    most_blocks: ClassVar[int] = 128

    @property
    def place(self) -> Place:
        assert self.placed is not None
        return self.placed

    def trapezoid_error(self, x: Array, order: Float[Array, " k"]) -> Array:
        """Bounds on the trapezoid rule's relative error, from one line."""
        height = _HEIGHT * self.place.spacing
        each = lambda w: jnp.max(self._growth(x, w, jnp.zeros_like(w), height))
        # Of modulus and order alone, and so largest where one of those is.
        modulus, _ = self.step.turned(x, height)
        x = x[jnp.stack([jnp.argmin(modulus), jnp.argmax(modulus)])]
        # Between two nodes it may be a little larger.
        growth = 1.01 * jnp.maximum(jax.vmap(each)(order), 0)
        return stop_gradient(3 * jnp.exp(growth - 2 * jnp.pi * _HEIGHT))

    def _growth(self, x: Array, order: Array, frequency: Array, y: Array) -> Array:
        """Largest growth of the integrand's logarithm from x to x + i y."""
        angle = y / jnp.square(self.step.noise_multiplier)
        modulus, turn = self.step.turned(x, y)
        gauss = 0.5 * y * angle + 0.5 * jnp.square(y / self.place.width)
        grown = gauss + order * modulus + frequency * jnp.abs(turn)
        return jnp.where(angle < 0.95 * jnp.pi, grown, jnp.inf)

    def tabulated(self):
        return dataclasses.replace(self, table=self._on_nodes())

    def _on_nodes(self) -> OnNodes:
        if self.table is not None:
            return self.table
        x = self.place.nodes()
        log_cuts = jnp.stack(self.place.log_cut(x))
        return OnNodes(self.step.loss_at(x), self.step.log_base(x), log_cuts)

    def _totals(self, order: Float[Array, " k"]) -> tuple[Array, ...]:
        """Logs of both integrals, and means and variances of the loss in them.

        Also the size of the rounding of the logs, in units in the last place.
        """
        s = self.step.noise_multiplier
        table = self._on_nodes()
        loss, log_base = table.loss, table.log_base
        # Where a density falls at least like the noise's beyond an end.
        beyond = jnp.square(s) / jnp.abs(self.place.ends) / self.place.spacing

        logs = log_base + table.log_cuts + order[:, None, None] * loss
        peak = jnp.maximum(jnp.max(logs, axis=2, keepdims=True), -1e30)
        weights = jnp.exp(logs - peak)
        far = loss - loss[loss.size // 2]
        columns = jnp.ones_like(far), far, far * far, jnp.abs(log_base), jnp.abs(loss)
        found = jnp.moveaxis(weights @ jnp.stack(columns, axis=1), 2, 0)
        total, (mean, square, *sizes) = found[0], found[1:] / found[0]
        size = jnp.max(sizes[0] + jnp.abs(order)[:, None] * sizes[1], axis=1)
        ends = weights[..., 0] * beyond[0] + weights[..., -1] * beyond[1]
        logs = peak[..., 0] + jnp.log((total + ends) * self.place.spacing)
        variance = jnp.maximum(square - jnp.square(mean), 0.0)
        return logs, mean + loss[loss.size // 2], variance, size

    def moments(self, order):
        growth = self.trapezoid_error(self.place.nodes(), order)
        value, slope, curvature, size = self._cumulants(order)
        growth = growth + 4 * ULP * (NODES + size)
        return value + self.count * growth, slope, curvature

    def rough_moments(self, order):
        return every_other_of(self.moments, order)

    def _cumulants(self, order: Float[Array, " k"]) -> tuple[Array, ...]:
        logs, mean, variance, size = self._totals(order)
        n = self.count
        low, between = logs[:, 0], logs[:, 1]
        lift = _lift(low, between, n)
        between = between + lift
        shift, spread = mean[:, 1] - mean[:, 0], variance[:, 1] - variance[:, 0]
        share = jax.nn.sigmoid(between - low)
        # high^N - low^N = high^N (1 - e^-hit)
        hit = jnp.maximum(n * jax.nn.softplus(between - low), 1e-300)
        value = n * jnp.logaddexp(low, between) + log1mexp(hit) - lift
        rate = n * share * shift
        change = n * share * ((1 - share) * jnp.square(shift) + spread)
        odds = 1 / jnp.expm1(jnp.clip(hit, 1e-300, 700))
        slope = n * mean[:, 0] + rate + rate * odds
        curvature = n * variance[:, 0] + change + change * odds
        curvature = curvature - jnp.square(rate) * odds * (1 + odds)
        return value, slope, jnp.maximum(curvature, 1e-3 * variance[:, 1]), size

    def locate(self, order):
        self = stop_gradient(self)
        table = self._on_nodes()
        logs = tuple(table.log_base + order * table.loss + table.log_cuts)
        peak = jnp.maximum(jnp.max(logs[0]), jnp.max(logs[1]))
        masses = Masses(
            *(jax.nn.logsumexp(one) + jnp.log(self.place.spacing) for one in logs)
        )
        weights = jnp.exp(logs[0] - jnp.max(logs[0]))
        center = jnp.sum(weights * table.loss) / jnp.sum(weights)
        lift = _lift(masses.low, masses.between, self.count)
        return Located(order, logs, peak, lift, masses, center)

    def prepare(self, located, frequency, log_tolerance):
        self = stop_gradient(self)
        x, order = self.place.nodes(), located.order
        # Both integrals to a relative accuracy of their own.
        low, between = located.log_weights
        whole = jnp.maximum(jnp.max(low), jnp.max(between))
        logs = [low - whole, between - jnp.max(between)]
        kept = jnp.maximum(*logs) > -_CUT_OFF
        first = jnp.maximum(jnp.argmax(kept) - 1, 0)
        last = jnp.minimum(NODES + 1 - jnp.argmax(kept[::-1]), NODES)
        length = x[last] - x[first]
        strip = 0.9 * jnp.pi * jnp.square(self.step.noise_multiplier)
        strip = jnp.minimum(strip, 12 * self.place.width)
        heights = strip * jnp.exp2(
            -12 / _HEIGHTS * jnp.arange(_HEIGHTS, dtype=strip.dtype)
        )

        # The lower integral's error counts in the sum of both.
        bases = [jnp.logaddexp(*located.log_weights) - whole, logs[1]]

        def widest(y: Array, every: int) -> tuple[Array, Array]:
            """The spacing that a line certifies, by so many of the nodes; its size."""
            grown = self._growth(x[::every], order, frequency, y)
            each = [
                jax.nn.logsumexp(one[::every] + grown) - jax.nn.logsumexp(base[::every])
                for one, base in zip(logs, bases, strict=True)
            ]
            size = jnp.maximum(*each) + math.log(4.0)
            wanted = jnp.maximum(size - log_tolerance, 1)
            return jnp.where(size < 1e3, 2 * jnp.pi * y / wanted, 0), size

        # A few nodes choose the line, all of them tell what it certifies.
        rough, _ = jax.vmap(lambda y: widest(y, _CHOOSING))(heights)
        height = heights[jnp.argmax(rough)]
        spacing, size = widest(height, 1)
        # The vertical sides of the rectangle of that height: the kernel, at most
        # e^{-2 pi y / spacing}, may fall slower than the integrand grows there.
        at = jnp.stack([first, last])
        grown = self._growth(x[at], order, frequency, height)
        p = inclusion(self.step.u(x[at]), self.step.sampling_prob)
        straight = frequency * p * height / jnp.square(self.step.noise_multiplier)
        still = self._growth(x[at], order, jnp.zeros_like(frequency), height)
        grown = jnp.maximum(grown, still + straight)
        sides = jnp.max(jnp.maximum(*logs)[at] + grown) + math.log(4 * NODES)
        steep = 2 * jnp.pi * height / jnp.maximum(sides - log_tolerance, 1)
        spacing = jnp.minimum(spacing, steep)
        spacing = jnp.minimum(spacing, self.place.spacing * 8)
        needed = jnp.ceil(length / (jnp.maximum(spacing, 1e-300) * BLOCK))
        blocks = jnp.clip(needed, 1, _MOST_BLOCKS)
        spacing = length / (blocks * BLOCK)
        decay = 2 * jnp.pi * height / spacing
        error = jnp.exp(jnp.minimum(size - decay, 50))
        error = jnp.where(size < 1e3, error, jnp.inf)
        error = error + 3 * NODES * jnp.exp(-_CUT_OFF)
        error = error + _edge(logs[0], bases[0]) + _edge(logs[1], logs[1])
        above = jnp.maximum(grown - decay, 0)
        for one, base in zip(logs, bases, strict=True):
            ends = jax.nn.logsumexp(one[at] + above) - jax.nn.logsumexp(base)
            error = error + 4 * height / self.place.spacing * jnp.exp(ends)
        loss = self.step.loss_at(x)
        far = jnp.abs(loss - located.center)
        deviations = [
            jnp.sum(jnp.exp(one) * far) / jnp.sum(jnp.exp(base))
            for one, base in zip(logs, bases, strict=True)
        ]
        weights = jnp.exp(jnp.maximum(*logs))
        sizes = jnp.abs(self.step.log_base(x)) + jnp.abs(order * loss)
        exponent = jnp.sum(weights * sizes) / jnp.sum(weights) + jnp.abs(located.peak)
        return Plan(
            order=order,
            center=located.center,
            peak=located.peak,
            lift=located.lift,
            place=self.place,
            start=x[first],
            spacing=spacing,
            blocks=blocks.astype(jnp.int32),
            error=error,
            deviations=jnp.stack(deviations),
            exponent=exponent,
        )

    def center(self, plan):
        return self.count * plan.center

    def _at_zero(self, plan: Plan) -> tuple[Array, Array]:
        """Logs of both integrals on the plan's nodes."""
        sums, _ = blocked_sum(mass_block, plan.blocks, self.step, plan)
        logs = jnp.log(jnp.maximum(sums, 1e-300))
        return logs[0], logs[1]

    def log_mgf(self, plan):
        low, between = self._at_zero(plan)
        n = self.count
        ratio = between - low
        hit = n * jax.nn.softplus(ratio)
        value = n * (plan.peak + jnp.logaddexp(low, between))
        value = value + log1mexp(jnp.maximum(hit, 1e-300)) - plan.lift
        rounding = ULP * (plan.blocks + BLOCK + 16 + 4 * plan.exponent)
        error = (1 + n) * (rounding + plan.error)
        return value, stop_gradient(error)

    def log_characteristic(self, plan, start, step, count=FREQUENCY_BLOCK):
        block = WaveBlock(math.isqrt(count))
        products, _ = blocked_sum(block, plan.blocks, self.step, (plan, start, step))
        (low0, between0), versine, sine = wave_sums(products, block.m)
        tau, n = start + step * jnp.arange(count, dtype=start.dtype), self.count
        low0, between0 = jnp.maximum(low0, 1e-300), jnp.maximum(between0, 1e-300)
        whole0 = low0 + between0
        # Of both integrals together, and of the lower one in it.
        whole = (versine[0] + versine[1]) / whole0, (sine[0] + sine[1]) / whole0
        part = (between0 + versine[1]) / whole0, sine[1] / whole0
        low = (versine[0] - between0) / whole0, sine[0] / whole0
        log_whole, _, square_whole = log_one_plus(*whole)
        log_low, _, square_low = log_one_plus(*low)
        # high^N - low^N is high^N (1 - (1 - between / high)^N), or the same of the
        # lower integral.  From the larger one: where the other two cancel, high is lost
        # in their rounding.
        side = jnp.where(square_low > square_whole, 1.0, -1.0)
        big = tuple(jnp.where(side > 0, *pair) for pair in zip(low, whole, strict=True))
        log_big, turn_big, square_big = log_one_plus(*big)
        norm = jnp.maximum(square_big, DEAD_SQUARE)
        share = (
            side * (part[0] * (1 + big[0]) + part[1] * big[1]) / norm,
            side * (part[1] * (1 + big[0]) - part[0] * big[1]) / norm,
        )
        log_rest, turn_rest, _ = log_one_plus(*share)
        grown, turned = n * log_rest, n * turn_rest
        top = jnp.maximum(grown - 30, 0)
        grown = grown - top
        turn_versine, turn_sine = rotation(turned)
        real = -(jnp.expm1(grown) + jnp.exp(grown) * turn_versine)
        imag = -jnp.exp(grown) * turn_sine
        size = jnp.square(real) + jnp.square(imag)
        none = size < 1e-300
        size = jnp.where(none, 1e-300, size)
        log_size = top + 0.5 * jnp.log(size)
        real, imag = -side * real, -side * imag
        angle = jnp.arctan2(jnp.where(none, 0, imag), jnp.where(none, 1, real))
        ratio0 = jnp.log(between0) - jnp.log(low0)
        hit0 = n * jax.nn.softplus(ratio0)
        log_first = log1mexp(jnp.maximum(hit0, 1e-300))
        total = n * log_big + log_size - log_first
        terms = plan.blocks + BLOCK + 16
        moved = ULP * 4 * tau * jnp.abs(plan.center)
        own = ULP * (terms + 4 * plan.exponent)
        # See `wave_sums`; half of a unit is rounding.
        wave = jnp.minimum(2.5, 2 * tau * plan.deviations[0])
        low_error = own * wave + 2 * plan.error + moved
        share0 = between0 / whole0
        between_error = share0 * (2.5 * own + 2 * plan.error + moved)
        # d (high^N - low^N) is N high^(N-1) (d low + d between) - N low^(N-1) d low,
        # at most N most^(N-1) d between + N (N - 1) most^(N-2) share d low.
        high, low = jnp.exp((n - 1) * log_whole), jnp.exp((n - 1) * log_low)
        each = high * (low_error + between_error) + low * low_error
        second = jnp.maximum(n - 2, 0) * jnp.maximum(log_whole, log_low)
        most = jnp.maximum(high, low) * between_error
        most = most + (n - 1) * share0 * jnp.exp(second) * low_error
        # Where both are nearly nothing, all there is.
        dead = jnp.where(square_big < DEAD_SQUARE, jnp.exp((n - 1) * log_big), 0)
        slip = jnp.minimum(each, most) + dead * jnp.minimum(share0, 1 / n)
        slip = n * slip * jnp.exp(-log_first)
        turned = jnp.abs(turned) + n * jnp.abs(turn_big) + n * jnp.abs(log_big)
        slip = slip + 4 * ULP * turned * jnp.exp(jnp.minimum(total, 0))
        # What is lost in rounding counts with the size of the rounding alone.
        total, slip = jnp.maximum(total, _DEAD), jnp.maximum(slip, 1e-300)
        lost = stop_gradient(slip > 0.3 * jnp.exp(total))
        total = jnp.where(lost, jnp.log(slip) - VOID + 2, total)
        error = jnp.where(lost, math.exp(VOID), slip * jnp.exp(-total))
        return CharacteristicBlock(total, n * turn_big + angle, stop_gradient(error))

    def log_envelope(self, located, frequency):
        """Bounds |transform| for all tau >= `frequency` by moving the line of x."""
        self = stop_gradient(self)
        # Few nodes choose the line, all of them tell what it bounds.
        scales = jnp.stack([frequency, 0.5 * frequency, 0.25 * frequency])
        bound = functools.partial(self._bound_along, located, frequency)
        rough = jax.vmap(lambda scale: bound(scale, _CHOOSING))(scales)
        # The trapezoid rule on a smooth positive function.
        return jnp.minimum(bound(scales[jnp.argmin(rough)], 1) + ENVELOPE, 0)

    def _bound_along(
        self, located: Located, frequency: Array, scale: Array, every: int
    ) -> Float[Array, ""]:
        """Log of the bound by one line, which leaves the axis with `scale`."""
        x, softness = self.place.nodes()[::every], 1 / jnp.square(self.place.width)
        common = along_bent_line(
            self.step, x, located.order, frequency, scale, softness
        )
        low, between = (logs[::every] + common for logs in located.log_weights)

        def along(logs: Array) -> Array:
            return jax.nn.logsumexp(logs) + jnp.log(every * self.place.spacing)

        masses = located.masses
        whole0 = jnp.logaddexp(masses.low, masses.between)
        # The other steps' part is below either cut.
        high = along(jnp.logaddexp(low, between))
        others = jnp.minimum(jnp.maximum(high, along(low)) + BAND_QUADRATURE, whole0)
        n, lift = self.count, located.lift
        hit = n * jax.nn.softplus(masses.between + lift - masses.low)
        log_first = n * whole0 + log1mexp(hit) - lift
        return jnp.log(n) + along(between) + (n - 1) * others - log_first

    def cells(self, low, high):
        raise NotImplementedError("a part of a law is for the contour engine alone")

    def loss_range(self):
        n = self.count
        return -jnp.inf * n, jnp.inf * n


def _lift(low: Array, between: Array, count: Array) -> Array:
    """Term added to the logarithm of a small integral between the cuts.

    high^N - low^N is proportional to it while it is small, whatever its size.
    """
    least = -60.0 - jnp.log(count)
    return jnp.maximum(stop_gradient(least - (between - low)), 0)


def _edge(logs: Array, whole: Array) -> Array:
    """Bound of the mass beyond the ends, relative to the whole."""
    ends = jnp.maximum(logs[0], logs[-1]) - jnp.max(whole)
    return NODES * jnp.exp(ends)
