r"""What two guarantees have in common: the deficit of the Bayes error on half-axes.

With pi the prior of H0 and q = min(pi, 1 - pi), the *deficit* of a guarantee is

    T(q) = q - R(pi) = q delta(eps),   q = 1 / (1 + e^eps),   eps = |logit pi|,

with delta of the given direction on the right half-axis (pi >= 1/2) and of the
exchanged one on the left: delta(-e) = 1 - e^-e + e^-e delta_rev(e).  A difference of
Bayes errors is a difference of deficits, R - R~ = T~ - T, and these are small numbers
with full accuracy where the errors themselves are all but equal to q.  T is convex on
either half, T(0) = 0, and 0 <= T <= q.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, PyTree

from .. import engines
from .._internal import _checks
from ..curves import (
    LOGARITHM,
    AbstractGuarantee,
    Curve,
    ProfilePoint,
    Subject,
    signs_of,
    uncrossed,
)
from ..curves.logs import complement
from ..engines import Interval, select
from ..losses import AUTO, ComposedLoss, GaussianForm, Method
from ..mechanisms import (
    AbstractMechanism,
    AbstractRenyi,
    BlatantNonPrivacy,
    NeighboringRelation,
    PerfectPrivacy,
    View,
    as_float,
    loss_like,
    require_guarantee,
    resolve,
)
from ..tradeoff import AbstractTradeOff, Gaussian

_EXTREMAL = (PerfectPrivacy, BlatantNonPrivacy)
_MOST_KINKS, _SAME = 16, 1e-13
"""How many kinks are asked for, and the relative distance of two that are one."""


class AbstractSource(eqx.Module):
    """A guarantee, ready to be evaluated at many thresholds at once."""

    @abc.abstractmethod
    def prepared(self) -> PyTree:
        """The common part of all evaluations, without derivative."""

    @abc.abstractmethod
    def _found(self, prepared: PyTree, epsilons: Float[Array, "h k"]) -> Interval:
        """Log delta at finite thresholds eps >= 0 of each half-axis."""

    def log_deltas(self, prepared: PyTree, epsilons: Float[Array, "h k"]) -> Interval:
        """Log delta at thresholds, where finite ones are asked.

        Small deltas keep their relative accuracy here, which deficits lose.
        """
        found = self._found(prepared, _finite(epsilons))
        low, high, _ = uncrossed(found.lower, found.upper, LOGARITHM)
        return Interval(low, found.estimate, high)

    def deficits(self, prepared: PyTree, epsilons: Float[Array, "h k"]) -> Interval:
        """T at thresholds eps >= 0 of each half-axis; infinite ones give zero.

        Args:
            prepared: From `prepared`.
            epsilons: Thresholds; row 0 is pi >= 1/2, row 1 (if any) pi <= 1/2.

        Returns:
            Intervals of shape (h, k), whose ends allow for the rounding of q; no
            derivatives.
        """
        return _scaled(self.log_deltas(prepared, epsilons), epsilons)

    @abc.abstractmethod
    def estimate(
        self, prepared: PyTree, epsilon: Float[Array, ""], left: Bool[Array, ""]
    ) -> Float[Array, ""]:
        """T at one finite threshold (of the left half-axis), with its derivative."""

    @abc.abstractmethod
    def kinks(self) -> Float[Array, " m"]:
        """Thresholds eps >= 0 at which T is known to have a kink (few of them)."""

    @property
    def engine(self) -> str:
        """The engine that answers, or "" for guarantees that are not mechanisms."""
        return ""

    def gaussian_mu(self) -> Float[Array, ""] | None:
        """mu, if the guarantee is known to be G_mu."""


class EngineSource(AbstractSource):
    """A mechanism or one direction of it.

    One contour (or grid) serves all thresholds: certified bounds of delta then have a
    small absolute error, which is all that a difference needs.
    """

    loss: ComposedLoss
    directions: tuple[str, ...] = eqx.field(static=True)
    """("both",), or the direction of the right half-axis and that of the left one."""

    def _signs(self) -> Float[Array, " s"]:
        found = [signs_of(self.loss, direction) for direction in self.directions]
        return jnp.concatenate(found)

    def prepared(self) -> PyTree:
        zero = jnp.zeros_like(self.loss.counts[0])
        return engines.prepare(self.loss, self._signs(), zero)

    def _found(self, prepared, epsilons):
        one = lambda p, e: engines.log_delta_from(self.loss, p, e)
        if len(self.directions) == 2:
            return lax.map(lambda x: one(*x), (prepared, epsilons))
        each = lax.map(lambda p: one(p, epsilons.ravel()), prepared)
        return each.map(lambda x: jnp.max(x, axis=0).reshape(epsilons.shape))

    def estimate(self, prepared, epsilon, left):
        known = lax.map(
            lambda p: engines.log_delta_from(self.loss, p, epsilon[None]).estimate[0],
            prepared,
        )
        two = len(self.directions) == 2
        index = jnp.where(left, 1, 0) if two else jnp.argmax(known)
        chosen = jax.tree.map(lambda x: x[index], prepared)
        found = engines.log_delta_estimate(self.loss, chosen, epsilon)
        return share(epsilon) * jnp.exp(found)

    def kinks(self):
        loss = self.loss
        if not loss.single:
            return jnp.zeros(0, loss.counts[0].dtype)
        atoms = [term.atoms() for term in loss.terms]
        places = jnp.concatenate([jnp.abs(each.loss) for each in atoms])
        masses = jnp.concatenate([each.log_mass for each in atoms])
        _, best = lax.top_k(stop_gradient(masses), min(_MOST_KINKS, places.size))
        return places[best]

    @property
    def engine(self) -> str:
        return engines.route(self.loss)

    def gaussian_mu(self):
        if not self.loss.has_closed_form:
            return None
        found = self.loss.closed_form(jnp.ones_like(self.loss.counts[0]))
        return found.mu if isinstance(found, GaussianForm) else None


class BracketedSource(EngineSource):
    """A mechanism whose pair only dominates, and one that leaks no more."""

    least: AbstractSource

    def prepared(self):
        return super().prepared(), self.least.prepared()

    def _found(self, prepared, epsilons):
        found = super()._found(prepared[0], epsilons)
        least = self.least.log_deltas(prepared[1], epsilons)
        return Interval(least.lower, found.estimate, found.upper)

    def estimate(self, prepared, epsilon, left):
        return super().estimate(prepared[0], epsilon, left)

    def gaussian_mu(self):
        return None


class QuerySource(AbstractSource):
    """Any other guarantee, by its public queries."""

    guarantee: AbstractGuarantee
    symmetric: bool = eqx.field(static=True)

    def prepared(self):
        return None

    def _profile(self, epsilon: Array, left: Array) -> tuple[ProfilePoint, Array]:
        """The profile on either half-axis, and whether that is the left one."""
        left = left & (not self.symmetric)
        return self.guarantee._profile(jnp.where(left, -epsilon, epsilon)), left

    def _found(self, prepared, epsilons):
        rows = jnp.arange(len(epsilons))[:, None]
        point, left = self._profile(epsilons, rows == 1)
        other = complement(point.log_rest.shifted(epsilons))
        return stop_gradient(select(left, other, point.log_delta))

    def estimate(self, prepared, epsilon, left):
        point, left = self._profile(epsilon, left)
        other = -jnp.expm1(point.log_rest.estimate + epsilon)
        return share(epsilon) * jnp.where(
            left, other, point.log_delta.exponential().estimate
        )

    def kinks(self):
        found = self.all_kinks()
        return found if found.size <= _MOST_KINKS else found[:0]

    def gaussian_mu(self):
        if not isinstance(self.guarantee, Gaussian):
            return None
        return as_float(self.guarantee.mu)

    def all_kinks(self):
        """Also where there are more than a search can start with."""
        if isinstance(self.guarantee, AbstractTradeOff):
            return jnp.abs(self.guarantee._kinks())
        return jnp.zeros(0)


def share(epsilon: Array) -> Array:
    """Q = 1 / (1 + e^eps) for eps >= 0; zero at infinity."""
    decay = jnp.exp(-epsilon)
    return decay / (1 + decay)


def _finite(epsilon: Array) -> Array:
    """The thresholds, or 1 where they are infinite."""
    return jnp.where(jnp.isfinite(epsilon), epsilon, 1.0)


def _scaled(log_delta: Interval, epsilon: Array) -> Interval:
    """Q delta from log delta, in [0, q]; 0 at infinite thresholds."""
    finite, safe = jnp.isfinite(epsilon), _finite(epsilon)
    q, unit = share(safe), jnp.finfo(epsilon.dtype).eps
    found = log_delta.exponential().map(lambda x: q * x)
    # The rounding of q, along which T moves at most twice as fast.
    slack = jnp.where(safe == 0, 4 * unit * found.upper, 16 * unit * q)
    lower = jnp.clip(found.lower - slack, 0, q)
    upper = jnp.clip(found.upper + slack, 0, q)
    inside = Interval(lower, jnp.clip(found.estimate, lower, upper), upper)
    return inside.map(lambda x: jnp.where(finite, x, 0.0))


# ------------------------------------------------------------- from what a user gives


class Request(eqx.Module):
    """A guarantee whose structure is settled, and whose numbers may be traced.

    Where it is kept, as in a target, the subject is what a user gave: parameters may
    lose digits on the way into a float32 program, losses must not.
    """

    subject: Any
    directions: tuple[str, ...] = eqx.field(static=True)
    """Empty for anything but mechanisms; one entry if the guarantee is symmetric."""
    method: Method = eqx.field(static=True)
    symmetric: bool = eqx.field(static=True)
    leaks: bool = eqx.field(static=True, default=False)
    """Whether lower ends are of what is leaked, not of the guarantee."""
    least: "Request | None" = None
    """A mechanism that leaks no more, once that is resolved."""

    def source(self) -> AbstractSource:
        """To be called inside the float64 program."""
        if not self.directions:
            return QuerySource(self.subject, self.symmetric)
        request = self.resolved()
        args, least = (request.subject.composed, self.directions), request.least
        return BracketedSource(*args, least.source()) if least else EngineSource(*args)

    def resolved(self) -> "Request":
        """The request in terms of a loss, ready for a compiled program."""
        if not self.directions or isinstance(self.subject, Subject):
            return self
        found, least = resolve(View(self.subject, "both", self.method)), None
        if self.leaks and found.attained is not None:
            # Either data set of a replacement may be the one with the record.
            replaced = found.attained.relation is NeighboringRelation.REPLACE_ONE
            ways = ("both",) if replaced else self.directions
            least = Request(found.attained, ways, AUTO, True, True).resolved()
        return dataclasses.replace(self, subject=found.first, least=least)

    def again(self) -> "Request":
        """The request for the grid engine, if that is the second one to ask."""
        if self.method != AUTO or not self.directions:
            return self
        loss = self.resolved().subject.composed
        if not (loss.on_grid and loss.decays):
            return self
        return dataclasses.replace(self, method=Method("grid"))


_OPPOSITE = {"remove": "add", "add": "remove"}


def request(name: str, guarantee: Any) -> Request:
    """The request for a mechanism, a view, a curve or any other guarantee.

    Raises:
        TypeError: If it is none of these.
        ValueError: If a parameter is missing.
    """
    if isinstance(guarantee, Request):
        return guarantee
    if isinstance(guarantee, AbstractMechanism | View):
        subject, direction, method = guarantee._subject()
        subject.require_complete()
        subject = subject.simplified()
        if direction == "both" or is_symmetric(subject):
            return Request(subject, ("both",), method, True)
        return Request(subject, (direction, _OPPOSITE[direction]), method, False)
    guarantee = require_guarantee(name, guarantee)
    known = isinstance(guarantee, Curve | AbstractRenyi)
    symmetric = known or getattr(guarantee, "symmetric", False) is True
    return Request(guarantee, (), AUTO, symmetric)


def is_symmetric(subject: AbstractMechanism) -> bool:
    """Whether both directions of a mechanism have one trade-off function."""
    return bool(loss_like(subject).symmetric)


def pair(a: Any, b: Any) -> tuple[Request, Request]:
    """Two guarantees that can be compared, ready for a compiled program.

    Raises:
        ValueError: If they refer to different neighbors, or one to both directions of
            an asymmetric mechanism and the other to one of them.
    """
    first, second = comparable(a, b)
    return first.resolved(), second.resolved()


def comparable(a: Any, b: Any) -> tuple[Request, Request]:
    """Two guarantees that can be compared.

    Raises:
        ValueError: If they refer to different neighbors, or one to both directions of
            an asymmetric mechanism and the other to one of them.
    """
    leaking = lambda name, x: dataclasses.replace(request(name, x), leaks=True)
    first, second = leaking("a", a), leaking("b", b)
    relations = _relation(a), _relation(b)
    if None not in relations and relations[0] is not relations[1]:
        names = " and ".join(str(r.name) for r in relations if r is not None)
        raise ValueError(
            "a and b must be guarantees under one neighboring relation, got "
            f"{names}: state both with the same relation="
        )
    one_sided = [not r.symmetric and bool(r.directions) for r in (first, second)]
    both = [
        r.symmetric and bool(r.directions) and not is_symmetric(r.subject)
        for r in (first, second)
    ]
    _checks.require(
        not any(one_sided) or not any(both),
        "a and b must both be mechanisms or both be one direction",
        "one of each: take .remove (or .add) of both",
    )
    return first, second


class Pair(eqx.Module):
    """Two sources; if they are of one kind, one program evaluates both."""

    first: AbstractSource
    second: AbstractSource

    @property
    def alike(self) -> bool:
        """Whether the two differ in numbers only."""
        shapes = [
            (jax.tree.structure(s), [x.shape for x in jax.tree.leaves(s)])
            for s in (self.first, self.second)
        ]
        engine = isinstance(self.first, EngineSource)
        return engine and shapes[0] == shapes[1]

    @property
    def knows_kinks(self) -> bool:
        """Whether all kinks that can be told from smooth places are in `kinks`."""
        return all(isinstance(s, EngineSource) for s in (self.first, self.second))

    def _each(
        self, function: Callable, prepared: tuple = (None, None)
    ) -> tuple[PyTree, PyTree]:
        """A function of a source and of what it has prepared, of both."""
        both = self.first, self.second
        if not self.alike:
            one, other = map(function, both, prepared)
            return one, other
        stack = lambda x, y: jax.tree.map(lambda u, v: jnp.stack([u, v]), x, y)
        found = lax.map(lambda x: function(*x), (stack(*both), stack(*prepared)))
        pick = lambda i: jax.tree.map(lambda x: x[i], found)
        return pick(0), pick(1)

    def _on_kinks(self, epsilon: Float[Array, ""]) -> Float[Array, ""]:
        """A threshold; one at a known kink moves with it, as derivatives go.

        At zero, which is prior 1/2, there may be one that does not move.
        """
        zero = jnp.zeros(1, epsilon.dtype)
        kinks = jnp.concatenate([zero, self.first.kinks(), self.second.kinks()])
        # Differentiated programs may round a kink otherwise than the search did.
        distance = jnp.abs(stop_gradient(kinks) - epsilon)
        distance = jnp.where(jnp.isnan(distance), jnp.inf, distance)
        nearest = jnp.argmin(distance)
        same = distance[nearest] <= jnp.where(nearest > 0, _SAME * (1 + epsilon), 0)
        return jnp.where(same, kinks[nearest], epsilon)

    def prepared(self) -> tuple[PyTree, PyTree]:
        """Both preparations."""
        return self._each(lambda s, _: s.prepared())

    def deficits(self, prepared: tuple, epsilons: Array) -> tuple[Interval, Interval]:
        """T of both at the same thresholds."""
        return self._each(lambda s, p: s.deficits(p, epsilons), prepared)

    def log_deltas(self, prepared: tuple, epsilons: Array) -> tuple[Interval, Interval]:
        """Log delta of both at the same thresholds."""
        return self._each(lambda s, p: s.log_deltas(p, epsilons), prepared)

    def estimates(
        self, prepared: tuple, epsilon: Float[Array, ""], left: Bool[Array, ""]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """T of both at one finite threshold, with derivatives."""
        at = self._on_kinks(epsilon)
        return self._each(lambda s, p: s.estimate(p, at, left), prepared)


def _relation(guarantee: Any) -> NeighboringRelation | None:
    if isinstance(guarantee, View):
        guarantee = guarantee.mechanism
    if isinstance(guarantee, _EXTREMAL):
        return None  # it is the same thing under every relation
    return getattr(guarantee, "relation", None)
