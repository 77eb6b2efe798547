r"""The contour integral, its discretization, and the certificate.

For a composed loss with cumulant generating function K, z = c + i tau,

    delta(eps) = (1 / 2 pi) \int exp(K(z) - eps z) / (z (1 + z)) dtau,      c > 0,

and the same integral is delta(eps) - 1 for -1 < c < 0 (Alghamdi et al. 2023; Zhu, Dong,
Wang 2022).  By Poisson summation the trapezoid rule of step h adds exactly
e^{cmR} delta(eps + mR), m != 0, R = 2 pi / h: terms of one sign, so the sum bounds
from above and Chernoff bounds of the terms give the lower bound.  The other terms of
the certificate are the truncated frequencies, the quadrature inside K, and rounding.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient, while_loop
from jaxtyping import Array, ArrayLike, Bool, Float

from .._internal._arithmetic import ULP
from .._internal._blocked_sum import blocked_sum
from .._internal._logs import LOG_2
from .._internal._rotation import rotation
from .._internal._special import safe_log
from ..losses import (
    FREQUENCY_BLOCK,
    CharacteristicBlock,
    ComposedLoss,
)
from ._contour import Contour, Path, log_aliases, most_blocks
from ._root import Near


class _Characteristic(eqx.Module):
    """log E_w[exp(i tau (Y - drift))] of the composed loss, at some frequencies."""

    real: Float[Array, " f"]
    angle: Float[Array, " f"]
    error: Float[Array, " f"]
    drift: Float[Array, ""]
    size: Float[Array, ""]
    """Sum of the sizes of the terms of `drift`, for the rounding bound."""


class Table(eqx.Module):
    """The table of `look_up`, at all frequencies of a contour, without derivative."""

    characteristic: _Characteristic
    path: Path
    """Continuous angles of the contour, as far as there are frequencies."""
    log_lead: tuple[Float[Array, ""], Float[Array, ""]]


class Evaluation(eqx.Module):
    """delta (or 1 - delta, where the contour is in the middle strip) at thresholds."""

    log_value: Float[Array, " e"]
    """Differentiable in the loss and in epsilon."""
    log_upper: Float[Array, " e"]
    log_lower: Float[Array, " e"]
    slope: Float[Array, " e"]
    """Derivative of `log_value` in epsilon, as a number."""
    log_alpha: Float[Array, " e"]
    """log P(X > eps), an estimate."""
    log_power: Float[Array, " e"]
    """log Q(Y > eps) (c > 0) or log Q(Y <= eps) (middle), an estimate."""

    def near(self) -> Near:
        """The part that a search asks for."""
        return Near(self.log_value, self.log_lower, self.log_upper, self.slope)


@jax.jit
def evaluate(
    loss: ComposedLoss, contour: Contour, epsilons: Float[Array, " e"]
) -> Evaluation:
    """Sums the trapezoid rule and bounds its error."""
    args = loss, epsilons
    found = blocked_sum(_frequency_block, contour.blocks, args, contour)
    return _evaluation(contour, epsilons, _log_lead(loss, contour), found)


@jax.jit
def tabulate(loss: ComposedLoss, contour: Contour) -> Table:
    """Everything that `evaluate` computes which no threshold enters."""
    loss = stop_gradient(loss)
    length = max(term.together for term in loss.analytic_terms)

    def fill(state: tuple) -> tuple:
        first, table, path = state
        following = first // FREQUENCY_BLOCK + 1
        before = _path_at(path, following - 1)
        parts = _parts(first, loss, contour, length)
        part, ends = _composed(loss, contour, parts, before)
        return (
            first + length,
            jax.tree.map(
                lambda all, new: (
                    lax.dynamic_update_slice(all, new, (first,)) if new.ndim else new
                ),
                table,
                part,
            ),
            jax.tree.map(
                lambda all, new: lax.dynamic_update_slice_in_dim(
                    all, new, following, axis=-1
                ),
                path,
                ends,
            ),
        )

    # The last ones together may go beyond the end.
    empty = jnp.zeros(-(-most_blocks(loss) * FREQUENCY_BLOCK // length) * length)
    zero = jnp.zeros(())
    table = _Characteristic(empty, empty, empty, zero, zero)
    last = contour.blocks * FREQUENCY_BLOCK
    # One more block, since the end of the last one is stored, too.
    room = length // FREQUENCY_BLOCK
    longer = lambda x: jnp.concatenate([x, jnp.zeros_like(x[..., :room])], axis=-1)
    start = jnp.zeros_like(last), table, jax.tree.map(longer, contour.path)
    _, table, path = while_loop(lambda state: state[0] < last, fill, start)
    path = jax.tree.map(lambda x: x[..., :-room], path)
    return Table(table, path, _log_lead(loss, contour))


def _parts(
    first: Array, loss: ComposedLoss, contour: Contour, length: int
) -> list[CharacteristicBlock]:
    """The terms' characteristic functions at some frequencies in a row."""
    start = first.astype(contour.step.dtype) * contour.step
    return [
        term.log_characteristic(plan, start, contour.step, length)
        for term, plan in zip(loss.analytic_terms, contour.plans, strict=True)
    ]


