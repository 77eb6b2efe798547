"""How large a concave function can be, given bounds of its values at some points.

A line through two points of a concave function lies above it outside of the two.  With
an upper bound of the value at the inner point and a lower one at the outer point this
holds for whatever function has such values.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

_FARTHEST = 700.0
"""The largest distance in eps; e^eps is still finite."""


@jax.jit
def highest(
    thresholds: Float[Array, " n"],
    lower: Float[Array, " n"],
    upper: Float[Array, " n"],
    origin: Float[Array, ""],
) -> Float[Array, ""]:
    """An upper bound of the maximum of a function that is concave in e^eps.

    Args:
        thresholds: Some eps, in any order; infinite ones are left out.
        lower: Lower bounds of the function there.
        upper: Upper bounds of the function there.
        origin: The function's value at e^eps = 0.
    """
    used = jnp.isfinite(thresholds)
    step = thresholds - thresholds[:, None]  # from the row's point to the column's
    step = jnp.where(used & used[:, None], step, 0)
    # On the scale of the row's own e^eps.
    width = jnp.expm1(jnp.clip(step, -_FARTHEST, _FARTHEST))
    # A difference may underflow, a distance of 1 at most: then a slope does no harm.
    fall = upper[:, None] - lower + jnp.finfo(lower.dtype).tiny
    slope = fall / jnp.where(step == 0, 1, jnp.abs(width))
    # Slopes to the right and to the left of a point are at most these.
    rise = _least(step < 0, slope)
    rise = jnp.minimum(rise, upper - origin)
    climb = _least(step > 0, slope)

    # Right of a point without rise and left of one without climb nothing is higher.
    flat = jnp.where(rise <= 0, upper, jnp.inf)
    level = jnp.where(climb <= 0, upper, jnp.inf)
    cap = jnp.minimum(_least(used & (step <= 0), flat), _least(step > 0, level))
    climb = jnp.maximum(climb, 0)
    start = upper + climb + _slack(upper, climb)
    beyond = jnp.maximum(
        jnp.min(jnp.where(used, start, jnp.inf)),
        jnp.min(jnp.where(used, flat, jnp.inf)),
    )
    # Between neighbors it is below either's line, so below where these cross.
    following = jnp.argmin(jnp.where(step > 0, step, jnp.inf), axis=1)
    there = jnp.take_along_axis(width, following[:, None], 1)[:, 0]
    left, right = (upper, rise), (upper[following], climb[following])
    cross = jnp.where(
        left[0] > right[0],
        _crossing(left, right, there, there / (1 + there)),
        _crossing(right, left, there / (1 + there), there),
    )
    last = ~jnp.any(step > 0, axis=1)
    between = jnp.where(last | ~used, -jnp.inf, jnp.minimum(cross, cap))
    return jnp.maximum(beyond, jnp.max(between))


def _least(where: Bool[Array, "n n"], values: Array) -> Float[Array, " n"]:
    return jnp.min(jnp.where(where, values, jnp.inf), axis=1)


def _crossing(
    near: tuple[Array, Array], far: tuple[Array, Array], reach: Array, back: Array
) -> Array:
    """The largest value below two lines that come from either end, from above.

    Args:
        near: Value and slope at the end of the larger value, whose slope is per unit
            of that end: on this scale nothing cancels.
        far: The same of the other end, with its own unit.
        reach: The distance in units of the near end.
        back: The distance in units of the far end.
    """
    (start, rise), (end, slope) = near, far
    least = end + slope * back + _slack(end, slope * back)
    total = rise + slope * back / reach
    place = (least - start) / jnp.where(total > 0, total, 1)
    # Where one of the slopes is not known the other line is left.
    place = jnp.where(jnp.isfinite(slope), jnp.clip(place, 0, reach), reach)
    climbed = jnp.maximum(rise, 0) * place
    value = start + climbed + _slack(start, climbed)
    value = jnp.where(jnp.isfinite(rise), value, least)
    return jnp.where(jnp.isnan(value), jnp.inf, value)


def _slack(*terms: Array) -> Array:
    """A bound of the rounding of a sum and its terms."""
    limits = jnp.finfo(terms[0].dtype)
    size = jnp.sum(jnp.abs(jnp.stack(terms)), axis=0)
    return 8 * float(limits.eps) * size + 4 * float(limits.tiny)
