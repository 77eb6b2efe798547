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
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .. import engines
from ..curves import AbstractGuarantee, Curve
from ..curves._queries import signs_of
from ..engines import Interval
from ..losses import ComposedLoss
from ..mechanisms import BlatantNonPrivacy, NeighboringRelation, PerfectPrivacy
from ..mechanisms._base import AbstractMechanism, View
from ..mechanisms._renyi import AbstractRenyi

_EXTREMAL = (PerfectPrivacy, BlatantNonPrivacy)
_MOST_KINKS = 16


class AbstractSource(eqx.Module):
    """A guarantee, ready to be evaluated at many thresholds at once."""

    @abc.abstractmethod
    def deficits(
        self, anchors: Float[Array, " h"], epsilons: Float[Array, "h k"]
    ) -> Interval:
        """T at thresholds eps >= 0 of each half-axis; infinite ones give zero.

        Args:
            anchors: Where the thresholds of interest lie, for each half.
            epsilons: Thresholds; row 0 is pi >= 1/2, row 1 (if any) pi <= 1/2.

        Returns:
            Intervals of shape (h, k), whose ends allow for the rounding of q.
        """

    @abc.abstractmethod
    def kinks(self) -> Float[Array, " m"]:
        """Thresholds eps >= 0 at which T is known to have a kink (few of them)."""

    @property
    def engine(self) -> str:
        """The engine that answers, or "" for guarantees that are not mechanisms."""
        return ""


class EngineSource(AbstractSource):
    """A mechanism or one direction of it.

    One contour (or grid) serves all thresholds of a half-axis: certified bounds of
    delta then have a small absolute error, which is all that a difference needs.
    """

    loss: ComposedLoss
    directions: tuple[str, ...] = eqx.field(static=True)
    """For each half-axis: "remove", "add" or "both"."""

    def deficits(self, anchors, epsilons):
        loss = self.loss
        signs = [signs_of(loss, direction) for direction in self.directions]
        signs = jnp.stack([signs[i % len(signs)] for i in range(len(epsilons))])

        def half(x: tuple[Array, Array, Array]) -> Interval:
            sign, anchor, at = x
            finite = jnp.isfinite(at)
            safe = jnp.where(finite, at, anchor)
            local = engines.plan(loss, sign, anchor)
            found = engines.profile(loss, local, safe).log_delta
            return _scaled(found, at)

        if len(epsilons) == 1:
            found = half((signs[0], anchors[0], epsilons[0]))
            return jax.tree.map(lambda x: x[None], found)
        return lax.map(half, (signs, anchors, epsilons))

    def kinks(self):
        loss = stop_gradient(self.loss)
        if not loss.single:
            return jnp.zeros(0, loss.counts[0].dtype)
        found, masses = [], []
        for term in loss.terms:
            atoms = term.atoms()
            found.append(jnp.abs(atoms.loss))
            masses.append(atoms.log_mass)
        places = jnp.concatenate(found)
        count = min(_MOST_KINKS, places.size)
        _, best = lax.top_k(jnp.concatenate(masses), count)
        return places[best]

    @property
    def engine(self) -> str:
        return engines.route(self.loss)


class QuerySource(AbstractSource):
    """Any other guarantee, by its public queries."""

    guarantee: AbstractGuarantee
    symmetric: bool = eqx.field(static=True)

    def deficits(self, anchors, epsilons):
        del anchors
        finite = jnp.isfinite(epsilons)
        safe = jnp.where(finite, epsilons, 1.0)
        found = self.guarantee._delta_bounds(safe if self.symmetric else safe[:1])
        right = Interval(found.lower, found.estimate, found.upper)
        right = _rounded(right.map(lambda x: x * share(safe[: len(x)])), safe)
        if self.symmetric or len(epsilons) == 1:
            return right.map(lambda x: jnp.where(finite, x, 0.0))
        prior = share(safe[1:])
        error = self.guarantee._bayes_error_bounds(prior)
        left = Interval(error.lower, error.estimate, error.upper)
        left = _rounded(left.map_down(lambda x: prior - x), safe[1:])
        both = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), right, left)
        return both.map(lambda x: jnp.where(finite, x, 0.0))

    def kinks(self):
        return jnp.zeros(0)


def share(epsilon: Array) -> Array:
    """q = 1 / (1 + e^eps) for eps >= 0; zero at infinity."""
    decay = jnp.exp(-epsilon)
    return decay / (1 + decay)


