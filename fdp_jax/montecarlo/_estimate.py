"""Averages of samples, and what they prove of delta and epsilon.

Statements hold with a probability over the key.  A delta needs one sample of its own
proposal.  An epsilon is looked for with two pilot samples; what is then claimed rests
on another sample, and on a list of candidates that was fixed before it was drawn.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from .._internal._special import log1mexp
from ._certificate import Moments, limits
from ._model import Model
from ._proposals import (
    ORDERS,
    ROUNDING,
    Choice,
    Proposals,
    choose,
    draw_add,
    draw_remove,
)

_PILOT = 1 << 15
_FARTHEST = 700.0
_MULTIPLES = (0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
"""Candidates, in expected widths of the confidence interval."""
_BETWEEN = (0.05, 0.2, 0.5)
"""And between the last of them and what is proved without samples."""


class Plan(eqx.Module):
    """Number of samples to draw, and probability that statements may fail."""

    num_samples: int = eqx.field(static=True)
    chunk: int = eqx.field(static=True)
    log_inverse: float = eqx.field(static=True)
    """The logarithm of one over the probability that a whole statement fails."""

    def pilot(self) -> "Plan":
        size = min(max(self.num_samples // 8, 1 << 10), _PILOT)
        return Plan(size, min(self.chunk, size), self.log_inverse)


class Ends(NamedTuple):
    """A number between two limits."""

    lower: Array
    estimate: Array
    upper: Array


_DRAWS: dict[str, Any] = {
    "remove": lambda model, _, *given: draw_remove(model, *given),
    "add": draw_add,
}
DIRECTIONS = tuple(_DRAWS)


def _shares(losses: Array, logs: Array, choice: Choice, epsilons: Array) -> Array:
    """Averaged numbers over their bounds, (epsilons, samples)."""
    bounds = choice.log_bound - choice.slope * epsilons
    gap = losses - epsilons[:, None]
    some = gap > 0
    rest = log1mexp(jnp.where(some, gap, 1.0))
    shares = jnp.exp(jnp.where(some, logs + rest - bounds[:, None], -jnp.inf))
    return jnp.minimum(shares, 1.0)


def moments(
    model: Model,
    found: Proposals,
    choice: Choice,
    direction: str,
    key: Array,
    epsilons: Array,
    plan: Plan,
) -> Moments:
    """Moments of the averaged numbers for every epsilon, over their bound."""
    chunks = -(-plan.num_samples // plan.chunk)

    def more(i: Array, sums: tuple) -> tuple:
        own = jax.random.fold_in(key, i)
        losses, logs = _DRAWS[direction](model, found, choice, own, plan.chunk)
        shares = _shares(losses, logs, choice, epsilons)
        valid = i * plan.chunk + jnp.arange(plan.chunk) < plan.num_samples
        # What is not a number, whatever made it, counts as the most that it can be.
        shares = jnp.where(jnp.isnan(shares), 1.0, shares)
        shares = jnp.where(valid, shares, 0.0)
        total, squares = sums
        return total + shares.sum(axis=1), squares + jnp.square(shares).sum(axis=1)

    start = jnp.zeros_like(epsilons), jnp.zeros_like(epsilons)
    total, squares = lax.fori_loop(0, chunks, more, start)
    n = jnp.asarray(float(plan.num_samples), epsilons.dtype)
    mean = total / n
    spread = squares / n - jnp.square(mean) + 1e-12 * squares / n
    return Moments(n, mean, jnp.maximum(spread, 0.0) * n / (n - 1))


def rounding(model: Model) -> Array:
    """More than a log ratio may be off; the log of a weight by as much per pattern.

    Terms of such sums are no larger than some times the sum of all squared norms.
    """
    return ROUNDING + 1e-12 * jnp.sum(model.most)


def delta_ends(
    model: Model,
    found: Proposals,
    direction: str,
    key: Array,
    epsilon: Array,
    plan: Plan,
) -> Ends:
    """Limits of delta at one epsilon; each fails with half the probability."""
    choice = choose(found, direction, epsilon)
    room = rounding(model)
    epsilons = epsilon + room * jnp.asarray([1.0, 0.0, -1.0], epsilon.dtype)
    got = moments(model, found, choice, direction, key, epsilons, plan)
    lower, upper = limits(got, plan.log_inverse + np.log(2))
    scale = jnp.exp(choice.log_bound - choice.slope * epsilons)
    least = lower[0] * scale[0] * (1 - ORDERS * room)
    most = upper[2] * scale[2] * (1 + ORDERS * room)
    # No sample tells delta from 0, and the bound may underflow.
    most = jnp.clip(most, jnp.finfo(most.dtype).tiny, 1.0)
    return Ends(least, got.mean[1] * scale[1], most)


class _Pilot(NamedTuple):
    """Losses of a small sample, the largest first, and sums over those above."""

    losses: Array
    weights: Array
    weighted: Array
    """Sums of the weights over R (remove) or times it (add)."""
    at_losses: Array
    """Estimates of delta at the losses."""
    log_scale: Array

    def epsilon(self, log_delta: Array) -> Array:
        """Epsilons at which the estimate of delta takes values."""
        goal = jnp.exp(log_delta - self.log_scale) * self.losses.size
        place = jnp.searchsorted(self.at_losses, goal)
        above = jnp.clip(place, 1, self.losses.size) - 1
        left = jnp.maximum(self.weights[above] - goal, jnp.finfo(goal.dtype).tiny)
        return jnp.log(left) - jnp.log(self.weighted[above]) + self.losses[0]


def _pilot(
    model: Model,
    found: Proposals,
    choice: Choice,
    direction: str,
    key: Array,
    plan: Plan,
) -> _Pilot:
    one = lambda i: _DRAWS[direction](
        model, found, choice, jax.random.fold_in(key, i), plan.chunk
    )
    drawn = lax.map(one, jnp.arange(-(-plan.num_samples // plan.chunk)))
    losses, logs = (x.reshape(-1) for x in drawn)
    order = jnp.argsort(-losses)
    losses, logs = losses[order], logs[order]
    log_scale = jnp.max(logs)
    sizes = jnp.exp(logs - log_scale)
    weights = jnp.cumsum(sizes)
    weighted = jnp.cumsum(sizes * jnp.exp(losses[0] - losses))
    at = weights - jnp.exp(losses - losses[0]) * weighted
    return _Pilot(losses, weights, weighted, jnp.maximum(at, 0.0), log_scale)


def epsilon_ends(
    model: Model, found: Proposals, direction: str, key: Array, delta: Array, plan: Plan
) -> Ends:
    """Limits of the least epsilon with a given delta; each fails with half."""
    keys = jax.random.split(key, 3)
    log_delta = jnp.log(delta)
    proved = found.proved(delta)[DIRECTIONS.index(direction)]

    def closer(guess: Array, key: Array) -> tuple[Array, _Pilot]:
        choice = choose(found, direction, guess)
        pilot = _pilot(model, found, choice, direction, key, plan.pilot())
        return jnp.clip(pilot.epsilon(log_delta), -_FARTHEST, guess), pilot

    guess, pilots = lax.scan(closer, jnp.minimum(proved, _FARTHEST), keys[:2])
    pilot = jax.tree.map(lambda x: x[-1], pilots)
    choice = choose(found, direction, guess)
    below, above = _candidates(pilot, choice, guess, proved, log_delta, plan)
    count, room = below.size + above.size, rounding(model)
    epsilons = jnp.concatenate([below + room, above - room])
    got = moments(model, found, choice, direction, keys[2], epsilons, plan)
    lower, upper = limits(got, plan.log_inverse + np.log(count))
    log_scale = choice.log_bound - choice.slope * epsilons
    lower, upper = jnp.log(lower) + log_scale, jnp.log(upper) + log_scale
    more = lower[: below.size] - ORDERS * room > log_delta
    less = upper[below.size :] + ORDERS * room <= log_delta
    least = jnp.max(jnp.where(more, below, -jnp.inf))
    most = jnp.min(jnp.where(less, above, proved))
    most = jnp.where(delta >= 1, -jnp.inf, most)
    return Ends(least, jnp.clip(guess, least, most), most)


def _candidates(
    pilot: _Pilot,
    choice: Choice,
    guess: Array,
    proved: Array,
    log_delta: Array,
    plan: Plan,
) -> tuple[Array, Array]:
    """Epsilons that the last sample decides on, for the two limits."""
    width = _expected_width(pilot, choice, guess, log_delta, plan)
    ratios = jnp.log1p(width * jnp.asarray(_MULTIPLES, guess.dtype))
    below = jnp.minimum(pilot.epsilon(log_delta + ratios), guess)
    above = jnp.maximum(pilot.epsilon(log_delta - ratios), guess)
    end = jnp.maximum(jnp.minimum(proved, _FARTHEST), above[-1])
    shares = jnp.asarray(_BETWEEN, guess.dtype)
    return below, jnp.concatenate([above, above[-1] + shares * (end - above[-1])])


def _expected_width(
    pilot: _Pilot, choice: Choice, guess: Array, log_delta: Array, plan: Plan
) -> Array:
    """Half the width of the interval of delta, over delta, by the pilot sample."""
    sizes = jnp.diff(pilot.weights, prepend=0.0)
    kept = jnp.maximum(-jnp.expm1(guess - pilot.losses), 0.0)
    log_mean_square = jnp.log(jnp.mean(jnp.square(sizes * kept)))
    log_variance = log_mean_square + 2 * (pilot.log_scale - log_delta)
    effort = (plan.log_inverse + np.log(8 * len(_MULTIPLES))) / plan.num_samples
    log_bound = choice.log_bound - choice.slope * guess - log_delta
    variance = jnp.exp(jnp.minimum(log_variance, _FARTHEST))
    room = effort * jnp.exp(jnp.minimum(log_bound, _FARTHEST))
    # Hoeffding's bound of no sample at all is what is certain to be reached.
    return jnp.sqrt(2 * effort * variance) + jnp.minimum(7 / 3 * room, 1e6)
