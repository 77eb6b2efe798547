"""The integrand of everything, and the map that makes the trapezoid rule converge.

Noise s, r = 1 / (2 s): P = N(0, 1), Q = (1 - q) N(0, 1) + q N(2 r, 1), observed at
r + t, where X(t) = log(1 - q + q e^{2 r t}) is zero at t = 0 whatever q is.  The pair
has the losses X(t), t > 0, and -X(t) with the same tilted masses, and none else:

    T(w) = E_P (dQ/dP)^w = 1 + integral_0^inf phi(r + t) G(t) dt,
    G = R^w + R^{1-w} - 1 - R = -(R^w - 1) (R^{1-w} - 1),    R = e^X.

With t = log(1 + e^v) the integrand falls like e^{3 v} on the left and like a normal
density on the right, and is analytic in a strip around the real line: the trapezoid
rule in v has an error that falls exponentially with the number of nodes.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._internal._logs import LOG_SQRT_2PI
from ..._internal._tolerances import ELEMENTARY
from .._amplification import inclusion, log_ratio

NODES = 64
"""Nodes evaluated together."""


class Integrand(eqx.Module):
    """See the module's docstring; `sampling_prob` is in (0, 1]."""

    noise_multiplier: Float[Array, ""]
    sampling_prob: Float[Array, ""]

    @property
    def half(self) -> Array:
        """r: half the distance of the two normal laws."""
        return 0.5 / self.noise_multiplier

    def u(self, t: Array) -> Array:
        """Log of the likelihood ratio of a record that is sampled."""
        return 2 * self.half * t

    def loss_at(self, t: Array) -> Array:
        """X(t)."""
        return log_ratio(self.u(t), self.sampling_prob)

    def share(self, t: Array) -> Array:
        """Posterior probability that the record was sampled: X' = 2 r times it."""
        return inclusion(self.u(t), self.sampling_prob)

    def log_base(self, t: Array) -> Array:
        """Log of the density of P."""
        return -0.5 * jnp.square(self.half + t) - LOG_SQRT_2PI


def place_of(v: Array) -> tuple[Array, Array]:
    """T = log(1 + e^v) and its derivative."""
    least = jnp.exp(-jnp.abs(v))
    # Of a moderate number: the library's own is exact enough where it is small, too.
    t = jnp.maximum(v, 0) + jnp.log1p(least)
    return t, jnp.where(v > 0, 1, least) / (1 + least)


def preimage(t: Array) -> Array:
    """The v of a t > 0."""
    return t + jnp.log(-jnp.expm1(-t))


def nodes_of(index: Array, start: Array, spacing: Array) -> Array:
    """The nodes of one block."""
    position = index * NODES + jnp.arange(NODES, dtype=index.dtype)
    return start + spacing * position.astype(start.dtype)


def growth_at(
    one: Integrand, t: Array, loss: Array, order: Array, peak: Array
) -> Array:
    """e^-peak times the density of P times G, for a real order; of one sign."""
    more, less = jnp.maximum(order, 1 - order), jnp.minimum(order, 1 - order)
    base, exponent = one.log_base(t) - peak, more * loss
    # Where e^{w X} may overflow, in one exponent.
    big = exponent > 1
    near = jnp.exp(base) * jnp.expm1(jnp.where(big, 0, exponent))
    far = jnp.exp(base + jnp.where(big, exponent, 0)) - jnp.exp(base)
    return -jnp.where(big, far, near) * jnp.expm1(less * loss)


def tilted_at(
    one: Integrand, t: Array, loss: Array, order: Array, peak: Array
) -> tuple[Array, Array]:
    """e^-peak times the density of P times R^w, and times R^{1-w}."""
    base = one.log_base(t) - peak
    return jnp.exp(base + order * loss), jnp.exp(base + (1 - order) * loss)


def uncertainty_at(one: Integrand, t: Array, loss: Array, order: Array) -> Array:
    """Relative rounding of the two above, in units in the last place.

    Nodes v are exact; t has the errors of two functions where it is small, and of one
    sum elsewhere; exponents have that of t, times their elasticity, and their own.
    """
    away = jnp.square(one.half + t)
    orders = 1 + jnp.abs(order) + jnp.abs(1 - order)
    return ELEMENTARY * (2 + away + orders * loss_uncertainty(one, t, loss))


def loss_uncertainty(one: Integrand, t: Array, loss: Array) -> Array:
    """The size of X, with what a relative change of t makes of it."""
    return loss + one.u(t) * one.share(t)
