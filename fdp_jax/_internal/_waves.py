"""Sums of weighted rotations at equispaced frequencies, by products of short tables.

sum_j w_j (cos(t x_j) - 1) and sum_j w_j sin(t x_j) at m^2 frequencies t, m even: these
are start + (2 m a +- b) step, so that the rotations of a few rows (a) and columns (b)
give all of them, with 1 - cos kept as such.  The products of their entries are summed
over the points first; what they say of each frequency is put together once, at the end.
"""

import functools

import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array, Float

from ._rotation import rotation


def wave_products(
    weights: Float[Array, "w n"],
    value: Float[Array, " n"],
    start: Float[Array, ""],
    step: Float[Array, ""],
    m: int,
) -> Float[Array, "w r c"]:
    """The sums over some points of products of two entries, for `wave_sums`."""
    few = jnp.arange(m + 1, dtype=value.dtype)
    rows = start + 2 * m * step * few[: m // 2 + 1]
    columns = step * few[1:]
    one = jnp.ones_like(value)[None]
    versine, sine = rotation(rows[:, None] * value)
    left = jnp.concatenate([one, versine, 1 + versine, sine])
    right = jnp.concatenate([one, *rotation(columns[:, None] * value)])
    exact = functools.partial(jnp.matmul, precision=Precision.HIGHEST)
    # One product for all weights would cost more: XLA evaluates the tables for each.
    return jnp.stack([exact(one * left, right.T) for one in weights])


def wave_sums(
    products: Float[Array, "w r c"], m: int
) -> tuple[Float[Array, " w"], Float[Array, "w f"], Float[Array, "w f"]]:
    """Sums of the weights, and of these times (cos - 1) and sin at m^2 frequencies.

    The terms of the last two add up to at most 4 weights, and to 3 t |x| of them (at
    the lowest frequencies b counts as 2 m - b of 2 m + b).
    """
    before_cosine, before_sine = 2 + m // 2, 3 + 2 * (m // 2)
    versine, cosine = slice(1, before_cosine), slice(before_cosine, before_sine)
    sine, by_versine, by_sine = (
        slice(before_sine, None),
        slice(1, m + 1),
        slice(m + 1, None),
    )
    at = lambda row, column: products[:, row, column]
    center = at(versine, slice(0, 1))
    even, odd = center + at(cosine, by_versine), at(sine, by_sine)
    versines = _in_order(center, even - odd, even + odd, m)
    center = at(sine, slice(0, 1))
    even, odd = center + at(sine, by_versine), at(cosine, by_sine)
    sines = _in_order(center, even + odd, even - odd, m)
    return products[:, 0, 0], versines, sines


def _in_order(center: Array, after: Array, before: Array, m: int) -> Array:
    """The sums in order of frequency, from the first row's center on."""
    before = before[..., : m - 1]
    each = jnp.concatenate([before[..., ::-1], center, after], axis=-1)
    flat = each.reshape(*each.shape[:-2], -1)
    return flat[..., m - 1 :][..., : m**2]
