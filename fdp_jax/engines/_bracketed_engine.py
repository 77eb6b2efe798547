"""Losses that are known by pairs above and below them, on the grid or one release.

Upper ends come from the pair that dominates, lower ends from the one that is dominated:
composition keeps both orders.  A single release needs no grid.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._batching import one_by_one
from .._internal._implicit import implicit_root, known_value
from .._internal._interval import Interval, log_complement
from .._internal._roots import root_between
from .._internal._tolerances import LATTICE_SUM
from ..losses import (
    BracketedLoss,
    ComposedLoss,
    EnclosedLoss,
    LawSums,
    Method,
)
from ._bounds import Profile, over, worst_of
from ._closed_form_engine import closed_epsilon, closed_profile
from ._grid_engine import ComposedGrid, GridEngine, GridPlan
from ._grid_search import root_with_slope, search_epsilon_of_known
from ._interface import AbstractEngine, AbstractPlan, AbstractPrepared

_GRID = GridEngine()


def is_bracketed(loss: Any) -> bool:
    """Whether some part of a loss is known by pairs around it."""
    leaves = jax.tree.leaves(loss, is_leaf=lambda x: isinstance(x, EnclosedLoss))
    return any(isinstance(x, EnclosedLoss) for x in leaves)


def _replaced(loss: ComposedLoss, change: Callable[[Any], Any]) -> ComposedLoss:
    terms = jax.tree.map(
        lambda x: change(x) if isinstance(x, EnclosedLoss) else x,
        loss.terms,
        is_leaf=lambda x: isinstance(x, EnclosedLoss),
    )
    return dataclasses.replace(loss, terms=terms, ends=None)


_NAMES = "upper", "estimate", "lower"
_ESTIMATE = 1


def _estimated(loss: ComposedLoss) -> ComposedLoss:
    """The composition with the estimate of every bracketed part."""
    return _replaced(loss, lambda x: x.estimate)


def _sides(loss: ComposedLoss) -> ComposedLoss:
    """Those with the pair above, the estimate and the pair below, stacked."""
    each = [_replaced(loss, lambda x, n=name: getattr(x, n)) for name in _NAMES]
    return jax.tree.map(lambda *x: jnp.stack(x), *stop_gradient(each))


def _is_one(loss: ComposedLoss) -> bool:
    """Whether it is a single release, of one bracketed loss and nothing else."""
    first = loss.terms[0]
    return loss.single and len(loss.terms) == 1 and isinstance(first, EnclosedLoss)


class BracketedEngine(AbstractEngine):
    """The grid engine, asked about the pairs above and below."""

    name: ClassVar[str] = "grid"
    together: ClassVar[int | None] = None
    coarse: ClassVar[bool] = True

    def serves(self, loss):
        return _GRID.serves(loss)

    def made_safe(self, loss):
        single, asked = _is_one(loss), loss.method.points
        points = None if asked == Method.points else asked

        known = lambda x: x.bracketed(single=single, points=points)
        return _replaced(loss, known)

    def plan(self, loss, signs, anchor, gap):
        if _is_one(loss):
            return OnePlan(signs)
        grids = lax.map(
            lambda side: _GRID.plan(side.with_ends(), signs, anchor, gap), _sides(loss)
        )
        # Directions come first.
        return BracketedPlan(signs, jax.tree.map(lambda x: x.swapaxes(0, 1), grids))

    def epsilon(self, loss, signs, target):
        exact = jnp.broadcast_to(target.log_delta, signs.shape)
        if _is_one(loss):
            found = _one_epsilon(loss, signs, exact)
        else:
            found = _several_epsilon(loss, signs, exact)
        ceiling = _ceiling(loss)
        if ceiling is None:
            return found
        # It is the same in both directions.
        most = closed_epsilon(ceiling, signs[:1], exact[:1], exact[:1]).upper
        most = jnp.maximum(jnp.minimum(found.upper, most), found.lower)
        return _between(found.lower, found.estimate, most)

    def threshold(self, loss, sign, log_alpha, log_not_alpha):
        if _is_one(loss):
            return _one_threshold(loss, sign, log_alpha, log_not_alpha)
        side = _estimated(loss).with_ends()
        return _GRID.threshold(side, sign, log_alpha, log_not_alpha)

    def crossing(self, loss, thresholds, alpha):
        if _is_one(loss):
            return None
        return _GRID.crossing(_estimated(loss).with_ends(), thresholds, alpha)


def _several_epsilon(loss: ComposedLoss, signs: Array, targets: Array) -> Interval:
    """On the grid: each of the three pairs has an epsilon."""
    sides = _sides(loss)
    upper = jax.tree.map(lambda x: x[0], sides).with_ends()
    # Only the pair above has infinite losses.
    share = over(signs, upper.log_infinite_mass) - targets
    possible = share < -1e-6
    finite = targets + log_complement(jnp.where(possible, share, -1.0)) - 1e-9
    unit = 8 * jnp.finfo(targets.dtype).eps * (1 + jnp.abs(targets))
    slack = jnp.stack([unit, unit], axis=1)
    goals = jnp.stack([finite, targets, targets])
    fixed = stop_gradient((sides, goals))
    found, worst = lax.map(
        lambda x: search_epsilon_of_known(x[0].with_ends(), signs, x[1], slack), fixed
    )
    at = worst[_ESTIMATE]
    value = found.estimate[_ESTIMATE]
    estimate = root_with_slope(_estimated(loss), value, targets[at], signs[at])
    most = jnp.where(jnp.all(possible), found.upper[0], jnp.inf)
    return _between(found.lower[-1], estimate, most)


def _ceiling(loss: ComposedLoss) -> ComposedLoss | None:
    """One release that dominates all of it, if that is known."""
    terms = [x for x in loss.terms if isinstance(x, EnclosedLoss)]
    if len(terms) < len(loss.terms):
        return None
    whole = EnclosedLoss.dominating(terms, loss.counts)
    return ComposedLoss((whole,), (jnp.ones_like(loss.counts[0]),), single=True)


def _capped(
    loss: ComposedLoss, sign: Array, found: Profile, epsilons: Array
) -> Profile:
    """A profile with what is known of it without any lattice."""
    ceiling = _ceiling(loss)
    if ceiling is None:
        return found
    most = closed_profile(ceiling.closed_form(sign), stop_gradient(epsilons))
    upper = jnp.minimum(found.log_delta.upper, most.log_delta.upper)
    rest = jnp.maximum(found.log_rest.lower, most.log_rest.lower)
    return Profile(
        _between(found.log_delta.lower, found.log_delta.estimate, upper),
        _between(rest, found.log_rest.estimate, found.log_rest.upper),
        found.log_alpha,
    )


def _between(lower: Array, estimate: Array, upper: Array) -> Interval:
    """An interval that holds its estimate, whose derivative stays."""
    lower, upper = stop_gradient((lower, upper))
    value = stop_gradient(estimate)
    inside = jnp.clip(value, lower, upper)
    # Infinite is the logarithm of nothing, which has no derivative.
    finite = jnp.isfinite(value)
    moved = jnp.where(finite, inside - jnp.where(finite, value, 0), 0)
    fixed = jnp.where(jnp.isnan(value), value, inside)
    return Interval(lower, jnp.where(finite, estimate + moved, fixed), upper)


class BracketedPlan(AbstractPlan):
    """Grids for the pairs above and below, and for the estimate."""

    sign: Float[Array, "..."]
    grids: GridPlan
    """Stacked."""

    def profile(self, loss, epsilons):
        fixed = stop_gradient((_sides(loss), epsilons))
        each = lax.map(
            lambda x: x[0].profile(x[1].with_ends(), fixed[1]), (self.grids, fixed[0])
        )
        own = jax.tree.map(lambda x: x[_ESTIMATE], (self.grids, each))
        log_delta, log_rest = known_value(
            _estimates,
            (own[1].log_delta.estimate, own[1].log_rest.estimate),
            (_estimated(loss), epsilons),
            own[0],
        )
        ends, rests = each.log_delta, each.log_rest
        found = Profile(
            _between(ends.lower[-1], log_delta, ends.upper[0]),
            _between(rests.lower[0], log_rest, rests.upper[-1]),
            own[1].log_alpha,
        )
        return _capped(loss, self.sign, found, epsilons)

    def prepare(self, loss):
        # By direction, and of each of them all three.
        made = lax.map(
            lambda grids: lax.map(
                lambda x: x[0].prepare_one(x[1].with_ends()), (grids, _sides(loss))
            ),
            self.grids,
        )
        return self, BracketedPrepared(made)


def _estimates(args: tuple[ComposedLoss, Array], plan: GridPlan) -> tuple[Array, Array]:
    loss, epsilons = args
    found = plan.profile(loss.with_ends(), epsilons)
    return found.log_delta.estimate, found.log_rest.estimate


class BracketedPrepared(AbstractPrepared):
    """The compositions of all three, stacked."""

    made: ComposedGrid

    def log_delta(self, loss, epsilons):
        each = lax.map(
            lambda x: x[0].log_delta(x[1].with_ends(), epsilons),
            (self.made, _sides(loss)),
        )
        return _between(each.lower[-1], each.estimate[_ESTIMATE], each.upper[0])


# --------------------------------------------------------------------- a single release


def _term(loss: ComposedLoss) -> BracketedLoss:
    (term,) = loss.terms
    assert isinstance(term, BracketedLoss)
    return term


class _OneForm(AbstractPrepared):
    """One release in one direction, by all three laws, stacked."""

    sums: LawSums
    bend: Float[Array, "3"]
    side: Float[Array, "3"]
    """1 for an upper bound, 0 for the estimate, -1 for a lower bound."""
    log_missing: Float[Array, "3"]

    @classmethod
    def of(cls, loss: ComposedLoss, sign: Array) -> "_OneForm":
        each = _term(stop_gradient(loss)).sums(sign)
        sums = jax.tree.map(lambda *x: jnp.stack(x), *each)
        included, without_it = sums.law.log_missing
        return cls(
            sums,
            jnp.asarray([0.0, 1.0, 0.0]),
            jnp.asarray([1.0, 0.0, -1.0]),
            jnp.where(sign > 0, included, without_it),
        )

    def logs(self, epsilons: Float[Array, "3 e"]) -> Float[Array, "3 e"]:
        """Upper bounds, estimates and lower bounds of log delta."""
        # Places of thresholds are rounded.
        unit = 8 * jnp.finfo(epsilons.dtype).eps * (1 + jnp.abs(epsilons))
        moved = epsilons - self.side[:, None] * unit
        value = jax.vmap(LawSums.log_delta)(self.sums, moved, self.bend)
        value = value + self.side[:, None] * LATTICE_SUM
        value = jnp.logaddexp(value, self.log_missing[:, None])
        most = jax.vmap(LawSums.log_most)(self.sums, moved)
        value = jnp.minimum(value, jnp.where(self.side[:, None] > 0, most, 0))
        # Where the lattice is too coarse, one sum may still tell much.
        below = jax.tree.map(lambda x: x[-1], self.sums).log_least(epsilons[-1])
        return value.at[-1].max(below)

    def log_delta(self, loss, epsilons):
        upper, estimate, lower = self.logs(
            jnp.broadcast_to(epsilons, (3, *epsilons.shape))
        )
        return _between(lower, estimate, upper)

    @property
    def estimate(self) -> LawSums:
        """The sums of the estimate."""
        return jax.tree.map(lambda x: x[_ESTIMATE], self.sums)


class OnePlan(AbstractPlan):
    """Nothing but the direction."""

    sign: Float[Array, "..."]

    def profile(self, loss, epsilons):
        form = _OneForm.of(loss, self.sign)
        found = form.log_delta(loss, stop_gradient(epsilons))
        term = _term(loss).estimate
        estimate = known_value(
            _one_log_delta, found.estimate, (term.law, epsilons), self.sign
        )
        log_delta = Interval(found.lower, estimate, found.upper)
        log_alpha = form.estimate.log_alpha(epsilons)
        rest = log_delta.map_down(log_complement)
        found = Profile(log_delta, rest, stop_gradient(log_alpha))
        return _capped(loss, self.sign, found, epsilons)

    def prepare(self, loss):
        return self, lax.map(lambda sign: _OneForm.of(loss, sign), self.sign)


def _one_log_delta(args: tuple[Any, Array], sign: Array) -> Array:
    law, epsilons = args
    return LawSums.of(law, sign).log_delta(epsilons, 1.0)


def _one_epsilon(loss: ComposedLoss, signs: Array, targets: Array) -> Interval:
    found, worst = _search_one(*stop_gradient((loss, signs, targets)))
    args = _term(loss).estimate.law, targets[worst]
    estimate = implicit_root(_residual, found.estimate, args, signs[worst])
    return Interval(found.lower, estimate, found.upper)


def _residual(epsilon: Array, args: tuple[Any, Array], sign: Array) -> Array:
    law, target = args
    return _one_log_delta((law, epsilon[None]), sign)[0] - target


@one_by_one
def _search_one(
    loss: ComposedLoss, signs: Array, targets: Array
) -> tuple[Interval, Array]:
    def one(direction: tuple[Array, Array]) -> Interval:
        sign, target = direction
        form = _OneForm.of(loss, sign)
        noise = form.sums.law.noise[0]
        least, most = jax.vmap(LawSums.ends)(form.sums)
        # Beyond the lattice as well, where other bounds say something.
        far = 40 + 20 / noise + 1 / jnp.square(noise)
        low, high = jnp.minimum(jnp.min(least), 0) - 60, jnp.maximum(jnp.max(most), far)
        passed = lambda e: target - form.logs(e[:, None])[:, 0]
        low, high = jnp.full(3, low), jnp.full(3, high)
        before, after = root_between(passed, low, high)
        upper = jnp.where(after[0] < high[0], after[0], jnp.inf)
        lower = jnp.where(before[2] > low[2], before[2], -jnp.inf)
        return _between(lower, before[1], upper)

    found = lax.map(one, (signs, targets))
    worst = worst_of(found.estimate, signs)
    return jax.tree.map(jnp.max, found), worst


def _one_threshold(
    loss: ComposedLoss, sign: Array, log_alpha: Array, log_not_alpha: Array
) -> tuple[Array, Array]:
    """The threshold of a type I error and the scale there, about."""
    form = _OneForm.of(loss, sign).estimate
    low, high = form.ends()
    passed = lambda e: log_alpha - form.log_alpha(e[None])[0]
    found, _ = root_between(passed, low, high)
    step = 1e-3
    change = passed(found + step) - passed(found)
    falls = (change > 0) & (change < jnp.inf)
    scale = jnp.where(falls, step / jnp.where(falls, change, 1), 1)
    return found, jnp.clip(scale, step, 1)
