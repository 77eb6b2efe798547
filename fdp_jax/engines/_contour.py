r"""The contour integral, its discretization, and the certificate.

For a composed loss with cumulant generating function K, z = c + i tau,

    delta(eps) = (1 / 2 pi) \int exp(K(z) - eps z) / (z (1 + z)) dtau,      c > 0,

and the same integral is delta(eps) - 1 for -1 < c < 0 (Alghamdi et al. 2023; Zhu, Dong,
Wang 2022).  By Poisson summation the trapezoid rule of step h adds exactly
e^{cmR} delta(eps + mR), m != 0, R = 2 pi / h: terms of one sign, so the sum bounds
from above and Chernoff bounds of the terms give the lower bound.  The other terms of
the certificate are the truncated frequencies, the quadrature inside K, and rounding.
"""

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient, while_loop
from jax.scipy.special import xlogy
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._internal._blocked_sum import blocked_sum
from .._internal._special import safe_log
from ..losses import FREQUENCY_BLOCK, ComposedLoss
from ._saddle import Saddle, cumulants, order_of

_MAX_BLOCKS = 128
_LEVELS = 6
_USELESS = -5.0
"""log of the relative truncation error from which on it is not worth the sum."""
_VOID = 40.0
"""Error of an exponent that voids the certificate (unless its term is tiny)."""


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
    chernoff_shifts: Float[Array, " k"]
    chernoff_logs: Float[Array, " k"]
    """log E[payoff(Y - eps)] <= chernoff_logs - chernoff_shifts eps, for every eps."""


class Evaluation(eqx.Module):
    """delta (or 1 - delta, where the contour is in the middle strip) at thresholds."""

    log_value: Float[Array, " e"]
    """Differentiable in the loss and in epsilon."""
    log_upper: Float[Array, " e"]
    log_lower: Float[Array, " e"]
    slope: Float[Array, " e"]
    """Derivative of `log_value` in epsilon, as a number."""
    curvature: Float[Array, " e"]
    """Second derivative of `log_value` in epsilon, as a number."""
    log_alpha: Float[Array, " e"]
    """log P(X > eps), an estimate."""
    log_power: Float[Array, " e"]
    """log Q(Y > eps) (c > 0) or log Q(Y <= eps) (middle), an estimate."""
    alpha_slope: Float[Array, " e"]
    power_slope: Float[Array, " e"]
    """Derivatives of the last two in epsilon, as numbers."""


class Start(eqx.Module):
    """A saddle with Chernoff bounds around it: enough for a rough answer."""

    sign: Float[Array, ""]
    middle: Bool[Array, ""]
    saddle: Saddle
    chernoff_shifts: Float[Array, " k"]
    chernoff_logs: Float[Array, " k"]

    def rough_log_delta(self, epsilon: Array) -> Array:
        """Log delta to within about a tenth; no bound."""
        at = self.saddle
        value = at.log_value + at.shift * (at.epsilon - epsilon)
        return jnp.where(self.middle, 0, value)

    def rough_epsilon(self, log_delta: Array) -> Array:
        """epsilon, about; no bound."""
        return (
            self.saddle.epsilon
            + (self.saddle.log_value - log_delta) / self.saddle.shift
        )

    def largest_log_delta(self, epsilon: Array) -> Array:
        """A proved upper bound of log delta."""
        bounds = self.chernoff_logs - self.chernoff_shifts * epsilon
        return jnp.where(self.middle, 0, jnp.min(bounds))

    def largest_epsilon(self, log_delta: Array) -> Array:
        """A proved upper bound of epsilon (for c > 0)."""
        positive = self.chernoff_shifts > 0
        shifts = jnp.where(positive, self.chernoff_shifts, 1)
        bounds = (self.chernoff_logs - log_delta) / shifts
        return jnp.min(jnp.where(positive, bounds, jnp.inf))


def start_contour(
    loss: ComposedLoss, sign: Array, saddle: Saddle, middle: Array
) -> Start:
    """Chernoff bounds at the saddle and on either side of it, in the same strip."""
    shifts = _chernoff_shifts(saddle, middle)
    logs = cumulants(loss, sign, shifts)[0] + _log_payoff(shifts)
    return stop_gradient(Start(sign, middle, saddle, shifts, logs))


