"""Where the law of the sum lives: what is chosen before anything is calculated.

No number here has a derivative, and none needs more than two digits: the certificate
counts whatever is left out.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from ..._internal._special import log_ndtri

_LOG_BIG = -18.0
"""Log of the mean number of big components."""
_LOG_SMALL = -36.0
"""Log of the mean number of components below the lattice."""
_REACH = 46.0
"""-log of the mass outside the window, about."""
_WRAP = 36.0
"""The same of tilted masses, at least."""
_LIFT = 7.0
"""-log of what the tilted law has left at the mean."""
_NODES, _TILTS = 513, 160


class Place(eqx.Module):
    """The lattice, its window, and two tilts."""

    points: int = eqx.field(static=True)
    """Lattice points of the sum; half as many are for a single component."""
    spacing: Float[Array, ""]
    first: Int[Array, ""]
    """The index of the least component; lattice points are multiples of `spacing`."""
    cells: Int[Array, ""]
    """How many cells components may lie in; all beyond is big."""
    window: Int[Array, ""]
    """Index of the first point of the sum, less that of all components at the least."""
    tilts: Float[Array, "2"]
    """For sums below their mean and above it."""
    outer: Float[Array, "2"]
    """Tilts whose Chernoff bounds limit the mass left and right of the window."""


def place(noise: Float[Array, ""], batches: Float[Array, ""], points: int) -> Place:
    """Chooses lattice and tilts for X = exp(Z / s - 1 / (2 s^2)) and t copies of it."""
    s, t = stop_gradient((noise, batches))
    log_t = jnp.log(t)
    right = -log_ndtri(_LOG_BIG - log_t)
    left = log_ndtri(_LOG_SMALL - log_t)
    z = left + (right - left) * jnp.arange(_NODES, dtype=s.dtype) / (_NODES - 1)
    x = jnp.exp(z / s - 0.5 / jnp.square(s))
    logs = -0.5 * jnp.square(z)
    logs = logs - logsumexp(logs)
    mean = jnp.exp(logs) @ x
    deviation = jnp.sqrt(t * (jnp.exp(logs) @ jnp.square(x - mean)))
    span = x[-1] - x[0]
    # Up to where the largest component alone decides.
    sizes = jnp.logspace(-4.5, 2.5, _TILTS, dtype=s.dtype) / deviation

    def ends(sign: float) -> tuple[Array, Array, Array]:
        logs_at = jax.vmap(lambda u: logsumexp(logs + sign * u * (x - mean)))(sizes)
        reach = (t * logs_at + _REACH) / sizes
        best = jnp.argmin(reach)
        # The strongest tilt whose law fits into the window.
        fits = sizes * reach[best] - t * logs_at - _REACH <= -_WRAP
        fits = fits & (t * logs_at <= _LIFT)
        lift = jnp.maximum(jnp.sum(jnp.cumprod(fits)) - 1, 0)
        return reach[best], sign * sizes[best], sign * sizes[lift]

    below, left_outer, left_tilt = ends(-1.0)
    above, right_outer, right_tilt = ends(1.0)
    low = jnp.maximum(t * (mean - x[0]) - below, 0.0)
    high = jnp.minimum(t * (mean - x[0]) + above, t * span)
    spacing = jnp.maximum((high - low) / (points - 32), span / (points // 2 - 8))
    first = jnp.floor(x[0] / spacing)
    cells = jnp.ceil(x[-1] / spacing) - first
    # Components may begin up to a cell further left.
    start = jnp.floor((t * mean - below) / spacing) - t * first
    window = jnp.maximum(jnp.floor(start) - 8, 0)
    return Place(
        points,
        spacing,
        first.astype(int),
        cells.astype(int),
        window.astype(int),
        jnp.stack([left_tilt, right_tilt]),
        jnp.stack([left_outer, right_outer]),
    )
