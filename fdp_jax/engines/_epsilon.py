"""The least epsilon of a composition for a given delta, whichever the engine."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

from .._internal._batching import one_by_one
from .._internal._implicit import implicit_root
from .._internal._interval import Interval, log_complement, sound, without
from ..losses import ComposedLoss
from ._bounds import select, worst_of
from ._closed_queries import closed_epsilon
from ._contour import Contour, Start, idle_contour
from ._first_step import unless_one_step
from ._grid_search import search_epsilon
from ._rare import (
    Rare,
    rare_log_delta,
    split_epsilon_if_loose,
    splits,
)
from ._route import neutral, over, route
from ._spectral import (
    first_starts_at_log_delta,
    largest_loss,
    spectral_epsilon,
    spectral_log_delta,
    starts_at_log_delta,
)


def epsilon(
    loss: ComposedLoss, signs: Float[Array, " s"], log_delta: Float[Array, ""]
) -> Interval:
    """The least real epsilon with delta(epsilon) at most the given one.

    For the worst of some directions.
    """
    nothing, loss = neutral(loss)
    infinite = over(signs, loss.log_infinite_mass)
    # delta counts infinite losses; what is left is for the finite ones.
    possible = (log_delta > infinite) & (log_delta < 0)
    safe = jnp.where(possible, log_delta, -5.0)
    share = jnp.where(possible, infinite, -jnp.inf) - safe
    finite = safe + log_complement(share)
    # Little is left of a delta that is mostly infinite losses, and so few digits.
    known = jnp.where(jnp.isneginf(share), 0.0, 1 + jnp.abs(safe) + jnp.abs(infinite))
    odds = jnp.exp(share) / -jnp.expm1(jnp.minimum(share, -1e-300))
    slack = stop_gradient(8 * jnp.finfo(safe.dtype).eps * known * odds)
    # Left of the lower end delta is larger by what was left out, at least.
    truncated = stop_gradient(over(signs, loss.log_truncated_mass))
    sure = without(infinite, truncated)
    more = jnp.log1p(
        jnp.exp(truncated - safe) / -jnp.expm1(jnp.minimum(share, -1e-300))
    )
    slack = jnp.stack([slack + stop_gradient(more), slack], axis=1)
    engine = route(loss)
    if engine == "spectral":
        result = unless_one_step(
            loss,
            lambda loss: _spectral_epsilon(loss, signs, finite, slack),
            lambda step: closed_epsilon(step, signs, safe, safe),
        )
    elif engine == "grid":
        result = search_epsilon(loss, signs, finite, slack)
    else:
        result = closed_epsilon(loss, signs, safe, jnp.logaddexp(safe, truncated))
    # delta(eps) >= 1 - e^eps for every mechanism.
    idle = log_complement(jnp.where(log_delta < 0, log_delta, -1.0))
    unit = 8 * jnp.finfo(idle.dtype).eps
    least = idle - stop_gradient(unit * (1 + jnp.abs(idle)))
    result = sound(result, -jnp.inf, jnp.inf).map(lambda x: jnp.maximum(x, least))
    result = Interval(stop_gradient(result.lower), result.estimate, result.upper)
    each = stop_gradient(largest_loss(loss, signs))
    most = jnp.max(each)
    # Where delta is just the infinite losses: the largest finite one of a direction.
    inner = each - 2 * unit * jnp.where(jnp.isfinite(each), jnp.abs(each), 0)
    attained = jnp.max(jnp.where(log_delta == sure, inner, least))
    end = Interval(attained, most, most)
    result = select(jnp.any(log_delta == infinite), end, result)
    # Also where the infinite losses are not known.
    beyond = jnp.where(jnp.any(log_delta < sure), jnp.inf, least)
    none = _point(jnp.inf)
    result = select(
        ~jnp.all(log_delta >= infinite),
        Interval(beyond, none.estimate, none.upper),
        result,
    )
    # log(1 - delta), from a rounded logarithm of delta.
    odds = jnp.exp(jnp.where(log_delta < 0, log_delta, -1.0) - idle)
    moved = jnp.abs(idle) + odds * (1 + jnp.abs(log_delta))
    moved = jnp.where(jnp.isneginf(log_delta), 0, unit * moved)
    lowest, highest = stop_gradient((idle - moved, idle + moved))
    result = select(nothing, Interval(lowest, idle, highest), result)
    return select(log_delta >= 0, _point(-jnp.inf), result)


def _point(value: ArrayLike) -> Interval:
    value = jnp.asarray(value, float)
    return Interval(value, value, value)


def span(
    loss: ComposedLoss, signs: Float[Array, " s"], log_delta: Float[Array, ""]
) -> Float[Array, ""]:
    """About the epsilon of a given delta, for choosing a grid; at least 1e-6."""
    _, loss = neutral(stop_gradient(loss))
    starts = starts_at_log_delta(loss, signs, jnp.full_like(signs, log_delta))
    rough = jax.vmap(lambda start: start.rough_epsilon(log_delta))(starts)
    most = largest_loss(loss, signs)
    return jnp.maximum(jnp.max(jnp.minimum(rough, most)), 1e-6)


def largest_epsilon(
    loss: ComposedLoss, signs: Float[Array, " s"], log_delta: Float[Array, ""]
) -> Float[Array, ""]:
    """An upper bound of the epsilon of a given delta, by Chernoff's inequality.

    It costs next to nothing.  Infinite where delta is below that of infinite losses.
    """
    nothing, loss = neutral(stop_gradient(loss))
    infinite = over(signs, loss.log_infinite_mass)
    possible = (log_delta > infinite) & (log_delta < 0)
    safe = jnp.where(possible, log_delta, -5.0)
    share = jnp.where(possible, infinite, -jnp.inf) - safe
    # Less than what is left for the finite losses, whatever is rounded.
    targets = safe + log_complement(jnp.minimum(share * (1 - 1e-9), 0)) - 1e-9
    starts = starts_at_log_delta(loss, signs, targets)
    each = jax.vmap(lambda start, target: start.largest_epsilon(target))(
        starts, targets
    )
    each = jnp.where(possible, jnp.minimum(each, largest_loss(loss, signs)), jnp.inf)
    return jnp.where(nothing | (log_delta >= 0), 0.0, jnp.max(each))


def _spectral_epsilon(
    loss: ComposedLoss, signs: Array, targets: Array, slacks: Array
) -> Interval:
    constants = stop_gradient((loss, signs, targets, slacks))
    found, contour, rare, worst = _search_epsilon(*constants)
    args = loss.without_ends(), targets[worst]
    aux = signs[worst], contour, rare
    estimate = implicit_root(_log_delta_residual, found.estimate, args, aux)
    return Interval(found.lower, estimate, found.upper)


def _log_delta_residual(
    epsilon: Array,
    args: tuple[ComposedLoss, Array],
    aux: tuple[Array, Contour, Rare | None],
) -> Array:
    (loss, log_delta), (sign, contour, rare) = args, aux
    full = lambda: spectral_log_delta(loss, contour, epsilon)
    if rare is None:
        return full() - log_delta
    split = lambda: rare_log_delta(loss, sign, rare, epsilon)
    return lax.cond(rare.used, split, full) - log_delta


def _epsilon_search(
    loss: ComposedLoss,
    signs: Array,
    targets: Array,
    slacks: Array,
    *,
    tabulated: bool = True,
) -> tuple[Interval, Contour, Rare | None, Array]:
    """The epsilon of the worst direction, how it was found, and which that is."""
    starts = first_starts_at_log_delta(loss, signs, targets)
    # The worst direction first, which may save the other one.
    largest = jax.vmap(lambda start, target: start.largest_epsilon(target))
    most = largest(starts, targets - slacks[:, 1])
    rough = jax.vmap(lambda start, target: start.rough_epsilon(target))
    order = jnp.argsort(-rough(starts, targets))
    ordered = jax.tree.map(lambda x: x[order], (starts, targets, slacks, most))

    split = splits(loss)

    def step(
        least: Array, one: tuple[Start, Array, Array, Array]
    ) -> tuple[Array, tuple[Interval, Contour, Rare | None]]:
        start, target, slack, most = one

        def full() -> tuple[Interval, Contour]:
            return spectral_epsilon(loss, start, target, slack, tabulated=tabulated)

        _, shape = jax.eval_shape(full)
        none = Interval(-jnp.inf + 0 * most, -jnp.inf + 0 * most, most)
        idle = lambda: (none, idle_contour(start, shape))
        hopeless = most < least
        found, contour = lax.cond(hopeless, idle, full)
        rare = None
        if split:
            found, rare = split_epsilon_if_loose(
                loss, start.sign, found, target, slack, ~hopeless
            )
        return jnp.maximum(least, found.lower), (found, contour, rare)

    least = jnp.full_like(targets[0], -jnp.inf)
    _, (found, contours, rares) = lax.scan(step, least, ordered)
    worst = worst_of(found.estimate, signs[order])
    result = jax.tree.map(jnp.max, found)
    contour, rare = jax.tree.map(lambda x: x[worst], (contours, rares))
    return result, contour, rare, order[worst]


_search_epsilon = one_by_one(
    _epsilon_search, functools.partial(_epsilon_search, tabulated=False)
)
