"""The engines behind one interface: profile, epsilon and threshold of a composition.

The engine is chosen from static facts: which losses, and whether a single release is
one by construction; see `route`.  `sign` is +1 for the direction "remove"
(the pair as given) and -1 for "add" (the pair exchanged).  Thresholds are eps >= 0: by
1 - delta(-e) = e^-e (1 - delta_rev(e)) this is enough.
"""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

from .._internal._batching import one_by_one
from .._internal._implicit import known_value
from .._internal._interval import Interval, log_complement, sound
from ..losses import ComposedLoss
from ._bounds import Profile, select, with_infinite, worst_of
from ._closed_queries import closed_profile
from ._contour import Contour, chernoff
from ._discretize import Grid, plan_grid
from ._first_step import one_step_profile, unless_one_step
from ._grid import compose_grid
from ._grid_profile import grid_profile
from ._rare import (
    Rare,
    rare_profile,
    split_if_loose,
    splits,
)
from ._route import neutral, over, route
from ._spectral import (
    contour_unless,
    first_starts_at_epsilon,
    largest_log_delta,
    largest_loss,
    spectral_profile,
    tabulated_profile,
    tail_start_at_epsilon,
)

_CLEAR = 4.0
"""How much less a direction must leak, in log delta, to be left out: its bound against
an estimate of the other one, which is good to about a tenth."""


class LocalPlan(eqx.Module):
    """What `profile` needs to know about the neighborhood of a threshold."""

    sign: Float[Array, " s"]
    contour: Contour | None = None
    """Contours, for the spectral engine."""
    rare: Rare | None = None
    """Split laws, for losses whose characteristic function decays too slowly."""
    grid: Grid | None = None
    """Grids, for the grid engine.  With none of these there is a closed form."""


def plan(
    loss: ComposedLoss,
    signs: Float[Array, " s"],
    anchor: Float[Array, ""],
    gap: ArrayLike = 0.0,
) -> LocalPlan:
    """Prepares for thresholds near `anchor` >= 0, in some directions (stacked).

    On the grid for all that are no farther away than `gap`.
    """
    _, loss = neutral(stop_gradient(loss))
    engine = route(loss)
    if engine == "closed_form":
        return LocalPlan(signs)
    if engine == "grid":
        starts = lax.map(lambda s: tail_start_at_epsilon(loss, s, anchor), signs)
        grids = lax.map(lambda start: plan_grid(loss, start, gap), starts)
        return LocalPlan(signs, grid=grids)
    starts = first_starts_at_epsilon(loss, signs, anchor)
    infinite = over(signs, loss.log_infinite_mass)
    total = lambda finite: jnp.logaddexp(finite, infinite)
    most = total(jax.vmap(lambda start: start.largest_log_delta(anchor))(starts))
    rough = total(jax.vmap(lambda start: start.rough_log_delta(anchor))(starts))
    rough = jnp.minimum(rough, most)
    # The worst direction first, which may save the other one.
    order = jnp.argsort(-rough)
    hopeless = most[order] < rough[order[0]] - _CLEAR
    hopeless = hopeless.at[0].set(False)
    starts = jax.tree.map(lambda x: x[order], starts)
    contours = lax.map(lambda x: contour_unless(x[0], loss, x[1]), (hopeless, starts))
    return LocalPlan(signs[order], contours)


def profile(
    loss: ComposedLoss, local: LocalPlan, epsilons: Float[Array, " e"]
) -> Profile:
    """The worst direction's delta and 1 - delta at thresholds near a plan's.

    Differentiable in the loss and in the thresholds, which are >= 0 but for a small
    step.
    """
    nothing, loss = neutral(loss)
    if local.contour is None:
        result = _known_profile(loss, local, epsilons)
    else:
        result = unless_one_step(
            loss,
            lambda loss: _known_profile(loss, local, epsilons),
            lambda step: one_step_profile(step, local.sign, epsilons),
        )
    return select(nothing, no_release(epsilons), result)


def _known_profile(loss: ComposedLoss, local: LocalPlan, epsilons: Array) -> Profile:
    """The profile of a loss that is safe to evaluate."""
    found, local, worst = _search_profile(*stop_gradient((loss, local, epsilons)))
    # One direction leaks most (ties aside): it has the derivative.
    estimates = known_value(
        _estimates,
        (found.log_delta.estimate, found.log_rest.estimate),
        (loss, epsilons),
        jax.tree.map(lambda x: x[worst], local),
    )
    return Profile(
        Interval(found.log_delta.lower, estimates[0], found.log_delta.upper),
        Interval(found.log_rest.lower, estimates[1], found.log_rest.upper),
        found.log_alpha,
    )


