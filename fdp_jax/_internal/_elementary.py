"""Logarithm and angle, in arithmetic that a CPU does several numbers at a time.

XLA compiles both in float64 for a CPU into one library call per number, which was a
fifth of the time of a sweep.  Here the argument is brought near one (near zero), and
the rest is a polynomial.  A few numbers, numbers of another type, and other devices are
left to XLA.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

# (log((1 + s) / (1 - s)) / s - 2) / s^2 in powers of s^2, for s up to that of sqrt(2),
# and (1 - atan(q) / q) / q^2 in powers of q^2, for q up to 7/16: Chebyshev fits with
# errors 9e-18 and 2e-17, by mpmath's `chebyfit`.
_LOGARITHM = (
    0.666666666666666969,
    0.399999999998994432,
    0.285714286260032688,
    0.222222111302598742,
    0.181828894556751061,
    0.153317106182064204,
    0.146165854249341216,
)
_ARC_TANGENT = (
    0.333333333333333237,
    -0.199999999999877568,
    0.142857142831465486,
    -0.111111109004098052,
    0.0909090019007515578,
    -0.0769208723459577627,
    0.0666323785807622372,
    -0.0584771350331029398,
    0.0503389017483929518,
    -0.0378238568623466182,
    0.0175457405884154266,
)
# Leading bits, whose product with an exponent is exact, and the rest.
_LOG_2 = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
_HALF = float.fromhex("0x1.dac670561bb4fp-2"), float.fromhex("0x1.a2b7f222f65e2p-56")
"""The arc tangent of one half."""
_PI = math.pi, float.fromhex("0x1.1a62633145c07p-53")
_FEW = 16
"""Numbers up to which a call of a library is no slower."""
_ONE_BITS = 0x3FF0000000000000
_ROOT_BITS = 0x3FE6A09E00000000
"""Of about sqrt(1/2)."""
_FRACTION_BITS = (1 << 52) - 1
_BIAS = 1023


def log_within(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The logarithm, to one unit in the last place; -inf at zero, NaN below.

    Of subnormal numbers, which XLA takes for zero on a CPU, it is -inf too: no upper
    bound may rest on those.
    """
    return _log(x) if _is_worth_it(x) else jnp.log(x)


def arctan2_within(y: Float[Array, "..."], x: Float[Array, "..."]) -> Array:
    """The angle of a finite point, to two units in the last place.

    That of the origin is zero.  No coordinate may be so large or so small that it is
    near the limits of its type.
    """
    y, x = jnp.broadcast_arrays(y, x)
    return _arctan2(y, x) if _is_worth_it(y) else jnp.arctan2(y, x)


def _is_worth_it(x: Array) -> bool:
    many = x.size > _FEW
    return many and jax.default_backend() == "cpu"


@jax.custom_jvp
def _log(x: Array) -> Array:
    # x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2) (Muller 2016, chapter 11).
    bits = lax.bitcast_convert_type(x, jnp.int64) + (_ONE_BITS - _ROOT_BITS)
    exponent = ((bits >> 52) - _BIAS).astype(x.dtype)
    near = lax.bitcast_convert_type((bits & _FRACTION_BITS) + _ROOT_BITS, x.dtype)
    f = near - 1
    s = f / (2 + f)
    half, square = 0.5 * f * f, s * s
    # log(1 + f) = f - (half - s (half + R)), so that only f counts in full.
    rest = s * (half + square * polynomial(_LOGARITHM, square))
    found = exponent * _LOG_2[0] + (f - (half - (rest + exponent * _LOG_2[1])))
    found = _select(x < jnp.inf, found, x)
    normal = x >= jnp.finfo(x.dtype).tiny
    return _select(normal, found, _select(x >= 0, -jnp.inf, jnp.nan))


@_log.defjvp
def _log_jvp(primals, tangents):
    (x,), (change,) = primals, tangents
    return _log(x), change / x


@jax.custom_jvp
def _arctan2(y: Array, x: Array) -> Array:
    beside, along = abs(y), abs(x)
    least, most = lax.min(beside, along), lax.max(beside, along)
    most = _select(most == 0, 1, most)
    # Measured from the next of the angles whose tangents are 0, 1/2 and 1.
    some, steep = least > 7 / 16 * most, least > 11 / 16 * most
    near = lambda at_one, at_half: _select(steep, at_one, _select(some, at_half, 0))
    tangent = near(1, 0.5)
    q = (least - tangent * most) / (most + tangent * least)
    square = q * q
    rest = q * square * polynomial(_ARC_TANGENT, square)
    angle = near(_PI[0] / 4, _HALF[0]) - ((rest - near(_PI[1] / 4, _HALF[1])) - q)
    angle = _select(beside > along, _PI[0] / 2 - (angle - _PI[1] / 2), angle)
    angle = _select(x < 0, _PI[0] - (angle - _PI[1]), angle)
    return _select(y < 0, -angle, angle)


@_arctan2.defjvp
def _arctan2_jvp(primals, tangents):
    (y, x), (up, along) = primals, tangents
    size = x * x + y * y
    return _arctan2(y, x), (x / size) * up - (y / size) * along


def _select(which: Array, one: ArrayLike, other: ArrayLike) -> Array:
    """`jnp.where`, which would be a function of its own here."""
    full = lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.float64), which.shape)
    return lax.select(which, full(one), full(other))


def polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    value = x * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        value = value * x + coefficient
    return value
