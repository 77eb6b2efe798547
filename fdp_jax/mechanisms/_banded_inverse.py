"""Strategies whose inverse is a banded Toeplitz matrix."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import ahead_of_time, known
from .._internal._precision import in_float64

_MOST_STEPS = 1 << 20


@explained(
    num_steps=_checks.whole_in(1, _MOST_STEPS), power=_checks.one(_checks.probability)
)
def banded_inverse(num_steps: int, bands: int, power: Any) -> Any:
    """First column of C, whose inverse has the first coefficients of (1 - x)^power.

    Args:
        num_steps: Rows of C.
        bands: How many of the coefficients, at least 1.
        power: A number in [0, 1].

    Returns:
        An array of shape (num_steps,), in double precision where the power is known.
    """
    bands = _checks.whole("bands", bands, 1, num_steps)
    of = np.arange(1.0, bands), np.arange(1.0, num_steps)
    if known(power) is None:
        return in_float64(_column)(power, *of)
    return np.asarray(_known_column(power, *of))


def _column(power: Any, place: Any, later: Any) -> Array:
    """The entries, of steps later than the first one too."""
    # Of the inverse, without the first one and with the sign turned: not negative.
    rest = -jnp.cumprod((place - 1 - power) / place)

    def more(before: Array, _: Array) -> tuple[Array, Array]:
        entry = jnp.dot(rest, before)
        return jnp.append(entry, before)[: place.size], entry

    start = jnp.zeros_like(rest).at[:1].set(1.0)
    _, entries = lax.scan(more, start, later)
    return jnp.append(1.0, entries)


_known_column = ahead_of_time(in_float64(cast_out=False)(_column))
