"""The spectral engine: profiles and their inverses from the contour integral."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

from .._internal._batching import one_by_one
from .._internal._interval import Interval, log_complement
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
from ._root import Search
from ._saddle import (
    Saddle,
    find_saddle,
    leaks_much,
    saddle_for_epsilon,
    saddle_for_log_delta,
)


def starts_at_epsilon(
    loss: ComposedLoss, signs: Float[Array, " s"], epsilon: Float[Array, ""]
) -> Start:
    """Begins evaluations of the profile near a threshold (at least zero), stacked."""
    loss, epsilon = stop_gradient((loss.tabulated(), epsilon))

    def one(sign: Array) -> Start:
        middle = leaks_much(loss, sign, epsilon)
        saddle = saddle_for_epsilon(loss, sign, middle, epsilon)
        return start_contour(loss, sign, saddle, middle)

    return lax.map(one, signs)


@jax.jit
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

    def one(direction: tuple[Array, Array]) -> Start:
        saddle = saddle_for_log_delta(loss, *direction)
        return start_contour(loss, direction[0], saddle, jnp.zeros((), bool))

    return lax.map(one, (signs, log_deltas))


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
    return as_profile(loss, contour, epsilons, evaluate(loss, contour, epsilons))


def tabulated_profile(
    loss: ComposedLoss, contour: Contour, epsilons: Float[Array, " e"]
) -> tuple[Profile, Contour]:
    """The spectral profile from a table, without derivative.

    Also the contour with the angles that have been found out.
    """
    table = tabulate(loss, contour)
    evaluation = look_up(table, contour, epsilons)
    contour = dataclasses.replace(contour, path=table.path)
    return as_profile(loss, contour, epsilons, evaluation), contour


def largest_log_delta(
    loss: ComposedLoss, contour: Contour, epsilons: Float[Array, " e"]
) -> Float[Array, " e"]:
    """A proved upper bound of log delta that costs next to nothing."""
    finite = jnp.where(contour.middle, 0, contour.chernoff(epsilons))
    infinite = loss.log_infinite_mass(contour.sign)
    return jnp.minimum(jnp.logaddexp(finite, infinite), 0)


def as_profile(
    loss: ComposedLoss, contour: Contour, epsilons: Array, evaluation: Evaluation
) -> Profile:
    """The profile from an evaluation of the finite losses, with the infinite ones."""
    sign, middle = contour.sign, contour.middle
    value = Interval(
        evaluation.log_lower, evaluation.log_value, evaluation.log_upper
    ).map(lambda x: jnp.minimum(x, 0))
    # delta counts the infinite losses too; 1 - delta none but what was left out.
    beyond = epsilons >= largest_loss(stop_gradient(loss), sign)
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
) -> tuple[Interval, Contour]:
    """The real epsilon at which log delta of the finite losses is `target`.

    The lower and upper bound allow for errors `slack` of the target.  No derivative:
    `spectral_log_delta` has one.
    """
    contour = plan_contour(loss, start)
    table = tabulate(loss, contour)
    contour = dataclasses.replace(contour, path=table.path)
    at = lambda points: look_up(table, contour, points).near()
    begun = Search.begun(target, slack, start.saddle.epsilon)
    search = begun.solved(at, 4 / jnp.abs(contour.shift))
    most = jnp.minimum(
        start.largest_epsilon(search.targets[2]), largest_loss(loss, start.sign)
    )
    return stop_gradient((search.found(-jnp.inf, most), contour))


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


@jax.jit
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
