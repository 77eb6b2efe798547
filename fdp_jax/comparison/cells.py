r"""Upper bounds of T~ - T between nodes, from convexity alone.

On a cell [q0, q1] a convex T~ lies below its chord, and a convex T above the lines
through its values at q0 and q1 that are as steep as the chords beyond them.  So T~ - T
lies below a concave function of two straight pieces, whose maximum is known.  With
cells of width h the bound exceeds the truth by O(h^2).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..engines import Interval

_STEPS = (1, 2, 3, 4, 8, 16, 32)
"""Which nodes on either side may give the slope: near ones, which are sharp, and far
ones, which noise does not disturb."""
_REACH = max(_STEPS)
_STEEP = 1e30


def cell_bounds(
    q: Float[Array, "h n"],
    one: Interval,
    other: Interval,
    weight: Float[Array, "h n"] | None,
) -> Float[Array, "h n-1"]:
    """Upper bounds of (T~ - T) weight on the cells between sorted nodes.

    Args:
        q: Nodes, from 0 to 1/2, rising; rows are half-axes, which meet at 1/2.
        one: T at the nodes, with its bounds.
        other: T~ at the nodes.
        weight: Values of a convex function of pi, positive.

    Returns:
        One bound for each cell.
    """
    left, right = slopes(q, one)
    width = q[:, 1:] - q[:, :-1]
    # Heights of T~'s chord and of T's two lines at either end of the cell.
    top = other.upper[:, :-1], other.upper[:, 1:]
    base = one.lower[:, :-1], one.lower[:, 1:]
    rising = left[:, :-1] * width
    falling = right[:, 1:] * width
    # Gaps to the line from the left and to the one from the right, at both ends.
    by_left = top[0] - base[0], top[1] - (base[0] + rising)
    by_right = top[0] - (base[1] - falling), top[1] - base[1]
    ends = tuple(jnp.minimum(x, y) for x, y in zip(by_left, by_right, strict=True))
    lead = by_right[0] - by_left[0], by_left[1] - by_right[1]
    inside = (lead[0] > 0) & (lead[1] > 0)
    place = jnp.where(inside, lead[0] / jnp.where(inside, lead[0] + lead[1], 1), 0)
    middle = (1 - place) * by_left[0] + place * by_left[1]
    middle = jnp.where(inside, middle, ends[0])
    # The lines' own rounding.
    pad = 16 * jnp.finfo(q.dtype).eps * (q[:, 1:] * jnp.minimum(1, other.upper[:, 1:]))
    if weight is None:
        highest = jnp.maximum(jnp.maximum(*ends), middle)
    else:
        w = weight[:, :-1], weight[:, 1:]
        w_middle = (1 - place) * w[0] + place * w[1]
        highest = jnp.maximum(
            _highest_product((ends[0], middle), (w[0], w_middle)),
            _highest_product((middle, ends[1]), (w_middle, w[1])),
        )
        pad = pad * jnp.maximum(*w)
    return jnp.where(width > 0, highest + pad, 0.0)


def slopes(q: Float[Array, "h n"], one: Interval) -> tuple[Array, Array]:
    """At every node a lower bound of T's left and an upper bound of its right slope.

    Args:
        q: Sorted nodes, from 0 to 1/2; rows are half-axes, which meet at 1/2.
        one: T at the nodes, with its bounds.
    """
    return jax.vmap(_slopes)(*_beyond(q, one))


def _beyond(q: Array, one: Interval) -> tuple[Array, Array, Array]:
    """Nodes and values of T with a few more beyond 1/2, from the other half-axis.

    In the frame of a half the other one continues as T + 1 - 2 q at 1 - q.
    """
    unit = jnp.finfo(q.dtype).eps
    mirrored = slice(-2, -2 - _REACH, -1)
    far = q[::-1, mirrored]
    over = one.upper[::-1, mirrored] + (1 - 2 * far) + 8 * unit
    under = one.lower[::-1, mirrored] + (1 - 2 * far) - 8 * unit
    join = lambda x, y: jnp.concatenate([x, y], axis=1)
    return join(q, 1 - far), join(one.lower, under), join(one.upper, over)


def _slopes(
    q: Float[Array, " m"], lower: Float[Array, " m"], upper: Float[Array, " m"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """The slopes of one row, which goes on beyond its last node."""
    count = q.size - _REACH
    here = slice(0, count)
    positive = q[here] > 0
    # T(0) = 0 is a node too.
    left = jnp.where(positive, lower[here] / jnp.where(positive, q[here], 1), 0)
    right = jnp.full(count, _STEEP, q.dtype)
    shrink = 8 * jnp.finfo(q.dtype).eps
    for step in _STEPS:
        gap = q[here] - jnp.roll(q, step)[here]
        fine = (jnp.arange(count) >= step) & (gap > 0)
        rise = lower[here] - jnp.roll(upper, step)[here]
        slope = rise / jnp.where(fine, gap, 1)
        slope = slope - shrink * jnp.abs(slope)
        left = jnp.where(fine, jnp.maximum(left, slope), left)

        ahead = slice(step, count + step)
        gap = q[ahead] - q[here]
        fine = gap > 0
        slope = (upper[ahead] - lower[here]) / jnp.where(fine, gap, 1)
        slope = slope + shrink * jnp.abs(slope)
        right = jnp.where(fine, jnp.minimum(right, slope), right)
    return left, right


def _highest_product(f: tuple[Array, Array], g: tuple[Array, Array]) -> Array:
    """Maximum over [0, 1] of the product of two linear functions, by their ends."""
    df, dg = f[1] - f[0], g[1] - g[0]
    bend = df * dg
    slope = df * g[0] + f[0] * dg
    place = jnp.where(bend < 0, -slope / jnp.where(bend < 0, 2 * bend, 1), 0)
    place = jnp.clip(place, 0, 1)
    inner = (f[0] + df * place) * (g[0] + dg * place)
    return jnp.maximum(jnp.maximum(f[0] * g[0], f[1] * g[1]), inner)
