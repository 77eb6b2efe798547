"""Choosing a contour, its step, its last frequency and its quadratures.

The integral itself, which these choices discretize, is in `_inversion.py`.
"""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import optimization_barrier, stop_gradient, while_loop
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._internal._arithmetic import ULP
from .._internal._tolerances import CONCESSION, TOLERABLE
from ..losses import FREQUENCY_BLOCK, ComposedLoss
from ._saddle import Saddle, log_moments, order_of

_FEW = 8
_LOG_ULP = math.log(ULP)
_CHERNOFF_LEVELS = 6
_BEYOND = 1.14
"""The last frequency over that of a normal law, where steps are many: mostly enough."""
_USELESS = -5.0
"""log of the relative truncation error from which on it is not worth the sum."""


class Path(eqx.Module):
    """Continuous angles along a contour, as far as they are known.

    Fractional powers need these; whole turns make no difference to others.
    """

    angles: Float[Array, "terms ..."]
    """At the last frequency before."""
    moduli: Float[Array, "terms ..."]
    sure: Bool[Array, "..."]
    """Whether the angles up to there are known."""


class Contour(eqx.Module):
    """Everything chosen before the sum; constants as far as derivatives go."""

    sign: Float[Array, ""]
    shift: Float[Array, ""]
    middle: Bool[Array, ""]
    step: Float[Array, ""]
    blocks: Int[Array, ""]
    frequency: Float[Array, ""]
    """The last one used; the rest of its block is not."""
    log_envelope: Float[Array, ""]
    """log of a bound on |characteristic function| beyond that frequency."""
    rough: Bool[Array, ""]
    """Whether the sum is out of reach; then the saddle-point approximation serves."""
    rough_log_sum: Float[Array, ""]
    plans: tuple[PyTree, ...]
    path: "Path"
    """Where the continuous angles of characteristic functions begin each block."""
    chernoff_shifts: Float[Array, " k"]
    chernoff_logs: Float[Array, " k"]
    """log E[payoff(Y - eps)] <= chernoff_logs - chernoff_shifts eps, for every eps."""

    def chernoff(self, epsilons: Float[Array, " e"]) -> Float[Array, " e"]:
        """A proved upper bound of log delta (of log(1 - delta) in the middle)."""
        return chernoff(self.chernoff_shifts, self.chernoff_logs, epsilons)

    @property
    def idle(self) -> Bool[Array, ""]:
        """Whether there are no frequencies: what is left are the Chernoff bounds."""
        return self.blocks == 0


def most_blocks(loss: ComposedLoss) -> int:
    """Blocks of frequencies at most."""
    return max(term.most_blocks for term in loss.analytic_terms)


def chernoff(
    shifts: Float[Array, " k"], logs: Float[Array, " k"], epsilons: Float[Array, " e"]
) -> Float[Array, " e"]:
    """The least of some bounds logs - shifts eps."""
    bounds = logs - shifts * epsilons[:, None]
    sizes = jnp.abs(logs) + jnp.abs(shifts * epsilons[:, None])
    return jnp.min(bounds + 2 * ULP * sizes, axis=1)


class Start(eqx.Module):
    """A saddle with Chernoff bounds around it: enough for a rough answer."""

    sign: Float[Array, ""]
    middle: Bool[Array, ""]
    saddle: Saddle
    chernoff_shifts: Float[Array, " k"]
    chernoff_logs: Float[Array, " k"]

    def rough_log_delta(self, epsilon: Array) -> Array:
        """Log delta, about; no bound."""
        saddle = self.saddle
        rough = saddle.log_value + saddle.shift * (saddle.epsilon - epsilon)
        return jnp.where(self.middle, 0, rough)

    def rough_epsilon(self, log_delta: Array) -> Array:
        """epsilon, about; no bound."""
        return (
            self.saddle.epsilon
            + (self.saddle.log_value - log_delta) / self.saddle.shift
        )

    def largest_log_delta(self, epsilon: Array) -> Array:
        """A proved upper bound of log delta."""
        bound = chernoff(self.chernoff_shifts, self.chernoff_logs, epsilon[None])[0]
        return jnp.where(self.middle, 0, bound)

    def largest_epsilon(self, log_delta: Array) -> Array:
        """A proved upper bound of epsilon (for c > 0)."""
        positive = self.chernoff_shifts > 0
        shifts = jnp.where(positive, self.chernoff_shifts, 1)
        bounds = (self.chernoff_logs - log_delta) / shifts
        sizes = (jnp.abs(self.chernoff_logs) + jnp.abs(log_delta)) / shifts
        bounds = bounds + 2 * ULP * sizes
        return jnp.min(jnp.where(positive, bounds, jnp.inf))


