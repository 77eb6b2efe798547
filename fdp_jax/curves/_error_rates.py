"""Error rates of the tests at given thresholds, and their derivatives."""

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

from .. import engines
from .._internal._record import Record
from ..engines import AbstractPlan
from ..losses import ComposedLoss
from .logs import Rates, point_beside
from .optimum import line_of


class Test(Record):
    """An anchor, prepared for thresholds around it."""

    anchor: Float[Array, ""]
    kink: Bool[Array, ""]
    plans: AbstractPlan
    """One for each direction looked at, stacked."""


def rates_at(
    loss: ComposedLoss,
    test: Test,
    log_alpha: Array,
    log_tnr: Array,
    thresholds: Float[Array, " e"],
) -> tuple[Rates, Float[Array, " e"]]:
    """Logs of 1 - delta - e^eps alpha and its complement, for the worse direction.

    With the log-odds of P(X > eps), an estimate.
    """
    negative = test.anchor < 0
    distance = jnp.where(negative, -thresholds, thresholds)
    if_kink = jnp.where(test.kink, stop_gradient(distance), distance)
    found = engines.profile(loss, test.plans, if_kink)
    point = point_beside(thresholds, negative, found.log_delta, found.log_rest)
    odds = _log_odds(found, distance, negative)
    return line_of(point, thresholds, log_alpha, log_tnr), odds


def _log_odds(
    found: engines.Profile, distance: Array, negative: Array
) -> Float[Array, " e"]:
    """Log odds of P(X > eps), an estimate."""
    log_alpha = found.log_alpha
    # Of the exchanged pair's power, delta + e^e P(X > e), the complement is asked for.
    tail = log_alpha + distance
    tiny = float(jnp.finfo(distance.dtype).tiny)
    log_power = jnp.logaddexp(found.log_delta.estimate, tail)
    log_error = _log_difference(found.log_rest.estimate, tail, tiny)
    odds = jnp.where(
        negative,
        log_error - log_power,
        log_alpha - engines.log_complement(log_alpha),
    )
    return stop_gradient(odds)


def _log_difference(log_more: Array, log_less: Array, tiny: float) -> Array:
    """log(e^more - e^less), of the least number if that is nothing."""
    gap = jnp.minimum(log_less - log_more, -tiny)
    return log_more + engines.log_complement(gap)


def log_beta_at(threshold: Array, args: tuple, test: Test) -> Array:
    """Log beta of the test at a threshold, as a function of the loss and of alpha."""
    found, threshold = _rates_of(threshold, args, test)
    value = found.log_beta.estimate[0]
    return jnp.where(test.kink, _held(value, threshold), value)


def log_tpr_at(threshold: Array, args: tuple, test: Test) -> Array:
    """Log power of that test."""
    found, threshold = _rates_of(threshold, args, test)
    value = found.log_tpr.estimate[0]
    return jnp.where(test.kink, -_held(-value, threshold), value)


def _rates_of(threshold: Array, args: tuple, test: Test) -> tuple[Rates, Array]:
    """The line at one threshold, and the threshold as it moves with the loss."""
    loss, log_alpha, log_tnr = args
    threshold = _carried(loss, threshold)
    return rates_at(loss, test, log_alpha, log_tnr, threshold[None])[0], threshold


def _carried(loss: ComposedLoss, threshold: Array) -> Array:
    """The threshold, as it moves with the loss's point masses.

    Where the best threshold is a point mass, f is a line whose slope moves with that.
    It is taken to be a fixed share of the largest loss, as it is for Laplace noise and
    for lattices of losses; for point masses in other places the derivative is not
    exact.  (Where there is none it does not matter how the best threshold moves.)
    """
    if loss.decays:
        return threshold
    low, high = loss.without_ends().loss_range()
    end = jnp.where(threshold > 0, high, -low)
    finite = jnp.isfinite(end) & (end > 0)
    end = jnp.where(finite, end, 1.0)
    share = jnp.clip(stop_gradient(threshold) / stop_gradient(end), -1, 1)
    return threshold + share * (end - stop_gradient(end))


def _held(value: Array, threshold: Array) -> Array:
    """The value as a function of the threshold that has its maximum right there.

    At a kink the optimal threshold does not move with the parameters.
    """
    fixed = stop_gradient(threshold)
    return value - 0.5 * jnp.square(threshold - fixed)
