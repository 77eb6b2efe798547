"""Searches for a maximum and for a whole number.

That for a maximum takes a fixed number of steps and is for functions that cost little:
nothing is thrown, and `vmap` costs no extra steps.  The result has no derivative; see
`_implicit` for that.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax.lax import fori_loop, stop_gradient
from jaxtyping import Array, Float

_RATIO = (math.sqrt(5) - 1) / 2


def golden_section(
    function: Callable[[Array], Array],
    low: Float[Array, ""],
    high: Float[Array, ""],
    steps: int = 50,
) -> Float[Array, ""]:
    """The place of the single maximum of a function in [low, high], about.

    Close to the maximum rounding decides: the place is known to about the square root
    of the precision, which leaves the value without error.
    """

    def inner(low: Array, high: Array) -> tuple[Array, Array]:
        step = _RATIO * (high - low)
        return high - step, low + step

    def body(_: Array, state: tuple) -> tuple:
        low, high, at_left, at_right = state
        left, right = inner(low, high)
        # One of the two places is not known yet: the function stands here once.
        first = jnp.isnan(at_left)
        new = function(jnp.where(first, left, right))
        new = jnp.where(jnp.isnan(new), -jnp.inf, new)
        at_left = jnp.where(first, new, at_left)
        at_right = jnp.where(first, at_right, new)
        down, up = at_left >= at_right, at_left < at_right
        return (
            jnp.where(up, left, low),
            jnp.where(down, right, high),
            jnp.where(down, jnp.nan, jnp.where(up, at_right, at_left)),
            jnp.where(up, jnp.nan, jnp.where(down, at_left, at_right)),
        )

    low, high = stop_gradient((low, high))
    unknown = jnp.full_like(low, jnp.nan)
    start = low, high, unknown, unknown
    low, high, at_left, _ = fori_loop(0, steps + 1, body, start)
    left, right = inner(low, high)
    return stop_gradient(jnp.where(jnp.isnan(at_left), right, left))


def zoomed(
    function: Callable[[Array], Array],
    middle: float,
    reach: float,
    *,
    points: int,
    rounds: int,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """About where a function is least, and its value there, on ever finer grids.

    All evaluations are in one loop, of which a program holds one.

    Args:
        function: Of a vector of numbers.
        middle: Of the range.
        reach: Half of its length.
        points: Of a grid, an odd number; the next one is between the best one's
            neighbors.
        rounds: Number of grids.
    """

    def narrower(_: int, state: tuple) -> tuple:
        middle, reach, _ = state
        grid = middle + reach * jnp.linspace(-1.0, 1.0, points)
        values = function(grid)
        index = jnp.argmin(values)
        return grid[index], 2 * reach / (points - 1), values[index]

    start = *map(jnp.asarray, (middle, reach)), jnp.asarray(jnp.inf)
    place, _, value = fori_loop(0, rounds, narrower, start)
    return place, value


def least_whole(passes: Callable[[int], bool], most: int) -> int:
    """The least whole number from 1 on that passes a test, as all larger ones do.

    By doubling and halving, since small ones cost least; most + 1 if none does.
    """
    low, high = 0, most + 1
    while high - low > 1:
        middle = min(max(2 * low, 1), most if high > most else (low + high) // 2)
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high