@jax.jit
def start_contour(
    loss: ComposedLoss, sign: Array, saddle: Saddle, middle: Array
) -> Start:
    """With Chernoff bounds at the saddle and on either side of it."""
    # The orders are 1 + c: no other c than theirs may weigh a threshold.
    shifts = optimization_barrier(1 + _chernoff_shifts(saddle, middle)) - 1
    logs = log_moments(loss, sign, shifts) + log_payoff(shifts)
    # Moments of a large loss are differences of terms as large as that.
    slope = saddle.epsilon + 1 / saddle.shift + 1 / (1 + saddle.shift)
    logs = logs + 8 * ULP * (2 + jnp.abs(shifts)) * jnp.abs(slope)
    # Known without a moment: delta is at most one, and 1 - delta at most e^eps.
    logs = jnp.where((shifts == 0) | (shifts == -1), 0.0, logs)
    return stop_gradient(Start(sign, middle, saddle, shifts, logs))


def idle_contour(start: Start, shape: Contour) -> Contour:
    """One without frequencies, of the shapes of another one."""
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
    return dataclasses.replace(
        empty,
        sign=start.sign,
        shift=start.saddle.shift,
        middle=start.middle,
        rough=jnp.ones((), bool),
        chernoff_shifts=start.chernoff_shifts,
        chernoff_logs=start.chernoff_logs,
    )


@jax.jit
def plan_contour(loss: ComposedLoss, start: Start) -> Contour:
    """Chooses step, number of frequencies and quadratures for thresholds near one."""
    loss, saddle = stop_gradient(loss), start.saddle
    shifts, logs = start.chernoff_shifts, start.chernoff_logs
    shift, lead, period = cheapest_shift(start)
    step = 2 * jnp.pi / period
    order = order_of(shift, start.sign)
    target = saddle.log_value - lead + _LOG_ULP
    terms = loss.analytic_terms
    located = tuple(term.locate(order) for term in terms)
    most = most_blocks(loss) * FREQUENCY_BLOCK * step
    frequency, log_envelope = _last_frequency(
        loss, located, saddle, (target, _FEW * FREQUENCY_BLOCK * step), most
    )
    # If even so many frequencies would certify nothing, do not sum them.
    truncated = log_envelope - jnp.log(frequency) - (target - _LOG_ULP)
    rough = truncated > _USELESS
    reach = jnp.where(rough, 1, most_blocks(loss))
    frequency = jnp.minimum(frequency, reach * FREQUENCY_BLOCK * step)
    log_envelope = jnp.where(reach > 1, log_envelope, 0)
    # Where nothing is asked for any tolerance will do: one block of nodes.
    tolerance = jnp.where(rough, 1e4, _LOG_ULP - 2)
    plans = tuple(
        term.prepare(place, frequency, tolerance - jnp.log1p(count))
        for term, place, count in zip(terms, located, loss.counts, strict=True)
    )
    quadrature = jnp.zeros_like(step)
    for term, plan, count in zip(terms, plans, loss.counts, strict=True):
        quadrature = quadrature + count * term.relative_error(plan)
    rough = rough | (quadrature > 1e-3)
    blocks = jnp.ceil(frequency / (step * FREQUENCY_BLOCK))
    blocks = jnp.where(rough, 1, jnp.clip(blocks, 1, most_blocks(loss)))
    blocks = blocks.astype(jnp.int32)
    return stop_gradient(
        Contour(
            sign=start.sign,
            shift=shift,
            middle=start.middle,
            step=step,
            blocks=blocks,
            frequency=frequency,
            log_envelope=log_envelope,
            rough=rough,
            rough_log_sum=saddle.log_value - lead,
            plans=plans,
            path=_path_unknown(loss),
            chernoff_shifts=shifts,
            chernoff_logs=logs,
        )
    )


def _path_unknown(loss: ComposedLoss) -> Path:
    """Every angle is zero where the contour begins; the rest is to be found out."""
    zeros = jnp.zeros((len(loss.terms), most_blocks(loss)))
    return Path(zeros, zeros + 1, jnp.arange(zeros.shape[1]) == 0)


def _chernoff_shifts(saddle: Saddle, middle: Array) -> Float[Array, " k"]:
    """The contour itself, then points on either side of it in the same strip."""
    c = saddle.shift
    width = 13 / saddle.deviation
    left_end = jnp.where(middle, -1, 0).astype(c.dtype)
    left = jnp.minimum(c - left_end, width)
    right = jnp.minimum(jnp.where(middle, -c, 6 * (1 + c)), width)
    # Not the ends themselves but for the trivial bounds, which are added as such.
    halves = jnp.exp2(-jnp.arange(_CHERNOFF_LEVELS, dtype=c.dtype)) * 0.95
    trivial = jnp.stack([left_end, jnp.where(middle, 0, c + 0.5 * right)])
    points = [c[None], trivial, c - left * halves, c + right * halves]
    return jnp.concatenate(points)


def log_payoff(shift: Array) -> Array:
    """Log of the least C with payoff(t) <= C e^{c t}.

    The payoff is (1 - e^{-t})_+ for c >= 0 and min(1, e^{-t}) for -1 <= c <= 0.
    """
    positive = jnp.maximum(shift, 0)
    # c log c - (1 + c) log(1 + c), without cancellation.
    inverse = 1 / jnp.where(positive > 0, positive, 1)
    return -positive * jnp.log1p(inverse) - jnp.log1p(positive)


