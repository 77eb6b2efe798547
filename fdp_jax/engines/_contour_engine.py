"""The contour engine: sums along one line per direction, split by the largest step.

The sums are in `_lines.py`, what splits a law is in `_rare.py`.
"""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._batching import one_by_one
from .._internal._implicit import implicit_root
from .._internal._interval import Interval, log_complement
from .._internal._shapes import row_of
from .._internal._special import log_ndtri
from ..losses import ComposedLoss, where
from ._bounds import Profile, largest_loss, select, with_infinite, worst_of
from ._interface import AbstractEngine, AbstractPlan
from ._line_mesh import (
    RIGHT,
    SHIFTS,
    Place,
    capped,
    chernoff_mesh,
    locate,
    prepared,
)
from ._line_queries import line_at, see, solve
from ._line_slopes import log_value
from ._lines import Line, line_of
from ._rare import Rare, rare_profile
from ._rare_queries import (
    is_close,
    rare_log_delta,
    split_epsilon_if_loose,
    split_if_loose,
    splits,
)
from ._root import with_rounding


class ContourPlan(AbstractPlan):
    """A line for one direction, or several stacked ones."""

    sign: Float[Array, "..."]
    line: Line
    rare: Rare | None = None
    """The split law, where the line's sum has no certificate."""

    def profile(self, loss, epsilons):
        line, rare = self.line, self.rare

        def full() -> Profile:
            found, estimate = _seen(line, epsilons), log_value(loss, epsilons, line)
            fixed = stop_gradient(found[0].estimate)
            estimate = jnp.where(jnp.isneginf(estimate), fixed, estimate)
            return _profile(loss, line, found, estimate, epsilons)

        if rare is None:
            return full()
        split = lambda: rare_profile(loss, rare, epsilons)
        return lax.cond(rare.used, split, full)

    def search(self, loss, epsilons, least, *, anew=True):
        found = self._near(loss, epsilons)
        anew = anew and splits(loss)
        if self.rare is None and not anew:
            return found, self
        wanted = ~jnp.all(found.log_delta.upper < least)
        asked = loss, self.sign, epsilons, found, wanted
        found, rare = split_if_loose(*asked, self.rare, anew)
        return found, ContourPlan(self.sign, self.line, rare)

    def log_delta(self, loss, epsilons):
        return self._near(loss, epsilons).log_delta

    def _near(self, loss: ComposedLoss, epsilons: Array) -> Profile:
        found = _seen(self.line, epsilons)
        return _profile(loss, self.line, found, found[0].estimate, epsilons)


def _seen(line: Line, epsilons: Array) -> tuple[Interval, Array]:
    found = see(stop_gradient(line), stop_gradient(epsilons))
    return Interval(found.log_lower, found.log_value, found.log_upper), found.log_alpha


def _profile(
    loss: ComposedLoss,
    line: Line,
    found: tuple[Interval, Array],
    estimate: Array,
    epsilons: Array,
) -> Profile:
    """The profile of finite losses, with the infinite ones."""
    value, log_alpha = found
    sign, middle = line.sign, line.shift < 0
    value = Interval(value.lower, estimate, value.upper)
    value = value.map(lambda x: jnp.minimum(x, 0))
    # delta counts the infinite losses too; 1 - delta none but what was left out.
    beyond = epsilons >= stop_gradient(largest_loss(loss, sign))
    none = beyond | jnp.isneginf(value.upper)
    infinite, truncated = loss.log_infinite_mass(sign), loss.log_truncated_mass(sign)
    right = with_infinite(value, infinite, truncated, none)
    most = jnp.logaddexp(value.upper, stop_gradient(truncated))
    rest = Interval(value.lower, value.estimate, jnp.minimum(most, 0))
    return Profile(
        select(middle, rest.map_down(log_complement), right),
        select(middle, rest, right.map_down(log_complement)),
        jnp.where(none, -jnp.inf, log_alpha),
    )


class ContourEngine(AbstractEngine):
    """One line through the mesh of Chernoff bounds, and one table along it."""

    name: ClassVar[str] = "contour"
    anchored: ClassVar[bool] = True

    def serves(self, loss):
        return loss.analytic

    def made_safe(self, loss):
        return loss.uncut()

    def plan(self, loss, signs, anchor, gap):
        line = _plan(*stop_gradient((loss, signs, anchor)))
        return ContourPlan(signs, line)

    def epsilon(self, loss, signs, target):
        fixed = stop_gradient((loss, signs, target.finite, target.slack))
        found, line, rare, worst = _search(*fixed)
        args = loss.without_ends(), target.finite[worst]
        aux = signs[worst], line, rare
        estimate = implicit_root(_residual, found.estimate, args, aux)
        return Interval(found.lower, estimate, found.upper)

    def threshold(self, loss, sign, log_alpha, log_not_alpha):
        fixed = stop_gradient((loss, sign, log_alpha, log_not_alpha))
        return rough_threshold(*fixed)


def _residual(
    epsilon: Array,
    args: tuple[ComposedLoss, Array],
    aux: tuple[Array, Line, Rare | None],
) -> Array:
    (loss, log_delta), (sign, line, rare) = args, aux
    full = lambda: log_value(loss, epsilon[None], line)[0]
    if rare is None:
        return full() - log_delta
    split = lambda: rare_log_delta(loss, sign, rare, epsilon)
    return lax.cond(rare.used, split, full) - log_delta


