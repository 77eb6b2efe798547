"""One release of a loss that is known by pairs around it: sums over a lattice."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

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

_ESTIMATE = 1


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


def _laws(loss: ComposedLoss, sign: Array) -> Laws:
    (term,) = loss.terms
    assert isinstance(term, EnclosedLoss)
    return term.release(sign, points_asked(loss))


class _OneForm(eqx.Module):
    """One release in one direction, by all three laws, stacked."""

    sums: LawSums
    bend: Float[Array, "3"]
    side: Float[Array, "3"]
    """1 for an upper bound, 0 for the estimate, -1 for a lower bound."""
    log_missing: Float[Array, "3"]

    @classmethod
    def of(cls, found: Laws, sign: Array) -> "_OneForm":
        each = found.upper, found.estimate, found.lower
        each = (LawSums.of(stop_gradient(law), sign) for law in each)
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
        unit = 8 * ULP * (1 + jnp.abs(epsilons))
        moved = epsilons - self.side[:, None] * unit
        value = jax.vmap(LawSums.log_delta)(self.sums, moved, self.bend)
        value = value + self.side[:, None] * LATTICE_SUM
        value = jnp.logaddexp(value, self.log_missing[:, None])
        most = jax.vmap(LawSums.log_most)(self.sums, moved)
        value = jnp.minimum(value, jnp.where(self.side[:, None] > 0, most, 0))
        # Where the lattice is too coarse, one sum may still tell much.
        below = jax.tree.map(lambda x: x[-1], self.sums).log_least(epsilons[-1])
        return value.at[-1].max(below)

    def log_delta(self, epsilons: Float[Array, " e"]) -> Interval:
        """Log delta, without the bound that needs no lattice."""
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
        form = _OneForm.of(_laws(loss, self.sign), self.sign)
        found = form.log_delta(stop_gradient(epsilons))
        args = loss.without_ends(), epsilons
        estimate = known_value(_one_log_delta, found.estimate, args, self.sign)
        most = most_log_delta(loss, self.sign, epsilons)
        upper = jnp.minimum(found.upper, most)
        log_delta = _between(found.lower, estimate, upper)
        log_alpha = form.estimate.log_alpha(epsilons)
        rest = log_delta.map_down(log_complement)
        return Profile(log_delta, rest, stop_gradient(log_alpha))

    def prepare(self, loss):
        one = lambda sign: _OneForm.of(_laws(loss, sign), sign)
        return _PreparedPlan(self.sign, lax.map(one, self.sign))


class _PreparedPlan(OnePlan):
    """The sums."""

    form: _OneForm

    def log_delta(self, loss, epsilons):
        return self.form.log_delta(epsilons)


def _one_log_delta(args: tuple[ComposedLoss, Array], sign: Array) -> Array:
    loss, epsilons = args
    law = _laws(loss, sign).estimate
    return LawSums.of(law, sign).log_delta(epsilons, 1.0)


def _residual(epsilon: Array, args: tuple[ComposedLoss, Array], sign: Array) -> Array:
    loss, target = args
    return _one_log_delta((loss, epsilon[None]), sign)[0] - target


@one_by_one
def _search_one(
    loss: ComposedLoss, signs: Array, targets: Array
) -> tuple[Interval, Array]:
    def one(direction: tuple[Array, Array]) -> Interval:
        sign, target = direction
        form = _OneForm.of(_laws(loss, sign), sign)
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
    # Of all sums: the threshold may be negative.
    law = _laws(loss, jnp.ones_like(sign)).estimate
    form = LawSums.of(stop_gradient(law), sign)
    low, high = form.ends()
    passed = lambda e: log_alpha - form.log_alpha(e[None])[0]
    found, _ = root_between(passed, low, high)
    step = 1e-3
    change = passed(found + step) - passed(found)
    falls = (change > 0) & (change < jnp.inf)
    scale = jnp.where(falls, step / jnp.where(falls, change, 1), 1)
    return found, jnp.clip(scale, step, 1)
