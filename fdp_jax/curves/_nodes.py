"""The profile at the nodes of a curve, of which neighbours share a preparation.

On the grid the preparation is most of the work, and so it is for a contour, which
serves thresholds the worse, the farther they are from its anchor.  Mostly that is far
enough; where it is not, nodes get contours of their own.
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
from ._bounds import DELTA, LOGARITHM, Status, uncrossed
from ._doubts import is_wide
from ._queries import bounds_of, inside

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


class _Look(NamedTuple):
    """Some neighbouring nodes, and where the plan that they are seen from is made."""

    nodes: Array
    anchor: Array
    own: Array
    """The node that this look is for; -1 if it is for all of them."""


class _Open(NamedTuple):
    """What is known, and what is still to be found out."""

    known: engines.Profile
    nodes: Bool[Array, " n"]
    ahead: Int[Array, ""]
    """How far beyond the first open node the law is split next."""


def place(positions: Array) -> Array:
    """Where nodes lie: those at rising positions in [0, 1] lie closer near 0."""
    return jnp.sinh(_STRETCH * positions) / math.sinh(_STRETCH)


def profile_at(
    loss: ComposedLoss, sign: Float[Array, ""], grid: Float[Array, " n"]
) -> engines.Profile:
    """The profile of one direction at rising thresholds; differentiable."""
    splits = engines.engine_of(loss).anchored and engines.splits(loss)
    # What stays open is seen with the law split, by this program or by another one.
    patient = loss.method.final and not splits
    method = dataclasses.replace(loss.method, split=False)
    known = _whole(
        dataclasses.replace(loss, method=method), sign, grid, patient=patient
    )
    return _split(loss, sign, grid, known) if splits else known


def _whole(
    loss: ComposedLoss,
    sign: Float[Array, ""],
    grid: Float[Array, " n"],
    *,
    patient: bool,
) -> engines.Profile:
    """The profile without splitting the law.

    Impatiently, nodes have no looks of their own after the first one that leaves doubt.
    """
    engine = engines.engine_of(loss)
    groups = _groups(loss, grid.size)
    alone = engine.anchored and 1 < groups.shape[1] < grid.size
    looks = _looks(groups, grid, alone=alone)

    def see(nodes: Array, anchor: Array) -> engines.Profile:
        epsilons = grid[nodes]
        gap = jnp.maximum(epsilons[-1] - anchor, anchor - epsilons[0])
        local = engines.plan(loss, sign[None], anchor, stop_gradient(gap))
        return _consistent(engines.profile(loss, local, epsilons))

    def step(
        state: tuple[engines.Profile, Array], look: _Look
    ) -> tuple[tuple[engines.Profile, Array], None]:
        known, given_up = state
        before = jax.tree.map(lambda x: x[look.nodes], known)
        again = lambda: see(look.nodes, look.anchor)
        wanted = jnp.ones((), bool)
        if alone:
            loose = (engines.width_of(known) > _APART)[look.own]
            wanted = (look.own < 0) | (loose & ~given_up)
            found = lax.cond(wanted, again, lambda: before)
        else:
            found = again()
        closer = engines.width_of(found) <= engines.width_of(before)
        found = select(closer, found, before)
        put = lambda all, some: all.at[look.nodes].set(some)
        known = jax.tree.map(put, known, found)
        if not patient:
            own = wanted & (look.own >= 0)
            given_up = given_up | (own & _in_doubt(known)[look.own])
        return (known, given_up), None

    shape = jax.eval_shape(see, groups[0], grid[0])
    nothing = jax.tree.map(lambda x: jnp.zeros(grid.shape, x.dtype), shape)
    start = _unknown(nothing), jnp.zeros((), bool)
    (known, _), _ = lax.scan(step, start, looks)
    return known


def _in_doubt(found: engines.Profile) -> Bool[Array, " n"]:
    """What `leaves_doubt` says of each node of a curve."""
    doubt = jnp.zeros(found.log_alpha.shape, bool)
    for log in (found.log_delta, found.log_rest):
        each = bounds_of(log.exponential(), jnp.zeros((), bool), False, DELTA)
        loose = each.status != Status.TIGHT
        doubt = doubt | (loose & is_wide(each.lower, each.upper))
    return doubt


def _split(
    loss: ComposedLoss,
    sign: Float[Array, ""],
    grid: Float[Array, " n"],
    known: engines.Profile,
) -> engines.Profile:
    """The profile where the law is split for those nodes that are loose without it.

    It is split for a node some way beyond the first one that is open, as far as the
    last one served nodes before its own, and each serves those around that it serves
    about as well as its own.  That own node is never open again.
    """
    size = min(_REACH[0] + _REACH[1] + 1, grid.size)
    index = jnp.arange(grid.size)

    def step(state: _Open, _: None) -> tuple[_Open, None]:
        again = lambda: look(state)
        return lax.cond(jnp.any(state.nodes), again, lambda: state), None

    def look(state: _Open) -> _Open:
        first = jnp.argmax(state.nodes)
        near = state.nodes & (index <= first + state.ahead)
        center = grid.size - 1 - jnp.argmax(near[::-1])
        start = jnp.clip(center - _REACH[0], 0, grid.size - size)
        cut = lambda x: lax.dynamic_slice_in_dim(x, start, size)
        before = jax.tree.map(cut, state.known)
        found = engines.improved(loss, sign, before, cut(grid), center - start)
        found = _consistent(found)
        width = engines.width_of(found)
        served = width <= jnp.minimum(_ALIKE * width[center - start], _APART)
        own = cut(index) == center
        # How many in a row before the center.
        missed = jnp.where(~served & (cut(index) < center), cut(index), start - 1)
        ahead = jnp.clip(center - 1 - jnp.max(missed), 0, _REACH[0])
        put = lambda all, x: lax.dynamic_update_slice_in_dim(all, x, start, 0)
        nodes = put(state.nodes, cut(state.nodes) & ~(served | own))
        return _Open(jax.tree.map(put, state.known, found), nodes, ahead)

    ahead = jnp.full((), _REACH[0] // 2, index.dtype)
    groups = _groups(loss, grid.size)
    loose = jnp.any(engines.width_of(known)[groups] > _APART, axis=1)
    home = np.minimum(np.arange(grid.size) // groups.shape[1], len(groups) - 1)
    state = _Open(known, loose[home], ahead)
    return lax.scan(step, state, length=grid.size)[0].known


def _unknown(zeros: engines.Profile) -> engines.Profile:
    """A profile of which nothing is known."""
    some = Interval(zeros.log_alpha - jnp.inf, zeros.log_alpha, zeros.log_alpha)
    return engines.Profile(some, some, zeros.log_alpha)


def _looks(groups: np.ndarray, grid: Array, *, alone: bool) -> _Look:
    """All looks in their order: at groups, and maybe at every node."""
    middle = 0.5 * (grid[groups[:, 0]] + grid[groups[:, -1]])
    own = np.full(len(groups), -1)
    if not alone:
        return _Look(jnp.asarray(groups), middle, jnp.asarray(own))
    nodes = np.arange(grid.size)
    home = np.minimum(nodes // groups.shape[1], len(groups) - 1)
    return _Look(
        jnp.asarray(np.concatenate([groups, groups[home]])),
        jnp.concatenate([middle, grid]),
        jnp.asarray(np.concatenate([own, nodes])),
    )


def _groups(loss: ComposedLoss, size: int) -> np.ndarray:
    """Indices of nodes that share a plan, one group a row; the last one repeated."""
    together = engines.engine_of(loss).together
    if together is None:
        places = np.sinh(_STRETCH * np.linspace(0, 1, size)) / math.sinh(_STRETCH)
        parts = np.split(np.arange(size), np.searchsorted(places, _PARTS))
    else:
        few = max(1, together * size // _USUAL)
        few = size if loss.terms[0].prepares_long else few
        parts = np.split(np.arange(size), np.arange(few, size, few))
    most = max(part.size for part in parts)
    return np.stack([np.pad(x, (0, most - x.size), mode="edge") for x in parts])


def _consistent(found: engines.Profile) -> engines.Profile:
    """The profile with its estimates moved between its bounds."""

    def between(value: Interval) -> Interval:
        ends = stop_gradient((value.lower, value.upper))
        lower, upper, _ = uncrossed(*ends, LOGARITHM)
        return Interval(lower, inside(value.estimate, lower, upper), upper)

    log_delta, log_rest = between(found.log_delta), between(found.log_rest)
    return engines.Profile(log_delta, log_rest, found.log_alpha)
