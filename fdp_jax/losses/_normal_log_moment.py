"""Moments of a pair of normal mixtures at real orders, by quadrature.

Two sums are taken over the nodes of `_normal_nodes.py`: of P r^w, for large moments,
and of P phi_w(log r) with

    phi_w(x) = (e^{wx} - 1 - w (e^x - 1)) / (w (w - 1)) = x^2 exp[0, x, wx] >= 0,

whose integral is (E_P r^w - 1) / (w (w - 1)): no two of its terms cancel, however
small the divergence and however close the order to 0 or 1.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._internal._blocked_sum import blocked_sum
from .._internal._divided import exp_divided, is_small, log_moment_ratio
from ._normal_nodes import UNIT_MASS, Nodes, moments_on, nodes_for, tilted_at

_EXACT = -41.0
"""Logarithm of the quadrature's relative error."""
_MOST = 4096
"""Blocks of nodes at most."""


def normalized_log_moment(term: Any, order: Float[Array, ""]) -> Float[Array, ""]:
    """Lambda(w) / (w (w - 1)); its ceiling, an upper bound, where no rule is exact."""
    nodes = nodes_for(term, order, _EXACT, most=_MOST)
    direct = moments_on(term, nodes).value
    blocks = jnp.where(is_small(direct), nodes.blocks, 0)
    # The order of the direction's own pair, of which w (w - 1) is the same.
    own = jnp.where(nodes.sign > 0, order, 1 - order)
    excess, _ = blocked_sum(_excess_block, blocks, (term, own), nodes)
    ratio = log_moment_ratio(order, direct, nodes.step * UNIT_MASS * excess)
    # What is left out for its small weight may rule moments of high order.
    pairs, _ = term.normal_mixtures()
    known = nodes.complete & jnp.isneginf(pairs.log_lost())
    return jnp.where(known, ratio, term.log_moment_ceiling(1.0))


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
