"""Laws of X + N for a binomial X: polynomials between the places of kinks and jumps.

Canonical noise has kinks and jumps at multiples of 1/2 and at the ends of its support,
and so has X + N, shifted by whole numbers; in between both are smooth (Tulap: constant
density).  A few Legendre coefficients per piece hold the density and the survival
function.  (Noise of a curve known by numbers has more kinks; there they are an
approximation, to about 1e-6.)
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._internal._quadrature import unit_rule
from ..noise.law import AbstractLaw
from ._counts import Window

ORDER = 12
_NODES, _WEIGHTS = unit_rule(ORDER)
_TO_COEFFICIENTS = np.linalg.inv(
    np.polynomial.legendre.legvander(2 * _NODES - 1, ORDER - 1)
)


class Cells(eqx.Module):
    """A function on `units` intervals [start + u, start + u + 1], cut in pieces."""

    start: Float[Array, ""]
    edges: Float[Array, " pieces+1"]
    """Edges of the pieces of a unit, from 0 to 1."""
    coefficients: Float[Array, "units pieces order"]

    def at(self, x: Float[Array, "..."], before: float) -> Float[Array, "..."]:
        """The value; `before` left of all units and 0 right of them."""
        count, pieces, _ = self.coefficients.shape
        place = x - self.start
        unit = jnp.clip(jnp.floor(place), 0, count - 1).astype(jnp.int32)
        rest = place - unit
        piece = jnp.searchsorted(self.edges, rest, side="right") - 1
        piece = jnp.clip(piece, 0, pieces - 1)
        width = self.edges[piece + 1] - self.edges[piece]
        local = (rest - self.edges[piece]) / jnp.where(width > 0, width, 1.0)
        value = _legendre(self.coefficients[unit, piece], 2 * local - 1)
        return jnp.where(place < 0, before, jnp.where(place >= count, 0.0, value))


def noisy(law: AbstractLaw, window: Window, pad: int, kind: str) -> Cells:
    """The density ("pdf") or survival function ("sf") of X + N, `pad` units further."""
    length = window.values.size
    # Distances from the counts of the window to every place.
    steps = jnp.arange(-(length - 1) - pad, length + pad, dtype=window.values.dtype)
    end = law.end()
    end = jnp.where(jnp.isfinite(end), end, 0.0)
    cuts = jnp.stack([0 * end, 0.5 + 0 * end, end % 1.0, -end % 1.0, 1 + 0 * end])
    edges = jnp.sort(cuts)

    def values(offset: Array) -> Array:
        x = steps + offset
        seen = jnp.exp(law.log_pdf(x)) if kind == "pdf" else law.sf(x)
        return jax.scipy.signal.fftconvolve(seen, window.probs, mode="valid")

    offsets = edges[:-1, None] + jnp.diff(edges)[:, None] * _NODES
    table = jax.lax.map(values, offsets.ravel())
    table = table.reshape(*offsets.shape, -1).transpose(2, 0, 1)
    coefficients = table @ jnp.asarray(_TO_COEFFICIENTS).T
    return Cells(window.values[0] - pad, edges, coefficients)


def difference_p(
    first: Cells, second: Cells, ratio: Array, shift: Array
) -> Float[Array, ""]:
    """P(B >= shift + ratio A) for ratio <= 1, from A's density and B's survival.

    Gauss's rule between all edges: while A runs over a unit, B passes each of its kinds
    of edge at most once.
    """
    count = first.coefficients.shape[0]
    left = first.start + jnp.arange(count, dtype=shift.dtype)
    low = (shift + ratio * left)[:, None]
    kinds = second.start + second.edges[:-1]
    passed = (kinds + jnp.ceil(low - kinds) - low) / ratio
    own = jnp.broadcast_to(first.edges, (count, first.edges.size))
    cuts = jnp.sort(jnp.concatenate([own, jnp.clip(passed, 0.0, 1.0)], axis=1), axis=1)
    begin, width = cuts[:, :-1], jnp.diff(cuts, axis=1)

    def at_node(node: Array) -> Array:
        inner = begin + width * node[0]
        density = first.at(left[:, None] + inner, 0.0)
        survival = second.at(low + ratio * inner, 1.0)
        return node[1] * jnp.sum(density * survival * width)

    nodes = jnp.asarray(np.stack([_NODES, _WEIGHTS], axis=1))
    return jnp.sum(jax.lax.map(at_node, nodes))


def _legendre(coefficients: Array, x: Array) -> Array:
    """Clenshaw's recursion, over the last axis."""
    above, value = jnp.zeros_like(x), coefficients[..., -1] + jnp.zeros_like(x)
    for k in range(ORDER - 2, -1, -1):
        new = coefficients[..., k] - (k + 1) / (k + 2) * above
        above, value = value, new + (2 * k + 1) / (k + 1) * x * value
    return value
