"""The best of a random number of private runs."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._internal import _checks
from .._internal._precision import in_float64
from .._internal._record import described
from ..curves import (
    DELTA,
    EPSILON,
    AbstractGuarantee,
    Bounds,
    ProfilePoint,
    bounds_of,
    with_gradient,
)
from ..engines import Interval, log_complement
from ..mechanisms import ADD_OR_REMOVE_ONE, FromProbabilities, PerfectPrivacy
from ..tradeoff import TradeOff
from ._laws import AbstractRepetitions, Search

_UNIT = 1e-14
"""Over the relative rounding of a few operations."""
_TINY = 1e-307


class SelectBest(AbstractGuarantee):
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
    do and the best is used; for a Poisson law s = m TV.  Each direction's s takes the
    other direction's profile, and at negative thresholds each profile is also the
    reflection of the other one.

    Only upper bounds of what is leaked are proved; the other ends are the trivial ones.
    First derivatives are exact, second ones are not.  `as_mechanism` is the pair to
    compose it with other releases, each of which must draw anew as well.

    Args:
        run: A whole guarantee: a mechanism, a composition, a `Curve` or a trade-off
            function.
        repetitions: The law of K, such as `fdp.selection.Geometric`.

    Raises:
        TypeError: If run is no guarantee of both directions, or repetitions is no law:
            for a fixed number there is no such theorem.

    Example:
        >>> import fdp_jax as fdp
        >>> law = fdp.selection.Geometric(success_prob=0.1)
        >>> tuned = fdp.SelectBest(fdp.Gaussian(4.0), repetitions=law)
        >>> print(f"{tuned.epsilon(delta=1e-6):.5f}")
        1.63131

    References:
        Liu and Talwar (2019); Papernot and Steinke (2022); Koskela, Redberg, Wang
        (2024).
    """

    run: Any
    repetitions: AbstractRepetitions = eqx.field(kw_only=True)
    direction: str = eqx.field(static=True, default="both", kw_only=True)

    def __check_init__(self):
        _checks.choice("direction", self.direction, ("remove", "add", "both"))
        whole = isinstance(self.run, AbstractGuarantee) and all(
            isinstance(getattr(self.run, x, None), AbstractGuarantee)
            for x in ("remove", "add")
        )
        if not whole:
            raise TypeError(
                "run must be a guarantee with both directions, such as a mechanism or "
                f"a curve, got {described(self.run)}"
            )
        if not isinstance(self.repetitions, AbstractRepetitions):
            raise TypeError(
                "repetitions must be a law, such as fdp.selection.Geometric("
                f"success_prob=0.1), got {described(self.repetitions)}: selection from "
                "a fixed number costs as much as all runs, run.repeat(number)"
            )

    @property
    def remove(self) -> "SelectBest":
        """The remove direction alone."""
        return dataclasses.replace(self, direction="remove")

    @property
    def add(self) -> "SelectBest":
        """The add direction alone."""
        return dataclasses.replace(self, direction="add")

    def as_mechanism(self, epsilons: Any = None) -> "SelectedPair":
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
        # The remove profile holds the add one, which is its reflection.
        view: Any = TradeOff.of(self.remove, epsilons=epsilons).as_mechanism()
        masses = view.mechanism
        return SelectedPair(
            masses.without_record,
            masses.with_record,
            relation=getattr(self.run, "relation", ADD_OR_REMOVE_ONE),
        )

    def _has_ladder(self) -> bool:
        return self.run._has_ladder()

    def _sides(self) -> list[tuple[Any, Any, Any, Any]]:
        """Runs and weights of each direction asked for and of the exchanged one."""
        run, law = self.run, self.repetitions
        add = _weight(law, run.add), run.add
        remove = _weight(law, run.remove), run.remove
        # A direction's weight is from the profile of the exchanged one.
        remove, add = (add[0], remove[1]), (remove[0], add[1])
        sides = {"remove": (remove, add), "add": (add, remove)}
        names = sides if self.direction == "both" else (self.direction,)
        return [(*sides[name][0], *sides[name][1]) for name in names]

    def _profile(self, epsilon: Any) -> ProfilePoint:
        found = []
        for s, run, other_s, other in self._sides():
            at, mirror = _moved(epsilon, s, other_s)
            logs = run._profile(at).log_delta, other._profile(mirror).log_delta
            found.append(_scaled(self.repetitions, epsilon, *logs))
        return _worst_profile(epsilon, found)

    def _solve(self, delta: Any) -> Bounds:
        share = _share(self.repetitions, delta)
        each = [(s, run._solve(share)) for s, run, _, _ in self._sides()]
        return _epsilons(self.repetitions, delta, each)

    def _error_rate_bounds(self, alpha: Any) -> tuple[Bounds, Bounds]:
        found = []
        for s, run, other_s, _ in self._sides():
            near, far = _errors(self.repetitions, alpha, s)
            power = run._error_rate_bounds(near)[1]
            found.append((other_s, power, run._error_rate_bounds(far)[0]))
        return _rates(self.repetitions, alpha, found)


