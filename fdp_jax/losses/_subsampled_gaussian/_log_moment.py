"""Moments of the subsampled Gaussian loss at real orders, by quadrature.

Two sums are taken over the nodes of `_normal_nodes.py`: of P r^w, for large moments,
and of P phi_w(log r) with

    phi_w(x) = (e^{wx} - 1 - w (e^x - 1)) / (w (w - 1)) = x^2 exp[0, x, wx] >= 0,

whose integral is (E_P r^w - 1) / (w (w - 1)): no two of its terms cancel, however
small the divergence and however close the order to 0 or 1.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._internal._blocked_sum import blocked_sum
from ..._internal._divided import exp_divided, is_small, log_moment_ratio
from .._loss_moments import LossMoments, excess, moments_of, panels
from .._normal_nodes import UNIT_MASS, Nodes, moments_on, nodes_for, tilted_at
from ._integrand import Integrand

_EXACT = -41.0
"""Logarithm of the quadrature's relative error."""
_MOST = 4096
"""Blocks of nodes at most."""
_REACH = 13.0
"""Standard deviations that moments of |X| look at on either side."""


def normalized_log_moment(term: Any, order: Float[Array, ""]) -> Float[Array, ""]:
    """Lambda(w) / (w (w - 1)); 1 / (2 s^2), an upper bound, where no rule is exact."""
    nodes = nodes_for(term, order, _EXACT, most=_MOST)
    direct = moments_on(term, nodes).value
    blocks = jnp.where(is_small(direct), nodes.blocks, 0)
    # The order of the direction's own pair, of which w (w - 1) is the same.
    own = jnp.where(nodes.sign > 0, order, 1 - order)
    excess, _ = blocked_sum(_excess_block, blocks, (term, own), nodes)
    ratio = log_moment_ratio(order, direct, nodes.step * UNIT_MASS * excess)
    return jnp.where(nodes.complete, ratio, 0.5 / jnp.square(term.noise_multiplier))


def central_moments(
    term: Any, included: bool
) -> tuple[Float[Array, ""], Float[Array, " 4"]]:
    """Mean of the loss X and its first four moments about it, under P or Q."""
    order = jnp.full_like(term.noise_multiplier, float(included))
    nodes = nodes_for(term, order, _EXACT, most=_MOST)
    found = moments_on(term, nodes)
    sums, _ = blocked_sum(_moment_block, nodes.blocks, (term, found.mean), nodes)
    return found.mean, jnp.stack(sums) * nodes.step * UNIT_MASS * jnp.exp(nodes.peak)


def _excess_block(index: Array, args: tuple[Any, Array], nodes: Nodes) -> tuple:
    term, order = args
    at = tilted_at(term, nodes, index)
    own = nodes.sign * at.loss
    weighted = exp_divided(own, order * own, at.log_base)
    return jnp.sum(jnp.square(at.loss) * weighted), ()


def _moment_block(index: Array, args: tuple[Any, Array], nodes: Nodes) -> tuple:
    term, center = args
    at = tilted_at(term, nodes, index)
    away = at.loss - center
    return tuple(at.weights @ away**k for k in (1, 2, 3, 4)), ()


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
