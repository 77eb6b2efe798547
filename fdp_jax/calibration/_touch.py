r"""Where a guarantee comes closest to a reference, with derivatives of every order.

In deficits T(q) = q delta(eps), q = 1 / (1 + e^eps) (see `comparison.sources`), the
two questions are the largest T~ - T (Delta-divergence) and the largest T~ / (T + d q)
(domination but for a probability d; see `_ratio`).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._batching import one_by_one
from .._internal._implicit import optimal_value, parted
from .._internal._special import safe_log
from ..comparison.delta import (
    attached,
    extremum,
    halves_of,
    prior_of,
    search,
    sources,
)
from ..comparison.sources import Request, share
from ..engines import Interval
from ._ratio import Profiles, explored

Requests = tuple[Request, Request]


def largest_gap(requests: Requests) -> tuple[Interval, tuple[Array, Array]]:
    """The largest T~ - T, and where it is found."""
    found = search(*requests)
    at = extremum(found.nodes)
    gap = attached(requests, found.prepared, at)
    binding = prior_of(at), jnp.where(at.left, -at.epsilon, at.epsilon)
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
    ratio, *given = parted(_ratio_at, (requests, delta), (prepared, at.left))
    value = optimal_value(ratio, at.value, at.epsilon, *given)
    value = jnp.where(jnp.isfinite(at.value), value, at.value)
    binding = at.alpha, jnp.where(at.left, -at.epsilon, at.epsilon)
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


def _ratio_at(epsilon: Array, args: Any, aux: tuple) -> Array:
    """The ratio at one threshold, as an objective."""
    (requests, delta), (prepared, left) = args, aux
    one, other = sources(*requests).estimates(prepared, epsilon, left)
    return safe_log(other) - safe_log(one + delta * share(epsilon))
