"""Moments of the subsampled Gaussian loss at real orders, by quadrature.

Two sums are taken on meshes of `_moments.py`: of P r^w, for large moments, and of
P phi_w(log r) with

    phi_w(x) = (e^{wx} - 1 - w (e^x - 1)) / (w (w - 1)) = x^2 exp[0, x, wx] >= 0,

whose integral is (E_P r^w - 1) / (w (w - 1)): no two of its terms cancel, however
small the divergence and however close the order to 0 or 1.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._internal._blocked_sum import blocked_sum
from ..._internal._divided import exp_divided, is_small, log_moment_ratio
from .._loss_moments import LossMoments, excess, moments_of, panels
from ._integrand import Integrand
from ._moments import Mesh, mesh_for, tilted

_BLOCKS = 16384
_EXACT = -41.0
"""Logarithm of the quadrature's relative error."""
_REACH = 13.0
"""Standard deviations that moments of |X| look at on either side."""


def normalized_log_moment(term: Integrand, order: Float[Array, ""]) -> Float[Array, ""]:
    """Lambda(w) / (w (w - 1)); 1 / (2 s^2), an upper bound, if s is below 0.002."""
    own = mesh_for(term, order[None], _EXACT, _BLOCKS)
    direct = tilted(term, order[None], own)[0][0]
    small = is_small(direct)
    orders = jnp.stack([order, jnp.zeros_like(order), jnp.ones_like(order)])
    mesh = mesh_for(term, orders, _EXACT, _BLOCKS)
    blocks = jnp.where(small, mesh.blocks, 0)
    excess, _ = blocked_sum(_excess_block, blocks, (term, order), mesh)
    ratio = log_moment_ratio(order, direct, mesh.spacing * excess)
    covered = own.complete & (mesh.complete | ~small)
    return jnp.where(covered, ratio, 0.5 / jnp.square(term.noise_multiplier))


def central_moments(
    term: Integrand, included: bool
) -> tuple[Float[Array, ""], Float[Array, " 4"]]:
    """Mean of the loss X and its first four moments about it, under P or Q."""
    order = jnp.full_like(term.noise_multiplier, float(included))
    mesh = mesh_for(term, order[None], _EXACT, _BLOCKS)
    zero = jnp.zeros_like(order)
    (mean, *_), _ = blocked_sum(_moment_block, mesh.blocks, (term, order, zero), mesh)
    mean = mean * mesh.spacing
    sums, _ = blocked_sum(_moment_block, mesh.blocks, (term, order, mean), mesh)
    return mean, sums * mesh.spacing


def _excess_block(index: Array, args: tuple, mesh: Mesh) -> tuple:
    term, order = args
    x = mesh.nodes(index)
    loss = term.loss_at(x)
    weighted = exp_divided(loss, order * loss, term.log_base(x))
    return jnp.sum(jnp.square(loss) * weighted), ()


def _moment_block(index: Array, args: tuple, mesh: Mesh) -> tuple:
    term, order, center = args
    x = mesh.nodes(index)
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
