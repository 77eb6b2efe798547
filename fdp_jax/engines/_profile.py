"""The engines behind one interface: the profile of a composition.

The engine is chosen from static facts: which losses, and whether a single release is
one by construction; see `engine_of`.  Thresholds are eps >= 0: by
1 - delta(-e) = e^-e (1 - delta_rev(e)) this is enough.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float, Int

from .._internal._arithmetic import ULP
from .._internal._batching import one_by_one
from .._internal._implicit import known_value
from .._internal._interval import Interval, log_complement, sound
from .._internal._shapes import row_of, zeros_of
from ..losses import ComposedLoss
from ._bounds import Profile, select, width_of, worst_of
from ._interface import AbstractPlan
from ._rare import Rare, rare_profile
from ._rare_queries import between_bounds, bounds_in_common, split_where_possible
from ._route import engine_of, neutral, numbers_alone


def plan(
    loss: ComposedLoss,
    signs: Float[Array, " s"],
    anchor: Float[Array, ""],
    gap: ArrayLike = 0.0,
) -> AbstractPlan:
    """Prepares for thresholds near `anchor` >= 0, in some directions (stacked).

    On the grid for all that are no farther away than `gap`.
    """
    _, loss = neutral(stop_gradient(loss))
    return engine_of(loss).plan(loss, signs, anchor, gap)


def profile(
    loss: ComposedLoss,
    local: AbstractPlan,
    epsilons: Float[Array, " e"],
    *,
    anew: bool = True,
) -> tuple[Profile, AbstractPlan]:
    """The worst direction's delta and 1 - delta at thresholds near a plan's.

    Differentiable in the loss and in the thresholds, which are >= 0 but for a small
    step.  Also the plan with what was found out on the way.
    """
    nothing, loss = neutral(loss)
    fixed = stop_gradient((loss, local, epsilons))
    found, local, worst = (_search_profile if anew else _see_profile)(*fixed)
    # One direction leaks most (ties aside): it has the derivative.
    estimates = known_value(
        _estimates,
        (found.log_delta.estimate, found.log_rest.estimate),
        (loss, epsilons),
        row_of(local, worst),
    )
    result = Profile(
        Interval(found.log_delta.lower, estimates[0], found.log_delta.upper),
        Interval(found.log_rest.lower, estimates[1], found.log_rest.upper),
        found.log_alpha,
    )
    return select(nothing, no_release(epsilons), result), local


def _searched(
    loss: ComposedLoss, local: AbstractPlan, epsilons: Array, *, anew: bool = True
) -> tuple[Profile, AbstractPlan, Array]:
    """The profile without derivative, and the index of the worst direction.

    In between, the plan with what has been found out on the way.
    """

    def step(
        least: Array, one: AbstractPlan
    ) -> tuple[Array, tuple[Profile, AbstractPlan]]:
        found, one = one.search(loss, epsilons, least, anew=anew)
        found = numbers_alone(found, loss)
        found = Profile(
            sound(found.log_delta, -jnp.inf, 0.0),
            sound(found.log_rest, -jnp.inf, 0.0),
            found.log_alpha,
        )
        return jnp.maximum(least, found.log_delta.lower), (found, one)

    least = jnp.full_like(epsilons, -jnp.inf)
    _, (found, local) = lax.scan(step, least, local)
    worst = worst_of(jnp.max(found.log_delta.estimate, axis=1), local.sign)
    log_delta = jax.tree.map(lambda x: jnp.max(x, axis=0), found.log_delta)
    log_rest = jax.tree.map(lambda x: jnp.min(x, axis=0), found.log_rest)
    return Profile(log_delta, log_rest, found.log_alpha[worst]), local, worst


_search_profile = one_by_one(_searched)
_see_profile = one_by_one(functools.partial(_searched, anew=False))
_search_split = one_by_one(split_where_possible)


def _split_estimates(
    args: tuple[ComposedLoss, Array], rare: Rare
) -> tuple[Array, Array]:
    loss, epsilons = args
    full = jax.jit(lambda: rare_profile(loss, rare, epsilons))
    none = lambda: zeros_of(full)
    found = lax.cond(rare.used, full, none)
    return found.log_delta.estimate, found.log_rest.estimate


def _estimates(
    args: tuple[ComposedLoss, Array], local: AbstractPlan
) -> tuple[Array, Array]:
    found = local.profile(*args)
    return found.log_delta.estimate, found.log_rest.estimate


def improved(
    loss: ComposedLoss,
    sign: Float[Array, ""],
    known: Profile,
    epsilons: Float[Array, " e"],
    center: Int[Array, ""],
) -> Profile:
    """The known profile of a direction, improved for one threshold.

    By a finer line, or where that does not do by the law split there.  Differentiable;
    of losses that can be split.
    """
    nothing, loss = neutral(loss)
    line = plan(loss, sign[None], stop_gradient(epsilons)[center])
    finer = jax.tree.map(lambda x: x[0], line).profile(loss, epsilons)
    log_delta, log_rest = (
        between_bounds(x, x) for x in (finer.log_delta, finer.log_rest)
    )
    finer = Profile(log_delta, log_rest, finer.log_alpha)
    better = ~nothing & (width_of(finer) < width_of(known))
    known = select(better, finer, known)
    fixed = stop_gradient((loss, sign, known, epsilons, center))
    found, rare = _search_split(*fixed)
    better = rare.used & ~nothing & (width_of(found) < width_of(known))
    better = better & ~jnp.isnan(found.log_delta.estimate)
    # Elsewhere derivatives may be infinite, and are not asked for.
    safe = jnp.where(better, epsilons, stop_gradient(epsilons)[center])
    values = found.log_delta.estimate, found.log_rest.estimate
    estimates = known_value(_split_estimates, values, (loss, safe), rare)
    log_delta, log_rest = (
        Interval(bounds.lower, jnp.where(better, new, old.estimate), bounds.upper)
        for bounds, new, old in zip(
            (found.log_delta, found.log_rest),
            estimates,
            (known.log_delta, known.log_rest),
            strict=True,
        )
    )
    log_alpha = jnp.where(better, found.log_alpha, known.log_alpha)
    found = Profile(log_delta, log_rest, log_alpha)
    return select(nothing, known, bounds_in_common(loss, found, known))


def no_release(epsilons: Array) -> Profile:
    """The profile of nothing."""
    # delta = max(0, 1 - e^eps); the inner where keeps NaN out of derivatives.
    negative = epsilons < 0
    rest = jnp.where(negative, epsilons, 0.0)
    below = log_complement(jnp.where(negative, epsilons, -1.0))
    delta = jnp.where(negative, below, -jnp.inf)
    alpha = jnp.where(epsilons < 0, 0.0, -jnp.inf)
    off = stop_gradient(8 * ULP * (1 + jnp.abs(below)))
    log_delta = Interval(delta - off, delta, jnp.minimum(delta + off, 0))
    return Profile(log_delta, Interval(rest, rest, rest), alpha)
