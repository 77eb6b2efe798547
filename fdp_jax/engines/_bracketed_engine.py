"""Losses that are known by pairs above and below them, on the grid or one release.

Upper ends come from the pair that dominates, lower ends from the one that is dominated:
composition keeps both orders.  A single release needs no grid.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._batching import one_by_one
from .._internal._implicit import implicit_root
from .._internal._interval import Interval, log_complement
from .._internal._roots import root_between
from .._internal._tolerances import LATTICE_SUM
from ..losses import (
    BracketedLoss,
    ComposedLoss,
    LawLoss,
    LawSums,
    RandomAllocationLoss,
)
from ._bounds import Profile, worst_of
from ._grid_engine import GridEngine, GridPlan
from ._grid_search import search_epsilon
from ._interface import AbstractPlan, AbstractPrepared

_KINDS = RandomAllocationLoss, BracketedLoss


def is_bracketed(loss: Any) -> bool:
    """Whether some part of a loss is known by pairs around it."""
    leaves = jax.tree.leaves(loss, is_leaf=lambda x: isinstance(x, _KINDS))
    return any(isinstance(x, _KINDS) for x in leaves)


def _replaced(loss: ComposedLoss, change: Callable[[Any], Any]) -> ComposedLoss:
    terms = jax.tree.map(
        lambda x: change(x) if isinstance(x, _KINDS) else x,
        loss.terms,
        is_leaf=lambda x: isinstance(x, _KINDS),
    )
    return dataclasses.replace(loss, terms=terms, ends=None)


def _side(loss: ComposedLoss, name: str) -> ComposedLoss:
    """The composition with one of the pairs of every bracketed part."""
    side = _replaced(loss, lambda x: getattr(x, name))
    if name != "estimate":
        side = stop_gradient(side)
    return side.with_ends()


def _is_one(loss: ComposedLoss) -> bool:
    """Whether it is a single release, of one bracketed loss and nothing else."""
    first = loss.terms[0]
    return loss.single and len(loss.terms) == 1 and isinstance(first, _KINDS)


class BracketedEngine(GridEngine):
    """The grid engine, asked about the pairs above and below."""

    def made_safe(self, loss):
        single = _is_one(loss)

        def known(x: Any) -> BracketedLoss:
            if isinstance(x, BracketedLoss):
                return x
            return x.bracketed(single=single)

        return _replaced(loss, known)

    def plan(self, loss, signs, anchor, gap):
        if _is_one(loss):
            return OnePlan(signs)
        grid = super()
        plans = (
            grid.plan(_side(loss, name), signs, anchor, gap)
            for name in ("upper", "estimate", "lower")
        )
        return BracketedPlan(signs, *plans)

    def epsilon(self, loss, signs, target):
        # The others have no infinite losses.
        exact = jnp.broadcast_to(target.log_delta, signs.shape)
        unit = 8 * jnp.finfo(exact.dtype).eps * (1 + jnp.abs(exact))
        slack = jnp.stack([unit, unit], axis=1)
        if _is_one(loss):
            return _one_epsilon(loss, signs, exact)
        upper = search_epsilon(
            _side(loss, "upper"), signs, target.finite, target.slack
        )
        estimate = search_epsilon(_side(loss, "estimate"), signs, exact, slack)
        lower = search_epsilon(_side(loss, "lower"), signs, exact, slack)
        return _between(lower.lower, estimate.estimate, upper.upper)

    def threshold(self, loss, sign, log_alpha, log_not_alpha):
        if _is_one(loss):
            return _one_threshold(loss, sign, log_alpha, log_not_alpha)
        return super().threshold(
            _side(loss, "estimate"), sign, log_alpha, log_not_alpha
        )

    def crossing(self, loss, thresholds, alpha):
        if _is_one(loss):
            return None
        return super().crossing(_side(loss, "estimate"), thresholds, alpha)


def _between(lower: Array, estimate: Array, upper: Array) -> Interval:
    """An interval that holds its estimate, whose derivative stays."""
    lower, upper = stop_gradient((lower, upper))
    inside = jnp.clip(stop_gradient(estimate), lower, upper)
    inside = jnp.where(jnp.isnan(estimate), stop_gradient(estimate), inside)
    return Interval(lower, estimate + stop_gradient(inside - estimate), upper)


class BracketedPlan(AbstractPlan):
    """Grids for the pairs above and below, and for the estimate."""

    sign: Float[Array, "..."]
    upper: GridPlan
    estimate: GridPlan
    lower: GridPlan

    def profile(self, loss, epsilons):
        upper, estimate, lower = (
            getattr(self, name).profile(_side(loss, name), epsilons)
            for name in ("upper", "estimate", "lower")
        )
        log_delta = _between(
            lower.log_delta.lower, estimate.log_delta.estimate, upper.log_delta.upper
        )
        log_rest = _between(
            upper.log_rest.lower, estimate.log_rest.estimate, lower.log_rest.upper
        )
        return Profile(log_delta, log_rest, estimate.log_alpha)

    def prepare(self, loss):
        made = (
            getattr(self, name).prepare(_side(loss, name))[1]
            for name in ("upper", "estimate", "lower")
        )
        return self, BracketedPrepared(*made)


class BracketedPrepared(AbstractPrepared):
    """The compositions of all three."""

    upper: AbstractPrepared
    estimate: AbstractPrepared
    lower: AbstractPrepared

    def log_delta(self, loss, epsilons):
        upper, estimate, lower = (
            getattr(self, name).log_delta(_side(loss, name), epsilons)
            for name in ("upper", "estimate", "lower")
        )
        return _between(lower.lower, estimate.estimate, upper.upper)


# --------------------------------------------------------------------- a single release


def _term(loss: ComposedLoss) -> BracketedLoss:
    (term,) = loss.terms
    assert isinstance(term, BracketedLoss)
    return term


class _OneForm(AbstractPrepared):
    """One release in one direction."""

    upper: LawSums
    estimate: LawSums
    lower: LawSums
    log_missing: Float[Array, ""]

    @classmethod
    def of(cls, loss: ComposedLoss, sign: Array) -> "_OneForm":
        term = _term(loss)
        sums = lambda x: LawSums.of(x.law, sign)
        upper, lower = stop_gradient((term.upper, term.lower))
        included, without_it = upper.law.log_missing
        missing = jnp.where(sign > 0, included, without_it)
        return cls(sums(upper), sums(term.estimate), sums(lower), missing)

    def most(self, epsilons: Array) -> Array:
        """An upper bound of log delta."""
        # Places of thresholds are rounded.
        unit = 8 * jnp.finfo(epsilons.dtype).eps * (1 + jnp.abs(epsilons))
        value = self.upper.log_delta(epsilons - unit, smooth=False)
        return jnp.minimum(jnp.logaddexp(value + LATTICE_SUM, self.log_missing), 0)

    def least(self, epsilons: Array) -> Array:
        """A lower bound of log delta."""
        unit = 8 * jnp.finfo(epsilons.dtype).eps * (1 + jnp.abs(epsilons))
        return self.lower.log_delta(epsilons + unit, smooth=False) - LATTICE_SUM

    def about(self, epsilons: Array) -> Array:
        """The estimate of log delta."""
        return jnp.minimum(self.estimate.log_delta(epsilons, smooth=True), 0)

    def log_delta(self, loss, epsilons):
        del loss
        lower, upper = stop_gradient((self.least(epsilons), self.most(epsilons)))
        return _between(lower, self.about(epsilons), upper)


class OnePlan(AbstractPlan):
    """Nothing but the direction."""

    sign: Float[Array, "..."]

    def profile(self, loss, epsilons):
        form = _OneForm.of(loss, self.sign)
        log_delta = form.log_delta(loss, epsilons)
        log_rest = log_delta.map_down(log_complement)
        log_alpha = form.estimate.log_alpha(epsilons)
        return Profile(log_delta, log_rest, stop_gradient(log_alpha))

    def prepare(self, loss):
        return self, lax.map(lambda sign: _OneForm.of(loss, sign), self.sign)


def _one_epsilon(loss: ComposedLoss, signs: Array, target: Array) -> Interval:
    found, worst = _search_one(*stop_gradient((loss, signs, target)))
    args = _side(loss, "estimate").terms[0], target[worst]
    estimate = implicit_root(_residual, found.estimate, args, signs[worst])
    return Interval(found.lower, estimate, found.upper)


def _residual(epsilon: Array, args: tuple[LawLoss, Array], sign: Array) -> Array:
    term, target = args
    sums = LawSums.of(term.law, sign)
    return sums.log_delta(epsilon[None], smooth=True)[0] - target


@one_by_one
def _search_one(
    loss: ComposedLoss, signs: Array, targets: Array
) -> tuple[Interval, Array]:
    def one(direction: tuple[Array, Array]) -> Interval:
        sign, target = direction
        form = _OneForm.of(loss, sign)
        low, high = form.upper.ends()
        low = jnp.minimum(low, 0.0) - 60

        def root(log_delta: Callable[[Array], Array]) -> tuple[Array, Array]:
            passed = lambda e: target - log_delta(e[None])[0]
            return root_between(passed, low, high)

        least, _ = root(form.least)
        _, most = root(form.most)
        _, about = root(form.about)
        known = form.most(high[None])[0] <= target
        most = jnp.where(known, most, jnp.inf)
        least = jnp.where(least > low, least, -jnp.inf)
        return _between(least, about, most)

    found = lax.map(one, (signs, targets))
    worst = worst_of(found.estimate, signs)
    return jax.tree.map(jnp.max, found), worst


def _one_threshold(
    loss: ComposedLoss, sign: Array, log_alpha: Array, log_not_alpha: Array
) -> tuple[Array, Array]:
    """The threshold of a type I error and the scale there, about."""
    del log_not_alpha
    form = _OneForm.of(loss, sign).estimate
    low, high = form.ends()
    passed = lambda e: log_alpha - form.log_alpha(e[None])[0]
    found, _ = root_between(passed, low, high)
    step = 1e-3
    change = passed((found + step)) - passed(found)
    falls = (change > 0) & (change < jnp.inf)
    scale = jnp.where(falls, step / jnp.where(falls, change, 1), 1)
    return found, jnp.clip(scale, step, 1)