class SelectedPair(FromProbabilities):
    """A pair that is only known to dominate a selection: maybe nothing is leaked."""

    def attained(self) -> PerfectPrivacy:
        return PerfectPrivacy(relation=self.relation)


def _weight(law: AbstractRepetitions, reverse: AbstractGuarantee) -> Any:
    """The bound s of a direction, and its estimate, by the exchanged one's profile."""
    search = _first(law)
    estimate = search.best
    for i in range(law.rounds + 1):
        log_delta = reverse._profile(search.nodes).log_delta
        search, estimate = _next(law, search, log_delta, last=i == law.rounds)
    return search.best, estimate


@in_float64(cast_out=False)
def _first(law: AbstractRepetitions) -> Search:
    return law._search()


@in_float64(cast_out=False)
def _next(
    law: AbstractRepetitions, search: Search, log_delta: Interval, *, last: bool
) -> tuple[Search, Array]:
    nodes = search.nodes
    own, threshold = law._need(nodes, jax.lax.stop_gradient(log_delta.upper))
    bound = jnp.maximum(own, threshold) * (1 + 16 * _UNIT) + 1e-300
    search = search._replace(best=jnp.minimum(search.best, jnp.min(bound)))
    estimate = law._need(nodes, log_delta.estimate)
    if law.rounds == 0:
        return search, estimate[0][0]
    # The root of a secant, and its neighbors: one side is wrong by its square.
    gap = estimate[0] - estimate[1]
    i = jnp.clip(jnp.sum(gap > 0) - 1, 0, nodes.size - 2)
    low, high = nodes[i], nodes[i + 1]
    fall = gap[i] - gap[i + 1]
    share = gap[i] / jnp.where(fall > 0, fall, 1.0)
    # A root at a node moves both ways, whatever side rounding puts it on.
    share = with_gradient(jnp.clip(share, 0.0, 1.0), share)
    width = high - low
    root = low + width * share
    at = estimate[1][i] + (estimate[1][i + 1] - estimate[1][i]) * share
    if last:
        return search, at
    near = 0.25 * jnp.minimum(width, jnp.square(width))
    near = jnp.maximum(near, 1e-5 * root)  # next to each other they have no slope
    places = [low - near, root - near, root, root + near, high + near]
    nodes = jnp.maximum(jnp.stack(places), 0.0)
    return search._replace(nodes=jax.lax.stop_gradient(nodes)), at


@in_float64(cast_out=False)
def _moved(epsilon: Array, s: Any, other_s: Any) -> tuple[Any, Any]:
    room = lambda x: _UNIT * (jnp.abs(epsilon) + x)

    def less(e: Array, s: Any) -> Array:
        moved = with_gradient(e - s[0] - room(s[0]), e - s[1])
        return jnp.where(jnp.isfinite(e), moved, e)

    return less(epsilon, s), less(-epsilon, other_s)


def _raised(law: AbstractRepetitions, log_delta: Array, epsilon: Array) -> Array:
    """log(m delta), with what an empty selection adds at negative thresholds."""
    idle = jnp.where(epsilon < 0, law.log_idle(), -jnp.inf)
    total = jnp.logaddexp(law.log_mean() + log_delta, idle)
    rounding = 16 * _UNIT * (1 + jnp.abs(jnp.where(jnp.isfinite(total), total, 0.0)))
    return jnp.minimum(total + rounding, 0.0)


@in_float64(cast_out=False)
def _scaled(
    law: AbstractRepetitions, epsilon: Array, own: Interval, mirrored: Interval
) -> list[tuple[Array, Array]]:
    """Upper bounds of log delta and lower ones of log(1 - delta), and estimates."""
    ends = (own.upper, mirrored.upper), (own.estimate, mirrored.estimate)
    return [_profile_of(law, epsilon, *end) for end in ends]


def _profile_of(
    law: AbstractRepetitions, epsilon: Array, own: Array, mirrored: Array
) -> tuple[Array, Array]:
    log_delta = _raised(law, own, epsilon)
    other = log_complement(_raised(law, mirrored, -epsilon)) + epsilon
    other = jnp.where(jnp.isfinite(epsilon), other, -jnp.inf)
    slack = 16 * _UNIT * (1 + jnp.abs(jnp.where(jnp.isfinite(other), other, 0.0)))
    rest = jnp.maximum(log_complement(log_delta) - slack, other - slack)
    reflected = log_complement(jnp.minimum(other - slack, 0)) + slack
    return jnp.minimum(log_delta, jnp.minimum(reflected, 0)), jnp.minimum(rest, 0)


