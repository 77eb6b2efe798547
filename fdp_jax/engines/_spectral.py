"""The spectral engine: profiles and their inverses from the contour integral."""

import dataclasses
import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient, while_loop
from jaxtyping import Array, Bool, Float

from .._internal._batching import one_by_one
from .._internal._interval import Interval, log_complement
from .._internal._shapes import zeros_of
from ..losses import ComposedLoss
from ._bounds import Profile, largest_loss, select, with_infinite
from ._contour import (
    Contour,
    Start,
    idle_contour,
    plan_contour,
    start_contour,
)
from ._inversion import Evaluation, evaluate, look_up, tabulate
from ._saddle import (
    Saddle,
    find_saddle,
    leaks_much,
    saddle_for_epsilon,
    saddle_for_log_delta,
)

_NEWTON_STEPS = 24


def starts_at_epsilon(
    loss: ComposedLoss, signs: Float[Array, " s"], epsilon: Float[Array, ""]
) -> Start:
    """Begins evaluations of the profile near a threshold (at least zero), stacked."""
    loss, epsilon = stop_gradient((loss.tabulated(), epsilon))

    def step(guess: Array, sign: Array) -> tuple[Array, Start]:
        middle = leaks_much(loss, sign, epsilon)
        saddle = saddle_for_epsilon(
            loss, sign, middle, epsilon, jnp.where(middle, 0, guess)
        )
        guess = jnp.where(middle, guess, _next_guess(saddle))
        return guess, start_contour(loss, sign, saddle, middle)

    return lax.scan(step, jnp.zeros_like(epsilon), signs)[1]


def _next_guess(saddle: Saddle) -> Array:
    """A guess of the other direction's saddle, log c: next to this one's."""
    return jnp.clip(jnp.log(jnp.maximum(saddle.shift, 1e-9)), -5, 5)


def tail_start_at_epsilon(
    loss: ComposedLoss, sign: Float[Array, ""], epsilon: Float[Array, ""]
) -> Start:
    """A start on the strip c > 0, whatever delta is."""
    loss, epsilon = stop_gradient((loss.tabulated(), epsilon))
    right = jnp.zeros((), bool)
    saddle = saddle_for_epsilon(loss, sign, right, epsilon)
    return start_contour(loss, sign, saddle, right)


def starts_at_log_delta(
    loss: ComposedLoss, signs: Float[Array, " s"], log_deltas: Float[Array, " s"]
) -> Start:
    """Begins the searches, stacked, for the epsilon of a given delta."""
    loss, log_deltas = stop_gradient((loss.tabulated(), log_deltas))

    def step(guess: Array, direction: tuple[Array, Array]) -> tuple[Array, Start]:
        sign, log_delta = direction
        saddle = saddle_for_log_delta(loss, sign, log_delta, guess)
        start = start_contour(loss, sign, saddle, jnp.zeros((), bool))
        return _next_guess(saddle), start

    return lax.scan(step, jnp.zeros_like(log_deltas[0]), (signs, log_deltas))[1]


def contour_unless(
    hopeless: Bool[Array, ""], loss: ComposedLoss, start: Start
) -> Contour:
    """The contour that a start leads to, or one without frequencies."""
    full = jax.jit(lambda: plan_contour(loss, start))
    shape = jax.eval_shape(full)
    return lax.cond(hopeless, lambda: idle_contour(start, shape), full)


def spectral_profile(
    loss: ComposedLoss, contour: Contour, epsilons: Float[Array, " e"]
) -> Profile:
    """The profile at thresholds near the contour's, with its certificate."""
    return _profile_by(loss, contour, epsilons, evaluate(loss, contour, epsilons))


def tabulated_profile(
    loss: ComposedLoss, contour: Contour, epsilons: Float[Array, " e"]
) -> tuple[Profile, Contour]:
    """The spectral profile with more memory and less time, without derivative.

    Also the contour with the angles that have been found out.
    """
    table = tabulate(loss, contour)
    evaluation = look_up(table, contour, epsilons)
    contour = dataclasses.replace(contour, path=table.path)
    return _profile_by(loss, contour, epsilons, evaluation), contour


def _profile_by(
    loss: ComposedLoss, contour: Contour, epsilons: Array, evaluation: Evaluation
) -> Profile:
    beyond = epsilons >= largest_loss(stop_gradient(loss), contour.sign)
    return as_profile(loss, contour, evaluation, beyond)


def largest_log_delta(
    loss: ComposedLoss, contour: Contour, epsilons: Float[Array, " e"]
) -> Float[Array, " e"]:
    """A proved upper bound of log delta that costs next to nothing."""
    finite = jnp.where(contour.middle, 0, contour.chernoff(epsilons))
    infinite = loss.log_infinite_mass(contour.sign)
    return jnp.minimum(jnp.logaddexp(finite, infinite), 0)


