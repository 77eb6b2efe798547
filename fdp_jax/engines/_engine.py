"""The engines behind one interface: profile, epsilon and threshold of a composition.

The engine is chosen from static facts: which losses, and whether a single release is
one by construction; see `route`.  `sign` is +1 for the direction "remove"
(the pair as given) and -1 for "add" (the pair exchanged).  Thresholds are eps >= 0: by
1 - delta(-e) = e^-e (1 - delta_rev(e)) this is enough.
"""

import dataclasses
import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Bool, Float

from .._internal._batching import one_by_one
from .._internal._implicit import implicit_root, known_value
from .._internal._interval import Interval, log_complement, sound, without
from ..losses import ComposedLoss, single_losses
from ._bounds import Profile, select, with_infinite, worst_of
from ._closed_queries import closed_epsilon, closed_profile, closed_threshold
from ._contour import Contour, Start, chernoff, idle_contour
from ._discretize import Grid, plan_grid
from ._first_step import one_step_profile, unless_one_step
from ._grid import compose_grid
from ._grid_profile import grid_profile, grid_threshold
from ._grid_search import search_epsilon
from ._rare import (
    Rare,
    rare_log_delta,
    rare_profile,
    split_epsilon_if_loose,
    split_if_loose,
    splits,
)
from ._spectral import (
    contour_unless,
    first_starts_at_epsilon,
    first_starts_at_log_delta,
    largest_log_delta,
    largest_loss,
    spectral_epsilon,
    spectral_log_delta,
    spectral_profile,
    spectral_threshold,
    start_at_tail,
    starts_at_log_delta,
    tabulated_profile,
    tail_start_at_epsilon,
)

_ANY_COUNT = 1000.0
_CANDIDATES = 257


_CLEAR = 4.0
"""How much less a direction must leak, in log delta, to be left out: its bound against
an estimate of the other one, which is good to about a tenth."""

METHODS = ("auto", "closed_form", "spectral", "grid")
"""Engines that can be asked for; "auto" takes the first that serves."""


class LocalPlan(eqx.Module):
    """What `profile` needs to know about the neighborhood of a threshold."""

    sign: Float[Array, " s"]
    contour: Contour | None = None
    """For the spectral engine."""
    rare: Rare | None = None
    """For the same where its characteristic function decays too slowly."""
    grid: Grid | None = None
    """For the grid engine.  If there is neither, there is a closed form."""


def route(loss: ComposedLoss) -> str:
    """Which engine answers, from static facts alone.

    Raises:
        ValueError: If the engine asked for cannot.
    """
    single = loss.counts[0].dtype == jnp.float32
    available = {
        "closed_form": loss.has_closed_form,
        "spectral": loss.analytic,
        "grid": loss.on_grid and not single,
    }
    method = loss.method.name
    if method == "auto":
        if loss.has_closed_form:
            return "closed_form"
        # The grid engine needs float64.
        method = "spectral" if loss.decays or (single and loss.analytic) else "grid"
    if available[method]:
        return method
    if method == "grid" and single:
        raise ValueError('method "grid" needs float64: leave native_float32()')
    others = [repr(name) for name, yes in available.items() if yes]
    raise ValueError(
        f"method {method!r} is not available for this composition: use 'auto' or "
        + " or ".join(others)
    )


def _neutral(loss: ComposedLoss) -> tuple[Bool[Array, ""], ComposedLoss]:
    """Whether nothing is released, and a loss that is safe to evaluate regardless."""
    nothing = jnp.stack([count == 0 for count in loss.counts]).all()
    counts = tuple(jnp.where(nothing, _ANY_COUNT, count) for count in loss.counts)
    safe = ComposedLoss(loss.terms, counts, loss.single, loss.method)
    safe = safe.uncut() if route(loss) == "spectral" else safe
    return nothing, safe.absorbed().with_ends()


def plan(
    loss: ComposedLoss,
    signs: Float[Array, " s"],
    anchor: Float[Array, ""],
    gap: ArrayLike = 0.0,
) -> LocalPlan:
    """Prepares for thresholds near `anchor` >= 0, in some directions (stacked).

    On the grid for all that are no farther away than `gap`.
    """
    _, loss = _neutral(stop_gradient(loss))
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
    nothing, loss = _neutral(loss)
    if local.contour is None:
        result = _known_profile(loss, local, epsilons)
    else:
        result = unless_one_step(
            loss,
            lambda loss: _known_profile(loss, local, epsilons),
            lambda step: one_step_profile(step, local.sign, epsilons),
        )
    return select(nothing, _no_release(epsilons), result)


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
            found = _profile(loss, one, epsilons)
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


