"""Numbers that keep their digits on the way through float32 programs."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._internal._concrete import is_traced

_PARTS = 3
"""How many float32 numbers hold a float64 one."""


def split(numbers: Any, dtype: Any) -> tuple[Any, ...]:
    """The numbers in one part of float64, or in several of float32."""
    if dtype == np.float64:
        return (numbers.astype(np.float64),)
    parts, traced = [], is_traced(numbers)
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
