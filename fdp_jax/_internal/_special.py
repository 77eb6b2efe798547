"""Scalar special functions of the normal law, accurate over the whole line.

Every function broadcasts, works in the dtype of its inputs and has derivatives that
are written out rather than traced, so that they stay accurate where the traced ones
cancel or overflow. The common root is the family of moments

    h_k(x) = int_0^inf t^k exp(-x t - t^2 / 2) dt,    x >= 0,

where h_0 = Phic / phi is the Mills ratio, h_k' = -h_{k+1} and
k h_{k-1} = h_{k+1} + x h_k. Read downwards this recursion only adds positive numbers,
so two Chebyshev series (for h_5 and h_6) give all lower moments to rounding error.
The library functions are not used because `jax.scipy.special.log_ndtr` is wrong by
several percent on [5, 8] and `erfcx` is the product of an overflowing and an
underflowing factor.

References:
    J. M. Shepherd and J. G. Laframboise, "Chebyshev approximation of
    (1 + 2x) exp(x^2) erfc x in 0 <= x < inf", Math. Comp. 36 (1981), for the variable
    (x - c) / (x + c).
    W. J. Cody, "Rational Chebyshev approximations for the error function", Math.
    Comp. 23 (1969), for splitting the argument of exp(-x^2 / 2).
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ._logs import LOG_2, LOG_SQRT_2PI

# Coefficients in powers of t = (x - 5) / (x + 5) of h_k(x) (x + 1.625)^(k+1) / k! for
# k = 5 (left) and k = 6 (right): a Chebyshev interpolant of degree 33, first omitted
# coefficient 2e-17, rewritten in powers of t (their absolute sum is only 23, so nothing
# is lost). The power of x keeps the function within [0.7, 3.3] on the half line.
_CENTER = 5.0
_SHIFT = 1.625
_TOP = 5
_MOMENT_SERIES = (
    (2.7718534481284602, 3.000871577384361),
    (-2.0741264536383444, -1.8843897422124154),
    (-1.3679331064060658, -2.7231092070647613),
    (3.2915131605963404, 4.33342341468189),
    (-1.4964494489644327, -0.5252042813357722),
    (-1.3404371967746194, -3.2866015187613336),
    (1.8814009386282646, 2.385778079185589),
    (-0.34922237904066233, 0.8731015530786879),
    (-0.8148278498094604, -1.870612232366358),
    (0.5687406322503771, 0.3482226201875694),
    (0.11873799583474354, 0.8125640919270336),
    (-0.28123615406497027, -0.44351337325765),
    (0.04641318818947214, -0.22568148327255344),
    (0.08934579502974054, 0.23998561464034113),
    (-0.03648299900570732, 0.03887512816588141),
    (-0.022756631849864473, -0.09600960878124208),
    (0.014735702331452494, -0.0022109763873462526),
    (0.0056034918627088336, 0.0335287478079693),
    (-0.0047818723860850966, -0.0008067387983581732),
    (-0.001565120153362569, -0.01109139498698946),
    (0.0013927341734622466, 4.0190614887933654e-05),
    (0.0005166771197847624, 0.0035690984246250085),
    (-0.00037091907964119787, 0.00025167843603084866),
    (-0.00018486437822881567, -0.001101743026776735),
    (8.743817791157405e-05, -0.00019668162548476526),
    (6.406023190386751e-05, 0.0003134397915682727),
    (-1.692259038505341e-05, 9.15838661012009e-05),
    (-1.953894091064027e-05, -7.741569585694225e-05),
    (2.3501380598628422e-06, -2.895595875128828e-05),
    (4.7439052790356734e-06, 1.5241517358449296e-05),
    (-1.7538766154925634e-07, 5.783852530319528e-06),
    (-7.917968104580585e-07, -2.0827203576695046e-06),
    (1.1607503162409852e-09, -5.526568470094323e-07),
    (6.650850076965654e-08, 1.4534642947488095e-07),
)

# Positive half of the 10-point Gauss-Legendre rule on [-1, 1].
_GAUSS_NODES = (
    0.14887433898163122,
    0.4333953941292472,
    0.6794095682990244,
    0.8650633666889845,
    0.9739065285171717,
)
_GAUSS_WEIGHTS = (
    0.29552422471475287,
    0.26926671930999635,
    0.21908636251598204,
    0.1494513491505806,
    0.06667134430868814,
)


def promote(*args: ArrayLike) -> tuple[jax.Array, ...]:
    """Broadcasts the arguments against each other in one floating dtype."""
    dtype = jnp.result_type(*args)
    if not jnp.issubdtype(dtype, jnp.floating):
        dtype = jnp.result_type(float)
    return tuple(jnp.broadcast_arrays(*(jnp.asarray(a, dtype) for a in args)))


def two_product(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns `(p, e)` with `p = fl(a b)` and `p + e = a b` exactly (Dekker).

    Exact as long as nothing overflows or is subnormal; also exact when the compiler
    contracts a product and a sum into a fused operation.
    """
    bits = jnp.finfo(a.dtype).nmant + 1
    factor = jnp.asarray(2.0 ** ((bits + 1) // 2) + 1.0, a.dtype)

    def split(x):
        c = factor * x
        high = c - (c - x)
        return high, x - high

    (a_high, a_low), (b_high, b_low) = split(a), split(b)
    product = a * b
    error = a_high * b_high - product
    error = (error + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _top_moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The two highest scaled moments, by Horner's rule."""
    table = np.asarray(_MOMENT_SERIES, x.dtype)
    # Not (x - c) / (x + c), which is inf / inf at the far end.
    t = (1.0 - 2.0 * _CENTER / (x + _CENTER))[..., None]
    value = table[-1]
    for row in table[-2::-1]:
        value = row + t * value
    return value[..., 0], value[..., 1]


def _moment_pair(order: int, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Moments h_k and h_{k+1} of orders `order` <= 5 and one more."""
    low, high = _top_moments(x)
    away = x + _SHIFT
    scale = 1.0 / away
    ratio = 1.0 - _SHIFT * scale  # x / (x + shift), also for x = inf
    for k in range(_TOP, order, -1):
        low, high = (k + 1) * scale * scale * high + ratio * low, low
    factorial = float(math.factorial(order))
    # Divisions, not products with powers of `scale`: XLA repeats a chain of sums and
    # products, here the whole series, in each of its uses, but no division.
    return (
        factorial * low / away ** (order + 1),
        (order + 1) * factorial * high / away ** (order + 2),
    )


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def mills_moment(order: int, x: jax.Array) -> jax.Array:
    """Moment h_k(x) of order k (0 to 6) for x >= 0; order 0 is the Mills ratio."""
    if order <= _TOP:
        return _moment_pair(order, x)[0]
    if order == _TOP + 1:
        return _moment_pair(_TOP, x)[1]
    # Only reached by derivatives of very high order; loses digits for large x.
    lower, upper = mills_moment(order - 2, x), mills_moment(order - 1, x)
    return (order - 1) * lower - x * upper


@mills_moment.defjvp
def _mills_moment_jvp(order, primals, tangents):
    (x,), (dx,) = primals, tangents
    return mills_moment(order, x), -mills_moment(order + 1, x) * dx


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


@jax.jit
def mills(x: ArrayLike) -> jax.Array:
    """Mills ratio Phic(x) / phi(x); grows like exp(x^2 / 2) for negative x."""
    (x,) = promote(x)
    positive = mills_moment(0, jnp.abs(x))
    negative = jnp.where(x < 0, x, 0.0)
    reflected = jnp.exp(0.5 * negative * negative + LOG_SQRT_2PI) - positive
    return jnp.where(x < 0, reflected, positive)


def _difference_and_ends(order: int, a: jax.Array, width: jax.Array):
    """`(h_k(a) - h_k(a + width), h_k(a), h_k(a + width))` for a, width >= 0."""
    # While the two moments differ by less than about a third, integrate the derivative;
    # beyond that, subtracting loses no more than two bits.
    narrow = width < 0.5 * (1.0 + a)
    half = 0.5 * jnp.where(narrow, width, 0.0)
    nodes = np.asarray(_GAUSS_NODES + tuple(-u for u in _GAUSS_NODES), a.dtype)
    weights = np.asarray(_GAUSS_WEIGHTS * 2, a.dtype)
    inner = (a + half)[..., None] + half[..., None] * nodes
    ends = jnp.stack([a, a + width], axis=-1)
    # One call for nodes and ends: compiling the series is the expensive part.
    lower, upper = _moment_pair(order, jnp.concatenate([inner, ends], axis=-1))
    integral = half * jnp.sum(weights * upper[..., :-2], axis=-1)
    left, right = lower[..., -2], lower[..., -1]
    return jnp.where(narrow, integral, left - right), left, right


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _moment_difference(order: int, a: jax.Array, width: jax.Array) -> jax.Array:
    return _difference_and_ends(order, a, width)[0]


@_moment_difference.defjvp
def _moment_difference_jvp(order, primals, tangents):
    (a, width), (da, dwidth) = primals, tangents
    slope = _moment_difference(order + 1, a, width)
    end = mills_moment(order + 1, a + width)
    return _moment_difference(order, a, width), end * dwidth - slope * da


@jax.jit
def mills_difference(a: ArrayLike, width: ArrayLike) -> jax.Array:
    """Difference m(a) - m(a + width) of Mills ratios, for a >= 0 and width >= 0.

    Full relative accuracy for any width, also below the spacing of the numbers
    around `a`. Negative arguments are outside the domain.
    """
    return _moment_difference(0, *promote(a, width))


def mills_parts(a: jax.Array, width: jax.Array) -> tuple[jax.Array, ...]:
    """`(m(a) - m(a + width), m(a), m(a + width))` in one evaluation.

    For use under a derivative rule: differentiating it is legal but not accurate.
    """
    return _difference_and_ends(0, a, width)


@jax.custom_jvp
def _log1p(x: jax.Array) -> jax.Array:
    # The library's log1p loses two digits on [-1/2, -0.29].  The rounding error of
    # 1 + x is put back (Kahan); without a barrier XLA holds it to be zero.
    total = jax.lax.optimization_barrier(1.0 + x)
    inner = (total > 0) & (total < jnp.inf)
    safe = jnp.where(inner, total, 1.0)
    lost = jnp.where(inner, x - (total - 1.0), 0.0)
    return jnp.log(total) + lost / safe


@_log1p.defjvp
def _log1p_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    tiny = jnp.finfo(x.dtype).tiny
    return _log1p(x), dx / jnp.maximum(1.0 + x, tiny)


@jax.jit
def log1p(x: ArrayLike) -> jax.Array:
    """log(1 + x) to rounding error for x >= -1; finite slope at the end."""
    return _log1p(*promote(x))


@jax.custom_jvp
def lower_hazard(x: jax.Array) -> jax.Array:
    """phi(x) / Phi(x) of a floating array: the slope of log Phi, or 1 / m(-x)."""
    ratio, density = mills_moment(0, jnp.abs(x)), norm_pdf(x)
    return jnp.where(x < 0, 1.0 / ratio, density / (1.0 - density * ratio))


@lower_hazard.defjvp
def _lower_hazard_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    hazard = lower_hazard(x)
    # x + hazard cancels in the lower tail, where it equals h_1 / h_0 at -x.
    far = -jnp.minimum(x, 0.0)
    lower = mills_moment(1, far) / mills_moment(0, far)
    curvature = jnp.where(x < 0, lower, jnp.maximum(x, 0.0) + hazard)
    return hazard, -hazard * curvature * dx


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


@_log_ndtr.defjvp
def _log_ndtr_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return _log_ndtr(x), lower_hazard(x) * dx


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


@jax.jit
def log_mills(x: ArrayLike) -> jax.Array:
    """Logarithm of the Mills ratio Phic(x) / phi(x), for every real x."""
    (x,) = promote(x)
    positive = jnp.log(mills_moment(0, jnp.maximum(x, 0.0)))
    negative = jnp.minimum(x, 0.0)
    reflected = log_ndtr(-negative) + 0.5 * negative * negative + LOG_SQRT_2PI
    return jnp.where(x < 0, reflected, positive)


@jax.custom_jvp
def _log1mexp(x: jax.Array) -> jax.Array:
    small = x < LOG_2
    near = jnp.log(-jnp.expm1(-jnp.where(small, x, 1.0)))
    far = _log1p(-jnp.exp(-jnp.where(small, 1.0, x)))
    return jnp.where(small, near, far)


@_log1mexp.defjvp
def _log1mexp_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    # The slope is infinite at zero; a huge finite number keeps 0 * inf out.
    tiny = jnp.finfo(x.dtype).tiny
    slope = jnp.exp(-x) / jnp.maximum(-jnp.expm1(-x), tiny)
    return _log1mexp(x), slope * dx


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
    for _ in range(3):  # Halley: each step triples the digits
        far = -z
        m = mills_moment(0, far)
        step = (_log_ndtr(z) - target) * m
        curvature = mills_moment(1, far) / m  # (log Phi)'' / -(log Phi)' = z + phi/Phi
        z = jnp.minimum(z - step / (1.0 + 0.5 * step * curvature), 0.0)
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


def log_ndtri(log_p: ArrayLike) -> jax.Array:
    """Normal quantile z of a probability given by its log: log Phi(z) = log_p."""
    (log_p,) = promote(log_p)
    return _ndtri_from_logs(log_p, log1mexp(-log_p))


@jax.jit
def safe_log(x: ArrayLike) -> jax.Array:
    """Log x for x > 0, else -inf with a zero derivative; NaN stays NaN."""
    (x,) = promote(x)
    none = x <= 0
    return jnp.where(none, -jnp.inf, jnp.log(jnp.where(none, 1, x)))


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