def _profile(loss: ComposedLoss, local: LocalPlan, epsilons: Array) -> Profile:
    """The profile of one direction; see `spectral_profile`."""
    if local.grid is not None:
        return _grid_profile(loss, local.grid, epsilons)
    if local.contour is None:
        return closed_profile(loss.closed_form(local.sign), epsilons)
    full = lambda: spectral_profile(loss, contour, epsilons)
    contour, rare = local.contour, local.rare
    if rare is None:
        return full()
    split = lambda: rare_profile(loss, rare, epsilons, tabulated=False)
    return lax.cond(rare.used, split, full)


def _grid_profile(loss: ComposedLoss, grid: Grid, epsilons: Array) -> Profile:
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
    unsure = loss.log_unsure_mass(grid.sign)
    log_delta = with_infinite(finite, infinite, unsure, beyond)
    log_alpha = jnp.where(beyond, -jnp.inf, log_alpha)
    log_rest = log_delta.map_down(log_complement)
    return Profile(log_delta, log_rest, stop_gradient(log_alpha))


def _estimates(
    args: tuple[ComposedLoss, Array], local: LocalPlan
) -> tuple[Array, Array]:
    found = _profile(args[0], local, args[1])
    return found.log_delta.estimate, found.log_rest.estimate


def _no_release(epsilons: Array) -> Profile:
    # delta = max(0, 1 - e^eps); the inner where keeps NaN out of derivatives.
    negative = epsilons < 0
    rest = jnp.where(negative, epsilons, 0.0)
    below = log_complement(jnp.where(negative, epsilons, -1.0))
    delta = jnp.where(negative, below, -jnp.inf)
    alpha = jnp.where(epsilons < 0, 0.0, -jnp.inf)
    off = stop_gradient(8 * jnp.finfo(rest.dtype).eps * (1 + jnp.abs(below)))
    log_delta = Interval(delta - off, delta, jnp.minimum(delta + off, 0))
    return Profile(log_delta, Interval(rest, rest, rest), alpha)


def epsilon(
    loss: ComposedLoss, signs: Float[Array, " s"], log_delta: Float[Array, ""]
) -> Interval:
    """The least real epsilon with delta(epsilon) at most the given one.

    For the worst of some directions.
    """
    nothing, loss = _neutral(loss)
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
    unsure = stop_gradient(over(signs, loss.log_unsure_mass))
    sure = without(infinite, unsure)
    more = jnp.log1p(jnp.exp(unsure - safe) / -jnp.expm1(jnp.minimum(share, -1e-300)))
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
        result = closed_epsilon(loss, signs, safe, jnp.logaddexp(safe, unsure))
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


def over(signs: Float[Array, " s"], one: Callable[[Array], Array]) -> Array:
    """A function of the direction, for each of them."""
    return jnp.stack([one(sign) for sign in signs])


def _point(value: ArrayLike) -> Interval:
    value = jnp.asarray(value, float)
    return Interval(value, value, value)


def span(
    loss: ComposedLoss, signs: Float[Array, " s"], log_delta: Float[Array, ""]
) -> Float[Array, ""]:
    """About the epsilon of a given delta, for choosing a grid; at least 1e-6."""
    _, loss = _neutral(stop_gradient(loss))
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
    nothing, loss = _neutral(stop_gradient(loss))
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


