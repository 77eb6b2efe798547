"""One release of a loss that is known by pairs around it: sums over a lattice."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

from .._internal._arithmetic import ULP
from .._internal._batching import one_by_one
from .._internal._implicit import implicit_root, known_value
from .._internal._interval import Interval, log_complement
from .._internal._roots import root_between
from .._internal._tolerances import LATTICE_SUM
from ..losses import ComposedLoss, EnclosedLoss, Laws, LawSums
from ._bounds import Profile, worst_of
from ._enclosed import is_one, most_epsilon, most_log_delta, points_asked
from ._interface import AbstractEngine, AbstractPlan

_POINTS = 3 << 15
"""Lattice points, if the user asks for no other number."""
_NOTHING, _FARTHEST = -750.0, 340.0
"""The logarithm of less than any number, and a threshold whose e^(2 eps) is one."""


class BracketedEngine(AbstractEngine):
    """Sums over the laws above and below; the grid's place where it is one release."""

    name: ClassVar[str] = "grid"
    coarse: ClassVar[bool] = True

    def serves(self, loss):
        return is_one(loss)

    def plan(self, loss, signs, anchor, gap):
        return OnePlan(signs)

    def epsilon(self, loss, signs, target):
        log_deltas = jnp.broadcast_to(target.log_delta, signs.shape)
        found, worst = _search_one(*stop_gradient((loss, signs, log_deltas)))
        args = loss.without_ends(), log_deltas[worst]
        estimate = implicit_root(_residual, found.estimate, args, signs[worst])
        most = most_epsilon(loss, log_deltas[0])
        most = jnp.maximum(jnp.minimum(found.upper, most), found.lower)
        return _between(found.lower, estimate, most)

    def threshold(self, loss, sign, log_alpha, log_not_alpha):
        return _one_threshold(loss, sign, log_alpha, log_not_alpha)


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


def _laws(loss: ComposedLoss, sign: Array, ratio: Float[ArrayLike, ""]) -> Laws:
    """The laws for thresholds whose sign times threshold is `ratio` at most.

    The lattice is the finer, the less that is.
    """
    (term,) = loss.terms
    assert isinstance(term, EnclosedLoss)
    return term.release(points_asked(loss) or _POINTS, sign, ratio)


def _sums(loss: ComposedLoss, sign: Array, ratio: Float[Array, ""]) -> LawSums:
    """Sums for the upper bound, the estimate and the lower bound, stacked."""
    found = _laws(loss, sign, ratio)
    laws = found.upper, found.estimate, found.lower
    each = zip(laws, (1.0, 0.0, -1.0), strict=True)
    each = [LawSums.of(law, sign, jnp.asarray(side)) for law, side in each]
    return jax.tree.map(lambda *x: jnp.stack(x), *each)


def _logs(sums: LawSums, epsilons: Float[Array, "3 e"]) -> Float[Array, "3 e"]:
    """Upper bounds, estimates and lower bounds of log delta."""
    side = sums.side[:, None]
    # Places of thresholds are rounded.
    unit = 8 * ULP * (1 + jnp.abs(epsilons))
    moved = epsilons - side * unit
    value = jax.vmap(LawSums.log_delta)(sums, moved) + side * LATTICE_SUM
    included, without = sums.law.log_missing
    missing = jnp.where(sums.sign > 0, included, without)[:, None]
    value = jnp.where(side > 0, jnp.logaddexp(value, missing), value)
    most = jax.vmap(LawSums.log_most)(sums, moved)
    return jnp.minimum(value, jnp.where(side > 0, most, 0))


def _log_delta(sums: LawSums, epsilons: Float[Array, " e"]) -> Interval:
    """Log delta, without the bound that needs no lattice."""
    upper, estimate, lower = _logs(
        sums, jnp.broadcast_to(epsilons, (3, *epsilons.shape))
    )
    return _between(lower, estimate, upper)


