"""The spectral engine: contour integrals of the characteristic function."""

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._batching import one_by_one
from .._internal._implicit import implicit_root
from .._internal._interval import Interval, log_complement
from .._internal._tolerances import ROUGH_LOG_DELTA
from ..losses import ComposedLoss
from ._bounds import Profile, over, worst_of
from ._contour import Contour, Start, idle_contour
from ._interface import AbstractEngine, AbstractPlan
from ._inversion import Table, look_up, tabulate
from ._rare import Rare, rare_profile
from ._rare_queries import (
    rare_log_delta,
    split_epsilon_if_loose,
    split_if_loose,
    splits,
)
from ._root import with_rounding
from ._spectral import (
    as_profile,
    contour_unless,
    largest_log_delta,
    spectral_epsilon,
    spectral_log_delta,
    spectral_profile,
    spectral_threshold,
    starts_at_epsilon,
    starts_at_log_delta,
    tabulated_profile,
)


class SpectralPlan(AbstractPlan):
    """A contour for one direction, or several stacked ones."""

    sign: Float[Array, "..."]
    contour: Contour
    rare: Rare | None = None
    """The split law, where the characteristic function decays too slowly."""

    def profile(self, loss, epsilons):
        contour, rare = self.contour, self.rare
        full = lambda: spectral_profile(loss, contour, epsilons)
        if rare is None:
            return full()
        split = lambda: rare_profile(loss, rare, epsilons)
        return lax.cond(rare.used, split, full)

    def search(self, loss, epsilons, least):
        planned = self.contour
        most = largest_log_delta(loss, planned, epsilons)
        full = lambda: tabulated_profile(loss, planned, epsilons)
        dominated = planned.idle | jnp.all(most < least)
        found, contour = lax.cond(dominated, lambda: (_at_most(most), planned), full)
        if not splits(loss):
            return found, SpectralPlan(self.sign, contour, self.rare)
        wanted = ~jnp.all(most < least)
        found, rare = split_if_loose(loss, self.sign, epsilons, found, wanted)
        return found, SpectralPlan(self.sign, contour, rare)

    def prepare(self, loss):
        table = lax.map(lambda c: tabulate(loss, c), self.contour)
        contour = dataclasses.replace(self.contour, path=table.path)
        return TabulatedPlan(self.sign, contour, self.rare, table=table)


class TabulatedPlan(SpectralPlan):
    """A contour with all that it needs of the characteristic function."""

    table: Table = eqx.field(kw_only=True)

    def log_delta(self, loss, epsilons):
        found = look_up(self.table, self.contour, epsilons)
        return as_profile(loss, self.contour, epsilons, found).log_delta


class SpectralEngine(AbstractEngine):
    """Contour integrals, split by the largest step where that is needed."""

    name: ClassVar[str] = "spectral"
    anchored: ClassVar[bool] = True

    def serves(self, loss):
        return loss.analytic

    def made_safe(self, loss):
        return loss.uncut()

    def plan(self, loss, signs, anchor, gap):
        starts = starts_at_epsilon(loss, signs, anchor)
        infinite = over(signs, loss.log_infinite_mass)
        total = lambda finite: jnp.logaddexp(finite, infinite)
        most = total(jax.vmap(lambda start: start.largest_log_delta(anchor))(starts))
        rough = total(jax.vmap(lambda start: start.rough_log_delta(anchor))(starts))
        rough = jnp.minimum(rough, most)
        # The worst direction first, which may save the other one.
        order = jnp.argsort(-rough)
        hopeless = most[order] < rough[order[0]] - ROUGH_LOG_DELTA
        hopeless = hopeless.at[0].set(False)
        starts = jax.tree.map(lambda x: x[order], starts)
        contours = lax.map(
            lambda x: contour_unless(x[0], loss, x[1]), (hopeless, starts)
        )
        return SpectralPlan(signs[order], contours)

    def epsilon(self, loss, signs, target):
        fixed = stop_gradient((loss, signs, target.finite, target.slack))
        found, contour, rare, worst = _search_epsilon(*fixed)
        args = loss.without_ends(), target.finite[worst]
        aux = signs[worst], contour, rare
        estimate = implicit_root(_log_delta_residual, found.estimate, args, aux)
        return Interval(found.lower, estimate, found.upper)

    def threshold(self, loss, sign, log_alpha, log_not_alpha):
        fixed = stop_gradient((loss, sign, log_alpha, log_not_alpha))
        return spectral_threshold(*fixed)


def _at_most(log_delta: Float[Array, " e"]) -> Profile:
    """A direction that leaks less than another: only the upper bound means anything."""
    least = jnp.full_like(log_delta, -jnp.inf)
    value = Interval(least, least, log_delta)
    return Profile(value, value.map_down(log_complement), least)


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


@one_by_one
def _search_epsilon(
    loss: ComposedLoss, signs: Array, targets: Array, slacks: Array
) -> tuple[Interval, Contour, Rare | None, Array]:
    """The epsilon of the worst direction, how it was found, and which that is."""
    starts = starts_at_log_delta(loss, signs, targets)
    # The worst direction first, which may save the other one.
    largest = jax.vmap(lambda start, target: start.largest_epsilon(target))
    most = largest(starts, targets - with_rounding(targets, slacks[:, 1]))
    rough = jax.vmap(lambda start, target: start.rough_epsilon(target))
    order = jnp.argsort(-rough(starts, targets))
    ordered = jax.tree.map(lambda x: x[order], (starts, targets, slacks, most))

    split = splits(loss)

    def step(
        least: Array, one: tuple[Start, Array, Array, Array]
    ) -> tuple[Array, tuple[Interval, Contour, Rare | None]]:
        start, target, slack, most = one

        @jax.jit
        def full() -> tuple[Interval, Contour]:
            return spectral_epsilon(loss, start, target, slack)

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