def threshold(
    loss: ComposedLoss, sign: Float[Array, ""], alpha: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The loss threshold of the most powerful test of type I error `alpha`.

    Returns:
        The (real) threshold and the scale on which the profile varies there, numbers
        without derivative.
    """
    nothing, loss = _neutral(stop_gradient(loss))
    tiny = jnp.finfo(alpha.dtype).tiny
    alpha = stop_gradient(jnp.clip(alpha, tiny, 1 - jnp.finfo(alpha.dtype).eps))
    log_alpha, log_not_alpha = jnp.log(alpha), jnp.log1p(-alpha)
    engine = route(loss)
    if engine == "spectral":
        found, scale = spectral_threshold(loss, sign, log_alpha, log_not_alpha)
        return jnp.where(nothing, 0, found), scale
    if engine == "grid":
        found, scale = _search_grid_threshold(loss, sign, log_alpha, log_not_alpha)
        return jnp.where(nothing, 0, found), scale
    forms = loss.closed_form(sign), loss.closed_form(-sign)
    ends = largest_loss(loss, sign), largest_loss(loss, -sign)
    found = closed_threshold(forms, ends, log_alpha)
    return jnp.where(nothing, 0, found), jnp.ones_like(alpha)


@one_by_one
def _search_grid_threshold(
    loss: ComposedLoss, sign: Array, log_alpha: Array, log_not_alpha: Array
) -> tuple[Array, Array]:
    """The threshold of a type I error, and the scale of the profile there."""
    begin = start_at_tail(loss, sign, log_alpha, log_not_alpha)
    near = begin.threshold
    flip = near < 0
    sign = jnp.where(flip, -sign, sign)
    start = tail_start_at_epsilon(loss, sign, jnp.abs(near))
    # Between two point masses the saddle may be off by what lies between them.
    gap = _largest_gap(loss, jnp.minimum(log_alpha, log_not_alpha))
    profile = compose_grid(loss, plan_grid(loss, start, gap))
    # alpha at -e is the complement of the exchanged pair's power at e.
    logs = log_alpha, log_not_alpha
    target, other = jax.tree.map(lambda a, b: jnp.where(flip, b, a), logs, logs[::-1])
    infinite = jnp.where(flip, loss.log_infinite_mass(sign), -jnp.inf)
    target = target + log_complement(jnp.minimum(infinite - target, -1e-9))
    found = grid_threshold(profile, target, other, flip)
    return jnp.where(flip, -found, found), begin.scale


@one_by_one
def crossing(
    loss: ComposedLoss, thresholds: Float[Array, " 2"], alpha: Float[Array, ""]
) -> Float[Array, ""]:
    """Where between two thresholds the larger of both directions' power is least.

    For the grid engine; a number without derivative, about right.
    """
    _, loss = _neutral(stop_gradient(loss))
    between = jnp.linspace(jnp.min(thresholds), jnp.max(thresholds), _CANDIDATES)
    center = 0.5 * (between[0] + between[-1])
    flip = center < 0
    distances = jnp.where(flip, -between, between)
    width = between[-1] - between[0]

    def log_delta(sign: Array) -> Array:
        start = tail_start_at_epsilon(loss, sign, jnp.abs(center))
        grid = plan_grid(loss, start, jnp.maximum(width, 1e-6))
        return _grid_profile(loss, grid, distances).log_delta.estimate

    deltas = jnp.exp(lax.map(log_delta, jnp.asarray([1.0, -1.0])))
    # delta(-e) = 1 - e^-e + e^-e delta_rev(e).
    below = -jnp.expm1(between) + jnp.exp(between) * deltas
    deltas = jnp.where(flip, below, deltas)
    power = jnp.max(deltas, axis=0) + jnp.exp(between) * alpha
    best = jnp.argmin(power)
    gap = deltas[0] - deltas[1]
    # The profiles cross next to it, or not at all.
    left = jnp.where(gap[best] * gap[jnp.maximum(best - 1, 0)] < 0, best - 1, best)
    right = jnp.minimum(left + 1, _CANDIDATES - 1)
    cross = gap[left] * gap[right] < 0
    share = gap[left] / jnp.where(cross, gap[left] - gap[right], 1)
    middle = between[left] + share * (between[right] - between[left])
    return jnp.where(cross, middle, between[best])


def _largest_gap(loss: ComposedLoss, log_alpha: Array) -> Float[Array, ""]:
    """The largest distance between neighboring point masses that matter."""
    largest = jnp.zeros_like(log_alpha)
    for term, _ in single_losses(loss.terms, loss.counts):
        jumps = term.compound_jumps()
        if jumps is not None:
            largest = jnp.maximum(largest, jumps.farthest())
            continue
        atoms = term.atoms()
        if atoms.loss.size > 1:
            mass = atoms.log_mass + jnp.maximum(atoms.loss, 0)
            matters = mass > log_alpha - 7
            # Those that do not are moved onto the first one that does.
            some = atoms.loss[jnp.argmax(mass)]
            gaps = jnp.diff(jnp.sort(jnp.where(matters, atoms.loss, some)))
            largest = jnp.maximum(largest, jnp.max(gaps))
    return largest