@in_float64(cast_out=False)
def _worst_profile(
    epsilon: Array, found: list[list[tuple[Array, Array]]]
) -> ProfilePoint:
    each = lambda i, j: jnp.stack([x[i][j] for x in found])
    delta, estimate = (jnp.max(each(i, 0), axis=0) for i in (0, 1))
    rest, most = (jnp.min(each(i, 1), axis=0) for i in (0, 1))
    # All that is known of the other end: delta is at least 1 - e^eps.
    least = log_complement(jnp.minimum(epsilon, 0)) - 4 * _UNIT
    least = jnp.minimum(jnp.where(epsilon < 0, least, -jnp.inf), delta)
    upper = jnp.maximum(jnp.minimum(epsilon, 0), rest)
    return ProfilePoint(
        Interval(least, jnp.minimum(estimate, delta), delta),
        Interval(rest, jnp.clip(most, rest, upper), upper),
        "selection",
    )


@in_float64(cast_out=False)
def _share(law: AbstractRepetitions, delta: Array) -> Array:
    share = delta * jnp.exp(-law.log_mean()) * (1 - 16 * _UNIT)
    return jnp.where(share >= _TINY, jnp.minimum(share, 1.0), 0.0)


@in_float64
def _epsilons(
    law: AbstractRepetitions, delta: Array, each: list[tuple[Any, Bounds]]
) -> Bounds:
    room = lambda x: _UNIT * jnp.where(jnp.isfinite(x), jnp.abs(x), 0.0)
    found = [x.upper + room(x.upper) + s[0] * (1 + _UNIT) for s, x in each]
    upper = jnp.max(jnp.stack(found), axis=0)
    estimate = jnp.max(jnp.stack([x.estimate + s[1] for s, x in each]), axis=0)
    # An empty selection counts below zero.
    floor = jnp.where(jnp.isfinite(law.log_idle()), 0.0, -jnp.inf)
    upper, estimate = (jnp.maximum(x, floor) for x in (upper, estimate))
    upper = jnp.where(delta >= 1, -jnp.inf, upper)
    lower = jnp.where(delta >= 1, -jnp.inf, jnp.log1p(-jnp.minimum(delta, 1)))
    lower = jnp.minimum(lower - 4 * _UNIT, upper)
    value = Interval(lower, estimate, upper)
    return dataclasses.replace(
        bounds_of(value, jnp.isposinf(upper), EPSILON), method="selection"
    )


@in_float64(cast_out=False)
def _errors(law: AbstractRepetitions, alpha: Array, s: Any) -> tuple[Array, Array]:
    weight = with_gradient(s[0], s[1])
    near = alpha * jnp.exp(weight - law.log_mean()) * (1 + 64 * _UNIT * (1 + s[0]))
    near = jnp.where(alpha > 0, jnp.clip(near, _TINY, 1.0), 0.0)
    far = 1 - (1 - alpha) * jnp.exp(-law.log_mean()) * (1 - 16 * _UNIT)
    return near, jnp.clip(far + _UNIT, 0.0, 1.0)


@in_float64
def _rates(
    law: AbstractRepetitions, alpha: Array, found: list[tuple[Any, Bounds, Bounds]]
) -> tuple[Bounds, Bounds]:
    mean, idle = jnp.exp(law.log_mean()), jnp.exp(law.log_idle())

    def rates(power: Array, error: Array, s: Array) -> tuple[Array, Array]:
        most = (power * mean + idle) * (1 + 64 * _UNIT)
        least = error * mean * jnp.exp(-s) * (1 - 64 * _UNIT * (1 + s))
        # The reflected bound counts an empty selection's chance as well.
        least = jnp.where(idle > 0, 0.0, least)
        return jnp.minimum(most, 1 - least + _UNIT), jnp.maximum(
            1 - most - _UNIT, least
        )

    ends = [rates(p.upper, e.lower, s[0]) for s, p, e in found]
    middle = [rates(p.estimate, e.estimate, s[1]) for s, p, e in found]
    power, power_mid = (
        jnp.max(jnp.stack([x[0] for x in y]), 0) for y in (ends, middle)
    )
    error, error_mid = (
        jnp.min(jnp.stack([x[1] for x in y]), 0) for y in (ends, middle)
    )
    power, error = jnp.clip(power, alpha, 1.0), jnp.clip(error, 0.0, 1 - alpha)
    beta = bounds_of(Interval(error, error_mid, 1 - alpha), error <= 0, DELTA)
    tpr = bounds_of(Interval(alpha, power_mid, power), power >= 1, DELTA)
    named = lambda x: dataclasses.replace(x, method="selection")
    return named(beta), named(tpr)
