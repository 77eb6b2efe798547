"""The lower convex hull of points in order, with a test of one's own for "above".

Which difference of two numbers is accurate depends on the tail, so the geometry is left
to the caller; what is shared is Andrew's monotone chain.  Works under `jit`.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import cummax, cummin, fori_loop, stop_gradient, while_loop
from jaxtyping import Array, Bool, Float, Int

from . import _checks
from ._precision import in_float64, outside_transformations

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


def gap(value: Array, complement: Array, i: Any, j: Any) -> Array:
    """value[i] - value[j], from the complements where those are smaller."""
    direct = value[i] - value[j]
    return jnp.where(value[i] + value[j] <= 1, direct, complement[j] - complement[i])


def convex_minorant(x: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
    """The greatest convex function below points, at the points (x increasing)."""

    def above(i: Array, j: Array, k: Array) -> Array:
        return (y[j] - y[i]) * (x[k] - x[j]) >= (y[k] - y[j]) * (x[j] - x[i])

    mask = chain(x.size, above)
    low, high = last_kept(mask), next_kept(mask)
    width = x[high] - x[low]
    weight = jnp.where(width > 0, x - x[low], 0) / jnp.where(width > 0, width, 1)
    chord = y[low] + weight * (y[high] - y[low])
    return jnp.where(mask, y, jnp.minimum(y, chord))


def lower_hull(alpha: Any, beta: Any) -> tuple[Any, Any]:
    """Vertices of the lower convex hull of the points, (0, 1) and (1, 0).

    In order of increasing alpha; beta falls to 0 at the last one.  Of points that are
    traced, or given inside of a trace, there are two vertices more than points, of
    which some repeat: a shape does not depend on values.
    """
    known = all(_checks.known(x) is not None for x in (alpha, beta))
    if known and outside_transformations():
        # Padded, so that few sizes are compiled; what repeats is left out again.
        size = 1 << int(alpha.size - 1).bit_length()
        pad = lambda v: np.pad(v, (0, size - v.size), mode="edge")
        x, y, mask = (np.asarray(v) for v in _repeated(pad(alpha), pad(beta)))
        return x[mask], y[mask]
    return _repeated(alpha, beta)[:2]


@in_float64(cast_out=False)
def _repeated(
    alpha: Any, beta: Any
) -> tuple[Float[Array, " n"], Float[Array, " n"], Bool[Array, " n"]]:
    """The points, those that are no vertices replaced by one, and which are."""
    ends = jnp.asarray([0.0, 1.0])
    x, y = jnp.append(alpha, ends), jnp.append(beta, ends[::-1])
    order = jnp.lexsort((y, x))
    x, y = x[order], y[order]
    before = jnp.append(jnp.inf, cummin(stop_gradient(y))[:-1])
    falling = last_kept(y < before)
    # Decreasing alpha, as the chain wants it.
    x, y = x[falling][::-1], y[falling][::-1]
    mask = tradeoff_chain(*(stop_gradient(v) for v in (x, 1 - x, y, 1 - y)))
    kept = last_kept(mask)
    # The chain keeps both ends, also where they are the same point.
    mask = mask.at[0].set(falling[-1] > falling[0])
    return x[kept][::-1], y[kept][::-1], mask[::-1]


def hull_below(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lower convex hull of known points, from left to right, in NumPy."""
    # Among points of one x the lowest comes first, which hides the others.
    hull: list[int] = []
    for k in np.lexsort((y, x)):
        if hull and x[k] == x[hull[-1]]:
            continue
        while len(hull) > 1 and _above(x, y, hull[-2], hull[-1], k):
            hull.pop()
        hull.append(int(k))
    return x[hull], y[hull]


def _above(x: np.ndarray, y: np.ndarray, i: int, j: int, k: int) -> bool:
    """Whether point j lies on or above the chord from i to k."""
    return (y[j] - y[i]) * (x[k] - x[i]) >= (y[k] - y[i]) * (x[j] - x[i])
