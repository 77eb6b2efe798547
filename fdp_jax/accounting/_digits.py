"""Numbers that keep their digits on the way through float32 programs."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._internal import _checks
from .._internal._concrete import is_traced

_PARTS = 3
"""How many float32 numbers hold a float64 one."""
LEAST, _MOST = 2.0**-77, 2.0**127
"""Sizes between which they do: beyond these parts underflow or overflow."""


def split(numbers: Any, dtype: Any, name: str = "numbers") -> tuple[Any, ...]:
    """The numbers in one part of float64, or in several of float32.

    Raises:
        ValueError: If known numbers are too small or large for several.
    """
    numbers = numbers if is_traced(numbers) else np.asarray(numbers)
    if dtype == np.float64:
        return (numbers.astype(np.float64),)
    parts, traced = [], is_traced(numbers)
    if not traced:
        sizes = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
        _checks.require(
            not np.any((sizes < LEAST) | (sizes >= _MOST)),
            f"{name} must be 0, infinite, or from {LEAST:.3g} to {_MOST:.3g} in "
            "programs without 64-bit numbers",
            numbers.tolist(),
        )
    module = jnp if traced else np
    for _ in range(_PARTS):
        rounded = lax.reduce_precision(numbers, 8, 23) if traced else numbers
        part = rounded.astype(np.float32)
        parts.append(part)
        finite = module.isfinite(numbers)
        safe = module.where(finite, part, 0).astype(numbers.dtype)
        numbers = module.where(finite, numbers, 0) - safe
    return tuple(parts)


def joined(parts: tuple[Any, ...]) -> Any:
    """The numbers again, in float64 where that is to be had."""
    if is_traced(parts):
        wide = [jnp.asarray(part, jnp.result_type(float)) for part in parts]
    else:
        wide = [np.asarray(part, np.float64) for part in parts]
    return sum(wide[1:], start=wide[0])
