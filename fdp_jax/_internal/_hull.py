"""The lower convex hull of points in order, with a test of one's own for "above".

Which difference of two numbers is accurate depends on the tail, so the geometry is left
to the caller; what is shared is Andrew's monotone chain.  Works under `jit`.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import cummax, fori_loop, while_loop
from jaxtyping import Array, Bool, Float, Int

from ._precision import in_float64

Test = Callable[[Array, Array, Array], Array]


def chain(count: int, above: Test) -> Bool[Array, " n"]:
    """Which of the points 0, ..., count - 1 are vertices of the lower hull.

    Args:
        count: Number of points; the first and the last one are always kept.
        above: (i, j, k) -> whether point j lies on or above the chord from i to k.
    """

    def push(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        stack, size = state

        def hidden(size: Array) -> Array:
            # Clipped: both sides of `&` are evaluated.
            i, j = stack[jnp.maximum(size - 2, 0)], stack[jnp.maximum(size - 1, 0)]
            return (size >= 2) & above(i, j, k)

        size = while_loop(hidden, lambda size: size - 1, size)
        return stack.at[size].set(k), size + 1

    start = jnp.zeros(count, jnp.int32), jnp.zeros((), jnp.int32)
    stack, size = fori_loop(0, count, push, start)
    used = jnp.arange(count) < size
    return jnp.zeros(count, bool).at[jnp.where(used, stack, count)].set(True)


def last_kept(mask: Bool[Array, " n"]) -> Int[Array, " n"]:
    """Index of the last vertex at or before each point."""
    return cummax(jnp.where(mask, jnp.arange(mask.size), 0))


def next_kept(mask: Bool[Array, " n"]) -> Int[Array, " n"]:
    """Index of the first vertex at or after each point."""
    return mask.size - 1 - last_kept(mask[::-1])[::-1]


def tradeoff_chain(
    alpha: Float[Array, " n"],
    tnr: Float[Array, " n"],
    beta: Float[Array, " n"],
    tpr: Float[Array, " n"],
) -> Bool[Array, " n"]:
    """Hull of points of a trade-off curve, alpha decreasing and beta increasing.

    Complements (`tnr` = 1 - alpha, `tpr` = 1 - beta) keep both tails accurate.
    """

    def above(i: Array, j: Array, k: Array) -> Array:
        # Slope to the left of j against the one to the right, cross-multiplied.
        rise = gap(beta, tpr, j, i), gap(beta, tpr, k, j)
        run = gap(alpha, tnr, i, j), gap(alpha, tnr, j, k)
        return rise[0] * run[1] >= rise[1] * run[0]

    return chain(alpha.size, above)


def gap(value: Array, complement: Array, i: Array, j: Array) -> Array:
    """value[i] - value[j], from the complements where those are smaller."""
    direct = value[i] - value[j]
    return jnp.where(value[i] + value[j] <= 1, direct, complement[j] - complement[i])


def lower_hull(alpha: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vertices of the lower convex hull of the points, (0, 1) and (1, 0).

    In order of increasing alpha; beta falls to 0 at the last one.
    """
    x, y = np.append(alpha, [0.0, 1.0]), np.append(beta, [1.0, 0.0])
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    before = np.concatenate([[np.inf], np.minimum.accumulate(y)[:-1]])
    x, y = x[y < before], y[y < before]
    # Decreasing alpha; padded, so that few sizes are compiled.
    size = 1 << int(x.size - 1).bit_length()
    pad = lambda v: np.pad(v[::-1], (0, size - v.size), mode="edge")
    mask = np.asarray(_mask(*(pad(v) for v in (x, 1 - x, y, 1 - y))))[: x.size].copy()
    mask[-1] = True
    return x[mask[::-1]], y[mask[::-1]]


@in_float64
def _mask(alpha: Any, tnr: Any, beta: Any, tpr: Any) -> Bool[Array, " n"]:
    return tradeoff_chain(alpha, tnr, beta, tpr)