def plan_contour(
    loss: ComposedLoss, start: Start, skip: Bool[Array, ""] | bool = False
) -> Contour:
    """Chooses step, number of frequencies and quadratures for thresholds near one.

    Args:
        loss: The composed loss.
        start: From `start_contour`.
        skip: If the answer is known not to matter: does next to no work.
    """
    loss, saddle = stop_gradient(loss), start.saddle
    dtype = saddle.shift.dtype
    log_unit = jnp.log(jnp.asarray(jnp.finfo(dtype).eps, dtype))
    shifts, logs = start.chernoff_shifts, start.chernoff_logs
    period = _period(shifts, logs, saddle, saddle.log_value + log_unit)
    step = 2 * jnp.pi / period
    order = order_of(saddle.shift, start.sign)
    lead = logs[0] - _log_payoff(shifts)[0] - saddle.shift * saddle.epsilon
    target = saddle.log_value - lead + log_unit
    located = tuple(term.locate(order) for term in loss.terms)
    most = jnp.where(skip, 1, _MAX_BLOCKS) * FREQUENCY_BLOCK * step
    frequency, log_envelope = _last_frequency(loss, located, saddle, target, most)
    # If even so many frequencies would certify nothing, do not sum them.
    truncated = log_envelope - jnp.log(frequency) - (target - log_unit)
    rough = skip | (truncated > _USELESS)
    reach = jnp.where(rough, 1, _MAX_BLOCKS)
    frequency = jnp.minimum(frequency, reach * FREQUENCY_BLOCK * step)
    log_envelope = jnp.where(reach > 1, log_envelope, 0)
    # Where nothing is asked for any tolerance will do: one block of nodes.
    log_unit = jnp.where(rough, 1e4, log_unit)
    plans = tuple(
        term.prepare(place, frequency, log_unit - 2 - jnp.log1p(count))
        for term, place, count in zip(loss.terms, located, loss.counts, strict=True)
    )
    quadrature = jnp.zeros_like(step)
    for term, plan, count in zip(loss.terms, plans, loss.counts, strict=True):
        quadrature = quadrature + count * term.relative_error(plan)
    rough = rough | (quadrature > 1e-3)
    blocks = jnp.ceil(frequency / (step * FREQUENCY_BLOCK))
    blocks = jnp.where(rough, 1, jnp.clip(blocks, 1, _MAX_BLOCKS))
    return stop_gradient(
        Contour(
            sign=start.sign,
            shift=saddle.shift,
            middle=start.middle,
            step=step,
            blocks=blocks.astype(jnp.int32),
            frequency=frequency,
            log_envelope=log_envelope,
            rough=rough,
            rough_log_sum=saddle.log_value - lead,
            plans=plans,
            chernoff_shifts=shifts,
            chernoff_logs=logs,
        )
    )


def _chernoff_shifts(saddle: Saddle, middle: Array) -> Float[Array, " k"]:
    """The contour itself, then points on either side of it in the same strip."""
    c = saddle.shift
    width = 13 / saddle.deviation
    left_end = jnp.where(middle, -1, 0).astype(c.dtype)
    left = jnp.minimum(c - left_end, width)
    right = jnp.minimum(jnp.where(middle, -c, 6 * (1 + c)), width)
    # Not the ends themselves but for the trivial bounds, which are added as such.
    halves = jnp.exp2(-jnp.arange(_LEVELS, dtype=c.dtype)) * 0.95
    trivial = jnp.stack([left_end, jnp.where(middle, 0, c + 0.5 * right)])
    points = [c[None], trivial, c - left * halves, c + right * halves]
    return jnp.concatenate(points)


def _log_payoff(shift: Array) -> Array:
    """Log of the least C with payoff(t) <= C e^{c t}.

    The payoff is (1 - e^{-t})_+ for c >= 0 and min(1, e^{-t}) for -1 <= c <= 0.
    """
    positive = jnp.maximum(shift, 0)
    return xlogy(positive, positive) - (1 + positive) * jnp.log1p(positive)


def _period(shifts: Array, logs: Array, saddle: Saddle, target: Array) -> Array:
    """The least R for which the aliases of either side are below exp(target)."""
    excess = logs - shifts * saddle.epsilon - target
    distance = shifts - saddle.shift
    needed = excess / jnp.where(distance == 0, 1, jnp.abs(distance))
    left = jnp.min(jnp.where(distance < 0, needed, jnp.inf))
    right = jnp.min(jnp.where(distance > 0, needed, jnp.inf))
    return jnp.maximum(jnp.maximum(left, right), 2 * saddle.deviation)