def as_profile(
    loss: ComposedLoss, contour: Contour, evaluation: Evaluation, beyond: Array
) -> Profile:
    """The profile from an evaluation of the finite losses, with the infinite ones."""
    sign, middle = contour.sign, contour.middle
    value = Interval(
        evaluation.log_lower, evaluation.log_value, evaluation.log_upper
    ).map(lambda x: jnp.minimum(x, 0))
    # delta counts the infinite losses too; 1 - delta none but what was left out.
    none = beyond | jnp.isneginf(value.upper)
    infinite = loss.log_infinite_mass(sign)
    right = with_infinite(value, infinite, loss.log_truncated_mass(sign), none)
    most = jnp.logaddexp(value.upper, stop_gradient(loss.log_truncated_mass(sign)))
    rest = Interval(value.lower, value.estimate, jnp.minimum(most, 0))
    log_delta = select(middle, rest.map_down(log_complement), right)
    log_rest = select(middle, rest, right.map_down(log_complement))
    log_alpha = jnp.where(none, -jnp.inf, evaluation.log_alpha)
    return Profile(log_delta, log_rest, log_alpha)


def spectral_epsilon(
    loss: ComposedLoss,
    start: Start,
    target: Float[Array, ""],
    slack: Float[Array, "2"],
    *,
    tabulated: bool = True,
) -> tuple[Interval, Contour]:
    """The real epsilon at which log delta of the finite losses is `target`.

    The lower and upper bound allow for errors `slack` of the target.  No derivative:
    `spectral_log_delta` has one.  `tabulated` trades memory for time.
    """
    contour, first = plan_contour(loss, start), start.saddle.epsilon
    if tabulated:
        table = tabulate(loss, contour)
        contour = dataclasses.replace(contour, path=table.path)
        at = functools.partial(look_up, table, contour)
    else:
        at = functools.partial(evaluate, loss, contour)
    root, points, check = _newton(at, contour, first, target)
    # The target itself was rounded when its logarithm was taken.
    rounded = 4 * jnp.finfo(target.dtype).eps * (1 + jnp.abs(target)) + slack
    above = check.log_upper[2] <= target - rounded[1]
    below = check.log_lower[0] >= target + rounded[0]
    upper = jnp.where(above, points[2], jnp.inf)
    lower = jnp.where(below, points[0], -jnp.inf)
    most = largest_loss(loss, start.sign)
    highest = start.largest_epsilon(target - rounded[1])
    upper = jnp.minimum(jnp.minimum(upper, highest), most)
    estimate = jnp.clip(root, lower, upper)
    return stop_gradient((Interval(lower, estimate, upper), contour))


@one_by_one
def rough_log_delta(
    loss: ComposedLoss, sign: Float[Array, ""], epsilon: Float[Array, ""]
) -> Float[Array, ""]:
    """Log delta to within about a tenth: an approximation, no bound, no derivative."""
    loss, epsilon = stop_gradient((loss.tabulated(), epsilon))
    at = saddle_for_epsilon(loss, sign, jnp.zeros((), bool), epsilon)
    return at.log_value + at.shift * (at.epsilon - epsilon)


def spectral_log_delta(
    loss: ComposedLoss, contour: Contour, epsilon: Float[Array, ""]
) -> Float[Array, ""]:
    """The estimate of log delta of the finite losses, with its derivatives."""
    return evaluate(loss, contour, epsilon[None]).log_value[0]


