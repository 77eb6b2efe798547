"""Bounds of what is outside of a band of `_band.py`."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._internal._arithmetic import ULP
from ..._internal._special import log1p, log_ndtr
from ..._internal._tolerances import BAND_QUADRATURE, BAND_SUM, LEAST_SUM
from ._band import BandLoss
from ._band_place import NODES

_MOST = 900.0
"""An exponent beyond which Chernoff's bound is given up."""
_SHIFT = 300.0
"""What exponents are moved by, so that neither factor of a product leaves the range."""


def _step_bound(t: Array, shift: ArrayLike) -> Array:
    """A bound of e^shift Phi(t), less than twice as large, in few operations.

    From that of Mills' ratio by Sampford (1953), 4 / (3 x + sqrt(x^2 + 8)).
    """
    x = jnp.maximum(-t, 0)
    tail = 4 / (3 * x + jnp.sqrt(jnp.square(x) + 8)) / math.sqrt(2 * math.pi)
    return jnp.exp(shift - 0.5 * jnp.square(x)) * jnp.where(t < 0, tail, 1)


def log_masses_above(
    part: BandLoss, order: Float[Array, " k"], cuts: Float[Array, " c"]
) -> tuple[Float[Array, "k c"], Float[Array, " k"]]:
    """Bounds of log E_P[R^w c] above some cuts, and of log E_P[R^w].

    But for what `log_outside` counts.
    """
    x, end, s = part.place.nodes(), part.place.ends[1], part.step.noise_multiplier
    # R <= e^u beyond the end for w > 0; for w < 0, R^w falls.
    rising = 0.5 * order * (order - 1) / jnp.square(s) + log_ndtr((order - end) / s)
    falling = order * part.step.loss_at(end) + log_ndtr(-end / s)
    beyond = jnp.where(order > 0, rising, falling)
    logs = jax.vmap(lambda w: part.step.log_integrand(x, w))(order)
    peak = jnp.max(logs, axis=1, keepdims=True)
    weights = jnp.exp(logs - peak) * part.place.spacing
    # Both are larger here: only products far below the least number are lost.
    lifted = jnp.exp(logs - peak + _SHIFT) * part.place.spacing
    kept = _step_bound((x[:, None] - cuts) / part.place.width, _SHIFT)
    allowance = part.trapezoid_error(x, order) + BAND_QUADRATURE
    sizes = jnp.abs(part.step.log_base(x)) + jnp.abs(order)[:, None] * jnp.abs(
        part.step.loss_at(x)
    )
    mass = jnp.sum(weights, axis=1)
    rounding = 8 * ULP * (8 + jnp.sum(weights * sizes, axis=1) / mass)
    total = peak[:, 0] + jnp.log(mass) + allowance + rounding
    # Of no weight there is left what may have been lost below the least number.
    lost = LEAST_SUM * (1 + part.place.spacing) * math.exp(_SHIFT)
    allowance = allowance + 8 * ULP * (8 + jnp.max(sizes, axis=1))
    above = peak + jnp.log(lifted @ kept + lost) - 2 * _SHIFT
    above = above + allowance[:, None]
    return jnp.logaddexp(above, beyond[:, None]), jnp.logaddexp(total, beyond)


def log_excess_below(
    part: BandLoss, order: Float[Array, " k"], cuts: Float[Array, " c"], reach: Array
) -> tuple[Float[Array, "k c"], Float[Array, " c"]]:
    """Bounds of what is (smoothly) below some cuts, and of little above them.

    Returns:
        log E_P[e^{w D}; x < cut + reach width], D the loss beyond the least one,
        and log Q of what is left of c farther up.
    """
    x, s = part.place.nodes(), part.step.noise_multiplier
    q = part.step.sampling_prob
    far = jnp.minimum(cuts + reach * part.place.width, part.place.ends[1])
    # Every cell counts with the largest of its ends, of each of the factors.
    base = part.step.log_base(x)
    base = jnp.maximum(base[:-1], base[1:])
    base = jnp.where((x[:-1] < 0) & (x[1:] > 0), part.step.log_base(0 * q), base)
    within = x[:-1, None] < far
    # The one times e^shift, the other by it: both may be far from one.
    least = (cuts - x[:-1, None]) / part.place.width
    kept = jnp.maximum(_step_bound(least, base[:, None] + _SHIFT), LEAST_SUM)
    kept = jnp.where(within, kept, 0)
    beyond = jax.nn.softplus(part.step.u(x[1:]) + jnp.log(q) - log1p(-q))
    exponent = order[:, None] * beyond
    large = exponent > _SHIFT
    grown = jnp.exp(jnp.minimum(jnp.where(large, exponent, 0), _MOST) - _SHIFT)
    small = jnp.expm1(jnp.where(large, 0, exponent)) * jnp.exp(-_SHIFT)
    grown = jnp.maximum(jnp.where(large, grown, small), LEAST_SUM)
    total = (grown @ kept + NODES * LEAST_SUM) * part.place.spacing
    # The mass, besides: that of a sum of two normal variables.
    mass = log_ndtr(cuts / jnp.hypot(s, part.place.width))
    excess = jnp.logaddexp(jnp.log(total) + BAND_SUM, mass)
    too_far = (exponent > _MOST).astype(x.dtype) @ within.astype(x.dtype)
    excess = jnp.where(too_far > 0, jnp.inf, excess)
    upper = jnp.logaddexp(
        log1p(-q) + log_ndtr(-far / s), jnp.log(q) + log_ndtr((1 - far) / s)
    )
    rounding = 8 * ULP * (1 + jnp.abs(mass))
    return excess + rounding, upper + log_ndtr((cuts - far) / part.place.width)


def log_outside(
    part: BandLoss, sign: Float[Array, ""], farthest: Float[Array, ""]
) -> Float[Array, ""]:
    """A bound of what runs with a step beyond the ends add to delta.

    On their side there are the largest losses, and sums over the nodes know nothing
    of them.  On the other side the tilted densities fall faster than the noise's,
    unless that end is before `farthest`, beyond which nothing is left of delta.
    """
    s, q = part.step.noise_multiplier, part.step.sampling_prob
    start, end = part.place.ends
    before, beyond, included = log_ndtr(jnp.stack([start, -end, 1 - end]) / s)
    with_record = jnp.logaddexp(log1p(-q) + beyond, jnp.log(q) + included)
    beyond = jnp.where(farthest > end, beyond, -jnp.inf)
    one = jnp.where(sign > 0, with_record, jnp.logaddexp(before, beyond))
    return jnp.log(part.count) + one