def _last_frequency(
    loss: ComposedLoss, located: tuple, saddle: Saddle, target: Array, most: Array
) -> tuple[Array, Array]:
    """A frequency beyond which the integral is below exp(target), if within reach.

    Returns:
        The frequency, and the log-envelope there.
    """

    def log_envelope(frequency: Array) -> Array:
        total = jnp.zeros_like(frequency)
        for term, place, count in zip(loss.terms, located, loss.counts, strict=True):
            total = total + count * term.log_envelope(place, frequency)
        return total

    def unfinished(state):
        return (state[0] < 24) & (state[1] != state[2])

    def widen(state):
        step, _, frequency, _ = state
        envelope = log_envelope(frequency)
        needed = target + jnp.log(frequency)
        # The envelope's logarithm is about quadratic.
        ratio = jnp.clip(needed / jnp.minimum(envelope, -1e-3), 1.1, 9)
        wider = jnp.minimum(1.02 * jnp.sqrt(ratio) * frequency, most)
        return (
            step + 1,
            frequency,
            jnp.where(envelope > needed, wider, frequency),
            envelope,
        )

    first = jnp.sqrt(-2 * jnp.minimum(target, -1)) / saddle.deviation
    first = jnp.minimum(first, most)
    start = (jnp.zeros((), jnp.int32), jnp.zeros_like(first), first, -first)
    _, frequency, _, envelope = while_loop(unfinished, widen, start)
    return frequency, envelope


def evaluate(
    loss: ComposedLoss, contour: Contour, epsilons: Float[Array, " e"]
) -> Evaluation:
    """Sums the trapezoid rule and bounds its error."""
    sums, extra = blocked_sum(
        _frequency_block, contour.blocks, (loss, epsilons), contour
    )
    alpha, power, density, rounding = extra
    direction = jnp.where(contour.middle, -1, 1)
    size = direction * sums  # positive unless the certificate is void
    valid = (size > 0) & ~contour.rough
    size = jnp.where(valid, size, 1)
    log_lead, lead_error = _log_lead(loss, contour, epsilons)
    log_value = log_lead + jnp.log(size * contour.step / jnp.pi)
    last = contour.frequency
    truncated = jnp.exp(contour.log_envelope) * (
        1 / (last * contour.step) + 1 / last**2
    )
    sum_error = (rounding + truncated) / size
    relative = stop_gradient(sum_error + (1 + sum_error) * jnp.expm1(lead_error))
    below = relative + jnp.exp(_log_aliases(contour, epsilons) - log_value)
    chernoff = contour.chernoff_logs - contour.chernoff_shifts * epsilons[:, None]
    chernoff = jnp.min(chernoff, axis=1)
    log_upper = jnp.where(valid, log_value + jnp.log1p(relative), jnp.inf)
    tight = valid & (below < 1)
    log_lower = log_value + jnp.log1p(-jnp.where(tight, below, 0))
    # Out of reach: the saddle-point approximation (whose derivative is the leading
    # one), within the bounds.
    c, scale = contour.shift, jnp.log(contour.step / jnp.pi)
    rough = log_lead + contour.rough_log_sum
    slope = jnp.where(valid, -alpha / (direction * size), -c)
    # The kernel's second derivative is z / (1 + z) = 1 - 1 / (1 + z).
    bend = (density - alpha) / (direction * size) - jnp.square(slope)
    curvature = jnp.where(valid, bend, 0)
    log_alpha = log_lead - epsilons + safe_log(alpha) + scale
    log_power = log_lead + safe_log(direction * power) + scale
    return Evaluation(
        log_value=jnp.where(valid, log_value, jnp.minimum(rough, chernoff)),
        log_upper=stop_gradient(jnp.minimum(log_upper, chernoff)),
        log_lower=stop_gradient(jnp.where(tight, log_lower, -jnp.inf)),
        slope=stop_gradient(slope),
        curvature=stop_gradient(curvature),
        log_alpha=stop_gradient(
            jnp.where(valid, log_alpha, rough + jnp.log(jnp.abs(c)) - epsilons)
        ),
        log_power=stop_gradient(jnp.where(valid, log_power, rough + jnp.log1p(c))),
        alpha_slope=stop_gradient(jnp.where(valid, -density / alpha, -1 - c)),
        power_slope=stop_gradient(jnp.where(valid, -density / power, -c)),
    )


