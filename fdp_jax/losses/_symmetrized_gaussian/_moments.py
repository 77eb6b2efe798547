"""E_P[e^{w X}] and its derivatives at real orders w, by the trapezoid rule."""

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ..._internal._blocked_sum import blocked_sum
from ._integrand import NODES, Integrand
from ._place import (
    Location,
    beginning,
    farthest,
    locate_before,
    omitted,
    top_of,
)
from ._strips import real_lines, rule_error, widest_spacing
from ._sums import Mesh, log_total, moment_block

_BLOCKS = 64
_SEARCH_NODES = 64
_EXACT, _ROUGH = -40.0, -8.0
"""Log of the relative error of a moment's quadrature: certified, and for two digits."""


def moments(one: Integrand, order: Float[Array, " k"]) -> tuple[Array, Array, Array]:
    """Lambda from above, Lambda' and Lambda''."""
    # One far end serves all of them: it increases with the largest power.
    far = farthest(stop_gradient(one), stop_gradient(jnp.max(top_of(order))))
    return jax.vmap(lambda w: _moments_at(one, w, far))(order)


def _moments_at(one: Integrand, order: Float[Array, ""], far: Array) -> tuple:
    fixed, at = stop_gradient((one, order))
    located = locate_before(fixed, at, far, _SEARCH_NODES)
    log_line, y = real_lines(fixed, at, located.log)
    spacing = widest_spacing(log_line, y, jnp.asarray(_EXACT, y.dtype))
    size = jnp.abs(at * (1 - at))
    mesh = mesh_of(fixed, located, size, _EXACT, spacing, _BLOCKS)
    value, mean, variance, rounding = _integrals(one, order, mesh)
    log_line, y = real_lines(fixed, at, stop_gradient(value))
    error = rule_error(log_line, y, mesh.spacing)
    left_out = omitted(fixed, located, size, mesh.start)
    error = error + left_out * jnp.exp(located.log - value)
    unit = jnp.finfo(value.dtype).eps
    error = error + unit * rounding + 8 * unit * jnp.abs(value)
    error = jnp.where(error < 0.5, -jnp.log1p(-jnp.minimum(error, 0.5)), jnp.inf)
    return value + stop_gradient(error), mean, variance


def rough_moments(
    one: Integrand, order: Float[Array, ""]
) -> tuple[Array, Array, Array]:
    """Lambda, Lambda' and Lambda'' at one order, to two digits."""
    one, order = stop_gradient((one, order))
    located = locate_before(one, order, farthest(one, order), _SEARCH_NODES)
    spacing = jnp.minimum(0.5, 1.2 / one.half)
    size = jnp.abs(order * (1 - order))
    mesh = mesh_of(one, located, size, _ROUGH, spacing, _BLOCKS)
    return _integrals(one, order, mesh)[:3]


def mesh_of(
    one: Integrand,
    located: Location,
    size: Array,
    log_tolerance: Array | float,
    spacing: Array,
    most: int,
) -> Mesh:
    """Nodes from end to end, at most so far apart, in at most so many blocks.

    The error bounds speak for what is missing then.
    """
    start = beginning(one, located, size, jnp.asarray(log_tolerance, size.dtype))
    length = located.end - start
    blocks = jnp.clip(jnp.ceil(length / (spacing * NODES)), 1, most)
    # The end is among the last nodes, wherever the first one is moved to.
    spacing = _shortened(length / (blocks * NODES - 2))
    return Mesh(
        order=located.order,
        peak=jnp.where(located.log > 20, located.log, 0),
        start=spacing * jnp.floor(start / spacing),
        spacing=spacing,
        blocks=blocks.astype(jnp.int32),
    )


def _shortened(x: Array) -> Array:
    """X > 0 or a little more, with so few binary digits that its multiples are exact.

    Nodes off their places would count as errors of t.
    """
    scale = 2.0**20
    mantissa, exponent = jnp.frexp(x)
    return jnp.ldexp(jnp.ceil(mantissa * scale) / scale, exponent)


def _integrals(
    one: Integrand, order: Array, mesh: Mesh
) -> tuple[Array, Array, Array, Array]:
    """Log T, mean and variance of X, and the relative rounding of T."""
    args = one, order
    (growth, first, second), size = blocked_sum(moment_block, mesh.blocks, args, mesh)
    value = log_total(growth, mesh.peak)
    scale = jnp.exp(mesh.peak - value)
    mean, square = first * scale, second * scale
    floor = jnp.finfo(square.dtype).eps * square
    variance = jnp.maximum(square - jnp.square(mean), floor)
    return value, mean, variance, size * scale
