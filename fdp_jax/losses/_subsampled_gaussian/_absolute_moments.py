"""Moments of |X| of one release of the subsampled Gaussian."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._loss_moments import LossMoments, excess, moments_of, panels
from ._integrand import Integrand

_REACH = 13.0
"""Standard deviations that moments look at on either side."""


def loss_moments(term: Integrand, sign: int) -> LossMoments:
    """Moments of |X| of one release, under P (sign 1) or of the exchanged pair."""
    p, s = term.sampling_prob, term.noise_multiplier
    shift = 1 / s

    def gain(z: Array) -> Array:
        # dQ/dP - 1 at the output s z.
        return p * jnp.expm1(jnp.minimum((z - 0.5 * shift) * shift, 700.0))

    def weight(z: Array) -> Array:
        density = jnp.exp(-0.5 * jnp.square(z)) / np.sqrt(2 * np.pi)
        if sign > 0:
            return density
        other = jnp.exp(-0.5 * jnp.square(z - shift)) / np.sqrt(2 * np.pi)
        return (1 - p) * density + p * other

    def loss_at(z: Array) -> Array:
        return sign * jnp.log1p(gain(z))

    most = _REACH + (shift if sign < 0 else 0.0)
    start = jnp.full_like(p, -_REACH)
    zero = 0.5 * shift
    rough = jnp.stack([start, jnp.clip(zero, -_REACH, most), start * 0 + most])
    z, weights = panels(rough)
    # Of the direction's own X, since E e^X = 1.
    v1 = (weights * weight(z)) @ excess(loss_at(z))
    # |X + v1| has its kink where dQ/dP = e^-v1 (e^v1 in the other direction).
    safe = jnp.where(p > 0, p, 1.0)
    level = jnp.expm1(-sign * v1) / safe
    kink = zero + s * jnp.log1p(jnp.maximum(level, -1 + 1e-12))
    cuts = jnp.sort(
        jnp.clip(jnp.stack([start, zero, kink, most + 0 * start]), start, most)
    )
    z, weights = panels(cuts)
    return moments_of(loss_at(z), weights * weight(z), v1)
