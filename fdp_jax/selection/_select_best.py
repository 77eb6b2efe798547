"""The best of a random number of private runs."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._internal import _checks
from .._internal._concrete import (
    evaluates_at_once,
    holds_anywhere,
)
from .._internal._host import closes_over_traced, may_ask_the_host
from .._internal._precision import in_float64
from .._internal._record import described
from .._internal._tolerances import LOG_OPERATIONS as _UNIT
from ..curves import (
    EPSILON,
    AbstractGuarantee,
    Bounds,
    ProfilePoint,
    Subject,
    bounds_of,
    with_gradient,
)
from ..engines import Interval, log_complement, select
from ..mechanisms import (
    ADD_OR_REMOVE_ONE,
    AbstractMechanism,
    AbstractRenyi,
    Declared,
    FromProbabilities,
    Resolved,
    View,
    loss_like,
    option,
)
from ..tradeoff import AbstractTradeOff, dominating_pair
from ._laws import AbstractRepetitions, Poisson
from ._many_runs import (
    Ways,
    beta_of_many,
    epsilon_of_many,
    points_by_lines,
    points_of,
    profile_of_many,
)
from ._rates import METHOD, NOTHING, OPEN, TINY, are_vague, errors, of_lines, rates
from ._weights import Weight, kept, weight_of
from ._winner import with_winner_pairs

_DELTAS = 3e-3, 0.03, 0.1, 0.3
"""Of the points of the curve whose tangents bound it at lower thresholds."""
_LOOSE = -3.0
"""Log delta from which on a tangent may be lower."""


class SelectBest(Declared, AbstractGuarantee):
    """The best of K runs of one algorithm, K drawn from a public law: private tuning.

    Every run draws anew, also its hyperparameters, if it has any, by a law that does
    not depend on the data; the best output by any order is released, ties broken at
    random.  Neither K nor the other outputs are.

    Let P and Q be the laws of a run on neighbors, p and q the chances of an output
    better than y, and phi the generating function of K.  The winner's density is that
    of a run times phi'(1 - p), at most m = E K.  If r >= 0 and s bounds
    log(phi'(1 - q) / phi'(1 - p)) for all p <= e^r q + delta_PQ(r) (and so on), then
    delta(eps) <= m delta_run(eps - s): for a negative binomial law
    s = (1 + shape) log max(e^r, 1 + delta_reverse(r) (1 - g) / g), where every r will
    do and the best is used; for a Poisson law s = m TV.  The weight averaged over the
    chance to be beaten gives less, by one theorem (`_winner.py`): it is used for
    mechanisms with continuous noise, and for Poisson laws (`_many_runs.py`).  Each
    direction takes the other direction's profile, and at negative thresholds each
    profile is the reflection of the other one.  As a function of e^eps the profile is
    convex and 1 at 0, so that it lies under the lines from there to any of its points
    as well.  From delta(eps) <= m delta_pair(eps) for all eps of both directions follow
    the error rates: power(alpha) <= m power_pair(alpha / m), and beta(alpha) is at
    least m times the pair's at 1 - (1 - alpha) / m.

    Only upper bounds of what is leaked are proved; the other ends are the trivial ones.
    First derivatives are exact, second ones are refused.  `compose` takes the pair that
    `as_mechanism` makes of it with other releases, each of which must draw anew as
    well.  `calibrate` finds a parameter of the run, the noise for instance, or of the
    law that was left open.  Programs on CPUs call back to plain calls.

    Args:
        run: A whole guarantee: a mechanism, a composition, a `Curve`, a trade-off
            function, or what is known by Renyi divergences, such as `ZCDP`.
        repetitions: The law of K, such as `fdp.selection.Geometric`.

    Raises:
        TypeError: If run is no guarantee of both directions, or repetitions is no law:
            for a fixed number, or one that depends on results, there is no theorem.

    Example:
        >>> import fdp_jax as fdp
        >>> law = fdp.selection.Geometric(success_prob=0.1)
        >>> tuned = fdp.SelectBest(fdp.Gaussian(4.0), repetitions=law)
        >>> print(f"{tuned.epsilon(delta=1e-6):.5f}")
        1.57541

    References:
        Liu and Talwar (2019); Papernot and Steinke (2022); Koskela, Redberg, Wang
        (2024).
    """

    run: Any
    repetitions: AbstractRepetitions = eqx.field(kw_only=True)
    direction: str = option(
        "direction",
        _checks.choice,
        ("remove", "add", "both"),
        default="both",
        kw_only=True,
    )

    def __check_init__(self):
        ways = (getattr(self.run, x, None) for x in _OPPOSITE)
        whole = all(isinstance(way, AbstractGuarantee) for way in ways)
        _checks.require(
            whole or isinstance(self.run, AbstractRenyi),
            "run must be a guarantee with both directions, such as a mechanism or a "
            "curve",
            described(self.run),
            TypeError,
        )
        _checks.require(
            isinstance(self.repetitions, AbstractRepetitions),
            "repetitions must be a law, such as fdp.selection.Geometric("
            "success_prob=0.1)",
            f"{described(self.repetitions)}: "
            + (
                "one that depends on results tells of them"
                if callable(self.repetitions)
                else "a fixed number does not hide one of them"
            )
            + ", and costs as much as all runs, run.repeat(number)",
            TypeError,
        )

    @property
    def remove(self) -> "SelectBest":
        """The remove direction alone."""
        return dataclasses.replace(self, direction="remove")

    @property
    def add(self) -> "SelectBest":
        """The add direction alone."""
        return dataclasses.replace(self, direction="add")

    def as_mechanism(self, epsilons: Any = None) -> FromProbabilities:
        """A pair of finitely many outputs that dominates it, to be composed.

        Args:
            epsilons: Thresholds of its grid, as in `fdp.tradeoff.TradeOff.of`: the
                finer, the tighter.

        Returns:
            A mechanism; both of its directions hold.

        Raises:
            ValueError: If a threshold is not finite.

        Guarantee:
            Upper bounds of what is leaked.
        """
        relation = getattr(self.run, "relation", ADD_OR_REMOVE_ONE)
        return dominating_pair(self, epsilons=epsilons, relation=relation)

    def repeat(self, num_steps: Any) -> AbstractMechanism:
        """So many selections from the same data, of which each is published.

        Args:
            num_steps: Their number, a whole one, at least 0.

        Returns:
            The composition of as many `as_mechanism()`.

        Raises:
            ValueError: If num_steps is negative or not whole.

        Guarantee:
            Upper bounds of what is leaked.
        """
        return self.as_mechanism().repeat(num_steps)

    def _has_ladder(self) -> bool:
        # A program that asks for several profiles would be a large one.
        return may_ask_the_host() and not closes_over_traced(self)

    def _is_symmetric(self) -> bool:
        """Whether both directions of a run are known to be alike."""
        run = self.run.mechanism if isinstance(self.run, View) else self.run
        if isinstance(run, AbstractMechanism):
            return loss_like(run.simplified()).symmetric
        if isinstance(run, AbstractTradeOff | SelectBest):
            return run._is_symmetric()
        return isinstance(run, AbstractRenyi)

    def _names(self) -> tuple[str, ...]:
        """The directions of which the worst is asked for."""
        if self.direction != "both":
            return (self.direction,)
        return ("remove",) if self._is_symmetric() else ("remove", "add")

    def _way(self, name: str) -> tuple[AbstractGuarantee, Weight]:
        """The run in a direction, and the weight, which the exchanged one gives."""
        way = lambda x: getattr(self.run, x, self.run)
        return way(name), weight_of(self.repetitions, way(_OPPOSITE[name]))

    def _with_pairs(self, names: tuple[str, ...]) -> list[Subject]:
        """The run and the pair of a winner, by direction; none where it takes long."""
        law, run = self.repetitions, self.run
        if isinstance(law, Poisson) or not isinstance(run, AbstractMechanism):
            return []
        # Else it would be put on a grid.
        if not loss_like(run.simplified()).decays:
            return []
        each = with_winner_pairs(law, run)
        return [{"remove": each[0], "add": each[-1]}[name] for name in names]

    def _least(
        self, names: tuple[str, ...], found: list[Interval], by_weight: Any
    ) -> list[Interval]:
        """Answers with a winner's pair, or by the weight alone, of some directions.

        The former are less, mostly, but for what they leave open after a few steps.
        """
        looks = bool(found) and evaluates_at_once()
        if looks and not any(map(holds_anywhere, _are_open(found))):
            return found
        others = [by_weight(*self._way(name)) for name in names]
        return [_lesser(found, others)] if found else others

    def _many(self, name: str) -> Ways:
        """Points of the run in a direction and in the exchanged one."""
        whole = isinstance(self.run, AbstractMechanism)
        found = points_by_lines(self.run) if whole else None
        if found is not None:
            return found if name == "remove" else found[::-1]
        other = name if self._is_symmetric() else _OPPOSITE[name]
        here, there = (points_of(getattr(self.run, x, self.run)) for x in (name, other))
        return here, there

    def _profile(self, epsilon: Any) -> ProfilePoint:
        self.require_complete()
        distance, negative = _parted(epsilon)
        found = [getattr(self, name)._one_way(distance) for name in self._names()]
        some = not evaluates_at_once() or holds_anywhere(negative)
        if self.direction == "both" or not some or self._is_symmetric():
            return _profile_of(epsilon, found, found)
        # Negative thresholds are the reflection of the exchanged direction's.
        exchanged = getattr(self, _OPPOSITE[self.direction])._one_way(distance)
        return _profile_of(epsilon, found, [exchanged])

    @kept
    def _one_way(self, distance: Array) -> Interval:
        """Bounds of log delta at thresholds of at least 0, of a single direction."""
        law, name = self.repetitions, self.direction
        each = [
            _raised(law, Resolved(x, x).profile(distance))
            for x in self._with_pairs((name,))
        ]
        if isinstance(law, Poisson):
            each = [profile_of_many(distance, law, self._many(name))]
        by_weight = lambda run, s: _raised(law, run._profile(_moved(distance, s)))
        (found,) = self._least((name,), each, by_weight)
        if evaluates_at_once() and not holds_anywhere(_is_loose(found)):
            return found
        return _under_tangents(found, distance, self._points(name))

    def _points(self, name: str) -> Bounds:
        """Bounds of the thresholds at which delta is at most each of `_DELTAS`."""
        return self._solved(np.asarray(_DELTAS), (name,))

    def _solve(self, delta: Any) -> Bounds:
        self.require_complete()
        return self._solved(delta, self._names())

    def _solved(self, delta: Any, names: tuple[str, ...]) -> Bounds:
        law = self.repetitions
        share = _share(law, delta)
        each = [x._solve(share) for x in self._with_pairs(names)]
        ends = [Interval(x.lower, x.estimate, x.upper) for x in each]
        if isinstance(law, Poisson):
            ends = [epsilon_of_many(delta, law, self._many(x)) for x in names]
        by_weight = lambda run, s: _shifted(s, run._solve(share))
        return _epsilons(law, delta, self._least(names, ends, by_weight))

    def _error_rate_bounds(self, alpha: Any) -> tuple[Bounds, Bounds]:
        self.require_complete()
        law, names = self.repetitions, self._names()
        if isinstance(law, Poisson):
            least = [beta_of_many(alpha, law, self._many(name)) for name in names]
            return of_lines(alpha, least)
        others = tuple(_OPPOSITE[name] for name in names)
        near, far = errors(law, alpha, NOTHING)
        found = []
        for own, other in zip(*map(self._with_pairs, (names, others)), strict=True):
            power = own._error_rate_bounds(near)[1]
            exchanged = Subject(other.composed, _OPPOSITE[other.direction])
            error = exchanged._error_rate_bounds(far)[0]
            found.append((NOTHING, power, error))
        looks = bool(found) and evaluates_at_once()
        if looks and not holds_anywhere(are_vague(law, found)):
            return rates(law, alpha, [found])
        others = [self._rates_by_weight(alpha, name) for name in names]
        return rates(law, alpha, [found, others] if found else [others])

    def _rates_by_weight(self, alpha: Any, name: str) -> tuple[Weight, Bounds, Bounds]:
        run, weight = self._way(name)
        _, other = self._way(_OPPOSITE[name])
        near, far = errors(self.repetitions, alpha, weight)
        power, error = run._error_rate_bounds(near)[1], run._error_rate_bounds(far)[0]
        return other, power, error


_OPPOSITE = {"remove": "add", "add": "remove"}


@in_float64(cast_out=False)
def _parted(epsilon: Array) -> tuple[Array, Array]:
    return jnp.abs(epsilon), epsilon < 0


@in_float64(cast_out=False)
def _moved(distance: Array, weight: Weight) -> Array:
    room = _UNIT * (distance + weight.most)
    moved = with_gradient(distance - weight.most - room, distance - weight.estimate)
    return jnp.where(jnp.isfinite(distance), moved, distance)


@in_float64(cast_out=False)
def _raised(law: AbstractRepetitions, point: ProfilePoint) -> Interval:
    """log(m delta); no lower bound is known."""
    found = point.log_delta.map(lambda x: law.log_mean() + x)
    found = found.widened(lambda x: 16 * _UNIT * (1 + jnp.abs(x)))
    none = jnp.full_like(found.upper, -jnp.inf)
    return Interval(none, *(jnp.minimum(x, 0) for x in (found.estimate, found.upper)))


@in_float64(cast_out=False)
def _is_loose(found: Interval) -> Array:
    return found.upper > _LOOSE


@in_float64(cast_out=False)
def _under_tangents(found: Interval, distance: Array, points: Bounds) -> Interval:
    """The curve under the lines from delta = 1 at e^eps = 0 to points of it.

    As a function of e^eps it is convex, so that (1 - delta) / e^eps falls.
    """

    def lower(thresholds: Array, slack: float) -> Array:
        over = thresholds - distance[..., None]
        rest = jnp.log1p(-np.asarray(_DELTAS)) - over - slack * (1 + jnp.abs(over))
        # The point itself bounds what is beyond it.
        usable = jnp.isfinite(over) & (over >= 0)
        return jnp.max(jnp.where(usable, rest, -jnp.inf), axis=-1)

    upper = log_complement(lower(points.upper, 4 * _UNIT)) + 4 * _UNIT
    estimate = log_complement(lower(points.estimate, 0.0))
    return Interval(
        found.lower,
        jnp.minimum(found.estimate, estimate),
        jnp.minimum(found.upper, jnp.minimum(upper, 0)),
    )


@in_float64(cast_out=False)
def _profile_of(
    epsilon: Array, ahead: list[Interval], behind: list[Interval]
) -> ProfilePoint:
    """The worst directions' profile, those at negative thresholds by reflection."""
    infinite, negative = jnp.isinf(epsilon), epsilon < 0
    distance = jnp.where(infinite, 1.0, jnp.abs(epsilon))
    found = select(negative, _worst(behind), _worst(ahead))
    rest = found.map_down(log_complement).widened(
        lambda x: 4 * _UNIT * (1 + jnp.abs(x))
    )
    rest = rest.map(lambda x: jnp.minimum(x, 0))
    log_delta = select(negative, found.reflected(distance), found)
    log_rest = select(negative, rest.shifted(-distance), rest)
    beyond = infinite & negative
    log_delta = log_delta.map(lambda x: jnp.where(beyond, 0.0, x))
    log_rest = log_rest.map(lambda x: jnp.where(beyond, -jnp.inf, x))
    return ProfilePoint(log_delta, log_rest, METHOD)


