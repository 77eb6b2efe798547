"""Moments of |X| of one release of the subsampled Gaussian."""

import jax.numpy as jnp
from jaxtyping import Array

from .._loss_moments import LossMoments, excess, moments_of, panels
from .._normal_nodes import UNIT_MASS
from ._integrand import Integrand

_REACH = 13.0
"""Standard deviations that moments look at on either side."""


def loss_moments(term: Integrand, sign: int) -> LossMoments:
    """Moments of |X| of one release, under P (sign 1) or of the exchanged pair."""
    s = term.noise_multiplier
    p, zero = term.sampling_prob, 0.5 / s

    def law(z: Array) -> tuple[Array, Array]:
        """The direction's loss and density at the output s z."""
        value, _, _, log_p, _ = term.at(z)
        return sign * value, UNIT_MASS * jnp.exp(log_p + (value if sign < 0 else 0.0))

    most = _REACH + (1 / s if sign < 0 else 0.0)
    start = jnp.full_like(p, -_REACH)
    rough = jnp.stack([start, jnp.clip(zero, -_REACH, most), start * 0 + most])
    z, weights = panels(rough)
    values, masses = law(z)
    # Of the direction's own X, since E e^X = 1.
    v1 = (weights * masses) @ excess(values)
    # |X + v1| has its kink where dQ/dP = e^-v1 (e^v1 in the other direction).
    safe = jnp.where(p > 0, p, 1.0)
    level = jnp.expm1(-sign * v1) / safe
    kink = zero + s * jnp.log1p(jnp.maximum(level, -1 + 1e-12))
    cuts = jnp.sort(
        jnp.clip(jnp.stack([start, zero, kink, most + 0 * start]), start, most)
    )
    z, weights = panels(cuts)
    values, masses = law(z)
    return moments_of(values, weights * masses, v1)
