r"""Where a guarantee comes closest to a reference, with derivatives of every order.

In deficits T(q) = q delta(eps), q = 1 / (1 + e^eps) (see `comparison.sources`), the
two questions are the largest T~ - T (Delta-divergence) and the largest T~ / (T + d q)
(domination but for a probability d; see `_ratio`).
"""

import abc
import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._batching import one_by_one
from .._internal._implicit import optimal_value
from .._internal._shapes import Fixed
from .._internal._special import safe_log
from ..comparison.delta import extremum, halves_of, search, sources
from ..comparison.sources import Request, share
from ..engines import Interval
from ._ratio import Profiles, explored

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
        halves = halves_of(*requests)
        nodes, highest = explored(pair, prepared, halves, requests[0], delta)
        return prepared, _closest(nodes), highest

    prepared, at, upper = run(stop_gradient(arrays))
    place = at.epsilon, at.left, jnp.isfinite(at.value)
    value = _attached(_RatioAt, (requests, delta), prepared, place, at.value)
    signed = jnp.where(at.left, -at.epsilon, at.epsilon)
    binding = at.alpha, signed
    return Interval(at.value, value, upper), stop_gradient(binding)


class _Closest(eqx.Module):
    """The place of the largest ratio."""

    value: Float[Array, ""]
    epsilon: Float[Array, ""]
    left: Array
    alpha: Float[Array, ""]


def _closest(nodes: Profiles) -> _Closest:
    ratios = nodes.ratios
    flat = jnp.argmax(ratios)
    half, index = flat // ratios.shape[1], flat % ratios.shape[1]
    epsilon = nodes.epsilon[half, index]
    safe = jnp.where(jnp.isfinite(epsilon), epsilon, 1.0)
    left = half == 1
    row = jax.tree.map(lambda x: x[half], nodes)
    alpha = _type_one_error(row, safe, left)
    return _Closest(ratios[half, index], safe, left, alpha)


def _type_one_error(row: Profiles, epsilon: Array, left: Array) -> Array:
    """The type I error of the test at a threshold: -d delta / d e^eps."""
    delta = jnp.where(jnp.isfinite(row.epsilon), jnp.exp(row.used.estimate), 0.0)
    at = lambda e: jnp.interp(e, row.epsilon, delta)
    step = 1e-3 * jnp.maximum(epsilon, 1e-3)
    low, high = jnp.maximum(epsilon - step, 0.0), epsilon + step
    alpha = (at(low) - at(high)) / (jnp.exp(high) - jnp.exp(low))
    # On the left half-axis the two errors of the exchanged test change places.
    return jnp.where(left, 1 - at(epsilon) - jnp.exp(epsilon) * alpha, alpha)


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
    found = optimal_value(kind(Fixed.of(static)), value, at, arrays, aux)
    return jnp.where(inside, found, value)


@dataclasses.dataclass(frozen=True)
class _AbstractAt(abc.ABC):
    """A comparison at one threshold; equal for equal structures."""

    static: Fixed

    @abc.abstractmethod
    def compare(self, args: Any, prepared: Any, epsilon: Array, left: Array) -> Array:
        """The comparison at one threshold, differentiable."""

    def __call__(self, epsilon: Array, arrays: Any, aux: tuple) -> Array:
        rest, prepared, left = aux
        args = eqx.combine(arrays, rest, self.static.tree())
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
