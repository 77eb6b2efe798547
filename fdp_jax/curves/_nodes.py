"""The profile at the nodes of a curve, of which neighbours share a preparation.

On the grid the preparation is most of the work, and so it is for a contour, which
serves thresholds the worse, the farther they are from its anchor.  Mostly that is far
enough; where it is not, nodes get contours of their own.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .. import engines
from ..engines import Interval, select
from ..losses import ComposedLoss
from ._bounds import LOGARITHM, uncrossed
from ._queries import inside

_STRETCH = 3.0
_PARTS = 0.2, 0.55
"""Places at which a curve is divided; one composition on the grid serves a part."""
_USUAL = 129
"""Nodes of a direction for which engines say how many share a plan."""
_APART = 1e-7
"""Relative width of a bracket from which on a node is looked at by itself."""
_LEAST = -700.0
"""log delta below which no width matters."""


class _Look(NamedTuple):
    """Some neighbouring nodes, and where the plan that they are seen from is made."""

    nodes: Array
    anchor: Array
    own: Array
    """The node that this look is for; -1 if it is for all of them."""


def place(positions: Array) -> Array:
    """Where nodes lie: those at rising positions in [0, 1] lie closer near 0."""
    return jnp.sinh(_STRETCH * positions) / math.sinh(_STRETCH)


def profile_at(
    loss: ComposedLoss, sign: Float[Array, ""], grid: Float[Array, " n"]
) -> engines.Profile:
    """The profile of one direction at rising thresholds; differentiable."""
    engine = engines.engine_of(loss)
    groups = _groups(loss, grid.size)
    alone = engine.anchored and 1 < groups.shape[1] < grid.size
    looks = _looks(groups, grid, alone=alone)

    def see(nodes: Array, anchor: Array) -> engines.Profile:
        epsilons = grid[nodes]
        gap = jnp.maximum(epsilons[-1] - anchor, anchor - epsilons[0])
        local = engines.plan(loss, sign[None], anchor, stop_gradient(gap))
        return _consistent(engines.profile(loss, local, epsilons))

    def step(known: engines.Profile, look: _Look) -> tuple[engines.Profile, None]:
        before = jax.tree.map(lambda x: x[look.nodes], known)
        again = lambda: see(look.nodes, look.anchor)
        if alone:
            wanted = (look.own < 0) | (_width(known) > _APART)[look.own]
            found = lax.cond(wanted, again, lambda: before)
        else:
            found = again()
        found = select(_width(found) <= _width(before), found, before)
        put = lambda all, some: all.at[look.nodes].set(some)
        return jax.tree.map(put, known, found), None

    shape = jax.eval_shape(see, groups[0], grid[0])
    nothing = jax.tree.map(lambda x: jnp.zeros(grid.shape, x.dtype), shape)
    return lax.scan(step, _unknown(nothing), looks)[0]


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


def _width(found: engines.Profile) -> Float[Array, " e"]:
    """Of the bracket of what is the less of delta and 1 - delta, where that matters."""
    small = found.log_delta.estimate < found.log_rest.estimate
    less = select(small, found.log_delta, found.log_rest)
    width = less.upper - less.lower
    width = jnp.where(jnp.isnan(width), jnp.inf, width)
    return stop_gradient(jnp.where(found.log_delta.upper < _LEAST, 0, width))


def _consistent(found: engines.Profile) -> engines.Profile:
    """The profile with its estimates moved between its bounds."""

    def between(value: Interval) -> Interval:
        ends = stop_gradient((value.lower, value.upper))
        lower, upper, _ = uncrossed(*ends, LOGARITHM)
        return Interval(lower, inside(value.estimate, lower, upper), upper)

    log_delta, log_rest = between(found.log_delta), between(found.log_rest)
    return engines.Profile(log_delta, log_rest, found.log_alpha)
