"""Error rates of the tests at given thresholds, with bounds rounded outward."""

import jax.numpy as jnp
from jax.lax import optimization_barrier, stop_gradient
from jaxtyping import Array, ArrayLike, Bool, Float

from .. import engines
from .._internal._record import Record
from ..engines import AbstractPlan, Interval, select
from ..losses import ComposedLoss
from ._queries import at_infinity


class ErrorRates(Record):
    """Type II error and power of one test; each with its own relative accuracy."""

    beta: Interval
    tpr: Interval


class Test(Record):
    """An anchor, prepared for thresholds around it."""

    anchor: Float[Array, ""]
    kink: Bool[Array, ""]
    plans: AbstractPlan
    """One for each direction looked at, stacked."""


def rates_at(
    loss: ComposedLoss, test: Test, alpha: Array, thresholds: Float[Array, " e"]
) -> tuple[ErrorRates, Float[Array, " e"], Interval]:
    """1 - delta - e^eps alpha and its complement, for the worse direction.

    With the log-odds of P(X > eps), an estimate, and with 1 - delta - alpha, which is
    e^|eps| times the type II error where eps < 0.
    """
    negative = test.anchor < 0
    distance = jnp.where(negative, -thresholds, thresholds)
    if_kink = jnp.where(test.kink, stop_gradient(distance), distance)
    found = engines.profile(loss, test.plans, if_kink)
    delta, rest = _exp(found.log_delta), _exp(found.log_rest)
    log_alpha = jnp.log(alpha)
    used = _exp(_exactly(distance + log_alpha), jnp.abs(distance) - log_alpha)
    # eps >= 0: power is delta + e^eps alpha.  eps = -e < 0: with the exchanged pair,
    # type II error is e^-e (1 - alpha - delta).
    power = _sum(delta, used)
    error = _sum(rest, _negated(used))
    direct = ErrorRates(
        beta=select(power.estimate < 0.5, _sum(_exactly(1.0), _negated(power)), error),
        tpr=power,
    )
    low, high = complement(stop_gradient(alpha))
    others = Interval(low, 1 - alpha, high)
    gap = select(
        delta.estimate < 0.5,
        _sum(others, _negated(delta)),
        _sum(rest, _negated(_exactly(alpha))),
    )
    less = _scaled(gap, _exp(_exactly(-distance)))
    exchanged = ErrorRates(beta=less, tpr=_sum(_exactly(1.0), _negated(less)))
    odds = _log_odds(found, distance, negative)
    return select(negative, exchanged, direct), odds, gap


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


def complement(alpha: Array) -> tuple[Array, Array]:
    """1 - alpha, rounded down and up."""
    value = 1 - alpha
    # Exact, since the two are close.
    excess = (1 - optimization_barrier(value)) - alpha
    low = jnp.where(excess < 0, jnp.nextafter(value, jnp.zeros_like(value)), value)
    high = jnp.where(excess > 0, jnp.nextafter(value, jnp.ones_like(value)), value)
    return low, high


def _exactly(value: ArrayLike) -> Interval:
    value = jnp.asarray(value)
    fixed = stop_gradient(value)
    return Interval(fixed, value, fixed)


def _outward(bounds: Interval, error: ArrayLike = 0.0) -> Interval:
    """With room for a relative error, and for the rounding of the last operation."""
    lower, upper = stop_gradient((bounds.lower, bounds.upper))
    error = stop_gradient(2 * (1 + error) * jnp.finfo(lower.dtype).eps)
    return Interval(
        lower - error * jnp.abs(lower), bounds.estimate, upper + error * jnp.abs(upper)
    )


def _exp(log: Interval, more: ArrayLike = 0.0) -> Interval:
    """With the rounding of a logarithm of the given size, or of its own."""
    size = jnp.maximum(jnp.abs(log.estimate), more)
    size = jnp.where(jnp.isfinite(size), size, 0)
    values = _outward(log.map(jnp.exp), size)
    # What is not zero does not underflow to zero.
    least = jnp.where(jnp.isneginf(log.upper), 0, jnp.finfo(size.dtype).tiny)
    return Interval(values.lower, values.estimate, jnp.maximum(values.upper, least))


def _sum(one: Interval, other: Interval) -> Interval:
    return _outward(
        Interval(
            one.lower + other.lower,
            one.estimate + other.estimate,
            one.upper + other.upper,
        )
    )


def _negated(values: Interval) -> Interval:
    return values.map_down(jnp.negative)


def _scaled(values: Interval, factor: Interval) -> Interval:
    """A product with a positive factor."""
    lower = jnp.where(values.lower > 0, factor.lower, factor.upper) * values.lower
    upper = jnp.where(values.upper > 0, factor.upper, factor.lower) * values.upper
    least = jnp.where(values.upper > 0, jnp.finfo(upper.dtype).tiny, -jnp.inf)
    return _outward(
        Interval(lower, values.estimate * factor.estimate, jnp.maximum(upper, least))
    )


def beta_at(threshold: Array, args: tuple[ComposedLoss, Array], test: Test) -> Array:
    loss, alpha = args
    threshold = _carried(loss, threshold)
    found = rates_at(loss, test, alpha, threshold[None])[0].beta.estimate[0]
    return jnp.where(test.kink, _held(found, threshold), found)


def tpr_at(threshold: Array, args: tuple[ComposedLoss, Array], test: Test) -> Array:
    loss, alpha = args
    threshold = _carried(loss, threshold)
    found = rates_at(loss, test, alpha, threshold[None])[0].tpr.estimate[0]
    return jnp.where(test.kink, -_held(-found, threshold), found)


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


def rates_at_edge(
    loss: ComposedLoss, signs: Float[Array, " s"], alpha: Float[Array, ""]
) -> ErrorRates:
    """f(0) = 1 - delta(inf) and f(1) = 0."""
    end, rest = at_infinity(loss, signs)
    return ErrorRates(
        rest.map(lambda x: jnp.where(alpha > 0, 0.0, jnp.exp(x))),
        end.map(lambda x: jnp.where(alpha > 0, 1.0, jnp.exp(x))),
    )
