"""Targets that speak of the whole curve: domination, Delta-divergence, mu-GDP."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Real

from .. import tradeoff
from .._internal import _checks
from .._internal._concrete import known
from .._internal._special import safe_log
from .._internal._text import at_most
from ..comparison.sources import Request, request, share
from ..curves import Subject
from ..divergences.gaussian_fit import closed_mu, fitted_mu
from ..engines import Interval, select
from ..losses import ComposedLoss, GaussianForm
from ..mechanisms import as_float
from ..tradeoff import (
    AbstractSymmetric,
)
from ._targets import AbstractTarget, Margin, in_full
from ._touch import largest_gap, largest_ratio

_ROUNDING = 1e-12
_FAR = 10.0
"""Losses that a mechanism has sooner than Gaussian noise of as small an advantage."""


def _both_directions(loss: ComposedLoss) -> Request:
    return Request(Subject(loss), ("both",), loss.method, True)


class _AbstractReferenceTarget(AbstractTarget):
    """A target that compares with another guarantee."""

    reference: eqx.AbstractVar[Request]

    @property
    def relation(self) -> Any:
        """The neighbors of the reference, if it states any."""
        return getattr(self.reference.subject, "relation", None)

    def require_relation(self, relation: Any) -> None:
        if self.relation is not None and self.relation is not relation:
            raise ValueError(
                f"reference must be a guarantee under {relation.name}, got one under "
                f"{self.relation.name}: state both with the same relation="
            )

    def _reference_delta(self, epsilon: float) -> Array:
        """The reference's delta, about."""
        source = self.reference.source()
        at = jnp.full((1 if self.reference.symmetric else 2, 1), epsilon)
        found = source.deficits(source.prepared(), at).estimate
        return jnp.max(found) / share(at[0, 0])


def _request(reference: Any) -> Request:
    found = request("reference", reference)
    symmetric = isinstance(reference, AbstractSymmetric)
    return dataclasses.replace(found, symmetric=symmetric or found.symmetric)


class TradeOff(_AbstractReferenceTarget):
    """A whole trade-off function: f >= reference - delta everywhere.

    The same as delta_f(eps) <= delta_reference(eps) + delta at every threshold, and
    certified between the thresholds looked at by convexity.  A calibration reports in
    `binding` where the curves touch: the type I error `alpha` and the threshold
    `epsilon`.

    Args:
        reference: A trade-off function, a mechanism (or one direction of it) or any
            other guarantee, under the same neighboring relation.
        delta: Probability set aside, in [0, 1).  Without it the corner near alpha = 0
            decides, where a subsampled mechanism is as steep as one that is not; with 0
            the reference must have infinite losses, or see `MuGDP`.

    Raises:
        ValueError: If delta is outside [0, 1).
        TypeError: If the reference is not a guarantee.
    """

    reference: Request = eqx.field(converter=_request)
    delta: Real[Any, ""] = _checks.field(
        "delta", _checks.below_one, default=1e-10, kw_only=True
    )
    binds = "alpha", "epsilon"

    def margin(self, loss: ComposedLoss) -> Margin:
        requests = self.reference, _both_directions(loss)
        delta = jnp.asarray(self.delta)
        found, binding = largest_ratio(requests, delta)
        if isinstance(self.reference.subject, tradeoff.Gaussian):
            found = _or_gaussian(found, loss, self.reference.subject.mu)
        return Margin(found, binding)

    def proxy(self):
        epsilons = jnp.asarray([0.0, 1.0])
        found = [self._reference_delta(e) for e in (0.0, 1.0)]
        return epsilons, safe_log(jnp.stack(found) + self.delta)

    def reachable(self) -> tuple[Array, str]:
        return jnp.asarray(self.delta) >= 0, "delta must lie in [0, 1)"

    def describe(self) -> str:
        return f"f >= {_name(self.reference)} - {at_most(float(self.delta))}"


class DeltaDivergence(_AbstractReferenceTarget):
    """At most `value` less private than a reference, at the worst prior.

    Delta(reference || mechanism) <= value; see `fdp_jax.delta_divergence`.  A
    calibration reports in `binding` the `prior` and its logit `epsilon`.

    Args:
        reference: A trade-off function, a mechanism (or one direction of it) or any
            other guarantee, under the same neighboring relation.
        value: The largest difference of Bayes errors, in (0, 1/2).

    Raises:
        ValueError: If value is outside [0, 1].
        TypeError: If the reference is not a guarantee.
    """

    reference: Request = eqx.field(converter=_request)
    value: Real[Any, ""] = _checks.field("value", _checks.probability, kw_only=True)
    binds = "prior", "epsilon"

    def margin(self, loss: ComposedLoss) -> Margin:
        requests = self.reference, _both_directions(loss)
        gap, binding = largest_gap(requests)
        # `delta_divergence` looks at other priors, and is to find the target met: its
        # bounds are about as wide as these.
        upper = gap.upper + (gap.upper - gap.lower)
        gap = Interval(gap.lower, gap.estimate, upper)
        value = jnp.asarray(self.value)
        return Margin(gap.map(lambda x: x / value - 1), binding)

    def proxy(self):
        goal = self._reference_delta(0.0) + 2 * jnp.asarray(self.value)
        return jnp.zeros(1), safe_log(jnp.minimum(goal, 0.99))[None]

    def reachable(self):
        inside = (self.value > 0) & (self.value < 0.5)
        return inside, "value must lie in (0, 1/2)"

    def describe(self) -> str:
        name = _name(self.reference)
        return f"Delta-divergence from {name} <= {at_most(float(self.value))}"