@in_float64(cast_out=False)
def _are_open(found: list[Interval]) -> list[Array]:
    return [~(x.upper - x.estimate <= OPEN) for x in found]


def _worst(found: list[Interval]) -> Interval:
    each = jax.tree.map(lambda *x: jnp.stack(x), *found)
    return each.map(lambda x: jnp.max(x, axis=0))


@in_float64(cast_out=False)
def _lesser(found: list[Interval], others: list[Interval]) -> Interval:
    # No minima: an end has the derivative of its own estimate.
    one, other = _worst(found), _worst(others)
    return select(other.upper < one.upper, other, one)


@in_float64(cast_out=False)
def _share(law: AbstractRepetitions, delta: Any) -> Array:
    share = delta * jnp.exp(-law.log_mean()) * (1 - 16 * _UNIT)
    return jnp.where(share >= TINY, jnp.minimum(share, 1.0), 0.0)


@in_float64(cast_out=False)
def _shifted(s: Weight, x: Bounds) -> Interval:
    room = _UNIT * jnp.where(jnp.isfinite(x.upper), jnp.abs(x.upper), 0.0)
    upper = x.upper + room + s.most * (1 + _UNIT)
    return Interval(x.lower, x.estimate + s.estimate, upper)


@in_float64
def _epsilons(law: AbstractRepetitions, delta: Any, each: list[Interval]) -> Bounds:
    found = _worst(each)
    upper, estimate = found.upper, found.estimate
    # An empty selection counts below zero.
    floor = jnp.where(jnp.isfinite(law.log_idle()), 0.0, -jnp.inf)
    upper, estimate = (jnp.maximum(x, floor) for x in (upper, estimate))
    upper = jnp.where(delta >= 1, -jnp.inf, upper)
    lower = jnp.where(delta >= 1, -jnp.inf, jnp.log1p(-jnp.minimum(delta, 1)))
    lower = jnp.minimum(lower - 4 * _UNIT, upper)
    value = Interval(lower, estimate, upper)
    return bounds_of(value, jnp.isposinf(upper), EPSILON, METHOD)