def _path_at(path: Path, block: ArrayLike) -> Path:
    """Before one block of frequencies."""
    one = lambda x: lax.dynamic_index_in_dim(x, block, -1, keepdims=False)
    return jax.tree.map(one, path)


@jax.jit
def look_up(table: Table, contour: Contour, epsilons: Float[Array, " e"]) -> Evaluation:
    """`evaluate` from a table; no derivative in the loss."""
    aux = (contour, table.characteristic)
    found = blocked_sum(_tabulated_block, contour.blocks, epsilons, aux)
    return _evaluation(contour, epsilons, table.log_lead, found)


def _evaluation(
    contour: Contour, epsilons: Array, lead: tuple[Array, Array], found: tuple
) -> Evaluation:
    sums, extra = found
    alpha, power, rounding, blurred = extra
    direction = jnp.where(contour.middle, -1, 1)
    last = contour.frequency
    truncated = jnp.exp(contour.log_envelope) * (
        1 / (last * contour.step) + 1 / last**2
    )
    # A sum below its own error says that delta is not above that.
    noise = stop_gradient(rounding + truncated)
    heard = (direction * sums > blurred + truncated) & ~contour.rough
    valid = (heard | (noise > 0)) & ~contour.rough
    size = jnp.where(heard, direction * sums, jnp.where(valid, noise, 1))
    log_lead, lead_error = lead
    shifted = contour.shift * epsilons
    lead_error = lead_error + 4 * ULP * (jnp.abs(log_lead) + jnp.abs(shifted))
    log_lead = log_lead - shifted
    log_value = log_lead + jnp.log(size * contour.step / jnp.pi)
    sum_error = noise / size
    relative = stop_gradient(sum_error + (1 + sum_error) * jnp.expm1(lead_error))
    below = relative + jnp.exp(_aliases(contour, epsilons) - log_value)
    chernoff = contour.chernoff(epsilons)
    log_upper = jnp.where(valid, log_value + jnp.log1p(relative), jnp.inf)
    tight = valid & (below < 1)
    log_lower = log_value + jnp.log1p(-jnp.where(tight, below, 0))
    # Out of reach: the saddle-point approximation (whose derivative is the leading
    # one), within the bounds.
    c, scale = contour.shift, jnp.log(contour.step / jnp.pi)
    rough = log_lead + contour.rough_log_sum
    unheard = jnp.minimum(jnp.minimum(rough, chernoff), log_upper)
    excess = stop_gradient(jnp.minimum(chernoff - log_value, 0))
    slope = jnp.where(heard, -alpha / (direction * size), -c)
    log_alpha = log_lead - epsilons + safe_log(alpha) + scale
    log_power = log_lead + safe_log(direction * power) + scale
    return Evaluation(
        log_value=jnp.where(heard, log_value + excess, unheard),
        log_upper=stop_gradient(jnp.minimum(log_upper, chernoff)),
        log_lower=stop_gradient(jnp.where(tight, log_lower, -jnp.inf)),
        slope=stop_gradient(slope),
        log_alpha=stop_gradient(
            jnp.where(heard, log_alpha, rough + jnp.log(jnp.abs(c)) - epsilons)
        ),
        log_power=stop_gradient(jnp.where(heard, log_power, rough + jnp.log1p(c))),
    )


