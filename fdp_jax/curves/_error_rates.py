"""Error rates of the tests at given thresholds, and their derivatives."""

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

from .. import engines
from .._internal._implicit import Objective
from .._internal._record import Record
from ..engines import AbstractPlan
from ..losses import ComposedLoss
from .logs import Rates, point_beside
from .optimum import line_of


class Test(Record):
    """An anchor, prepared for thresholds around it."""

    anchor: Float[Array, ""]
    step: Float[Array, ""]
    """About the least distance at which pieces of the profile are told apart."""
    kink: Bool[Array, ""]
    plans: AbstractPlan
    """One for each direction looked at, stacked."""


def rates_at(
    loss: ComposedLoss,
    test: Test,
    log_alpha: Array,
    log_tnr: Array,
    thresholds: Float[Array, " e"],
    *,
    anew: bool,
) -> tuple[Rates, Float[Array, " e"], AbstractPlan]:
    """Logs of 1 - delta - e^eps alpha and its complement, for the worse direction.

    With the log-odds of P(X > eps), an estimate, and the plans with what was found out.
    """
    negative = test.anchor < 0
    distance = jnp.where(negative, -thresholds, thresholds)
    if_kink = jnp.where(test.kink, stop_gradient(distance), distance)
    found, plans = engines.profile(loss, test.plans, if_kink, anew=anew)
    point = point_beside(thresholds, negative, found.log_delta, found.log_rest)
    odds = _log_odds(found, distance, negative)
    return line_of(point, thresholds, log_alpha, log_tnr), odds, plans


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
    return log_more + engines.log_complement(jnp.minimum(log_less - log_more, -tiny))


def scaled_rates_at(
    share: Array, args: tuple, aux: tuple[Test, Float[Array, "2"]]
) -> Float[Array, "3 ..."]:
    """Beta and power of the test at a threshold, over those at the anchor.

    Their difference, which is largest where both are the best, comes first.

    Args:
        share: The threshold is log(1 + share) from the anchor: between point masses
            beta is straight in that.  One or several.
        args: The loss, log alpha and log(1 - alpha).
        aux: The test, and the logarithms of its beta and of its power.
    """
    loss, log_alpha, log_tnr = args
    test, logs = aux
    threshold = _carried(loss, test.anchor) + jnp.log1p(share)
    at = jnp.atleast_1d(threshold)
    found, *_ = rates_at(loss, test, log_alpha, log_tnr, at, anew=False)
    beta, tpr = (
        jnp.exp(x.estimate - log).reshape(share.shape)
        for x, log in zip((found.log_beta, found.log_tpr), logs, strict=True)
    )
    # At the kink between two directions the best threshold does not move.
    merit = jnp.where(test.kink, -0.5 * jnp.square(share), beta - tpr)
    return jnp.stack([merit, beta, tpr])


def kink_beside(
    objective: Objective, share: Array, args: tuple, aux: tuple[Test, Array]
) -> tuple[Array, Array | None]:
    """The best share, and how far from it straight pieces of beta are seen, or 0.

    The grid spreads a point mass over some points: pieces are seen from beyond these,
    and no farther than to the next mass.  The step is the one with the largest jump of
    slopes, less a multiple of what the pieces bend.  A kink next to the largest loss is
    that, where delta is known to be zero.  Where there is none the best share is at the
    top of a parabola: searches on the grid end as soon as the rates are known.
    """
    if args[0].decays:
        return share, None
    # At an atom the search shrinks its scale to less than can be told apart.
    step = jnp.maximum(aux[0].step, _LEAST_STEP)
    steps = step * jnp.asarray(_STEPS, share.dtype)[:, None]
    places = share + steps * jnp.asarray(_PLACES, share.dtype)
    merit = objective(places.ravel(), args, aux)[0]
    slopes = jnp.diff(merit.reshape(places.shape), axis=1) / steps
    far, near, middle, other, other_far = slopes.T
    clear = near - other - _BEND * (jnp.abs(near - far) + jnp.abs(other_far - other))
    best = jnp.argmax(jnp.where(jnp.isnan(clear), 0, clear))
    kink = clear[best] > _LEAST_JUMP
    turn = (near - other)[0]
    top = 1.5 * steps[0, 0] * middle[0] / turn
    move = ~kink & (turn > 0) & (jnp.abs(top) < 8 * steps[0, 0])
    to_end = _largest(args[0], aux[0].anchor) - aux[0].anchor
    last = kink & (jnp.abs(to_end) < steps[0, 0])
    found = jnp.where(last, to_end, share + jnp.where(move, top, 0))
    return found, jnp.where(kink & ~last, steps[best, 0], 0)


_STEPS = tuple(2.0**k for k in range(2, 10))
"""How far from a kink its pieces are looked at, in least distances.

A point mass that moves is told by four grid points, a threshold between by four.
"""
_LEAST_STEP = 1e-9
"""Of which slopes have some digits."""
_PLACES = -3.0, -2.0, -1.0, 1.0, 2.0, 3.0
"""The places looked at, in steps."""
_BEND = 8.0
"""Of a smooth function the slope's jump is 1.5 times what both sides bend."""
_LEAST_JUMP = 1e-6
"""Of the slope, below which nothing depends on how a kink moves."""


def _carried(loss: ComposedLoss, threshold: Array) -> Array:
    """The threshold, as it moves with the loss's point masses.

    Where the best threshold is a point mass, f is a line whose slope moves with that.
    It is taken to be a fixed share of the largest loss, as it is for Laplace noise and
    for lattices of losses; where it is seen, how the point mass moves is added to that.
    (Where there is none it does not matter how the best threshold moves.)
    """
    if loss.decays:
        return threshold
    end = _largest(loss, threshold)
    end = jnp.where(jnp.isfinite(end) & (end != 0), end, 1.0)
    share = jnp.clip(stop_gradient(threshold) / stop_gradient(end), -1, 1)
    return threshold + share * (end - stop_gradient(end))


def _largest(loss: ComposedLoss, threshold: Float[Array, ""]) -> Array:
    """The largest finite loss of a direction, on the threshold's side of zero."""
    low, high = loss.without_ends().loss_range()
    return jnp.where(threshold > 0, high, low)