def _worst_profile(
    loss: ComposedLoss, local: LocalPlan, epsilons: Array, *, tabulated: bool
) -> tuple[Profile, LocalPlan, Array]:
    """The profile without derivative, and the index of the worst direction.

    In between, the plan with what has been found out on the way.
    """

    def step(least: Array, one: LocalPlan) -> tuple[Array, tuple[Profile, LocalPlan]]:
        if one.contour is None:
            found = direction_profile(loss, one, epsilons)
        else:
            found, one = _contour_profile(
                loss, one, epsilons, least, tabulated=tabulated
            )
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


def _contour_profile(
    loss: ComposedLoss,
    local: LocalPlan,
    epsilons: Array,
    least: Array,
    *,
    tabulated: bool,
) -> tuple[Profile, LocalPlan]:
    """The profile of one direction unless it leaks less than `least`."""
    assert local.contour is not None
    planned: Contour = local.contour
    most = largest_log_delta(loss, planned, epsilons)

    def full() -> tuple[Profile, Contour]:
        if tabulated:
            return tabulated_profile(loss, planned, epsilons)
        return spectral_profile(loss, planned, epsilons), planned

    dominated = planned.idle | jnp.all(most < least)
    found, contour = lax.cond(dominated, lambda: (_at_most(most), planned), full)
    local = dataclasses.replace(local, contour=contour)
    if not splits(loss):
        return found, local
    wanted = ~jnp.all(most < least)
    found, rare = split_if_loose(loss, contour, epsilons, found, wanted)
    return found, dataclasses.replace(local, rare=rare)


_search_profile = one_by_one(
    functools.partial(_worst_profile, tabulated=True),
    functools.partial(_worst_profile, tabulated=False),
)


def _at_most(log_delta: Float[Array, " e"]) -> Profile:
    """A direction that leaks less than another: only the upper bound means anything."""
    least = jnp.full_like(log_delta, -jnp.inf)
    value = Interval(least, least, log_delta)
    return Profile(value, value.map_down(log_complement), least)


def direction_profile(loss: ComposedLoss, local: LocalPlan, epsilons: Array) -> Profile:
    """The profile of one direction; see `spectral_profile`."""
    if local.grid is not None:
        return grid_engine_profile(loss, local.grid, epsilons)
    if local.contour is None:
        return closed_profile(loss.closed_form(local.sign), epsilons)
    full = lambda: spectral_profile(loss, contour, epsilons)
    contour, rare = local.contour, local.rare
    if rare is None:
        return full()
    split = lambda: rare_profile(loss, rare, epsilons, tabulated=False)
    return lax.cond(rare.used, split, full)


def grid_engine_profile(loss: ComposedLoss, grid: Grid, epsilons: Array) -> Profile:
    finite, log_alpha = grid_profile(compose_grid(loss, grid), epsilons)
    most = stop_gradient(chernoff(grid.chernoff_shifts, grid.chernoff_logs, epsilons))
    # Where the grid says nothing, as of a delta below the least number.
    most = jnp.where(jnp.isnan(most), 0.0, most)
    known = ~jnp.isnan(stop_gradient(finite.estimate))
    guess = jnp.where(known, finite.estimate, most)
    finite = sound(Interval(finite.lower, guess, finite.upper), -jnp.inf, jnp.inf)
    finite = finite.map(lambda x: jnp.minimum(x, most))
    beyond = epsilons >= largest_loss(stop_gradient(loss), grid.sign)
    infinite = loss.log_infinite_mass(grid.sign)
    truncated = loss.log_truncated_mass(grid.sign)
    log_delta = with_infinite(finite, infinite, truncated, beyond)
    log_alpha = jnp.where(beyond, -jnp.inf, log_alpha)
    log_rest = log_delta.map_down(log_complement)
    return Profile(log_delta, log_rest, stop_gradient(log_alpha))


def _estimates(
    args: tuple[ComposedLoss, Array], local: LocalPlan
) -> tuple[Array, Array]:
    found = direction_profile(args[0], local, args[1])
    return found.log_delta.estimate, found.log_rest.estimate


def no_release(epsilons: Array) -> Profile:
    # delta = max(0, 1 - e^eps); the inner where keeps NaN out of derivatives.
    negative = epsilons < 0
    rest = jnp.where(negative, epsilons, 0.0)
    below = log_complement(jnp.where(negative, epsilons, -1.0))
    delta = jnp.where(negative, below, -jnp.inf)
    alpha = jnp.where(epsilons < 0, 0.0, -jnp.inf)
    off = stop_gradient(8 * jnp.finfo(rest.dtype).eps * (1 + jnp.abs(below)))
    log_delta = Interval(delta - off, delta, jnp.minimum(delta + off, 0))
    return Profile(log_delta, Interval(rest, rest, rest), alpha)