def _log_lead(loss: ComposedLoss, contour: Contour) -> tuple[Array, Array]:
    """K(c), and a bound on its absolute error but for the rounding of the sum."""
    terms = loss.analytic_terms
    value = error = jnp.zeros_like(contour.shift)
    for term, count, plan in zip(terms, loss.counts, contour.plans, strict=True):
        part, part_error = term.log_mgf(plan)
        value = value + count * part
        error = error + count * part_error
    return value, stop_gradient(error)


def _aliases(contour: Contour, epsilons: Array) -> Array:
    period = 2 * jnp.pi / contour.step
    bounds = contour.chernoff_shifts, contour.chernoff_logs
    return log_aliases(*bounds, contour.shift, period, epsilons)


def _frequency_block(
    index: Array, args: tuple[ComposedLoss, Array], contour: Contour
) -> tuple:
    loss, epsilons = args
    first = index * FREQUENCY_BLOCK
    parts = _parts(first, loss, contour, FREQUENCY_BLOCK)
    part, _ = _composed(loss, contour, parts, _path_at(contour.path, index))
    return _sums(index, contour, epsilons, part)


def _tabulated_block(
    index: Array, epsilons: Array, aux: tuple[Contour, _Characteristic]
) -> tuple:
    contour, table = aux
    first = index * FREQUENCY_BLOCK
    part = jax.tree.map(
        lambda x: lax.dynamic_slice(x, (first,), (FREQUENCY_BLOCK,)) if x.ndim else x,
        table,
    )
    return _sums(index, contour, epsilons, part)


def _composed(
    loss: ComposedLoss,
    contour: Contour,
    parts: list[CharacteristicBlock],
    before: Path,
) -> tuple[_Characteristic, Path]:
    """The composed block, from those of the terms at the same frequencies."""
    parts, sure, ends = _unwound(loss, contour, parts, before)
    real = angle = error = jnp.zeros_like(parts[0].real)
    drift = size = jnp.zeros_like(contour.step)
    lost = ~sure
    terms = zip(loss.analytic_terms, loss.counts, contour.plans, parts, strict=True)
    for term, count, plan, part in terms:
        real = real + count * part.real
        angle = angle + contour.sign * count * part.imag
        drift = drift + contour.sign * count * term.center(plan)
        size = size + jnp.abs(count * term.center(plan))
        # |log(phi + e) - log(phi)| <= 1.4 |e / phi| up to one half; of what is farther
        # off, or stands on a floor, the size is known.
        unusable = part.error > 0.5
        most = jnp.log(3 + 2 * part.error)
        error = error + count * jnp.where(unusable, most, 1.4 * part.error)
        lost = lost | part.turned | unusable
    # Whatever the angle is, the two are no farther apart than both are from zero.
    error = jnp.where(lost, jnp.logaddexp(error, LOG_2), error)
    return _Characteristic(real, angle, error, drift, size), ends


