"""The profile at the nodes of a curve, of which neighbours share a preparation.

On the grid the preparation is most of the work, and so it is for a contour, which
serves thresholds the worse, the farther they are from its anchor.  Mostly that is far
enough; where it is not, nodes get contours of their own.  What these leave loose too is
seen with the law split by its largest step, for one node and those around it.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Int

from .. import engines
from ..engines import Interval, select
from ..losses import ComposedLoss
from ._bounds import DELTA, LOGARITHM, Status
from ._doubts import is_wide
from ._queries import bounds_of, ordered

_STRETCH = 3.0
_PARTS = 0.2, 0.55
"""Places at which a curve is divided; one composition on the grid serves a part."""
_USUAL = 129
"""Nodes of a direction for which engines say how many share a plan."""
_APART = 1e-7
"""Relative width of a bracket from which on a node is looked at by itself."""
_REACH = 12, 20
"""How many nodes before and after its own a law that was split is asked about."""
_ALIKE = 1.5
"""By what factor brackets of other nodes may be wider than that of its own."""
_GROUP, _OPEN, _SPLIT = -1, -2, -3
"""Looks at all nodes of a group, at what is open, and with the law split next to it."""
_PATIENCE = 2
"""After how many vain looks in a row at nodes alone the law is split first."""


class _Look(NamedTuple):
    """Some neighbouring nodes, and where the plan that they are seen from is made."""

    nodes: Array
    anchor: Array
    own: Array
    """The node that this look is for, if it is neither of the other kinds."""


class _State(NamedTuple):
    """The known part of a curve, and what is still to be found out."""

    known: engines.Profile
    open: Bool[Array, " n"]
    """Nodes of groups of which some are loose, until the law has been split for them
    or for others that say as much."""
    ahead: Int[Array, ""]
    """How far beyond the first open node the law is split next."""
    vain: Int[Array, ""]
    """How many looks at nodes alone, in a row, left them loose."""


def place(positions: Array) -> Array:
    """The places of nodes: those at rising positions in [0, 1] lie closer near 0."""
    return jnp.sinh(_STRETCH * positions) / math.sinh(_STRETCH)


def profile_at(
    loss: ComposedLoss, sign: Float[Array, ""], grid: Float[Array, " n"]
) -> engines.Profile:
    """The profile of one direction at rising thresholds; differentiable."""
    engine = engines.engine_of(loss)
    groups = _groups(loss, grid.size)
    alone = engine.anchored and 1 < groups.shape[1] < grid.size
    splits = engine.anchored and engines.splits(loss)
    subject = loss, sign, grid

    def step(state: _State, look: _Look) -> tuple[_State, None]:
        if splits:
            state = select(look.own == _OPEN, _opened(groups, state), state)
            turn = (look.own == _SPLIT) & jnp.any(state.open)
            split = lambda: _split(*subject, state)
            state = lax.cond(turn, split, lambda: state)
        if not (alone or splits):
            return _whole(*subject, state, look), None
        loose = (engines.width_of(state.known) > _APART)[look.own]
        wanted = (look.own >= 0) & loose
        if splits or not loss.method.final:
            wanted = wanted & (state.vain < (_PATIENCE if splits else 1))
        whole = lambda: _whole(*subject, state, look)
        wanted = wanted | (look.own == _GROUP)
        return lax.cond(wanted, whole, lambda: state), None

    looks = _looks(groups, grid, alone=alone, splits=splits)
    shape = jax.eval_shape(lambda: _seen(*subject, groups[0], grid[0]))
    start = _State(
        _unknown(jax.tree.map(lambda x: jnp.zeros(grid.shape, x.dtype), shape)),
        jnp.zeros(grid.shape, bool),
        jnp.asarray(_REACH[0] // 2),
        jnp.zeros((), int),
    )
    return lax.scan(step, start, looks)[0].known


def _seen(
    loss: ComposedLoss, sign: Array, grid: Array, nodes: Array, anchor: Array
) -> engines.Profile:
    """Some nodes from one plan, without splitting the law."""
    method = dataclasses.replace(loss.method, split=False)
    _, loss = engines.neutral(dataclasses.replace(loss, method=method))
    epsilons = grid[nodes]
    gap = jnp.maximum(epsilons[-1] - anchor, anchor - epsilons[0])
    local = engines.plan(loss, sign[None], anchor, stop_gradient(gap))
    return _consistent(engines.profile(loss, local, epsilons))


def _whole(
    loss: ComposedLoss, sign: Array, grid: Array, state: _State, look: _Look
) -> _State:
    """Looks at some nodes without splitting the law."""
    before = jax.tree.map(lambda x: x[look.nodes], state.known)
    found = _seen(loss, sign, grid, look.nodes, look.anchor)
    width = engines.width_of(found)
    found = select(width <= engines.width_of(before), found, before)
    put = lambda all, some: all.at[look.nodes].set(some)
    known = jax.tree.map(put, state.known, found)
    # Of a node in doubt another program is asked, whatever others look like.
    left = engines.width_of(known) > _APART if loss.method.final else _in_doubt(known)
    vain = jnp.where(
        left[look.own] & (look.own >= 0), state.vain + 1, jnp.minimum(state.vain, 0)
    )
    return state._replace(known=known, vain=vain)


def _opened(groups: np.ndarray, state: _State) -> _State:
    """Before the law is split for the first time."""
    nodes = np.arange(state.open.size)
    loose = jnp.any(engines.width_of(state.known)[groups] > _APART, axis=1)
    # What is loose afterwards is looked at however often that is in vain.
    vain = jnp.full_like(state.vain, -nodes.size)
    return state._replace(open=loose[_home(groups, nodes)], vain=vain)


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


def _in_doubt(found: engines.Profile) -> Bool[Array, " n"]:
    """The mask of the nodes of a curve for which `leaves_doubt` holds."""
    doubt = jnp.zeros(found.log_alpha.shape, bool)
    for log in (found.log_delta, found.log_rest):
        each = bounds_of(log.exponential(), jnp.zeros((), bool), DELTA)
        loose = each.status != Status.TIGHT
        doubt = doubt | (loose & is_wide(each.lower, each.upper))
    return doubt


def _unknown(zeros: engines.Profile) -> engines.Profile:
    """A profile of which nothing is known."""
    some = Interval(zeros.log_alpha - jnp.inf, zeros.log_alpha, zeros.log_alpha)
    return engines.Profile(some, some, zeros.log_alpha)


def _looks(groups: np.ndarray, grid: Array, *, alone: bool, splits: bool) -> _Look:
    """All looks in their order: at groups, with the law split, and at every node."""
    middle = 0.5 * (grid[groups[:, 0]] + grid[groups[:, -1]])
    nodes = np.arange(grid.size)
    home = _home(groups, nodes)
    kinds = [(groups, middle, np.full(len(groups), _GROUP))]
    by_themselves = (groups[home], grid, nodes)
    if alone:
        kinds.append(by_themselves)
    if splits:
        # No more than one for every node: that one is not open again.
        kinds.append((groups[:1], grid[:1], np.full(1, _OPEN)))
        kinds.append((groups[home], grid, np.full(grid.size, _SPLIT)))
    if alone and splits:
        kinds.append(by_themselves)
    return _Look(*map(jnp.concatenate, zip(*kinds, strict=True)))


def _home(groups: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """The groups that nodes are in, where all but the last are of one size."""
    return np.minimum(nodes // groups.shape[1], len(groups) - 1)


def _groups(loss: ComposedLoss, size: int) -> np.ndarray:
    """Indices of nodes that share a plan, one group a row; the last one repeated."""
    together = engines.engine_of(loss).together
    if together is None:
        places = np.sinh(_STRETCH * np.linspace(0, 1, size)) / math.sinh(_STRETCH)
        parts = np.split(np.arange(size), np.searchsorted(places, _PARTS))
    else:
        few = max(1, together * size // _USUAL)
        parts = np.split(np.arange(size), np.arange(few, size, few))
    most = max(part.size for part in parts)
    return np.stack([np.pad(x, (0, most - x.size), mode="edge") for x in parts])


def _consistent(found: engines.Profile) -> engines.Profile:
    """The profile with its estimates moved between its bounds."""
    log_delta, _ = ordered(found.log_delta, LOGARITHM)
    log_rest, _ = ordered(found.log_rest, LOGARITHM)
    return engines.Profile(log_delta, log_rest, found.log_alpha)
