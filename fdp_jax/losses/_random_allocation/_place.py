"""Where the law of the sum lives: what is chosen before anything is calculated.

No number here has a derivative, and none needs more than two digits: the certificate
counts whatever is left out.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, ArrayLike, Float, Int

from ..._internal._special import log_ndtri

_LOG_BIG, _LOG_BIGGER = -18.0, -6.0
"""Log of the mean number of big components, and what each noise beyond 1 adds to it."""
_LOG_DEEP = -45.0
"""Log of the probability of a big component, for few batches and a strike."""
_LOG_SMALL = -80.0
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
    first: Float[Array, ""]
    """The least component in steps; whole if lattice points are multiples of one."""
    cells: Int[Array, ""]
    """How many cells components may lie in; all beyond is big."""
    window: Int[Array, ""]
    """Index of the first point of the sum, less that of all components at the least."""
    tilts: Float[Array, "2"]
    """For sums below their mean and above it."""
    outer: Float[Array, "2"]
    """Tilts whose Chernoff bounds limit the mass left and right of the window."""
    middle: Float[Array, ""]
    """The sum up to which masses are known by the first tilt."""

    @property
    def end(self) -> Float[Array, ""]:
        """The largest component on the lattice."""
        return (self.first + self.cells) * self.spacing


def place(
    noise: Float[Array, ""],
    batches: Float[Array, ""],
    points: int,
    strike: Float[ArrayLike, ""] = jnp.inf,
    room: Float[ArrayLike, ""] = 2.0,
) -> Place:
    """Chooses lattice and tilts for X = exp(Z / s - 1 / (2 s^2)) and t copies of it.

    Args:
        noise: s.
        batches: t.
        points: Lattice points of the sum.
        strike: The largest sum that matters, and the largest component.
        room: How often the components' range is to fit into the window of the sum.
    """
    s, t = stop_gradient((noise, batches))
    log_t = jnp.log(t)
    big = _LOG_BIG + _LOG_BIGGER * jnp.clip(s - 1, 0, 4) - log_t
    # Up to a strike in any case where the largest component decides.
    deep = _LOG_DEEP + 3 * log_t - 40 * jnp.clip(1 - s, 0, 1)
    big = jnp.where(jnp.isfinite(strike), jnp.minimum(big, deep), big)
    right = jnp.minimum(-log_ndtri(big), s * jnp.log(stop_gradient(strike)) + 0.5 / s)
    left = jnp.minimum(log_ndtri(_LOG_SMALL - log_t), right - 3)
    z = left + (right - left) * jnp.arange(_NODES, dtype=s.dtype) / (_NODES - 1)
    x = jnp.exp(z / s - 0.5 / jnp.square(s))
    logs = -0.5 * jnp.square(z)
    logs = logs - logsumexp(logs)
    return place_of(x, logs, t, points, strike=strike, room=room)


def place_of(
    x: Float[Array, " k"],
    logs: Float[Array, " k"],
    t: Float[Array, ""],
    points: int,
    *,
    ends: tuple[Float[Array, ""], Float[Array, ""]] | None = None,
    more: float = 0.0,
    reach: tuple[float, float] = (_REACH, _REACH),
    strike: Float[ArrayLike, ""] = jnp.inf,
    room: Float[ArrayLike, ""] = 2.0,
) -> Place:
    """Chooses lattice and tilts for t copies of a component.

    Args:
        x: Some of its values; increasing, unless the ends are given.
        logs: Logarithms of about their probabilities.
        t: How many copies there are.
        points: Lattice points of the sum.
        ends: The least value and the largest one, if they are to be on the lattice.
        more: By how many components from end to end the window reaches further up.
        reach: -log of the mass left and right of the window, about.
        strike: The largest sum that matters: the window is that of a tilted law whose
            mean is not larger.
        room: At least 2: how often the components' range fits into the window.
    """
    least, most = (x[0], x[-1]) if ends is None else ends
    # The law whose tilt e^{-u x} is as large as the strike asks for.
    lowest = jnp.logspace(-4.5, 4.5, _TILTS, dtype=x.dtype) / (most - least)
    weights = jax.nn.softmax(logs - lowest[:, None] * (x - least))
    fits = t * (weights @ x) <= strike
    center = jnp.where(fits[0] | ~fits[-1], 0, -lowest[jnp.argmax(fits)])
    logs = jax.nn.log_softmax(logs + center * (x - least))
    mean = jnp.exp(logs) @ x
    deviation = jnp.sqrt(t * (jnp.exp(logs) @ jnp.square(x - mean)))
    span = most - least
    # Up to where the largest component alone decides.
    sizes = jnp.geomspace(
        jnp.minimum(10**-4.5 / deviation, 1 / span), 10**2.5 / deviation, _TILTS
    )

    rate = lambda u: t * jax.vmap(lambda v: logsumexp(logs + v * (x - mean)))(u)
    left, right = rate(-sizes), rate(sizes)
    below, above = (
        jnp.min((rates + level) / sizes)
        for rates, level in zip((left, right), reach, strict=True)
    )
    low = jnp.maximum(t * (mean - least) - below, 0.0)
    high = jnp.minimum(t * (mean - least) + above + more * span, t * span)
    spacing = jnp.maximum((high - low) / (points - 32), span / (points / room - 8))
    if ends is None:
        first = jnp.floor(least / spacing)
        cells = jnp.ceil(most / spacing) - first
    else:
        cells = jnp.maximum(jnp.floor(span / spacing), 1.0)
        spacing = span / cells
        first = least / spacing
    # Components may begin up to a cell further left.
    start = jnp.floor(jnp.floor((t * mean - below) / spacing) - t * first)

    def tilts(rates: Array, far: Array) -> Array:
        """The strongest tilt whose law fits into the window, and the best one there."""
        best = jnp.argmin(rates - sizes * far)
        fits = (sizes - sizes[best]) * far + rates[best] <= rates - _WRAP
        lift = jnp.sum(jnp.cumprod(fits & (rates <= _LIFT))) - 1
        return sizes[jnp.stack([jnp.maximum(lift, 0), best])]

    # Where the lattice of a component decides, the window reaches further up.
    above = low + (points - 32) * spacing - t * (mean - least)
    found = center + jnp.stack([-tilts(left, below), tilts(right, above)], axis=1)
    return Place(
        points,
        spacing,
        first,
        cells.astype(int),
        jnp.maximum(start - 8, 0).astype(int),
        found[0],
        found[1],
        t * mean,
    )
