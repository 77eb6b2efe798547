"""The trade-off function: f(alpha) = max over eps of 1 - delta - e^eps alpha.

Any threshold eps with an upper bound of delta gives a lower bound of f, so the
pessimistic side needs no exact maximizer.  The objective is concave in e^eps: its
values at all thresholds looked at bound it from above, see `optimum`.  Thresholds lie
around a few anchors, at steps of several sizes: what the certificate of the profile
leaves open decides which of them tells most.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Int

from .. import engines
from .._internal._batching import one_by_one
from .._internal._implicit import optimum_or_kink
from .._internal._interval import sound
from .._internal._logs import LOG_HALF
from .._internal._shapes import zeros_of
from ..engines import AbstractPlan, Interval, select
from ..losses import ComposedLoss
from ._error_rates import Test, kink_beside, rates_at, scaled_rates_at
from ._queries import over_signs
from .logs import Rates
from .optimum import best_of

_STEPS = 1e-4, 2e-3, 3e-2
"""From an anchor, on the scale of the profile there."""
_COARSE_STEPS = 1e-3, 1e-2, 3e-2
"""Distances for the grid engine, whose brackets are wider."""
_NEAR, _AT_FIRST = 4.0, 5
"""Distance in log-odds from which on the search goes on before it looks at all of the
given places, and for how many steps."""
_SERVED = 2.0
"""How far a plan's anchor may be from another one, on the scale of the profile."""
_MORE = 12
"""Anchors that are looked for where the first ones leave bounds loose."""
_TIGHT = 1e-6
_LOG_LEAST = -707.7
"""Log of twice the least normal number."""
_FLAT = 1e-6
"""A change of log-odds that says nothing."""
_SETTLED = 1e-6
"""Distance to the next anchor, on the scale of the profile, that is none."""


class _Place(eqx.Module):
    """The place of a look: an anchor, and the scale of the profile there."""

    anchor: Float[Array, "..."]
    scale: Float[Array, "..."]
    kink: Bool[Array, "..."]


class _Points(eqx.Module):
    """The profile at the thresholds looked at; infinite ones are still free."""

    threshold: Float[Array, " n"]
    rates: Rates
    odds: Float[Array, " n"]
    """The log-odds of P(X > eps), an estimate."""
    pace: Float[Array, " n"]
    """How far thresholds move where these fall by one; infinite where they do not."""


class _State(eqx.Module):
    """State of the search for the best threshold."""

    step: Int[Array, ""]
    given: Int[Array, ""]
    """How many of the given places were looked at."""
    falls: Bool[Array, ""]
    """Whether log-odds fall at the last anchor."""
    place: _Place
    """Where to look next, unless a place is given."""
    nearest: Float[Array, ""]
    """How far the log-odds at an anchor are from the target, at least."""
    points: _Points
    planned: Float[Array, ""]
    """The anchor for which the last plans were made; infinite if there are none."""
    test: Test
    best: Test
    rates: tuple[Float[Array, ""], Float[Array, ""]]
    """Log beta and log power at the best anchor, estimates."""
    settled: Bool[Array, ""]
    """Whether an anchor was the best threshold, by all that is known there."""
    found: Rates


def searched_rates(
    loss: ComposedLoss, signs: Float[Array, " s"], log_alpha: Array, log_tnr: Array
) -> Rates:
    """Logs of f(alpha) and 1 - f(alpha), from thresholds around a few anchors."""
    args = loss, log_alpha, log_tnr
    found, best = _search(*stop_gradient((loss, signs, log_alpha, log_tnr)))
    logs = jnp.stack([found.log_beta.estimate, found.log_tpr.estimate])
    aux = best, jnp.where(jnp.isfinite(logs), logs, 0)
    none = jnp.zeros_like(best.anchor)
    scaled = jnp.stack([none, none + 1, none + 1])
    _, *shares = optimum_or_kink(scaled_rates_at, kink_beside, scaled, none, args, aux)
    beta, tpr = logs + jnp.log(jnp.stack(shares))
    return Rates(
        dataclasses.replace(found.log_beta, estimate=beta),
        dataclasses.replace(found.log_tpr, estimate=tpr),
    )


