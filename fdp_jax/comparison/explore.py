r"""Where two guarantees differ: certified deficits at adaptively chosen thresholds.

A fixed number of rounds, each with a fixed number of thresholds, so that everything
is one compiled program.  The first round is a grid over all scales; each later one
splits the cells that may hold the maximum of T~ - T and those where it changes sign,
and tries the vertices of parabolas and the intersections of secants (for kinks).
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float, Int, PyTree

from ..engines import Interval
from .cells import cell_bounds
from .sources import Pair, share

ROUND = 96
"""Thresholds per round and half-axis."""
ROUNDS = 6
_SPLIT, _CELLS = 8, 4
_PEAKS = 2
_CROSSINGS = 2
_LEAST, _MOST = 1e-8, 40.0
"""Thresholds of the first round, besides 0; q = 4e-18 at the last."""


class Nodes(eqx.Module):
    """Both deficits at sorted thresholds; row 0 is pi >= 1/2, row 1 pi <= 1/2.

    The last node of a row is eps = 0, the first (some of them unused) eps = inf.
    """

    epsilon: Float[Array, "h n"]
    one: Interval
    """T of the first guarantee."""
    other: Interval
    """T of the second one."""

    @property
    def q(self) -> Float[Array, "h n"]:
        """min(pi, 1 - pi)."""
        return share(self.epsilon)

    @property
    def gap(self) -> Interval:
        """T~ - T = R - R~, with bounds."""
        one, other = self.one, self.other
        lower, upper = other.lower - one.upper, other.upper - one.lower
        return Interval(lower, other.estimate - one.estimate, upper)

    @property
    def exchanged(self) -> "Nodes":
        """The nodes with the guarantees exchanged."""
        return Nodes(self.epsilon, self.other, self.one)

    def both_ways(self) -> "Nodes":
        """This and the exchanged one, stacked."""
        return jax.tree.map(lambda x, y: jnp.stack([x, y]), self, self.exchanged)

    def bounds(self, weight: Array | None) -> Float[Array, "h n-1"]:
        """Upper bounds of the weighted gap between the nodes."""
        return cell_bounds(self.q, self.one, self.other, weight)


def explore(pair: Pair, prepared: tuple, halves: int, weigh=None) -> Nodes:
    """Looks for the largest gap between two guarantees, and for where it is zero.

    Args:
        pair: The two guarantees.
        prepared: Their preparations.
        halves: 1 if both are symmetric, else 2.
        weigh: Function (q, half) -> weight whose product with the gap is to be large.

    Returns:
        All nodes that were looked at.
    """
    zero = jnp.zeros(())
    none = Interval(zero, zero, zero)
    found = accumulated(
        first_grid(pair, halves),
        Nodes(zero + jnp.inf, none, none),
        lambda nodes, _: _proposed(in_order(nodes), weigh),
        lambda at: Nodes(at, *pair.deficits(prepared, at)),
        ROUNDS,
    )
    return in_order(found)


def accumulated(
    first: Float[Array, "h k"],
    nothing: PyTree,
    propose: Callable[[PyTree, Array], Float[Array, "h k"]],
    look: Callable[[Float[Array, "h k"]], PyTree],
    rounds: int,
) -> PyTree:
    """All nodes that are seen in some rounds, those of a grid first.

    Args:
        first: Thresholds of the first round.
        nothing: A node that is unused, at infinity.
        propose: From the nodes so far and the round's number to as many thresholds.
        look: The nodes at thresholds.
        rounds: Their number.
    """

    def step(nodes: PyTree, number: Int[Array, ""]) -> tuple[PyTree, None]:
        at = jnp.where(number == 0, first, propose(nodes, number))
        put = lambda old, new: lax.dynamic_update_slice(old, new, (0, number * ROUND))
        return jax.tree.map(put, nodes, look(at)), None

    # The last slot stays at infinity, where nothing can be gained.
    shape = len(first), rounds * ROUND + 1
    empty = jax.tree.map(lambda x: jnp.full(shape, x, first.dtype), nothing)
    return lax.scan(step, stop_gradient(empty), jnp.arange(rounds))[0]


def in_order(nodes: Nodes) -> Nodes:
    """Sorted by falling threshold, which is rising q."""
    order = jnp.argsort(-nodes.epsilon, axis=1)
    return jax.tree.map(lambda x: jnp.take_along_axis(x, order, axis=1), nodes)


def first_grid(pair: Pair, halves: int) -> Float[Array, "h k"]:
    """Thresholds of all scales, and the known kinks, on every half-axis."""
    kinks = jnp.concatenate([pair.first.kinks(), pair.second.kinks()])
    count = ROUND - 1 - kinks.size
    grid = np.append(0.0, np.geomspace(_LEAST, _MOST, count))
    grid = jnp.concatenate([jnp.asarray(grid, kinks.dtype), kinks])
    return jnp.broadcast_to(grid, (halves, ROUND))


def weights_of(nodes: Nodes, weigh) -> Array | None:
    """The weight at every node; zero where q is."""
    if weigh is None:
        return None
    q = nodes.q
    safe = jnp.where(q > 0, q, 0.5)
    halves = jnp.arange(len(q))[:, None]
    return jnp.where(q > 0, weigh(safe, halves), 0.0)


def _proposed(nodes: Nodes, weigh) -> Float[Array, "h k"]:
    """The next thresholds, for each half-axis."""
    weight = weights_of(nodes, weigh)
    value = nodes.gap.estimate * (1.0 if weight is None else weight)
    both = jax.vmap(lambda ways: ways.bounds(weight))(nodes.both_ways())
    bounds = jnp.swapaxes(both, 0, 1)
    propose = jax.vmap(_proposed_half)
    found = propose(nodes.epsilon, nodes.q, value, nodes.gap, bounds)
    fine = jnp.isfinite(found) & (found >= 0)
    return jnp.where(fine, found, jnp.inf)


def _proposed_half(
    epsilon: Array, q: Array, value: Array, gap: Interval, bounds: Float[Array, "2 n-1"]
) -> Float[Array, " k"]:
    _, cells = lax.top_k(bounds, _CELLS)
    values = jnp.stack([value, -value])
    found = [
        _split(q, cells.ravel()).ravel(),
        jax.vmap(_candidates, in_axes=(None, 0))(epsilon, values).ravel(),
    ]
    # Cells whose ends certainly have gaps of different signs.
    sign = jnp.where(gap.lower > 0, 1, jnp.where(gap.upper < 0, -1, 0))
    size, at = lax.top_k(
        jnp.where(sign[1:] * sign[:-1] < 0, q[1:] - q[:-1], -1.0), _CROSSINGS
    )
    used = size > 0
    found.append(jnp.where(used[:, None], _split(q, at), jnp.inf).ravel())
    ends = gap.estimate[at], gap.estimate[at + 1]
    crossing = secant(epsilon[at], epsilon[at + 1], *ends)
    found = jnp.concatenate([*found, jnp.where(used, crossing, jnp.inf)])
    return jnp.pad(found, (0, ROUND - found.size), constant_values=jnp.inf)


def _split(q: Array, cells: Int[Array, " c"]) -> Float[Array, "c s"]:
    """Thresholds that divide cells evenly in q."""
    parts = jnp.arange(1, _SPLIT, dtype=q.dtype) / _SPLIT
    low, high = q[cells][:, None], q[cells + 1][:, None]
    inner = low + (high - low) * parts
    found = jnp.log1p((1 - 2 * inner) / jnp.where(inner > 0, inner, 1))
    return jnp.where((inner > low) & (inner < high), found, jnp.inf)


def _candidates(epsilon: Array, value: Array) -> Float[Array, "p 4"]:
    """Likely places of maxima, smooth ones and kinks, near the highest nodes."""
    finite = jnp.isfinite(epsilon)
    x = jnp.where(finite, epsilon, 0.0)
    before = jnp.roll(value, 1).at[0].set(-jnp.inf)
    after = jnp.roll(value, -1).at[-1].set(-jnp.inf)
    peak = finite & (value >= before) & (value >= after)
    _, tops = lax.top_k(jnp.where(peak, value, -jnp.inf), _PEAKS)

    def near(i: Array) -> Float[Array, " 4"]:
        # eps falls along the row; beyond 0 there is nothing.
        at = jnp.clip(i + jnp.arange(-2, 3), 0, x.size - 1)
        xs, ys = x[at], value[at]
        low, high = jnp.min(xs[1:4]), jnp.max(xs[1:4])
        found = jnp.stack(
            [
                _vertex(xs[1:4], ys[1:4]),
                _meet(xs[:2], ys[:2], xs[3:], ys[3:]),
                _meet(xs[:2], ys[:2], xs[2:4], ys[2:4]),
                _meet(xs[1:3], ys[1:3], xs[3:], ys[3:]),
            ]
        )
        return jnp.where((found > low) & (found < high), found, jnp.inf)

    return jax.vmap(near)(tops)


def _vertex(x: Array, y: Array) -> Array:
    """The extremum of the parabola through three points."""
    to_left, to_right = x[1] - x[0], x[1] - x[2]
    left, right = to_right * (y[1] - y[0]), to_left * (y[1] - y[2])
    turn = 2 * (right - left)
    shift = to_left * right - to_right * left
    return x[1] - shift / jnp.where(turn == 0, jnp.inf, turn)


def _meet(x: Array, y: Array, u: Array, v: Array) -> Array:
    """The point at which the lines through two pairs of points meet."""
    run = x[1] - x[0], u[1] - u[0]
    rise = y[1] - y[0], v[1] - v[0]
    slope = [
        jnp.where(w == 0, 0, r / jnp.where(w == 0, 1, w))
        for r, w in zip(rise, run, strict=True)
    ]
    turn = slope[0] - slope[1]
    place = v[0] - y[1] - slope[1] * (u[0] - x[1])
    return x[1] + place / jnp.where(turn == 0, jnp.inf, turn)


def secant(left: Array, right: Array, at_left: Array, at_right: Array) -> Array:
    """The zero of the line through two values, infinite if they are the same."""
    turn = at_right - at_left
    safe = jnp.where(turn == 0, jnp.inf, turn)
    return left - at_left * (right - left) / safe