class OnePlan(AbstractPlan):
    """Nothing but the direction."""

    sign: Float[Array, "..."]

    def profile(self, loss, epsilons):
        most = most_log_delta(loss, self.sign, epsilons)
        # The lattice is not asked where delta is less than any number, or squares of
        # outputs are more than any: there delta is no more than at the farthest place.
        nothing = most < _NOTHING
        asked = jnp.where(nothing, 0, jnp.minimum(epsilons, _FARTHEST))
        fixed = stop_gradient(asked)
        sums = _sums(stop_gradient(loss), self.sign, jnp.max(self.sign * fixed))
        found = _log_delta(sums, fixed)
        args = loss.without_ends(), asked
        estimate = known_value(_one_log_delta, found.estimate, args, self.sign)
        log_delta = _between(
            jnp.where(fixed < epsilons, -jnp.inf, found.lower),
            jnp.where(nothing, -jnp.inf, estimate),
            jnp.minimum(found.upper, most),
        )
        log_alpha = jax.vmap(LawSums.log_alpha, (0, None))(sums, fixed)[1]
        log_alpha = jnp.where(nothing, -jnp.inf, log_alpha)
        rest = log_delta.map_down(log_complement)
        return Profile(log_delta, rest, stop_gradient(log_alpha))

    def prepare(self, loss):
        loss = stop_gradient(loss)
        one = lambda sign: _sums(loss, sign, jnp.where(sign > 0, jnp.inf, 0.0))
        return _PreparedPlan(self.sign, lax.map(one, self.sign))


class _PreparedPlan(OnePlan):
    """The sums."""

    sums: LawSums

    def log_delta(self, loss, epsilons):
        asked = jnp.minimum(epsilons, _FARTHEST)
        found = _log_delta(self.sums, asked)
        # Of farther thresholds nothing is known but that delta is no larger there.
        most = most_log_delta(loss, self.sign, epsilons)
        return _between(
            jnp.where(asked < epsilons, -jnp.inf, found.lower),
            found.estimate,
            jnp.fmin(found.upper, most),
        )


def _one_log_delta(args: tuple[ComposedLoss, Array], sign: Array) -> Array:
    loss, epsilons = args
    law = _laws(loss, sign, stop_gradient(jnp.max(sign * epsilons))).estimate
    return LawSums.of(law, sign, jnp.zeros_like(sign)).log_delta(epsilons)


def _residual(epsilon: Array, args: tuple[ComposedLoss, Array], sign: Array) -> Array:
    loss, target = args
    return _one_log_delta((loss, epsilon[None]), sign)[0] - target


@one_by_one
def _search_one(
    loss: ComposedLoss, signs: Array, targets: Array
) -> tuple[Interval, Array]:
    (term,) = loss.terms
    assert isinstance(term, EnclosedLoss)

    def one(direction: tuple[Array, Array]) -> Interval:
        sign, target = direction

        def body(index: Array, known: tuple) -> tuple:
            most = jnp.where(index > 0, known[2], jnp.inf)
            sums = _sums(loss, sign, jnp.where(sign > 0, most, -known[0]))
            low, high = (jnp.full(3, known[i]) for i in (0, 2))
            passed = lambda e: target - _logs(sums, e[:, None])[:, 0]
            before, after = root_between(passed, low, high)
            return before[2], before[1], after[0]

        # The lattice is the finer, the better the strike is known; nothing is known
        # of that of calls at first.
        start = term.least_epsilon(sign, target), target, most_epsilon(loss, target)
        rounds = jnp.where((sign > 0) & (term.noise_multiplier < 0.4), 3, 2)
        return _between(*lax.fori_loop(0, rounds, body, start))

    found = lax.map(one, (signs, targets))
    worst = worst_of(found.estimate, signs)
    return jax.tree.map(jnp.max, found), worst


def _one_threshold(
    loss: ComposedLoss, sign: Array, log_alpha: Array, log_not_alpha: Array
) -> tuple[Array, Array]:
    """The threshold of a type I error and the scale there, about."""
    # Of all sums: the threshold may be negative.
    law = _laws(loss, jnp.ones_like(sign), jnp.inf).estimate
    form = LawSums.of(stop_gradient(law), sign, jnp.zeros_like(sign))
    # Beyond the lattice as well.
    far = 40 + 20 / law.noise + 1 / jnp.square(law.noise)
    passed = lambda e: log_alpha - form.log_alpha(e[None])[0]
    found, _ = root_between(passed, -far, far)
    step = 1e-3
    change = passed(found + step) - passed(found)
    falls = (change > 0) & (change < jnp.inf)
    scale = jnp.where(falls, step / jnp.where(falls, change, 1), 1)
    return found, jnp.clip(scale, step, 1)
