"""The trade-off function: f(alpha) = max over eps of 1 - delta - e^eps alpha.

Any threshold eps with an upper bound of delta gives a lower bound of f, so the
pessimistic side needs no exact maximizer.  The objective h is concave in gamma = e^eps;
values at three thresholds around the maximum bound it from above (the chord on one
side, extended, lies above h on the other).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

from .. import engines
from .._internal._implicit import optimal_value
from .._internal._precision import in_float64
from ..engines import Interval, LocalPlan, select
from ..losses import AUTO, ComposedLoss, Method
from ._bounds import Bounds, beta_range, tpr_range
from ._queries import (
    Direction,
    HasLoss,
    at_infinity,
    bounds_of,
    elementwise,
    loss_of,
    named,
    over_signs,
    signs_of,
)

_STEP = 1e-4
_GRID_STEP = 1e-2
"""The same where brackets are wider."""
_KINK_STEP = 1e-7


class ErrorRates(eqx.Module):
    """Type II error and power of one test; each with its own relative accuracy."""

    beta: Interval
    tpr: Interval


@in_float64
def error_rate_bounds(
    subject: HasLoss,
    alpha: Float[Array, "..."],
    *,
    direction: Direction,
    narrow: bool,
    method: Method = AUTO,
) -> tuple[Bounds, Bounds]:
    """Bounds of f(alpha) and of the power 1 - f(alpha)."""
    loss = loss_of(subject, method)
    signs = signs_of(loss, direction)

    def one(alpha: Array) -> tuple[Bounds, Bounds]:
        found = optimal_rates(loss, signs, alpha)
        interior = (alpha > 0) & (alpha < 1)
        return (
            bounds_of(
                found.beta,
                (found.beta.lower <= 0) & interior,
                narrow,
                beta_range(alpha),
            ),
            bounds_of(
                found.tpr, (found.tpr.upper >= 1) & interior, narrow, tpr_range(alpha)
            ),
        )

    beta, tpr = elementwise(one, jnp.asarray(alpha))
    return named(beta, loss), named(tpr, loss)


class _Test(eqx.Module):
    """Thresholds around a real anchor, prepared for evaluation."""

    anchor: Float[Array, ""]
    step: Float[Array, ""]
    kink: Bool[Array, ""]
    plans: LocalPlan
    """One for each direction looked at, stacked."""


def optimal_rates(
    loss: ComposedLoss, signs: Float[Array, " s"], alpha: Float[Array, ""]
) -> ErrorRates:
    """f(alpha) and 1 - f(alpha) of the worst of the given directions."""
    edge = (alpha <= 0) | (alpha >= 1)
    inner = jnp.where(edge, 0.5, alpha)
    result = _exact_rates(loss, signs, inner)
    if result is None:
        result = _searched_rates(loss, signs, inner)
    return select(edge, _at_edge(loss, signs, alpha), result)


def _exact_rates(
    loss: ComposedLoss, signs: Float[Array, " s"], alpha: Float[Array, ""]
) -> ErrorRates | None:
    """Where all kinks of the profile are known."""
    if engines.route(loss) != "closed_form":
        return None
    found = engines.exact_rates(loss, signs, alpha)
    if found is None:
        return None
    beta, tpr = found
    return ErrorRates(
        beta.map(lambda x: jnp.clip(x, 0, 1 - alpha)),
        tpr.map(lambda x: jnp.clip(x, alpha, 1)),
    )


def _searched_rates(
    loss: ComposedLoss, signs: Float[Array, " s"], inner: Float[Array, ""]
) -> ErrorRates:
    """From three thresholds around each of a few anchors."""
    constant = stop_gradient(loss)
    tests = _tests(constant, signs, stop_gradient(inner))
    offsets = jnp.asarray([-1.0, 0.0, 1.0], inner.dtype)

    def around(test: _Test) -> ErrorRates:
        thresholds = test.anchor + test.step * offsets
        return _rates(constant, test, stop_gradient(inner), thresholds)

    values = jax.lax.map(around, tests)  # (anchors, 3)
    beta, tpr = values.beta, values.tpr
    small = jnp.min(tpr.estimate[:, 1]) < 0.5
    score = jnp.where(small, -tpr.estimate[:, 1], beta.estimate[:, 1])
    unit = jnp.finfo(inner.dtype).eps  # complements are rounded to nearest
    index = jnp.argmax(score)
    best = jax.tree.map(lambda x: x[index], tests)
    args = loss, inner
    best_beta, best_tpr = beta.estimate[index, 1], tpr.estimate[index, 1]
    return ErrorRates(
        beta=Interval(
            jnp.clip(jnp.max(beta.lower) - unit, 0, 1 - inner),
            jnp.clip(
                optimal_value(_beta, best_beta, best.anchor, args, best), 0, 1 - inner
            ),
            jnp.minimum(jnp.min(_highest(beta)) + unit, 1 - inner),
        ),
        tpr=Interval(
            jnp.maximum(jnp.max(-_highest(_negated(tpr))), inner),
            jnp.clip(optimal_value(_tpr, best_tpr, best.anchor, args, best), inner, 1),
            jnp.clip(jnp.min(tpr.upper), inner, 1),
        ),
    )


def _tests(
    loss: ComposedLoss, signs: Float[Array, " s"], alpha: Float[Array, ""]
) -> _Test:
    anchors, scales = over_signs(lambda s: engines.threshold(loss, s, alpha), signs)
    # Without any output in common there is no threshold, and none is needed.
    known = jnp.isfinite(anchors) & jnp.isfinite(scales)
    anchors = jnp.where(known, anchors, 0.0)
    scales = jnp.where(known, scales, 1.0)
    steps = (_GRID_STEP if engines.route(loss) == "grid" else _STEP) * scales
    kinks = jnp.zeros(anchors.shape, bool)
    # Where the directions cross the guarantee has a kink: at eps = 0, and where losses
    # on the grid happen to.  One direction has the first in case its own threshold is
    # beyond reach.
    places = [0.0]
    if signs.size > 1 and engines.route(loss) == "grid":
        places.append(engines.crossing(loss, anchors, alpha))
    anchors = jnp.append(anchors, jnp.asarray(places))
    steps = jnp.append(steps, jnp.full(len(places), _KINK_STEP))
    kinks = jnp.append(kinks, jnp.full(len(places), True))

    def prepare(anchor: Array, step: Array, kink: Array) -> _Test:
        seen = jnp.where(anchor < 0, -signs, signs)
        return _Test(anchor, step, kink, engines.plan(loss, seen, jnp.abs(anchor)))

    return jax.lax.map(lambda x: prepare(*x), (anchors, steps, kinks))


def _rates(
    loss: ComposedLoss, test: _Test, alpha: Array, thresholds: Float[Array, " e"]
) -> ErrorRates:
    """1 - delta - e^eps alpha and its complement, for the worse direction."""
    negative = test.anchor < 0
    distance = jnp.where(negative, -thresholds, thresholds)
    if_kink = jnp.where(test.kink, stop_gradient(distance), distance)
    found = engines.profile(loss, test.plans, if_kink)
    delta = found.log_delta.map(jnp.exp)
    rest = found.log_rest.map(jnp.exp)
    growth = jnp.exp(jnp.minimum(distance, 700))
    used = jnp.exp(distance + jnp.log(alpha))
    # eps >= 0: power is delta + e^eps alpha.  eps = -e < 0: with the exchanged pair,
    # type II error is e^-e (1 - alpha - delta).
    power = delta.map(lambda x: x + used)
    error = rest.map(lambda x: x - used)
    direct = ErrorRates(
        beta=select(power.estimate < 0.5, power.map_down(lambda x: 1 - x), error),
        tpr=power,
    )
    gap = select(
        delta.estimate < 0.5,
        delta.map_down(lambda x: 1 - alpha - x),
        rest.map(lambda x: x - alpha),
    ).map(lambda x: x / growth)
    exchanged = ErrorRates(beta=gap, tpr=gap.map_down(lambda x: 1 - x))
    return select(negative, exchanged, direct)


def _beta(threshold: Array, args: tuple[ComposedLoss, Array], test: _Test) -> Array:
    loss, alpha = args
    found = _rates(loss, test, alpha, threshold[None]).beta.estimate[0]
    return jnp.where(test.kink, _held(found, threshold), found)


def _tpr(threshold: Array, args: tuple[ComposedLoss, Array], test: _Test) -> Array:
    loss, alpha = args
    found = _rates(loss, test, alpha, threshold[None]).tpr.estimate[0]
    return jnp.where(test.kink, -_held(-found, threshold), found)


def _held(value: Array, threshold: Array) -> Array:
    """The same value, as a function of the threshold with its maximum right there.

    At a kink the optimal threshold does not move with the parameters.
    """
    fixed = stop_gradient(threshold)
    return value - 0.5 * jnp.square(threshold - fixed)


def _highest(values: Interval) -> Float[Array, " a"]:
    """Upper bounds of a concave function's maximum, from three points per row."""
    center_low, center_high = values.lower[:, 1], values.upper[:, 1]
    sides_low, sides_high = values.lower[:, ::2], values.upper[:, ::2]
    inside = jnp.all(center_low[:, None] >= sides_high, axis=1)
    # The two steps are equal in eps, so in e^eps they differ by far less than 1 %.
    rise = jnp.max(center_high[:, None] - sides_low, axis=1)
    return jnp.where(inside, center_high + 1.01 * rise, jnp.inf)


def _negated(values: Interval) -> Interval:
    return values.map_down(jnp.negative)


def _at_edge(
    loss: ComposedLoss, signs: Float[Array, " s"], alpha: Float[Array, ""]
) -> ErrorRates:
    """f(0) = 1 - delta(inf) and f(1) = 0."""
    end, rest = at_infinity(loss, signs)
    return ErrorRates(
        rest.map(lambda x: jnp.where(alpha > 0, 0.0, jnp.exp(x))),
        end.map(lambda x: jnp.where(alpha > 0, 1.0, jnp.exp(x))),
    )