def cheapest_shift(start: Start) -> tuple[Array, Array, Array]:
    """The shift that needs the fewest frequencies, among those with Chernoff bounds.

    The saddle point makes the integrand's tails fall fastest.  Where rare large losses
    govern it (few participations), a smaller shift all but removes them, and with them
    most of the period.

    Returns:
        The shift, log of the integrand's size there but for the poles, and the least
        period for which the aliases of either side are below one unit of delta.
    """
    shifts, logs = start.chernoff_shifts, start.chernoff_logs
    saddle, target = start.saddle, start.saddle.log_value + _LOG_ULP
    lead = logs - log_payoff(shifts) - shifts * saddle.epsilon
    excess = logs - shifts * saddle.epsilon - target
    # Row: the contour.  Column: the bound of its aliases.
    distance = shifts - shifts[:, None]
    needed = excess / jnp.where(distance == 0, 1, jnp.abs(distance))
    left = jnp.min(jnp.where(distance < 0, needed, jnp.inf), axis=1)
    right = jnp.min(jnp.where(distance > 0, needed, jnp.inf), axis=1)
    period = jnp.maximum(jnp.maximum(left, right), 2 * saddle.deviation)
    size = jnp.maximum(lead - target, 1)
    work = period * jnp.sqrt(size) * jnp.exp(jnp.maximum(lead - lead[0] - TOLERABLE, 0))
    inner = jnp.where(start.middle, (shifts > -1) & (shifts < 0), shifts > 0)
    best = jnp.argmin(jnp.where(inner, work, jnp.inf))
    return shifts[best], lead[best], period[best]


def log_aliases(
    shifts: Float[Array, " k"],
    logs: Float[Array, " k"],
    shift: Float[Array, ""],
    period: Float[Array, ""],
    epsilons: Float[Array, " e"],
) -> Float[Array, " e"]:
    """Log of a bound on the sum of all aliases e^{cmR} delta(eps + mR), m != 0.

    From the Chernoff bounds, log delta <= logs - shifts eps.
    """
    distance = shifts - shift
    decay = jnp.abs(distance) * period
    own = distance == 0
    series = decay + jnp.log(-jnp.expm1(-jnp.where(own, 1, decay)))
    bound = logs - shifts * epsilons[:, None] - series
    left = jnp.min(jnp.where(distance < 0, bound, jnp.inf), axis=1)
    right = jnp.min(jnp.where(distance > 0, bound, jnp.inf), axis=1)
    return stop_gradient(jnp.logaddexp(left, right))


def _last_frequency(
    loss: ComposedLoss,
    located: tuple,
    saddle: Saddle,
    targets: tuple[Array, Array],
    most: Array,
) -> tuple[Array, Array]:
    """A frequency beyond which the integral is below exp(target), if within reach.

    `targets` is the target and the frequency from which on less will do.

    Returns:
        The frequency, and the log-envelope there.
    """
    target, many = targets

    terms = loss.analytic_terms

    def log_envelope(frequency: Array) -> Array:
        total = jnp.zeros_like(frequency)
        for term, place, count in zip(terms, located, loss.counts, strict=True):
            total = total + count * term.log_envelope(place, frequency)
        return total

    def unfinished(state):
        step, at, following, *_ = state
        return (step < 24) & (at != following)

    def widen(state):
        step, before, frequency, before_envelope = state
        envelope = log_envelope(frequency)
        concession = jnp.where(frequency > many, CONCESSION, 0)
        needed = target + concession + jnp.log(frequency)
        # The envelope's logarithm is about quadratic.
        size, before_size = (jnp.minimum(x, -1e-3) for x in (envelope, before_envelope))
        ratio = jnp.maximum(needed / size, 1.1)
        wider = jnp.sqrt(jnp.minimum(ratio, 9)) * frequency
        # Or another power, as two of them tell, where too far costs little.
        first = step == 0
        growth = jnp.log(jnp.where(first, 2, frequency / before))
        found = jnp.clip(jnp.log(size / before_size) / growth, 0.25, 2)
        power = jnp.where(first, 2, found)
        farther = jnp.minimum(jnp.power(ratio, 1 / power) * frequency, many)
        wider = jnp.minimum(1.02 * jnp.maximum(wider, farther), most)
        following = jnp.where(envelope > needed, wider, frequency)
        return step + 1, frequency, following, envelope

    # Too far costs less than another look, where that is a sum over many steps.
    reach = _BEYOND if loss.many_steps else 1.0
    first = reach * jnp.sqrt(-2 * jnp.minimum(target, -1)) / saddle.deviation
    first = jnp.minimum(first, most)
    none = jnp.zeros_like(first)
    start = (jnp.zeros((), jnp.int32), none, first, none)
    _, _, frequency, envelope = while_loop(unfinished, widen, start)
    return frequency, envelope
