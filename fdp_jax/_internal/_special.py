"""Scalar special functions of the normal law, accurate over the whole line.

Every function broadcasts, works in the dtype of its inputs and has derivatives that
are written out rather than traced, so that they stay accurate where the traced ones
cancel or overflow. The common root is the Mills ratio with its derivatives.
The library functions are not used because `jax.scipy.special.log_ndtr` is wrong by
several percent on [5, 8] and `erfcx` is the product of an overflowing and an
underflowing factor.

References:
    W. J. Cody, "Rational Chebyshev approximations for the error function", Math.
    Comp. 23 (1969), for splitting the argument of exp(-x^2 / 2).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ._arithmetic import promote
from ._logs import LOG_2, LOG_SQRT_2PI
from ._mills import mills_moment
from ._tolerances import DEAD_SQUARE


@jax.jit
def norm_pdf(x: ArrayLike) -> jax.Array:
    """Density of the standard normal law, relative accuracy in the far tail too."""
    (x,) = promote(x)
    # Beyond 40 the result is zero; the cut keeps inf - inf out. Squaring the leading
    # bits of x is exact, so the rounding error of x^2 is not multiplied by x^2.
    x = jnp.clip(x, -40.0, 40.0)
    lead = jax.lax.stop_gradient(jnp.round(x * 16.0) / 16.0)
    rest = (x - lead) * (x + lead)
    scale = jnp.asarray(np.exp(-LOG_SQRT_2PI), x.dtype)
    return scale * jnp.exp(-0.5 * lead * lead) * jnp.exp(-0.5 * rest)


@jax.custom_jvp
def _log1p(x: jax.Array) -> jax.Array:
    # The library's loses two digits on [-1/2, -0.29], where 1 + x hardly rounds.
    return jnp.where(x < -0.25, jnp.log(1 + x), jax.lax.log1p(x))


_log1p.defjvps(
    lambda dx, _, x: dx / jnp.maximum(1.0 + x, jnp.finfo(x.dtype).tiny),
)


@jax.jit
def log1p(x: ArrayLike) -> jax.Array:
    """log(1 + x) to two units for x >= -1; finite slope at the end."""
    return _log1p(*promote(x))


@jax.custom_jvp
def lower_hazard(x: jax.Array) -> jax.Array:
    """phi(x) / Phi(x) of a floating array: the slope of log Phi, or 1 / m(-x)."""
    ratio, density = mills_moment(0, jnp.abs(x)), norm_pdf(x)
    return jnp.where(x < 0, 1.0 / ratio, density / (1.0 - density * ratio))


def _lower_hazard_slope(dx: jax.Array, hazard: jax.Array, x: jax.Array) -> jax.Array:
    # x + hazard cancels in the lower tail, where it equals h_1 / h_0 at -x.
    far = -jnp.minimum(x, 0.0)
    lower = mills_moment(1, far) / mills_moment(0, far)
    curvature = jnp.where(x < 0, lower, jnp.maximum(x, 0.0) + hazard)
    return -hazard * curvature * dx


lower_hazard.defjvps(_lower_hazard_slope)


@jax.custom_jvp
def _log_ndtr(x: jax.Array) -> jax.Array:
    far = jnp.abs(x)
    ratio = mills_moment(0, far)
    # Around zero erf is good to the last digit, and log_ndtr(0) = log(1/2) exactly.
    middle = far < 1.0
    small = jnp.where(middle, far, 0.0)
    tail = 0.5 - 0.5 * jax.scipy.special.erf(small / np.sqrt(2.0).astype(x.dtype))
    # Below zero the logarithm of the tail; of the Mills ratio where that underflows.
    log_lower = jnp.log(jnp.where(middle, tail, ratio))
    lower = jnp.where(middle, log_lower, (log_lower - LOG_SQRT_2PI) - 0.5 * x * x)
    above = jnp.where(middle, tail, jnp.minimum(norm_pdf(x) * ratio, 0.5))
    return jnp.where(x < 0, lower, _log1p(-above))


_log_ndtr.defjvps(lambda dx, _, x: lower_hazard(x) * dx)


@jax.jit
def log_ndtr(x: ArrayLike) -> jax.Array:
    """Logarithm of the standard normal distribution function, for every real x."""
    return _log_ndtr(*promote(x))


@jax.jit
def log_ndtr_difference(low: ArrayLike, high: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """log(Phi(high) - Phi(low)) for low <= high, from the tail that does not cancel.

    Arguments beyond 1e100 in size count as infinite.

    Returns:
        The logarithm, and a bound on its error if the arguments are off by a few units
        in the last place (without derivative).
    """
    low, high = (jnp.clip(x, -1e100, 1e100) for x in promote(low, high))
    flip = low + high > 0
    low, high = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    empty = low >= high
    low = jnp.where(empty, high - 1, low)
    # Barrier: XLA would compute these anew for each of their uses.
    top, bottom = jax.lax.optimization_barrier(log_ndtr(jnp.stack([high, low])))
    gap = jnp.where(empty, 1.0, top - bottom)
    value = jnp.where(empty, -jnp.inf, top + log1mexp(gap))
    # An error of x counts x phi(x) / Phi(x) <= 1 + x^2 times, about twice the log.
    unit, cap = 32 * jnp.finfo(gap.dtype).eps, jnp.log(jnp.finfo(gap.dtype).max) - 1
    size = unit * (1 + jnp.abs(jax.lax.stop_gradient(bottom)))
    error = size / jnp.expm1(jnp.minimum(jax.lax.stop_gradient(gap), cap))
    error = error + unit * (1 + jnp.abs(jax.lax.stop_gradient(top)))
    return value, jnp.where(empty, 0, error)


@jax.custom_jvp
def _log1mexp(x: jax.Array) -> jax.Array:
    near, far = jnp.log(-jnp.expm1(-x)), _log1p(-jnp.exp(-x))
    return jnp.where(x < LOG_2, near, far)


def _log1mexp_slope(dx: jax.Array, _: jax.Array, x: jax.Array) -> jax.Array:
    # The slope is infinite at zero; a huge finite number keeps 0 * inf out.
    slope = jnp.exp(-x) / jnp.maximum(-jnp.expm1(-x), jnp.finfo(x.dtype).tiny)
    return slope * dx


_log1mexp.defjvps(_log1mexp_slope)


@jax.jit
def log1mexp(x: ArrayLike) -> jax.Array:
    """log(1 - exp(-x)) for x >= 0 (Maechler's two forms); -inf at zero."""
    return _log1mexp(*promote(x))


def _log_ndtri_lower(log_p: jax.Array) -> jax.Array:
    """Solves log Phi(z) = log_p for z <= 0, given log_p <= log(1/2)."""
    largest = jnp.finfo(log_p.dtype).max / 4.0
    target = jnp.clip(log_p, -largest, -LOG_2)
    # Rational start (Abramowitz and Stegun 26.2.23), within 5e-4, in the reciprocal
    # of the usual variable so that nothing overflows.
    t = jnp.sqrt(-2.0 * target)
    u = 1.0 / t
    numerator = ((2.515517 * u + 0.802853) * u + 0.010328) * u
    denominator = ((u + 1.432788) * u + 0.189269) * u + 0.001308
    z = jnp.minimum(numerator / denominator - t, 0.0)

    def halley(_: int, z: jax.Array) -> jax.Array:
        far = -z
        m = mills_moment(0, far)
        step = (_log_ndtr(z) - target) * m
        curvature = mills_moment(1, far) / m  # (log Phi)'' / -(log Phi)' = z + phi/Phi
        return jnp.minimum(z - step / (1.0 + 0.5 * step * curvature), 0.0)

    z = jax.lax.fori_loop(0, 3, halley, z)  # Each step triples the digits.
    return jnp.where(log_p < -largest, -jnp.inf, z)


@jax.custom_jvp
def _ndtri_from_logs(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    z = _log_ndtri_lower(jnp.minimum(log_p, log_q))
    return jnp.where(log_p <= log_q, z, -z)


@_ndtri_from_logs.defjvp
def _ndtri_from_logs_jvp(primals, tangents):
    (log_p, log_q), (dlog_p, dlog_q) = primals, tangents
    z = _ndtri_from_logs(log_p, log_q)
    # dz = Phi/phi dlog_p = -Phic/phi dlog_q; the smaller probability is the one used.
    lower = log_p <= log_q
    slope = mills_moment(0, jnp.where(lower, -z, z))
    return z, slope * jnp.where(lower, dlog_p, -dlog_q)


@jax.jit
def ndtri_from_logs(log_p: ArrayLike, log_one_minus_p: ArrayLike) -> jax.Array:
    """Normal quantile of a probability given by its log and that of its complement.

    Accurate at both ends. The derivative is taken with respect to whichever of the
    two arguments is smaller, so differentiate along a curve on which they belong
    together.
    """
    return _ndtri_from_logs(*promote(log_p, log_one_minus_p))


@jax.jit
def log_ndtri(log_p: ArrayLike) -> jax.Array:
    """Normal quantile z of a probability given by its log: log Phi(z) = log_p."""
    (log_p,) = promote(log_p)
    return _ndtri_from_logs(log_p, log1mexp(-log_p))


def log_one_plus(
    real: jax.Array, imag: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log of the modulus, argument and square of the modulus of 1 + real + i imag.

    The first two have full relative accuracy near zero.  Where the modulus is less than
    rounding they are those of a small positive number, without derivative.
    """
    excess = 2 * real + jnp.square(real) + jnp.square(imag)
    square = jnp.square(1 + real) + jnp.square(imag)
    close, dead = jnp.abs(excess) < 0.5, square < DEAD_SQUARE
    near = 0.5 * log1p(jnp.where(close, excess, 0.0))
    far = 0.5 * jnp.log(jnp.where(close | dead, 1.0, square))
    modulus = jnp.where(close, near, far)
    modulus = jnp.where(dead, 0.5 * np.log(DEAD_SQUARE), modulus)
    angle = jnp.arctan2(jnp.where(dead, 0, imag), jnp.where(dead, 1, 1 + real))
    return modulus, angle, square


def log_turned(
    share: jax.Array, versine: jax.Array, sine: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Log of the modulus, and argument, of 1 - p + p e^{it}.

    Of a rotation's cos t - 1 and sin t and a share p.
    """
    modulus = 0.5 * log1p(2 * share * (1 - share) * versine)
    return modulus, jnp.arctan2(share * sine, 1 + share * versine)


@jax.jit
def safe_log(x: ArrayLike) -> jax.Array:
    """Log x for x > 0, else -inf with a zero derivative; NaN stays NaN."""
    (x,) = promote(x)
    none = x <= 0
    return jnp.where(none, -jnp.inf, jnp.log(jnp.where(none, 1, x)))


def log_weighted_sum(weights: jax.Array, logs: jax.Array) -> jax.Array:
    """Log of the sum of weights times e^x over the first axis; -inf for none.

    The weights are a vector of numbers >= 0; those of zero have a derivative.
    """
    weights = jnp.expand_dims(weights, range(1, logs.ndim))
    peak = jnp.max(jnp.where(weights > 0, logs, -jnp.inf), axis=0)
    peak = jax.lax.stop_gradient(jnp.where(jnp.isfinite(peak), peak, 0))
    # The cap is for those of weight zero, which may have any logarithm.
    scaled = jnp.exp(jnp.minimum(logs - peak, 709.0))
    return safe_log(jnp.sum(weights * scaled, axis=0)) + peak


@jax.jit
def log_sum_exp(logs: jax.Array, chosen: jax.Array) -> jax.Array:
    """Log of the sum of e^x over chosen entries of the last axis; -inf for none.

    Entries may be -inf; no derivative is NaN.  The sum is NaN if one of them is.
    """
    logs = jnp.where(chosen, logs, -jnp.inf)
    peak = jax.lax.stop_gradient(jnp.max(logs, axis=-1, keepdims=True))
    peak = jnp.where(jnp.isfinite(peak), peak, 0)
    none = jnp.isneginf(logs)
    terms = jnp.where(none, 0, jnp.exp(jnp.where(none, 0, logs - peak)))
    return safe_log(jnp.sum(terms, axis=-1)) + peak[..., 0]