@one_by_one
def _plan(loss: ComposedLoss, signs: Array, anchor: Array) -> Line:
    return lax.map(lambda sign: line_at(prepared(loss, sign), anchor), signs)


@one_by_one
def _search(
    loss: ComposedLoss, signs: Array, targets: Array, slacks: Array
) -> tuple[Interval, Line, Rare | None, Array]:
    """The epsilon of the worst direction, how it was found, and which that is."""

    def one(direction: tuple[Array, Array, Array]) -> tuple[Interval, Line]:
        sign, target, slack = direction
        line = line_of(capped(prepared(loss, sign), target), target, inverse=True)
        found, most = solve(line, target, slack), largest_loss(loss, sign)
        upper = jnp.minimum(found.upper, most)
        lower, estimate = (jnp.minimum(x, upper) for x in (found.lower, found.estimate))
        return Interval(lower, estimate, upper), line

    found, lines = lax.map(one, (signs, targets, slacks))
    rares = None
    if splits(loss):

        def split(least: Array, args: tuple) -> tuple[Array, tuple[Interval, Rare]]:
            sign, target, slack, known = args

            def by_mesh() -> tuple[Array, Array]:
                # Of all outcomes: those that a cap leaves out tell of rare ones.
                place = place_of(loss, sign, target, inverse=True)
                most = place.largest_epsilon(target - with_rounding(target, slack[1]))
                most = jnp.minimum(known.upper, most)
                rough = jnp.minimum(place.epsilon, most)
                return most, where(jnp.isfinite(known.lower), known.estimate, rough)

            # Nothing is gained where the line's ends are close together.
            summed, close = (
                (known.upper, known.estimate),
                is_close(known.lower, known.upper),
            )
            most, first = lax.cond(close, lambda: summed, by_mesh)
            known = Interval(known.lower, first, jnp.maximum(most, known.lower))
            wanted = ~(known.upper < least)
            better, rare = split_epsilon_if_loose(
                loss, sign, known, target, slack, wanted
            )
            return jnp.maximum(least, better.lower), (better, rare)

        each = signs, targets, slacks, found
        _, (found, rares) = lax.scan(split, jnp.max(found.lower), each)
    worst = worst_of(found.estimate, signs)
    line, rare = row_of((lines, rares), worst)
    ends = jnp.max(found.lower), jnp.max(found.upper)
    estimate = jnp.clip(found.estimate[worst], *ends)
    return Interval(ends[0], estimate, ends[1]), line, rare, worst


@functools.partial(jax.jit, static_argnames="inverse")
def place_of(
    loss: ComposedLoss, sign: Array, target: Array, *, inverse: bool = False
) -> Place:
    """The place of a threshold, or of a log delta, by the mesh alone."""
    loss, target = stop_gradient((loss, target))
    mesh = chernoff_mesh(prepared(loss, sign))
    return locate(mesh, target, inverse=inverse, tail=True, for_grid=True)


@one_by_one
def rough_log_delta(
    loss: ComposedLoss, sign: Float[Array, ""], epsilon: Float[Array, ""]
) -> Float[Array, ""]:
    """Log delta, about: an approximation, no bound, no derivative."""
    return place_of(loss, sign, epsilon).log_value


@one_by_one
def rough_threshold(
    loss: ComposedLoss, sign: Array, log_alpha: Array, log_not_alpha: Array
) -> tuple[Array, Array]:
    """The threshold of a type I error and the scale there, about.

    Laplace's method on the mesh, with the kernel 1/(1+z) of P(X > eps), or for large
    errors 1/z of the exchanged pair's Q(Y > -eps).
    """
    small = log_alpha < log_not_alpha
    mesh = chernoff_mesh(prepared(loss, jnp.where(small, sign, -sign)))
    value, variance = mesh.value, mesh.variance
    order = jnp.where(small, 1 + SHIFTS, SHIFTS)
    target = jnp.where(small, log_alpha, log_not_alpha)
    fits = jnp.where(small, order > 0, RIGHT)
    size = jnp.where(fits, order, 1.0)
    width = variance * size * size + 1
    rough = (value - 0.5 * jnp.log(2 * np.pi * width) - target) / size
    rough = jnp.where(fits, rough, jnp.inf)
    best = jnp.argmin(rough)
    # The tilted law there is about normal.
    log_m, mean, variance, w = (
        x[best] for x in (mesh.value, mesh.mean, variance, size)
    )
    deviation = jnp.sqrt(variance)
    share = target - log_m + w * (mean - 0.5 * w * variance)
    below = share < -1e-3
    place = mean - w * variance - deviation * log_ndtri(where(below, share, -1.0))
    place = where(below & (deviation > 0), place, rough[best])
    reach = jnp.where(deviation > 0, deviation, jnp.inf)
    epsilon = jnp.where(small, place, -place)
    return epsilon, jnp.minimum(1 / (1 + jnp.abs(jnp.asarray(SHIFTS)[best])), reach)