def _unwound(
    loss: ComposedLoss,
    contour: Contour,
    parts: list[CharacteristicBlock],
    before: Path,
) -> tuple[list[CharacteristicBlock], Bool[Array, " f"], Path]:
    """The block with continuous angles where they are known, and where that is.

    Fractional powers need it, and so do derivatives in the number of whole ones.
    Between two frequencies the characteristic function moves less far than it is away
    from zero at both of them, so that its angle changes by less than half a turn.
    """
    unwound, angles, moduli = [], [], []
    sure = jnp.ones(parts[0].real.shape, bool)
    terms = zip(loss.analytic_terms, loss.counts, contour.plans, parts, strict=True)
    for index, (term, count, plan, part) in enumerate(terms):
        fastest = term.fastest_turn(plan)
        modulus = jnp.exp(stop_gradient(part.real))
        if fastest is None:
            unwound.append(part)
            angles.append(jnp.zeros_like(modulus))
            moduli.append(modulus)
            continue
        fractional = count != jnp.round(count)
        last = jnp.append(before.angles[index], stop_gradient(part.imag))
        turns = -jnp.round(jnp.diff(last) / (2 * jnp.pi))
        here = part.imag + 2 * jnp.pi * jnp.cumsum(turns)
        last = jnp.append(before.moduli[index], modulus)
        nearest = jnp.minimum(last[1:], last[:-1])
        close = (fastest * contour.step < nearest) & (part.error < 0.5)
        known = before.sure & (jnp.cumsum(~close) == 0)
        sure = sure & (known | ~fractional)
        unwound.append(dataclasses.replace(part, imag=here))
        angles.append(here)
        moduli.append(modulus)
    every = lambda x: jnp.stack(x)[:, FREQUENCY_BLOCK - 1 :: FREQUENCY_BLOCK]
    ends = Path(
        every(angles), every(moduli), sure[FREQUENCY_BLOCK - 1 :: FREQUENCY_BLOCK]
    )
    return unwound, sure, stop_gradient(ends)


def _sums(
    index: Array, contour: Contour, epsilons: Array, part: _Characteristic
) -> tuple:
    """Some frequencies' share of the integral, its derivatives and its rounding."""
    count = part.real.size
    start = (index * count).astype(contour.step.dtype) * contour.step
    tau = start + contour.step * jnp.arange(count, dtype=start.dtype)
    share = jnp.where(tau == 0, 0.5, jnp.where(tau <= contour.frequency, 1, 0))
    amplitude = jnp.exp(part.real) * share
    inverse_z = _reciprocal(contour.shift, tau)
    inverse_next = _reciprocal(1 + contour.shift, tau)
    kernel = (
        inverse_z[0] * inverse_next[0] - inverse_z[1] * inverse_next[1],
        inverse_z[0] * inverse_next[1] + inverse_z[1] * inverse_next[0],
    )
    phase = part.angle + tau * (part.drift - epsilons[:, None])
    versine, sine = rotation(phase)
    cosine, sine = amplitude * (1 + versine), amplitude * sine

    def total(kernel: tuple[Array, Array]) -> Array:
        return jnp.sum(cosine * kernel[0] - sine * kernel[1], axis=1)

    terms = contour.blocks * FREQUENCY_BLOCK + 32
    turning = tau * (part.size + jnp.abs(epsilons[:, None])) + jnp.abs(part.angle)
    near = amplitude * jnp.expm1(jnp.minimum(part.error, 1))
    far = share * jnp.exp(jnp.minimum(part.real + part.error, LOG_2))
    rounded = amplitude * ULP * (terms + 4 * turning)
    off = jnp.where(part.error < 1, near, far) + rounded
    size = jnp.hypot(*kernel)
    rounding = jnp.sum(size * off, axis=1)
    # An estimate need not heed more than what it adds.
    blurred = jnp.sum(size * jnp.minimum(off, amplitude), axis=1)
    tails = total(inverse_next), total(inverse_z)
    return total(kernel), (*tails, rounding, blurred)


def _reciprocal(real: Array, imag: Array) -> tuple[Array, Array]:
    norm = jnp.square(real) + jnp.square(imag)
    return real / norm, -imag / norm
