"""What the largest of an epoch's noisy sums tells by itself, which is a lower bound.

With m = 1 / s it is at most z with probability Phi(z)^t without the record, and
Phi(z)^(t-1) Phi(z - m) with it.  The ratio of the two densities,

    ((t - 1) Phi(z - m) / Phi(z) + exp(m z - m^2 / 2)) / t,

increases in z.  What is told by "largest above z" or "at most z" is a bound for every
z; the best one is where the ratio is e^eps, or e^-eps for "add".  With little noise one
sum stands out, and this is close to all that is told.
"""

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ..._internal._roots import bisect
from ..._internal._special import log1mexp, log_ndtr
from ..._internal._tolerances import LOG_OPERATIONS

_LEAST = -40.0
_STEPS = 60


def log_least(
    noise: Float[Array, ""],
    batches: Float[Array, ""],
    sign: Float[Array, ""],
    epsilon: Float[Array, "..."],
) -> Float[Array, "..."]:
    """A lower bound of log delta, from the largest sum of t >= 1.

    Args:
        noise: s, the noise multiplier.
        batches: t, a whole number.
        sign: 1 for "remove", -1 for "add".
        epsilon: Real thresholds.
    """
    noise, t, sign, epsilon = stop_gradient((noise, batches, sign, epsilon))
    m = 1 / noise

    def ratio(z: Array) -> Array:
        rest = jnp.log(t - 1) + log_ndtr(z - m) - log_ndtr(z)
        return jnp.logaddexp(rest, m * z - 0.5 * m**2) - jnp.log(t)

    # The second of the ratio's terms alone is large enough there.
    most = (sign * epsilon + jnp.log(t)) * noise + 0.5 * m
    least = jnp.full_like(most, _LEAST)
    z, _ = bisect(lambda x: ratio(x) - sign * epsilon, least, most, _STEPS)
    alone, own = log_ndtr(z), log_ndtr(z - m)
    without, included = t * alone, (t - 1) * alone + own
    room = 4 + jnp.square(z) + jnp.square(z - m) + jnp.abs(epsilon)
    above = log1mexp(-without), log1mexp(-included)
    removed = _log_excess(above[1], above[0] + epsilon, room)
    added = without + _log_excess(jnp.zeros_like(z), own - alone + epsilon, room)
    found = jnp.where(sign > 0, removed, added)
    room = room + jnp.abs(jnp.where(sign > 0, above[1], without))
    return jnp.where(jnp.isnan(found), -jnp.inf, found - LOG_OPERATIONS * room)


def _log_excess(log_more: Array, log_less: Array, room: Array) -> Array:
    """Log of a difference from below, whose logarithms are good to a rounding."""
    room = room + jnp.abs(log_more) + jnp.abs(log_less)
    gap = log_more - log_less - 4 * LOG_OPERATIONS * room
    some = gap > 0
    rest = log1mexp(jnp.where(some, gap, 1.0))
    return jnp.where(some, log_more + rest, -jnp.inf)