def _search_rates(
    loss: ComposedLoss, signs: Float[Array, " s"], log_alpha: Array, log_tnr: Array
) -> tuple[Rates, Test]:
    """The error rates, without derivative, and the test that has it."""
    places = _places(loss, signs, jnp.exp(log_alpha))
    logs, target = (log_alpha, log_tnr), log_alpha - log_tnr
    given = places.anchor.size
    first = jax.tree.map(lambda x: x[0], places)
    engine = engines.engine_of(loss)
    coarse = engine.coarse

    @jax.jit
    def look(
        place: _Place, last: tuple[Array, AbstractPlan] | None
    ) -> tuple[Test, _Points, Array]:
        return _look(loss, signs, logs, place, last)

    def unfinished(state: _State) -> Bool[Array, ""]:
        seen = state.given >= given
        exhausted, enough = seen & state.settled, seen | state.settled | coarse
        done = _is_tight(state.found) & enough
        return (state.step < given + _MORE) & ~exhausted & ~done

    def body(state: _State) -> _State:
        place = jax.tree.map(lambda x: x[jnp.minimum(state.given, given - 1)], places)
        near = state.falls & (state.nearest < _NEAR) & (state.step <= _AT_FIRST)
        follows = near | (state.given >= given)
        place = select(follows, state.place, place)
        last = (state.planned, state.test.plans) if engine.anchored else None
        test, new, planned = look(place, last)
        slot = state.step * new.threshold.size
        points = jax.tree.map(
            lambda all, x: lax.dynamic_update_slice(all, x, (slot,)), state.points, new
        )
        following, settled = _following(points, new, place, target)
        # Unless a given place is nearer it says nothing of where to look next.
        miss = jnp.abs(new.odds[new.odds.size // 2] - target)
        nearer = (miss < state.nearest) | (state.step == 0)
        if not coarse:
            # Tangents cross next to a kink, of which a secant only makes one end move.
            turn = state.step % 2 == 0
            inside, smooth = _inside(points, following, target)
            later = select(follows, select(turn, following, inside), state.place)
            following = select(smooth, inside, select(nearer, following, later))
        middle = new.threshold.size // 2
        own = tuple(x.estimate[middle] for x in (new.rates.log_beta, new.rates.log_tpr))
        better = _is_better(own, state.rates, place.kink) | (state.step == 0)
        return _State(
            step=state.step + 1,
            given=jnp.where(follows, state.given, state.given + 1),
            falls=jnp.isfinite(new.pace[middle]),
            place=following,
            nearest=jnp.where(nearer, miss, state.nearest),
            points=points,
            planned=planned,
            test=test,
            best=select(better, test, state.best),
            rates=select(better, own, state.rates),
            settled=state.settled | settled,
            found=best_of(points.threshold, points.rates, *logs),
        )

    empty, new, planned = zeros_of(look, first, None)
    size = (given + _MORE) * new.threshold.size
    free = jnp.full(size, jnp.inf, target.dtype)
    unknown = Interval(-free, free, free)
    none = jnp.zeros_like(target)
    nothing = Interval(none - jnp.inf, none, none)
    start = _State(
        step=jnp.zeros((), jnp.int32),
        given=jnp.zeros((), jnp.int32),
        falls=jnp.zeros((), bool),
        place=first,
        nearest=jnp.full_like(target, jnp.inf),
        points=_Points(free, Rates(unknown, unknown), jnp.zeros_like(free), free),
        planned=planned + jnp.inf,
        test=empty,
        best=empty,
        rates=(none, none),
        settled=jnp.zeros((), bool),
        found=Rates(nothing, nothing),
    )
    end = lax.while_loop(unfinished, body, start)
    beta, tpr = end.found.log_beta, end.found.log_tpr
    return Rates(
        Interval(beta.lower, end.rates[0], beta.upper),
        Interval(tpr.lower, end.rates[1], tpr.upper),
    ), end.best


_search = one_by_one(_search_rates)


def _places(
    loss: ComposedLoss, signs: Float[Array, " s"], alpha: Float[Array, ""]
) -> _Place:
    """The thresholds of the directions, and where the guarantee may have a kink."""
    anchors, scales = over_signs(lambda s: engines.threshold(loss, s, alpha), signs)
    # Without any output in common there is no threshold, and none is needed.
    known = jnp.isfinite(anchors) & jnp.isfinite(scales)
    anchors = jnp.where(known, anchors, 0.0)
    scales = jnp.where(known, scales, 1.0)
    # At eps = 0 the directions cross, and the guarantee has a kink.  One direction has
    # it in case its own threshold is beyond reach.
    place = _Place(
        jnp.append(anchors, 0.0),
        jnp.append(scales, jnp.min(scales)),
        jnp.arange(signs.size + 1) == signs.size,
    )
    if signs.size == 1:
        return place
    # Mostly "remove" leaks more at positive thresholds and "add" at negative ones.
    likely = jnp.where(anchors[0] > 0, 0, jnp.where(anchors[1] < 0, 1, 2))
    return jax.tree.map(lambda x: jnp.roll(x, -likely), place)


def _look(
    loss: ComposedLoss,
    signs: Float[Array, " s"],
    logs: tuple[Array, Array],
    place: _Place,
    last: tuple[Array, AbstractPlan] | None,
) -> tuple[Test, _Points, Array]:
    """The profile around an anchor, and that for which its plans were made.

    The last ones do if theirs is near.
    """
    _, loss = engines.neutral(loss)
    seen = jnp.where(place.anchor < 0, -signs, signs)
    steps = _COARSE_STEPS if engines.engine_of(loss).coarse else _STEPS
    reach = steps[-1] * place.scale
    fresh = lambda: engines.plan(loss, seen, jnp.abs(place.anchor), reach)
    if last is None:
        planned, plans = place.anchor, fresh()
    else:
        planned, plans = last
        near = jnp.abs(place.anchor - planned) < _SERVED * place.scale
        near = near & ((place.anchor < 0) == (planned < 0))
        # What a plan lacks was found out for the last one, and may do.
        again = lambda: eqx.combine(fresh(), plans)
        plans = lax.cond(near, lambda: plans, again)
        planned = jnp.where(near, planned, place.anchor)
    test = Test(place.anchor, plans.resolution(place.scale), place.kink, plans)
    offsets = jnp.asarray([-x for x in reversed(steps)] + [0.0, *steps], logs[0].dtype)
    around = place.anchor + place.scale * offsets
    # From the largest loss on everything is known: the best threshold is not beyond.
    # Contours see no point masses, which alone hide a fall from other thresholds.
    most = jnp.maximum(jnp.max(engines.largest_loss(loss, seen)), 0) + jnp.arange(2.0)
    ends = jnp.where(place.anchor < 0, -most, most)
    ends = jnp.where(jnp.isfinite(most), ends, place.anchor)
    more = 0 if engines.route(loss) == "contour" else 1
    thresholds = jnp.concatenate([ends[:more], around, ends[1 : 1 + more]])
    found, odds, plans = rates_at(loss, test, *logs, thresholds, anew=True)
    test = dataclasses.replace(test, plans=plans)
    found = Rates(
        *(sound(x, -jnp.inf, jnp.inf) for x in (found.log_beta, found.log_tpr))
    )
    odds = jnp.where(jnp.isnan(odds), 0, odds)
    fall, width = (x[-1 - more] - x[more] for x in (odds, thresholds))
    falls = jnp.isfinite(fall) & (fall < -_FLAT)
    pace = jnp.where(falls, width / jnp.where(falls, -fall, 1.0), jnp.inf)
    new = _Points(thresholds, found, odds, jnp.full_like(odds, pace))
    return test, new, planned


def _following(
    points: _Points, new: _Points, place: _Place, target: Array
) -> tuple[_Place, Bool[Array, ""]]:
    """The threshold with P(X > eps) = alpha by the last points, and if they are there.

    It is the slope of the objective, and its logarithm about straight.
    """
    middle = new.threshold.size // 2
    anchor, odds, pace = new.threshold[middle], new.odds[middle], new.pace[middle]
    falls = jnp.isfinite(pace)
    # Between point masses it is flat, but thresholds must stay near their anchor; next
    # to the largest loss the scale is that of what is beyond.
    scale = jnp.minimum(jnp.where(falls, pace, 16 * place.scale), 1)
    reach = jnp.where(falls, 100, 1) * (10 * scale + jnp.abs(anchor))
    change = (odds - target) * pace
    change = jnp.clip(jnp.where(jnp.isnan(change), 0, change), -reach, reach)

    *ends, bracketed = _bracket(points, target)
    low, high = (points.threshold[i] for i in ends)
    following = anchor + change
    inside = (following > low) & (following < high)
    between = _between(points, ends, jax.nn.sigmoid(target))
    # Where nothing falls the scale tells nothing of where the best threshold is.
    following = jnp.where(bracketed & ~(inside & falls), between, following)

    # Not closer than the profile is known.
    beta, tpr = _width(new.rates.log_beta), _width(new.rates.log_tpr)
    open_ends = jnp.maximum(beta, tpr)[middle]
    settled = jnp.abs(change) <= (_SETTLED + jnp.minimum(10 * open_ends, 1)) * scale
    jump = (new.odds[middle - 1] > target) & (new.odds[middle + 1] < target)
    settled = settled | (place.kink & jump)
    return _Place(following, scale, jnp.zeros((), bool)), settled


def _inside(
    points: _Points, place: _Place, target: Array
) -> tuple[_Place, Bool[Array, ""]]:
    """Another place: where the log-odds are those of alpha between the nearest two.

    By a cubic where that is monotone, and whether it is; else if they are straight.
    """
    low, high, bracketed = _bracket(points, target)
    (left, above, begin), (right, below, end) = (
        (points.threshold[i], points.odds[i], points.pace[i]) for i in (low, high)
    )
    known = bracketed & jnp.isfinite(above) & jnp.isfinite(below) & (above > below)
    share = jnp.where(known, (above - target) / (above - below), 0.5)
    # Of the threshold as a function of the log-odds, over the slope between the two.
    begin, end = (x * (above - below) / (right - left) for x in (begin, end))
    # Rounding may have put the right one on the left.
    smooth = known & (left < right) & (jnp.maximum(begin, end) < 3)
    bend = (1 - share) * (begin - 1) - share * (end - 1)
    curved = share + share * (1 - share) * jnp.where(smooth, bend, 0.0)
    share = jnp.where(smooth, curved, jnp.clip(share, 0.02, 0.98))
    cross = jnp.where(known, left + share * (right - left), place.anchor)
    return _Place(cross, place.scale, place.kink), smooth


def _bracket(points: _Points, target: Array) -> tuple[Array, Array, Array]:
    """The points next to the threshold on its either side, and whether both are."""
    used = jnp.isfinite(points.threshold)
    left = jnp.where(used & (points.odds > target), points.threshold, -jnp.inf)
    right = jnp.where(used & (points.odds < target), points.threshold, jnp.inf)
    both = jnp.isfinite(jnp.max(left)) & jnp.isfinite(jnp.min(right))
    return jnp.argmax(left), jnp.argmin(right), both


def _between(points: _Points, ends: list[Array], alpha: Array) -> Array:
    """The crossing of the tangents of two points: the kink, if there is one between."""
    low, high = (points.threshold[i] for i in ends)
    log_beta, log_tpr = points.rates.log_beta.estimate, points.rates.log_tpr.estimate
    # Also where it is negative.
    beta = jnp.where(jnp.isfinite(log_beta), jnp.exp(log_beta), -jnp.expm1(log_tpr))
    value, other = (beta[i] for i in ends)
    slope, descent = (jax.nn.sigmoid(points.odds[i]) - alpha for i in ends)
    unit = jnp.exp(low)
    width = unit * jnp.expm1(high - low)
    place = (other - value - descent * width) / (slope - descent)
    cross = low + jnp.log1p(place / unit)
    return jnp.where((cross > low) & (cross < high), cross, 0.5 * (low + high))


def _width(logs: Interval) -> Array:
    """Relative width, of logarithms."""
    return jnp.where(logs.lower == logs.upper, 0.0, logs.upper - logs.lower)


def _is_tight(found: Rates) -> Bool[Array, ""]:
    # Of a number that underflows the relative width means nothing.
    none = found.log_beta.upper <= _LOG_LEAST
    beta = (_width(found.log_beta) <= _TIGHT) | none
    return beta & (_width(found.log_tpr) <= _TIGHT)


def _is_better(
    new: tuple[Array, Array], old: tuple[Array, Array], kink: Array
) -> Bool[Array, ""]:
    """Whether the new logs of beta and power are those of a better test.

    A later anchor is closer to the best one, but not a kink that need not be one.
    """
    (beta, tpr), (best_beta, best_tpr) = new, old
    slack = jnp.where(kink, 0, 1e-9)
    by_tpr, by_beta = tpr < best_tpr + slack, beta > best_beta - slack
    return jnp.where(jnp.minimum(tpr, best_tpr) < LOG_HALF, by_tpr, by_beta)
