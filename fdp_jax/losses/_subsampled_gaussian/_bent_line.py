"""The growth of an integrand on a line that leaves the real axis."""

import jax.numpy as jnp
from jaxtyping import Array

from ..._internal._rotation import rotation
from ..._internal._special import log1p, log_turned
from .._amplification import inclusion
from ._integrand import Integrand


def along_bent_line(
    one: Integrand,
    x: Array,
    order: Array,
    frequency: Array,
    scale: Array,
    softness: Array | float = 0.0,
) -> Array:
    """The integrand's growth, a logarithm, on a line that leaves the axis.

    On x + i v(x), 0 <= v < pi s^2, the factor e^{i tau X} has modulus
    exp(-tau arg(1 - p + p e^{i v / s^2})), which falls with tau; the other factors are
    the same for every tau.

    Args:
        one: The integrand.
        x: Places on the axis.
        order: The real order w.
        frequency: tau.
        scale: The frequency for which the line is best, or about that.
        softness: One over the square of the width in which a cut falls, which grows
            like e^{v^2 softness / 2}.
    """
    variance = jnp.square(one.noise_multiplier)
    p = inclusion(one.u(x), one.sampling_prob)
    # The best small shift is u = tau p / (1 + softness s^2 + (1 + max(-w, 0) p (1 - p))
    # / s^2); then saturate, for the strip.  For w < 0 the power of the ratio grows with
    # the shift.
    steep = jnp.maximum(-order, 0) / variance
    flat = 1 + 1 / variance + variance * softness
    damping = flat + steep * p * (1 - p)
    u = scale * p / damping
    u_slope = scale * (flat + steep * jnp.square(p)) / jnp.square(damping)
    u_slope = u_slope * p * (1 - p) / variance
    saturation = 1 + u / (0.9 * jnp.pi * variance)
    v, slope = u / saturation, u_slope / jnp.square(saturation)
    modulus, turn = log_turned(p, *rotation(v / variance))
    grown = 0.5 * jnp.square(v) * (1 / variance + softness)
    return grown + order * modulus - frequency * turn + 0.5 * log1p(jnp.square(slope))
