"""The profile at the nodes of a curve.

A composition on the grid is most of the work and serves a part of them.  A contour is
made for each.  What these leave loose is seen with the law split by its largest step,
for one node and those around it.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Int

from .. import engines
from ..losses import ComposedLoss
from ._bounds import LOGARITHM
from ._queries import ordered

_STRETCH = 3.0
_PARTS = 3
"""Parts of a curve, each served by one composition on the grid."""
_APART = 1e-7
"""Relative width of a bracket from which on the law is split for a node."""
_REACH = 12, 20
"""How many nodes before and after its own a law that was split is asked about."""
_ALIKE = 1.5
"""By what factor brackets of other nodes may be wider than that of its own."""


class _State(NamedTuple):
    """The known part of a curve, and what is still to be found out."""

    known: engines.Profile
    open: Bool[Array, " n"]
    """Loose nodes, until the law has been split for them or for others that say as
    much."""
    ahead: Int[Array, ""]
    """How far beyond the first open node the law is split next."""


def place(positions: Array) -> Array:
    """The places of nodes: those at rising positions in [0, 1] lie closer near 0."""
    return jnp.sinh(_STRETCH * positions) / math.sinh(_STRETCH)


def profile_at(
    loss: ComposedLoss, sign: Float[Array, ""], grid: Float[Array, " n"]
) -> engines.Profile:
    """The profile of one direction at rising thresholds; differentiable."""
    few = 1 if engines.engine_of(loss).anchored else -(-grid.size // _PARTS)
    rows = jnp.pad(grid, (0, -grid.size % few), mode="edge").reshape(-1, few)
    known = jax.tree.map(lambda x: x[: grid.size], profile_by_rows(loss, sign, rows))
    if not engines.splits(loss):
        return known

    def step(state: _State, _: None) -> tuple[_State, None]:
        split = lambda: _split(loss, sign, grid, state)
        return lax.cond(jnp.any(state.open), split, lambda: state), None

    start = _State(known, engines.width_of(known) > _APART, jnp.asarray(_REACH[0] // 2))
    # No more than one for every node: that one is not open again.
    return lax.scan(step, start, length=grid.size)[0].known


def profile_by_rows(
    loss: ComposedLoss, sign: Float[Array, ""], rows: Float[Array, "r k"]
) -> engines.Profile:
    """The profile of one direction at rising thresholds, from one plan for each row."""
    return jax.tree.map(jnp.ravel, lax.map(lambda row: _seen(loss, sign, row), rows))


def _seen(
    loss: ComposedLoss, sign: Array, epsilons: Float[Array, " k"]
) -> engines.Profile:
    """Neighboring nodes from one plan, without splitting the law."""
    method = dataclasses.replace(loss.method, split=False)
    _, loss = engines.neutral(dataclasses.replace(loss, method=method))
    anchor = 0.5 * (epsilons[0] + epsilons[-1])
    local = engines.plan(loss, sign[None], anchor, stop_gradient(epsilons[-1] - anchor))
    return _consistent(engines.profile(loss, local, epsilons)[0])


def _split(loss: ComposedLoss, sign: Array, grid: Array, state: _State) -> _State:
    """Looks at some nodes with the law split for one of them.

    That is some way beyond the first open one, as far as the last one served nodes
    before it.  Those that are served about as well as itself are open no longer.
    """
    size = min(sum(_REACH) + 1, grid.size)
    index = jnp.arange(grid.size)
    near = state.open & (index <= jnp.argmax(state.open) + state.ahead)
    center = grid.size - 1 - jnp.argmax(near[::-1])
    start = jnp.clip(center - _REACH[0], 0, grid.size - size)
    cut = lambda x: lax.dynamic_slice_in_dim(x, start, size)
    before, own = jax.tree.map(cut, state.known), center - start
    found = _consistent(engines.improved(loss, sign, before, cut(grid), own))
    width = engines.width_of(found)
    served = width <= jnp.minimum(_ALIKE * width[own], _APART)
    nodes = jnp.arange(size)
    missed = jnp.max(jnp.where(~served & (nodes < own), nodes, -1))
    put = lambda all, some: lax.dynamic_update_slice_in_dim(all, some, start, 0)
    return state._replace(
        known=jax.tree.map(put, state.known, found),
        open=put(state.open, cut(state.open) & ~served & (nodes != own)),
        ahead=jnp.clip(own - 1 - missed, 0, _REACH[0]),
    )


def _consistent(found: engines.Profile) -> engines.Profile:
    """The profile with its estimates moved between its bounds."""
    log_delta, _ = ordered(found.log_delta, LOGARITHM)
    log_rest, _ = ordered(found.log_rest, LOGARITHM)
    return engines.Profile(log_delta, log_rest, found.log_alpha)