def _scaled(log_delta: Interval, epsilon: Array) -> Interval:
    """q delta from log delta, 0 at infinite thresholds."""
    unit = jnp.finfo(epsilon.dtype).eps
    slack = lambda x: 4 * unit * (1 + jnp.where(jnp.isfinite(x), jnp.abs(x), 0))
    finite = jnp.isfinite(epsilon)
    q = share(jnp.where(finite, epsilon, 1.0))
    # exp of -inf has the derivative of zero.
    value = q * jnp.exp(log_delta.estimate)
    lower = q * jnp.exp(log_delta.lower - slack(log_delta.lower))
    upper = q * jnp.exp(log_delta.upper + slack(log_delta.upper))
    found = _rounded(Interval(lower, value, upper), epsilon)
    return found.map(lambda x: jnp.where(finite, x, 0.0))


def _rounded(found: Interval, epsilon: Array) -> Interval:
    """Widened for the rounding of q, along which T moves at most twice as fast."""
    unit = jnp.finfo(epsilon.dtype).eps
    q = share(jnp.where(jnp.isfinite(epsilon), epsilon, 1.0))[: len(found.lower)]
    slack = jnp.where(epsilon[: len(q)] == 0, 4 * unit * found.upper, 16 * unit * q)
    lower, upper = stop_gradient((found.lower - slack, found.upper + slack))
    lower, upper = jnp.clip(lower, 0, q), jnp.clip(upper, 0, q)
    estimate = jnp.clip(found.estimate, lower, upper)
    return Interval(lower, estimate, upper)


# ------------------------------------------------------------- from what a user gives


class Request(eqx.Module):
    """A guarantee whose structure is settled, and whose numbers may be traced."""

    subject: Any
    directions: tuple[str, ...] = eqx.field(static=True)
    """Empty for anything but mechanisms; one entry if the guarantee is symmetric."""
    method: str = eqx.field(static=True)
    symmetric: bool = eqx.field(static=True)

    def source(self) -> AbstractSource:
        """To be called inside the float64 program."""
        if not self.directions:
            return QuerySource(self.subject, self.symmetric)
        loss = self.subject.loss()
        return EngineSource(_with_method(loss, self.method), self.directions)


def _with_method(loss: ComposedLoss, method: str) -> ComposedLoss:
    return ComposedLoss(loss.terms, loss.counts, loss.single, method)


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
        if direction == "both" or _is_symmetric(subject):
            return Request(subject, ("both",), method, True)
        return Request(subject, (direction, _OPPOSITE[direction]), method, False)
    if isinstance(guarantee, AbstractGuarantee):
        known = isinstance(guarantee, Curve | AbstractRenyi)
        symmetric = known or getattr(guarantee, "symmetric", False) is True
        return Request(guarantee, (), "auto", symmetric)
    raise TypeError(
        f"{name} must be a mechanism, one direction of it or a curve, "
        f"got {type(guarantee).__name__}"
    )


def _is_symmetric(subject: AbstractMechanism) -> bool:
    return bool(eqx.filter_eval_shape(lambda s: s.loss(), subject).symmetric)


def pair(a: Any, b: Any) -> tuple[Request, Request]:
    """Two guarantees that can be compared.

    Raises:
        ValueError: If they refer to different neighbors, or one to both directions of
            an asymmetric mechanism and the other to one of them.
    """
    first, second = request("a", a), request("b", b)
    relations = _relation(a), _relation(b)
    if None not in relations and relations[0] is not relations[1]:
        names = " and ".join(str(r.name) for r in relations if r is not None)
        raise ValueError(
            "a and b must be guarantees under one neighboring relation, got "
            f"{names}: state both with the same relation="
        )
    one_sided = [not r.symmetric and bool(r.directions) for r in (first, second)]
    both = [
        r.symmetric and bool(r.directions) and not _is_symmetric(r.subject)
        for r in (first, second)
    ]
    if any(one_sided) and any(both):
        raise ValueError(
            "a and b must both be mechanisms or both be one direction, got one of "
            "each: take .remove (or .add) of both"
        )
    return first, second


def _relation(guarantee: Any) -> NeighboringRelation | None:
    if isinstance(guarantee, View):
        guarantee = guarantee.mechanism
    if isinstance(guarantee, _EXTREMAL):
        return None  # it is the same thing under every relation
    return getattr(guarantee, "relation", None)