def _newton(
    at: Callable[[Array], Evaluation],
    contour: Contour,
    epsilon: Array,
    target: Array,
) -> tuple[Array, Float[Array, " 3"], Evaluation]:
    """Halley's method for the epsilon of a log delta, in a bracket, on one contour.

    Every step also looks a little to both sides, as far as the certificate of the step
    before reaches: the last one certifies the root.

    Returns:
        The root, the three last thresholds, and the evaluation there.
    """
    at = jax.jit(at)
    tolerance, slack = 1e-14, 1e-13
    scale = 1 / (1 + jnp.abs(contour.shift))

    def unfinished(state):
        step, center, points, *_ = state
        moved = jnp.abs(center - points[1])
        close = moved <= tolerance * jnp.abs(center) + 1e2 * tolerance * scale
        certified = (points[0] < points[1]) | (step > 2)
        return (step < _NEWTON_STEPS) & ~(close & certified)

    def body(state):
        step, center, points, low, high, last = state
        # How far the certificate's ends are from the estimate, in epsilon.
        slope = jnp.abs(last.slope[1])
        least = slack * (jnp.abs(center) + scale)
        sides = jnp.stack(
            [
                last.log_lower[1] - last.log_value[1],
                0 * slope,
                last.log_upper[1] - last.log_value[1],
            ]
        )
        sides = 1.01 * sides / slope + least * jnp.asarray([-1, 0, 1], least.dtype)
        points = center + jnp.where(jnp.isfinite(sides), sides, 0)
        here = at(points)
        value, slope = here.log_value[1] - target, here.slope[1]
        curvature = here.curvature[1]
        bend = 1 - 0.5 * value * curvature / jnp.square(slope)
        change = jnp.clip(
            -value / (slope * jnp.clip(bend, 0.5, 2)),
            -4 / jnp.abs(contour.shift),
            4 * scale + 1,
        )
        change = jnp.where(jnp.isfinite(change), change, 0)
        low = jnp.where(value * slope < 0, jnp.maximum(low, center), low)
        high = jnp.where(value * slope > 0, jnp.minimum(high, center), high)
        inside = (center + change >= low) & (center + change <= high)
        between = jnp.isfinite(low) & jnp.isfinite(high)
        following = jnp.where(between & ~inside, 0.5 * (low + high), center + change)
        return step + 1, following, points, low, high, here

    points = jnp.full(3, jnp.inf, epsilon.dtype)
    empty = zeros_of(at, points)
    low, high = jnp.full_like(epsilon, -jnp.inf), jnp.full_like(epsilon, jnp.inf)
    start = (jnp.zeros((), jnp.int32), epsilon, points, low, high, empty)
    *_, points, _, _, last = while_loop(unfinished, body, start)
    return points[1], points, last


class TailStart(eqx.Module):
    """The start of the search for the threshold of a type I error.

    It may be posed for the exchanged pair, where 1 - alpha is the power Q(Y > e), or
    alpha the error Q(Y <= e).
    """

    start: Start
    flip: Bool[Array, ""]
    target: Float[Array, ""]

    @property
    def threshold(self) -> Float[Array, ""]:
        """The threshold, about."""
        epsilon = self.start.saddle.epsilon
        return jnp.where(self.flip, -epsilon, epsilon)

    @property
    def scale(self) -> Float[Array, ""]:
        """On which the profile varies there."""
        return 1 / (1 + jnp.abs(self.start.saddle.shift))


def start_at_tail(
    loss: ComposedLoss, sign: Array, log_alpha: Array, log_not_alpha: Array
) -> TailStart:
    """Begins the search for the threshold of a type I error."""
    loss = stop_gradient(loss).tabulated()
    small = log_alpha < log_not_alpha
    flips = jnp.asarray([False, True])
    middles = flips & small
    targets = jnp.where(flips & ~small, log_not_alpha, log_alpha)
    saddles = jax.vmap(
        lambda flip, middle, target: _saddle_for_tail(
            loss, jnp.where(flip, -sign, sign), target, middle, flip
        )
    )(flips, middles, targets)
    # The tail of X under P, unless it gives a threshold below zero.
    flip = saddles.epsilon[0] < 0
    pick = lambda x: jnp.where(flip, x[1], x[0])
    saddle, middle, target = jax.tree.map(pick, (saddles, middles, targets))
    start = start_contour(loss, jnp.where(flip, -sign, sign), saddle, middle)
    return TailStart(start, flip, target)


@one_by_one
def spectral_threshold(
    loss: ComposedLoss, sign: Array, log_alpha: Array, log_not_alpha: Array
) -> tuple[Array, Array]:
    """About the loss threshold of the most powerful test of a given type I error.

    From the saddle point alone: what is seen of the profile there says how far the
    threshold is (see `curves/_tradeoff.py`), so that no contour is spent on it.

    Returns:
        The threshold eps with P(X > eps) = alpha, and the scale on which the profile
        varies there.
    """
    begin = start_at_tail(loss, sign, log_alpha, log_not_alpha)
    # Tails vary on it, but not farther than losses reach.
    deviation = begin.start.saddle.deviation
    reach = jnp.where(deviation > 0, deviation, jnp.inf)
    return begin.threshold, jnp.minimum(begin.scale, reach)


def _saddle_for_tail(
    loss: ComposedLoss,
    sign: Array,
    target: Array,
    middle: Array,
    power: Bool[Array, ""],
) -> Saddle:
    def score(at: Saddle) -> tuple[Array, Array, Array]:
        # The kernels 1/(1+z) e^-eps and 1/z against 1/(z(1+z)).
        to_power = jnp.log1p(at.shift)
        to_alpha = jnp.log(jnp.abs(at.shift)) - at.epsilon
        value = at.log_value + jnp.where(power, to_power, to_alpha) - target
        scale = jnp.abs(at.shift) + jnp.where(power, 0, 1)
        return jnp.where(middle, value, -value), scale * at.width, value

    return find_saddle(loss, sign, middle, score)
