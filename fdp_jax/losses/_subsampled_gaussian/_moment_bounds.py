"""Upper bounds of E_P[e^{w X}] at several orders that cost little.

One mesh serves all orders, so that the loss is evaluated once for all of them, and it
is no finer than a tolerance asks for: Chernoff's inequality needs few digits.
"""

import math

import equinox as eqx
import jax.numpy as jnp
from jax.lax import fori_loop, stop_gradient
from jaxtyping import Array, Float, Int

from ..._internal._arithmetic import ULP
from ..._internal._logs import LOG_2
from ..._internal._special import log1p
from .._amplification import inclusion
from ._integrand import Integrand, growth_of
from ._place import Interval, beyond_iterates, covers_base, interval_of
from ._strips import half_widths, strip_growth, widest_spacing

_NODES = 32
_BLOCKS = 256
_WIDTHS = 12
_DIGITS = 10.0
"""Log of the tolerance over a rounding from which on sums are taken of what exceeds P.
"""


class _Mesh(eqx.Module):
    """Nodes midway between those ends, and the strip that certifies their sums."""

    place: Interval
    spacing: Float[Array, ""]
    blocks: Int[Array, ""]
    half_width: Float[Array, ""]
    growth: Float[Array, ""]
    """Log of the integrals' sizes on the strip's sides, over the integral."""

    def nodes(self, index: Array) -> Float[Array, " n"]:
        offsets = 0.5 + jnp.arange(_NODES, dtype=self.spacing.dtype)
        return self.place.start + self.spacing * (index * _NODES + offsets)


def log_moment_bounds(
    one: Integrand, order: Float[Array, " k"], log_tolerance: Float[Array, ""]
) -> Float[Array, " k"]:
    """Lambda from above, about e^log_tolerance too large; no derivative."""
    one, order, log_tolerance = stop_gradient((one, order, log_tolerance))
    mesh = _mesh(one, order, log_tolerance)
    log_sums = _log_sums(one, order, mesh)
    direct = log_sums + jnp.log(mesh.spacing)
    # The logarithm of a number near one has its digits, and they are too few for some.
    few = log_tolerance < _DIGITS + math.log(ULP)
    few = few & covers_base(one, mesh.place)
    growth, growth_size = _growths(one, order, mesh, few)
    small = few & (jnp.abs(direct) < 0.5)
    value = jnp.where(small, log1p(jnp.where(small, growth, 0)), direct)
    # I <= T + sides I + ends T, of the integral I and its sum T.
    decay = 2 * jnp.pi * mesh.half_width / mesh.spacing
    sides = jnp.exp(mesh.growth - decay - jnp.log(-jnp.expm1(-decay)))
    ends = jnp.exp(_log_ends(one, order, mesh) - direct[:, None]).sum(axis=1)
    error = log1p(ends) - log1p(-jnp.minimum(sides, 0.5))
    error = jnp.where((sides < 0.5) & (error < 1), error, jnp.inf)
    # The growth has the error of P's own integral besides.
    error = jnp.where(small, 3 * error, error)
    size = 1 + jnp.abs(log_sums) + jnp.abs(direct)
    size = jnp.where(small, 2 * growth_size, size)
    rounding = ULP * mesh.blocks * _NODES * 4 * size
    return value + error + rounding


def _mesh(one: Integrand, order: Float[Array, " k"], log_tolerance: Array) -> _Mesh:
    """The widest mesh that some strip certifies at every order."""
    # Modes increase with the order, and the lowest one's integrand grows fastest.
    ends = jnp.stack([jnp.min(order), jnp.max(order)])
    places = interval_of(one, ends)
    place = Interval(places.start[0], places.end[1], jnp.max(places.mode))
    widths, none = half_widths(one, _WIDTHS), jnp.zeros_like(log_tolerance)
    growth = strip_growth(one, place, ends[0], none, widths)
    spacings = widest_spacing(widths, growth, log_tolerance)
    best = jnp.argmax(spacings)
    length = place.end - place.start
    blocks = jnp.ceil(length / (spacings[best] * _NODES))
    blocks = jnp.clip(blocks, 1, _BLOCKS)
    spacing = length / (blocks * _NODES)
    return _Mesh(place, spacing, blocks.astype(jnp.int32), widths[best], growth[best])


def _log_sums(one: Integrand, order: Array, mesh: _Mesh) -> Float[Array, " k"]:
    """Log of the sums over all nodes, whatever their size."""

    def add(index: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        x = mesh.nodes(index)
        logs = one.log_base(x) + order[:, None] * one.loss_at(x)
        peak = jnp.maximum(sums[0], jnp.max(logs, axis=1))
        new = jnp.sum(jnp.exp(logs - peak[:, None]), axis=1)
        return peak, sums[1] * jnp.exp(sums[0] - peak) + new

    least = jnp.full_like(order, -jnp.finfo(order.dtype).max)
    peak, total = fori_loop(0, mesh.blocks, add, (least, jnp.zeros_like(order)))
    return peak + jnp.log(total)


def _growths(
    one: Integrand, order: Array, mesh: _Mesh, wanted: Array
) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """The integrals less P's, and of the terms' sizes; where that is wanted."""

    def add(index: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        x = mesh.nodes(index)
        change, _ = growth_of(one.log_base(x), order[:, None] * one.loss_at(x))
        new = jnp.sum(change, axis=1), jnp.sum(jnp.abs(change), axis=1)
        return sums[0] + new[0], sums[1] + new[1]

    none = jnp.zeros_like(order)
    found = fori_loop(0, jnp.where(wanted, mesh.blocks, 0), add, (none, none))
    return mesh.spacing * found[0], mesh.spacing * found[1]


def _log_ends(one: Integrand, order: Array, mesh: _Mesh) -> Float[Array, "k 2"]:
    """Log of what is at both ends: the strip's vertical sides, and all beyond.

    There the integrand's modulus exceeds that on the axis by at most what it does at
    the strip's height, for the kernel is at most 1/2.
    """
    x, v = jnp.stack([mesh.place.start, mesh.place.end]), mesh.half_width
    p, angle = (
        inclusion(one.u(x), one.sampling_prob),
        v / jnp.square(one.noise_multiplier),
    )
    versine = -2 * jnp.square(jnp.sin(0.5 * angle))
    modulus = 0.5 * log1p(2 * p * (1 - p) * versine)
    density = one.log_base(x) + order[:, None] * one.loss_at(x)
    grown = jnp.minimum(order, 0)[:, None] * modulus + 0.5 * v * angle
    sides = density + grown + LOG_2 + jnp.log(v)
    return jnp.logaddexp(sides, density + jnp.log(beyond_iterates(one)))