def _log_lead(
    loss: ComposedLoss, contour: Contour, epsilons: Array
) -> tuple[Array, Array]:
    """K(c) - c eps, and a bound on its absolute error."""
    value = error = jnp.zeros_like(contour.shift)
    for term, count, plan in zip(loss.terms, loss.counts, contour.plans, strict=True):
        part, part_error = term.log_mgf(plan)
        value = value + count * part
        error = error + count * part_error
    shifted = contour.shift * epsilons
    unit = jnp.finfo(value.dtype).eps
    rounding = 4 * unit * (jnp.abs(value) + jnp.abs(shifted))
    return value - shifted, stop_gradient(error + rounding)


def _log_aliases(contour: Contour, epsilons: Array) -> Array:
    """Log of a bound on the sum of all aliases, at each threshold."""
    distance = contour.chernoff_shifts - contour.shift
    period = 2 * jnp.pi / contour.step
    decay = jnp.abs(distance) * period
    own = distance == 0
    series = decay + jnp.log(-jnp.expm1(-jnp.where(own, 1, decay)))
    bound = contour.chernoff_logs - contour.chernoff_shifts * epsilons[:, None] - series
    left = jnp.min(jnp.where(distance < 0, bound, jnp.inf), axis=1)
    right = jnp.min(jnp.where(distance > 0, bound, jnp.inf), axis=1)
    return stop_gradient(jnp.logaddexp(left, right))


def _frequency_block(
    index: Array, args: tuple[ComposedLoss, Array], contour: Contour
) -> tuple:
    loss, epsilons = args
    start = (index * FREQUENCY_BLOCK).astype(contour.step.dtype) * contour.step
    tau = start + contour.step * jnp.arange(FREQUENCY_BLOCK, dtype=start.dtype)
    unit = jnp.finfo(tau.dtype).eps
    real = angle = error = jnp.zeros_like(tau)
    drift = size = jnp.zeros_like(start)
    for term, count, plan in zip(loss.terms, loss.counts, contour.plans, strict=True):
        part = term.log_characteristic(plan, start, contour.step)
        real = real + count * part.real
        angle = angle + contour.sign * count * part.imag
        drift = drift + contour.sign * count * term.center(plan)
        size = size + jnp.abs(count * term.center(plan))
        # A fractional power needs the continuous logarithm, not the principal one.
        lost = (jnp.abs(part.imag) > 2.8) & (count != jnp.round(count))
        # |log(phi + e) - log(phi)| <= 1.4 |e / phi| up to one half.
        unusable = lost | (part.error > 0.5)
        error = error + jnp.where(unusable, _VOID, 1.4 * count * part.error)
    share = jnp.where(tau == 0, 0.5, jnp.where(tau <= contour.frequency, 1, 0))
    amplitude = jnp.exp(real) * share
    inverse_z = _reciprocal(contour.shift, tau)
    inverse_next = _reciprocal(1 + contour.shift, tau)
    kernel = (
        inverse_z[0] * inverse_next[0] - inverse_z[1] * inverse_next[1],
        inverse_z[0] * inverse_next[1] + inverse_z[1] * inverse_next[0],
    )
    phase = angle + tau * (drift - epsilons[:, None])
    cosine, sine = amplitude * jnp.cos(phase), amplitude * jnp.sin(phase)

    def total(kernel: tuple[Array, Array]) -> Array:
        return jnp.sum(cosine * kernel[0] - sine * kernel[1], axis=1)

    terms = contour.blocks * FREQUENCY_BLOCK + 32
    turning = tau * (size + jnp.abs(epsilons[:, None])) + jnp.abs(angle)
    bound = jnp.expm1(jnp.minimum(error, _VOID)) + unit * (terms + 4 * turning)
    rounding = jnp.sum(amplitude * jnp.hypot(*kernel) * bound, axis=1)
    tails = total(inverse_next), total(inverse_z), jnp.sum(cosine, axis=1)
    return total(kernel), (*tails, rounding)


def _reciprocal(real: Array, imag: Array) -> tuple[Array, Array]:
    norm = jnp.square(real) + jnp.square(imag)
    return real / norm, -imag / norm
