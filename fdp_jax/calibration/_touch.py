r"""Where a guarantee comes closest to a reference, with derivatives of every order.

In deficits T(q) = q delta(eps), q = 1 / (1 + e^eps) (see `comparison.sources`), the
two questions are the largest T~ - T (Delta-divergence) and the largest T~ / (T + d q)
(domination but for a probability d).

The second one is certified between thresholds as follows.  T + d q =: U is convex, and
`cell_bounds` gives the sag s_k of its chord on every cell.  The polyline through the
values U - max(s_(k-1), s_k) at the thresholds then lies below U everywhere.  If T~,
which is convex too, is below that polyline at the thresholds, so it is in between.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float, Int

from .._internal._batching import one_by_one
from .._internal._implicit import optimal_value
from .._internal._special import safe_log
from ..comparison.cells import cell_bounds
from ..comparison.delta import extremum, halves_of, search, sources
from ..comparison.explore import ROUND, Nodes, first_grid, in_order
from ..comparison.sources import Request, share
from ..engines import Interval

_EVEN, _ZOOMS = 6, 3
"""Rounds of thresholds over the whole range, and around the closest one."""

Requests = tuple[Request, Request]


def largest_gap(requests: Requests) -> tuple[Interval, tuple[Array, Array]]:
    """The largest T~ - T, and where it is found."""
    found = search(*requests)
    at = extremum(found.nodes)
    # Where there is no gap anywhere, no threshold is special.
    inside = jnp.isfinite(at.epsilon) & (at.estimate != 0)
    place = at.epsilon, at.left, inside
    gap = _attached(_GapAt, requests, found.prepared, place, at.estimate)
    epsilon = jnp.where(at.left, -at.epsilon, at.epsilon)
    binding = jax.nn.sigmoid(epsilon), epsilon
    return Interval(at.lower, gap, at.upper), stop_gradient(binding)


def largest_ratio(
    requests: Requests, delta: Float[Array, ""]
) -> tuple[Interval, tuple[Array, Array]]:
    """The largest log T~ / (T + delta q), and where it is found."""
    arrays, static = eqx.partition((requests, delta), eqx.is_array)

    @one_by_one
    def run(arrays: Any) -> tuple:
        requests, delta = eqx.combine(arrays, static)
        pair = sources(*requests)
        prepared = pair.prepared()
        nodes = _explore(pair, prepared, halves_of(*requests), requests[0], delta)
        return prepared, _closest(nodes), _highest(nodes, requests[0], delta)

    prepared, at, upper = run(stop_gradient(arrays))
    place = at.epsilon, at.left, jnp.isfinite(at.value)
    value = _attached(_RatioAt, (requests, delta), prepared, place, at.value)
    signed = jnp.where(at.left, -at.epsilon, at.epsilon)
    binding = at.alpha, signed
    return Interval(at.value, value, upper), stop_gradient(binding)


# ------------------------------------------------------------------------ the search


def _explore(
    pair: Any, prepared: Any, halves: int, reference: Request, delta: Array
) -> Nodes:
    """T + delta q and T~ at many thresholds, most of them near where they meet."""
    first = first_grid(jnp.concatenate([pair.first.kinks(), pair.second.kinks()]))
    first = jnp.broadcast_to(first, (halves, ROUND))
    rounds = 1 + _EVEN + _ZOOMS
    # The last slot stays at infinity.
    empty = jnp.full((halves, rounds * ROUND + 1), jnp.inf, first.dtype)
    none = Interval(*(jnp.zeros_like(empty),) * 3)
    steps = jnp.arange(1, ROUND + 1, dtype=first.dtype)

    def step(state: tuple, number: Int[Array, ""]) -> tuple[tuple, None]:
        nodes, reach = state
        ordered = in_order(nodes)
        shift = (number - 1) / _EVEN
        # Known from the first round; the even ones have to fit together.
        reach = jnp.where(number <= 1, _reach(ordered, reference, delta), reach)
        even = reach * (steps - shift) / ROUND
        low, high = _around(ordered)
        zoom = low + (high - low) * steps / (ROUND + 1)
        later = jnp.where(number <= _EVEN, even, zoom)
        at = jnp.where(number == 0, first, later)
        one, other = pair.deficits(prepared, at)
        one = one.map(lambda x: x + delta * share(at))
        found = Nodes(at, one, other)
        put = lambda old, new: lax.dynamic_update_slice(old, new, (0, number * ROUND))
        return (jax.tree.map(put, nodes, found), reach), None

    start = stop_gradient(Nodes(empty, none, none)), jnp.ones((halves, 1), first.dtype)
    (nodes, _), _ = lax.scan(step, start, jnp.arange(rounds))
    return in_order(nodes)


def _log_least(reference: Request, delta: Array) -> Array:
    """Log of what is allowed at every threshold: delta, and infinite losses."""
    if reference.directions:
        loss = reference.subject.loss()
        signs = jnp.asarray([1.0, -1.0])
        infinite = jnp.min(jnp.stack([loss.log_infinite_mass(s) for s in signs]))
    else:
        infinite = reference.subject._log_delta_bounds(jnp.asarray(jnp.inf)).lower
    return jnp.logaddexp(safe_log(delta), infinite)


def _reach(nodes: Nodes, reference: Request, delta: Array) -> Float[Array, "h 1"]:
    """Where the reference has come down to what is allowed anyway, or the last node."""
    finite = jnp.isfinite(nodes.epsilon)
    q = jnp.where(finite, nodes.q, 1.0)
    log_delta = safe_log(nodes.one.estimate) - jnp.log(q)
    down = finite & (log_delta <= _log_least(reference, delta) + 0.05)
    last = jnp.max(jnp.where(finite, nodes.epsilon, 0.0), axis=1, keepdims=True)
    at = jnp.min(jnp.where(down, nodes.epsilon, jnp.inf), axis=1, keepdims=True)
    return jnp.minimum(at, last)


def _ratios(nodes: Nodes) -> Float[Array, "h n"]:
    """Log T~ / U, an estimate."""
    ratio = safe_log(nodes.other.estimate) - safe_log(nodes.one.estimate)
    usable = jnp.isfinite(nodes.epsilon) & (nodes.other.estimate > 0)
    return jnp.where(usable, ratio, -jnp.inf)


def _around(nodes: Nodes) -> tuple[Float[Array, "h 1"], Float[Array, "h 1"]]:
    """The neighbors of the closest threshold of each half-axis."""
    best = jnp.argmax(_ratios(nodes), axis=1, keepdims=True)
    last = nodes.epsilon.shape[1] - 1
    at = lambda i: jnp.take_along_axis(nodes.epsilon, jnp.clip(i, 0, last), axis=1)
    high = at(best - 1)
    return at(best + 1), jnp.where(jnp.isfinite(high), high, at(best))


class _Closest(eqx.Module):
    """Where the ratio is largest."""

    value: Float[Array, ""]
    epsilon: Float[Array, ""]
    left: Array
    alpha: Float[Array, ""]


def _closest(nodes: Nodes) -> _Closest:
    ratios = _ratios(nodes)
    flat = jnp.argmax(ratios)
    half, index = flat // ratios.shape[1], flat % ratios.shape[1]
    epsilon = nodes.epsilon[half, index]
    safe = jnp.where(jnp.isfinite(epsilon), epsilon, 1.0)
    left = half == 1
    row = jax.tree.map(lambda x: x[half], nodes)
    alpha = _type_one_error(row, safe, left)
    return _Closest(ratios[half, index], safe, left, alpha)


def _type_one_error(row: Nodes, epsilon: Array, left: Array) -> Array:
    """The type I error of the test at a threshold: -d delta / d e^eps."""
    finite = jnp.isfinite(row.epsilon)
    order = slice(None, None, -1)
    q = jnp.where(finite, share(row.epsilon), 1.0)
    delta = jnp.where(finite, row.other.estimate / q, 0.0)
    at = lambda e: jnp.interp(e, row.epsilon[order], delta[order])
    step = 1e-3 * jnp.maximum(epsilon, 1e-3)
    low, high = jnp.maximum(epsilon - step, 0.0), epsilon + step
    alpha = (at(low) - at(high)) / (jnp.exp(high) - jnp.exp(low))
    # On the left half-axis the two errors of the exchanged test change places.
    return jnp.where(left, 1 - at(epsilon) - jnp.exp(epsilon) * alpha, alpha)


def _highest(nodes: Nodes, reference: Request, delta: Array) -> Float[Array, ""]:
    """A bound of the largest log ratio over all thresholds."""
    q, one = nodes.q, nodes.one
    sag = cell_bounds(q, one, one, None)
    finite = jnp.isfinite(nodes.epsilon)
    outermost = finite & ~jnp.pad(finite[:, :-1], ((0, 0), (1, 0)))
    before = jnp.pad(sag, ((0, 0), (1, 0)))
    before = jnp.where(outermost, 0.0, before)
    after = jnp.pad(sag, ((0, 0), (0, 1)))
    allowed = one.lower - jnp.maximum(before, after)
    # Beyond the outermost threshold T~ is below its chord from q = 0.
    least = jnp.exp(_log_least(reference, delta)) * q
    allowed = jnp.where(outermost, jnp.minimum(allowed, least), allowed)
    used = nodes.other.upper
    ratio = safe_log(used) - safe_log(allowed)
    ratio = jnp.where(used > 0, ratio, -jnp.inf)
    ratio = jnp.where((allowed <= 0) & (used > 0), jnp.inf, ratio)
    return jnp.max(jnp.where(finite, ratio, -jnp.inf))


# ------------------------------------------------------------------------ derivatives


def _attached(
    kind: type,
    args: Any,
    prepared: Any,
    place: tuple[Array, Array, Array],
    value: Array,
) -> Array:
    """The value found at a threshold, with derivatives of first and second order.

    `place` is the threshold, whether it is on the left, and whether there is one.
    """
    epsilon, left, inside = place
    arrays, static = eqx.partition(args, eqx.is_inexact_array)
    rest, static = eqx.partition(static, eqx.is_array)
    at = jnp.where(inside, epsilon, 1.0)
    aux = stop_gradient((rest, prepared, left))
    found = optimal_value(kind(static), value, at, arrays, aux)
    return jnp.where(inside, found, value)


class _AbstractAt(abc.ABC):
    """A comparison at one threshold; equal for equal structures."""

    def __init__(self, static: Any):
        self.static = static
        leaves, self.structure = jax.tree.flatten(static)
        self.key = tuple(leaves)

    def __hash__(self) -> int:
        return hash((type(self), self.structure, self.key))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return False
        return (self.structure, self.key) == (other.structure, other.key)

    @abc.abstractmethod
    def compare(self, args: Any, prepared: Any, epsilon: Array, left: Array) -> Array:
        """The comparison at one threshold, differentiable."""

    def __call__(self, epsilon: Array, arrays: Any, aux: tuple) -> Array:
        rest, prepared, left = aux
        args = eqx.combine(arrays, rest, self.static)
        fixed = stop_gradient(epsilon)
        # At prior 1/2 there may be a kink, which does not move.
        held = fixed == 0
        found = self.compare(args, prepared, jnp.where(held, fixed, epsilon), left)
        return found - jnp.where(held, 0.5 * jnp.square(epsilon - fixed), 0.0)


def _deficits(
    requests: Requests, prepared: Any, epsilon: Array, left: Array
) -> tuple[Array, Array]:
    pair = sources(*requests)
    at = pair.on_kinks(epsilon[None])[0]
    one = pair.first.estimate(prepared[0], at, left)
    return one, pair.second.estimate(prepared[1], at, left)


class _GapAt(_AbstractAt):
    def compare(self, args, prepared, epsilon, left):
        one, other = _deficits(args, prepared, epsilon, left)
        return other - one


class _RatioAt(_AbstractAt):
    def compare(self, args, prepared, epsilon, left):
        requests, delta = args
        one, other = _deficits(requests, prepared, epsilon, left)
        return safe_log(other) - safe_log(one + delta * share(epsilon))
