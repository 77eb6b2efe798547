"""Moments of the subsampled Gaussian loss at real orders, by quadrature.

The trapezoid rule on an analytic integrand converges exponentially (Trefethen and
Weideman 2014, Theorem 5.1).  Two sums are taken: of P r^w, for large moments, and of
P phi_w(log r) with

    phi_w(x) = (e^{wx} - 1 - w (e^x - 1)) / (w (w - 1)) = x^2 exp[0, x, wx] >= 0,

whose integral is (E_P r^w - 1) / (w (w - 1)): no two of its terms cancel, however
small the divergence and however close the order to 0 or 1.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float, Int

from ..._internal._blocked_sum import blocked_sum
from ..._internal._divided import exp_divided, is_small, log_moment_ratio
from ..._internal._logs import LOG_2
from .._loss_moments import LossMoments, excess, moments_of, panels
from ._integrand import Integrand
from ._place import locate

_NODES = 64
_MAX_BLOCKS = 16384
_DIGITS = 41.0
"""Minus the logarithm of the quadrature's relative error."""
_REACH = 13.0
"""Standard deviations that moments of |X| look at on either side."""
_MARGIN = 3.0
"""Standard deviations added to where `locate` cuts, 12 beyond the modes: what is left
out is below e^-112 of the peak."""


class _Grid(eqx.Module):
    start: Float[Array, ""]
    spacing: Float[Array, ""]
    blocks: Int[Array, ""]
    peak: Float[Array, ""]
    wide: Array
    """Whether it has all the nodes that it should have."""


def normalized_log_moment(term: Integrand, order: Float[Array, ""]) -> Float[Array, ""]:
    """Lambda(w) / (w (w - 1)); 1 / (2 s^2), an upper bound, if s is below 0.002."""
    fixed, at = stop_gradient((term, order))
    tilted = _grid(fixed, at, at[None])
    (total,), _ = blocked_sum(_direct_block, tilted.blocks, (term, order), tilted)
    direct = tilted.peak + jnp.log(total * tilted.spacing)

    small = is_small(direct)
    grid = _grid(fixed, at, jnp.stack([at, jnp.zeros_like(at), jnp.ones_like(at)]))
    blocks = jnp.where(small, grid.blocks, 0)
    (excess,), _ = blocked_sum(_excess_block, blocks, (term, order), grid)
    excess = excess * grid.spacing

    covered = tilted.wide & (grid.wide | ~small)
    ceiling = 0.5 / jnp.square(term.noise_multiplier)
    return jnp.where(covered, log_moment_ratio(order, direct, excess), ceiling)


def central_moments(
    term: Integrand, included: bool
) -> tuple[Float[Array, ""], Float[Array, " 4"]]:
    """Mean of the loss X and its first four moments about it, under P or Q."""
    order = jnp.asarray(1.0 if included else 0.0, term.noise_multiplier.dtype)
    grid = _grid(stop_gradient(term), order, order[None])
    zero = jnp.zeros_like(order)
    args = (term, order, zero)
    (mean, *_), _ = blocked_sum(_moment_block, grid.blocks, args, grid)
    mean = mean * grid.spacing
    sums, _ = blocked_sum(_moment_block, grid.blocks, (term, order, mean), grid)
    return mean, sums * grid.spacing


def _grid(term: Integrand, order: Array, covered: Float[Array, " k"]) -> _Grid:
    """Nodes for integrands that behave like P r^w at the orders `covered`."""
    s = term.noise_multiplier
    located = jax.vmap(lambda w: locate(term, w))(covered)
    start = jnp.min(located.interval.start) - _MARGIN * s
    end = jnp.max(located.interval.end) + _MARGIN * s
    # On the line Im x = v, with theta = v / s^2, the Gaussian factor grows by
    # v theta / 2 and, for w < 0, the power of the ratio by at most cos(theta/2)^w.
    angle = 0.98 * jnp.pi * jnp.exp2(-0.5 * jnp.arange(40, dtype=s.dtype))
    v = angle * jnp.square(s)
    growth = 0.5 * v * angle + jnp.minimum(order, 0) * jnp.log(jnp.cos(0.5 * angle))
    spacing = jnp.max(2 * jnp.pi * v / (growth + LOG_2 + _DIGITS))
    wanted = jnp.ceil((end - start) / (spacing * _NODES))
    blocks = jnp.clip(wanted, 1, _MAX_BLOCKS)
    spacing = (end - start) / (blocks * _NODES)
    return _Grid(
        start, spacing, blocks.astype(jnp.int32), located.peak[0], wanted <= blocks
    )


def _nodes(index: Array, grid: _Grid) -> Float[Array, " n"]:
    position = index * _NODES + jnp.arange(_NODES, dtype=index.dtype)
    return grid.start + grid.spacing * (position.astype(grid.start.dtype) + 0.5)


def _direct_block(index: Array, args: tuple, grid: _Grid) -> tuple:
    term, order = args
    x = _nodes(index, grid)
    exponent = term.log_base(x) + order * term.loss_at(x)
    return jnp.sum(jnp.exp(exponent - grid.peak))[None], ()


def _excess_block(index: Array, args: tuple, grid: _Grid) -> tuple:
    term, order = args
    x = _nodes(index, grid)
    loss = term.loss_at(x)
    weighted = exp_divided(loss, order * loss, term.log_base(x))
    return jnp.sum(jnp.square(loss) * weighted)[None], ()


def _moment_block(index: Array, args: tuple, grid: _Grid) -> tuple:
    term, order, center = args
    x = _nodes(index, grid)
    loss = term.loss_at(x)
    weight = jnp.exp(term.log_base(x) + order * loss)
    powers = jnp.stack([(loss - center) ** k for k in (1, 2, 3, 4)])
    return powers @ weight, ()


def loss_moments(term: Integrand, sign: int) -> LossMoments:
    """Moments of |X| of one release, under P (sign 1) or of the exchanged pair."""
    p, s = term.sampling_prob, term.noise_multiplier
    shift = 1 / s

    def gain(z: Array) -> Array:
        # dQ/dP - 1 at the output s z.
        return p * jnp.expm1(jnp.minimum((z - 0.5 * shift) * shift, 700.0))

    def weight(z: Array) -> Array:
        density = jnp.exp(-0.5 * jnp.square(z)) / np.sqrt(2 * np.pi)
        if sign > 0:
            return density
        other = jnp.exp(-0.5 * jnp.square(z - shift)) / np.sqrt(2 * np.pi)
        return (1 - p) * density + p * other

    def loss_at(z: Array) -> Array:
        return sign * jnp.log1p(gain(z))

    most = _REACH + (shift if sign < 0 else 0.0)
    start = jnp.full_like(p, -_REACH)
    zero = 0.5 * shift
    rough = jnp.stack([start, jnp.clip(zero, -_REACH, most), start * 0 + most])
    z, weights = panels(rough)
    # Of the direction's own X, since E e^X = 1.
    v1 = (weights * weight(z)) @ excess(loss_at(z))
    # |X + v1| has its kink where dQ/dP = e^-v1 (e^v1 in the other direction).
    safe = jnp.where(p > 0, p, 1.0)
    level = jnp.expm1(-sign * v1) / safe
    kink = zero + s * jnp.log1p(jnp.maximum(level, -1 + 1e-12))
    cuts = jnp.sort(
        jnp.clip(jnp.stack([start, zero, kink, most + 0 * start]), start, most)
    )
    z, weights = panels(cuts)
    return moments_of(loss_at(z), weights * weight(z), v1)