class MuGDP(TradeOff):
    """mu-GDP: f >= G_mu - delta everywhere.

    With some delta set aside the same as `TradeOff` with G_mu for the reference.
    Without, the corner near alpha = 0 decides; see `fdp_jax.divergences.gdp`.

    Args:
        mu: In (0, inf).
        delta: Probability set aside, in [0, 1).  A zero that is traced is treated like
            `TradeOff`'s, unless Gaussian noise alone gives a mu: what cannot be
            certified so is VACUOUS.

    Raises:
        ValueError: If an argument is out of range.
    """

    nothing_aside: bool = eqx.field(static=True, kw_only=True)

    def __init__(self, mu: Any, *, delta: Any = 0.0):
        mu = _checks.checked_scalar("mu", _checks.nonnegative, mu)
        self.reference = _request(tradeoff.Gaussian(mu))
        self.delta = _checks.checked_scalar("delta", _checks.below_one, delta)
        aside = known(delta)
        self.nothing_aside = aside is not None and bool(aside == 0)

    @property
    def mu(self) -> Real[Array, ""]:
        """The target's mu."""
        return self.reference.subject.mu

    @property
    def binds(self):
        return () if self.nothing_aside else ("alpha", "epsilon")

    def margin(self, loss: ComposedLoss) -> Margin:
        delta, log_mu = jnp.asarray(self.delta), jnp.log(self.mu)
        over = lambda mu: safe_log(mu) - log_mu
        if self.nothing_aside:
            return Margin(fitted_mu(loss, delta, plain=False).map(over))
        found, closed = super().margin(loss), over(closed_mu(loss))
        sure = jnp.isfinite(closed) & (delta == 0)
        # An upper bound of mu; with other noise besides there may be a smaller mu.
        known = Interval(jnp.full_like(closed, -jnp.inf), closed, closed + _ROUNDING)
        return Margin(select(sure, known, found.excess), found.binding)

    def is_missed(self, mechanism):
        epsilon, most = in_full(self, "_points")
        found = mechanism._bounds_of("log_delta", epsilon).upper
        return bool(np.any(np.asarray(found) > most + 1e-6 * (1 + np.abs(most))))

    def _points(self):
        """Thresholds at which log delta is at most as large as here."""
        mu = jnp.asarray(self.mu)
        epsilon = jnp.stack([mu, jnp.maximum(_FAR, mu)])
        gaussian = GaussianForm(mu).log_delta(epsilon)
        return epsilon, jnp.logaddexp(gaussian, safe_log(self.delta))

    def proxy(self):
        mu = jnp.asarray(self.mu)
        return mu[None], GaussianForm(mu).log_delta(mu)[None]

    def reachable(self):
        return jnp.asarray(self.mu) > 0, "mu must be positive"

    def describe(self) -> str:
        aside = f" but for {at_most(float(self.delta))}" if float(self.delta) else ""
        return f"{at_most(float(self.mu))}-GDP{aside}"


def _or_gaussian(found: Interval, loss: ComposedLoss, mu: Any) -> Interval:
    """The largest log ratio to G_mu, at most 0 where Gaussian noise alone gives mu.

    Two such curves are close to one another everywhere, so that bounds between
    thresholds would take many of them.  Where mu is too large, the upper end is by how
    much, which leads a search to where it is not.
    """
    over = safe_log(closed_mu(loss)) - jnp.log(as_float(mu)) + _ROUNDING
    upper = jnp.where(jnp.isnan(over), jnp.inf, jnp.maximum(over, 0.0))
    upper = jnp.maximum(jnp.minimum(found.upper, upper), found.estimate)
    return Interval(found.lower, found.estimate, upper)


def _name(reference: Request) -> str:
    subject = reference.subject
    if isinstance(subject, tradeoff.Gaussian):
        return f"G_{at_most(float(jnp.asarray(subject.mu)))}"
    return type(subject).__name__
