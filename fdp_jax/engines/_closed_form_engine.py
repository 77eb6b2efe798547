"""The engine of closed forms: certified profile, epsilon and threshold."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._interval import Interval, exactly, without
from .._internal._roots import least_threshold
from .._internal._tolerances import CLOSED_FORM
from ..losses import AbstractClosedForm, ComposedLoss
from ._bounds import Profile, largest_loss
from ._interface import AbstractEngine, AbstractPlan

_NEXT = 1e-3
"""Relative distance between two thresholds that show how fast alpha changes."""


def closed_profile(form: AbstractClosedForm, epsilons: Array) -> Profile:
    """The profile at thresholds >= 0, with its certificate."""
    allowed, mass = CLOSED_FORM, form.mass_error()
    slip = form.loss_error(epsilons)
    moved = [] if slip is None else [epsilons - slip, epsilons + slip]
    places = jnp.stack([epsilons, *stop_gradient(moved)])
    logs, (log_rest, *_), (log_alpha, *_) = form.logs(places)
    log_delta, log_rest = exactly(logs[0], allowed), exactly(log_rest, allowed)
    if slip is not None:
        left, right = (exactly(x, allowed) for x in logs[1:])
        log_delta = Interval(right.lower, log_delta.estimate, left.upper)
        # Of either sum every term is off by less than that.
        log_rest = _wider(log_rest, slip)
    log_delta, log_rest = (_wider(x, mass) for x in (log_delta, log_rest))
    lost, truncated = form.lost(), form.log_truncated()
    log_rest = _less(log_rest, form.log_excess())
    log_rest = _more(_more(log_rest, truncated), math.log(lost) if lost > 0 else None)
    # What was left out counts in the upper bounds alone.
    log_delta = _less(log_delta, truncated)
    return Profile(
        log_delta.map(_at_most_zero),
        log_rest.map(_at_most_zero),
        stop_gradient(log_alpha),
    )


def _wider(interval: Interval, by: Array | float) -> Interval:
    return Interval(interval.lower - by, interval.estimate, interval.upper + by)


def _less(interval: Interval, log_mass: Array | None) -> Interval:
    """The interval whose lower end is without a mass, if there is one."""
    if log_mass is None:
        return interval
    lower = without(interval.lower, log_mass)
    return Interval(lower, interval.estimate, interval.upper)


def _more(interval: Interval, log_mass: Array | float | None) -> Interval:
    """The interval whose upper end has a mass more, if there is one."""
    if log_mass is None:
        return interval
    upper = jnp.logaddexp(interval.upper, log_mass)
    return Interval(interval.lower, interval.estimate, upper)


def _at_most_zero(x: Array) -> Array:
    return jnp.minimum(x, 0)


def closed_epsilon(
    loss: ComposedLoss, signs: Array, log_deltas: Array, largest: Array
) -> Interval:
    """The epsilon of the worst direction; the lower end is that of delta `largest`."""
    forms = jax.vmap(loss.closed_form)(signs)
    mass = jnp.max(jax.vmap(lambda form: form.mass_error())(forms))
    allowed = CLOSED_FORM
    # An error of log delta moves epsilon as much as that change of the target does.
    step = stop_gradient(allowed * (1 + jnp.abs(log_deltas)) + mass)
    largest = jnp.minimum(largest + step, -1e-9)
    targets = jnp.stack([largest, log_deltas, log_deltas - step], axis=1)
    each = jax.vmap(lambda form, those: jax.vmap(form.epsilon)(those))(forms, targets)
    lower, estimate, upper = jnp.max(each, axis=0)
    # Of a delta beyond 1 there is no epsilon.
    lower = jnp.where(jnp.all(largest < -1e-9), lower, -jnp.inf)
    lower, value, upper = stop_gradient((lower, estimate, upper))
    slips = jax.vmap(lambda form: form.loss_error(value))(forms)
    error = 0.0 if slips is None else 2 * jnp.max(slips)
    error = error + allowed * jnp.abs(value)
    lower, upper = jnp.minimum(lower, value), jnp.maximum(upper, value)
    return Interval(lower - error, estimate, upper + error)


def closed_threshold(
    forms: AbstractClosedForm, ends: Float[Array, "2"], log_alpha: Array
) -> tuple[Array, Array]:
    """The threshold from the closed forms of a direction and of the other one, stacked.

    Returns:
        The threshold, and over which distance log alpha changes by one, at most 1.
    """

    def tails(e: Float[Array, "2 ..."]) -> Float[Array, "2 ..."]:
        """Log alpha at e of the direction, and minus that at -e."""
        _, log_rest, log_tail = jax.vmap(lambda form, e: form.logs(e))(forms, e)
        # alpha at -e is the exchanged pair's Q(Y <= e) = 1 - delta - e^e P(X > e).
        error = jnp.exp(log_rest[1]) - jnp.exp(log_tail[1] + e[1])
        return jnp.stack([log_tail[0], -jnp.log(jnp.maximum(error, 0))])

    found = least_threshold(tails, jnp.stack([log_alpha, -log_alpha]), ends)
    step = _NEXT * found
    none, here, there = tails(jnp.stack([0 * found, found, found + step], axis=1)).T
    positive = none[0] > log_alpha
    change, step = (jnp.where(positive, *x) for x in (here - there, step))
    falls = (change > 0) & (change < jnp.inf)
    scale = jnp.where(falls, step / jnp.where(falls, change, 1), 1)
    return jnp.where(positive, found[0], -found[1]), jnp.clip(scale, step, 1)


class ClosedFormPlan(AbstractPlan):
    """Nothing but the direction."""

    sign: Float[Array, "..."]

    def profile(self, loss, epsilons):
        return closed_profile(loss.closed_form(self.sign), epsilons)

    def prepare(self, loss):
        return PreparedForm(self.sign, lax.map(loss.closed_form, self.sign))


class PreparedForm(ClosedFormPlan):
    """The closed form itself."""

    form: AbstractClosedForm

    def log_delta(self, loss, epsilons):
        return closed_profile(self.form, epsilons).log_delta


class ClosedFormEngine(AbstractEngine):
    """Closed forms, which stand with the losses."""

    name: ClassVar[str] = "closed_form"
    # Many outputs are known at once, side by side.

    def serves(self, loss):
        return loss.has_closed_form

    def plan(self, loss, signs, anchor, gap):
        return ClosedFormPlan(signs)

    def epsilon(self, loss, signs, target):
        return closed_epsilon(loss, signs, target.log_delta, target.largest)

    def threshold(self, loss, sign, log_alpha, log_not_alpha):
        sides = jnp.stack([sign, -sign])
        forms = jax.vmap(loss.closed_form)(sides)
        return closed_threshold(forms, largest_loss(loss, sides), log_alpha)

    def exact_rates(self, loss, signs, log_alpha, log_tnr):
        first, *others = (loss.closed_form(sign) for sign in signs)
        return first.error_rates(others[0] if others else None, log_alpha, log_tnr)
