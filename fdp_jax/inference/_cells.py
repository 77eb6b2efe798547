"""Laws of X + N for a binomial X: polynomials on half-integer cells.

Canonical noise has kinks and jumps at multiples of 1/2, and so has X + N; in between
both are smooth (Tulap: constant density).  A few Legendre coefficients per cell hold
the density and the survival function.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..noise._law import AbstractLaw
from ._counts import Window

ORDER = 12
NODES, WEIGHTS = np.polynomial.legendre.leggauss(ORDER)
_TO_COEFFICIENTS = np.linalg.inv(np.polynomial.legendre.legvander(NODES, ORDER - 1))


class Cells(eqx.Module):
    """A function on cells of width 1/2, from `start` on."""

    start: Float[Array, ""]
    coefficients: Float[Array, "cells order"]

    def at(self, x: Float[Array, "..."], before: float) -> Float[Array, "..."]:
        """The value; `before` left of all cells and 0 right of them."""
        count = self.coefficients.shape[0]
        place = 2 * (x - self.start)
        cell = jnp.floor(place)
        inside = jnp.clip(cell, 0, count - 1).astype(jnp.int32)
        value = _legendre(self.coefficients[inside], 2 * (place - inside) - 1)
        return jnp.where(place < 0, before, jnp.where(cell >= count, 0.0, value))


def noisy(law: AbstractLaw, window: Window, pad: int, kind: str) -> Cells:
    """The density ("pdf") or survival function ("sf") of X + N, `pad` units further."""
    length = window.values.size
    # Distances from the first count of the window to every place, minus the counts.
    steps = jnp.arange(-(length - 1) - pad, length + pad, dtype=window.values.dtype)
    offsets = 0.25 * (1 + NODES)

    def values(offset: Array) -> Array:
        x = steps + offset
        seen = jnp.exp(law.log_pdf(x)) if kind == "pdf" else law.sf(x)
        return jax.scipy.signal.fftconvolve(seen, window.probs, mode="valid")

    # Rows: offsets in the first and the second half of a unit.
    table = jax.lax.map(values, jnp.asarray(np.concatenate([offsets, offsets + 0.5])))
    halves = table.reshape(2, ORDER, -1).transpose(2, 0, 1).reshape(-1, ORDER)
    return Cells(window.values[0] - pad, halves @ jnp.asarray(_TO_COEFFICIENTS).T)


def difference_p(
    first: Cells, second: Cells, ratio: Array, shift: Array
) -> Float[Array, ""]:
    """P(B >= shift + ratio A) for ratio <= 1, from A's density and B's survival.

    Where A runs over one cell, B passes at most one edge: Gauss's rule on both sides.
    """
    count = first.coefficients.shape[0]
    left = first.start + 0.5 * jnp.arange(count, dtype=shift.dtype)
    low = shift + ratio * left
    edge = (jnp.floor(2 * low) + 1) / 2
    cut = jnp.clip((edge - low) / ratio, 0.0, 0.5)
    total = jnp.zeros_like(shift)
    for begin, width in ((jnp.zeros_like(cut), cut), (cut, 0.5 - cut)):
        inner = begin[:, None] + width[:, None] * 0.5 * (1 + NODES)
        density = _legendre(first.coefficients[:, None, :], 4 * inner - 1)
        survival = second.at(low[:, None] + ratio * inner, 1.0)
        total = total + jnp.sum(density * survival * WEIGHTS * 0.5 * width[:, None])
    return total


def _legendre(coefficients: Array, x: Array) -> Array:
    """Clenshaw's recursion, over the last axis."""
    above, value = jnp.zeros_like(x), coefficients[..., -1] + jnp.zeros_like(x)
    for k in range(ORDER - 2, -1, -1):
        new = coefficients[..., k] - (k + 1) / (k + 2) * above
        above, value = value, new + (2 * k + 1) / (k + 1) * x * value
    return value
