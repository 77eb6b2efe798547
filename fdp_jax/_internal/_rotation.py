"""A point on the unit circle, in arithmetic that a CPU does several numbers at a time.

XLA compiles sine and cosine for a CPU into one library call per number; the sums over
frequencies spend most of their time there.  Here the half angle is reduced to
[-pi/4, pi/4] (Cody & Waite 1980, chapter 8) and both functions are polynomials.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._arithmetic import polynomial

# (sin(r) / r - 1) / r^2 and (cos(r) - 1) / r^2 in powers of r^2 on [0, pi/4]: Chebyshev
# fits with errors 2e-17 and 2e-19, by mpmath's `chebyfit`.
_SINE = (
    -0.166666666666666646,
    0.00833333333333094848,
    -0.000198412698367585707,
    2.75573161025505712e-6,
    -2.50511318446141068e-8,
    1.59181292668033941e-10,
)
_COSINE = (
    -0.5,
    0.0416666666666666354,
    -0.00138888888888807751,
    0.0000248015872936934514,
    -2.75573155663397071e-7,
    2.08758867376999401e-9,
    -1.13679986335610288e-11,
)
# pi / 2 in three parts, of which multiples by integers up to 2^20 are exact.
_HALF_PI = (
    float.fromhex("0x1.921fb544p+0"),
    float.fromhex("0x1.0b4611a6p-34"),
    float.fromhex("0x1.3198a2e037073p-69"),
)


@jax.jit
def rotation(angle: Float[Array, "..."]) -> tuple[Array, Array]:
    """cos(angle) - 1 and sin(angle).

    Both have full relative accuracy near zero, and elsewhere errors of at most two
    units in the last place of 1 and of the angle.
    """
    return _rotation(angle)


@jax.custom_jvp
def _rotation(angle: Array) -> tuple[Array, Array]:
    half = 0.5 * angle
    turns = jnp.round(angle * (1 / np.pi))
    rest = half
    for part in _HALF_PI:
        rest = rest - turns * part
    rest = jnp.clip(rest, -1, 1)  # an angle beyond all digits is any angle
    square = jnp.square(rest)
    sine = rest + rest * square * polynomial(_SINE[::-1], square)
    cosine = 1 + square * polynomial(_COSINE[::-1], square)
    odd = turns != 2 * jnp.round(0.5 * turns)
    versine = -2 * jnp.square(jnp.where(odd, cosine, sine))
    return versine, jnp.where(odd, -2, 2) * sine * cosine


@_rotation.defjvp
def _rotation_jvp(primals, tangents):
    (angle,), (change,) = primals, tangents
    versine, sine = _rotation(angle)
    return (versine, sine), (-sine * change, (1 + versine) * change)
