"""Numeric parameters of mechanisms: checked, exact, and never cast by JAX."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._internal import _checks


class _Named:
    """Converter of one field; `__set_name__` is not offered by dataclass fields."""

    def __init__(self, name: str, check: Callable[[str, Any], Any]):
        self.name, self.check = name, check

    def __call__(self, value: Any) -> Any:
        if value is None:
            return None
        return _checks.scalar(self.name, self.check(self.name, value))


def parameter(name: str, check: Callable[[str, Any], Any], **options: Any) -> Any:
    """An Equinox field holding one number that passes a check."""
    return eqx.field(converter=_Named(name, check), **options)


def is_one(value: Any) -> bool:
    """Whether a parameter is known, outside any trace, to be 1."""
    number = _checks.known(value)
    return number is not None and bool(number == 1)


def as_float(value: Any) -> Float[Array, ""]:
    """A parameter inside a float64 computation."""
    return jnp.asarray(value, jnp.result_type(float))


def as_number(value: Any) -> Any:
    """A parameter to calculate with outside of a query, at its full precision."""
    if value is None:
        raise ValueError("a parameter is not set")
    return value
