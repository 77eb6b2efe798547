"""Argument checks that work on plain numbers, arrays and traced values alike.

Every check returns its argument, and the result must be used: under `jit` the check
hangs on it.  A concrete bad value raises `ValueError` at once; a traced one raises
`equinox.EquinoxRuntimeError` with the same sentence when the program runs.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.core
import numpy as np


def _checked(name: str, value: Any, allowed: str, test: Callable[[Any], Any]) -> Any:
    if isinstance(value, jax.core.Tracer):
        return eqx.error_if(value, (~test(value)).any(), f"{name} must be {allowed}")
    numbers = np.asarray(value)
    kinds = np.integer, np.floating
    if not any(np.issubdtype(numbers.dtype, kind) for kind in kinds):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    wrong = ~test(numbers.astype(np.float64))
    if np.any(wrong):
        worst = numbers if numbers.ndim == 0 else numbers[wrong].flat[0]
        raise ValueError(f"{name} must be {allowed}, got {worst}")
    # NumPy float64 keeps every digit whatever the caller's precision.
    return value if isinstance(value, jax.Array) else numbers.astype(np.float64)


def positive(name: str, value: Any) -> Any:
    """A number in (0, inf]."""
    return _checked(name, value, "a positive number", lambda x: x > 0)


def positive_finite(name: str, value: Any) -> Any:
    """A number in (0, inf)."""
    allowed = "a finite positive number"
    return _checked(name, value, allowed, lambda x: (x > 0) & (x < np.inf))


def nonnegative(name: str, value: Any) -> Any:
    """A number in [0, inf)."""
    allowed = "a finite number, at least 0"
    return _checked(name, value, allowed, lambda x: (x >= 0) & (x < np.inf))


def nonnegative_or_inf(name: str, value: Any) -> Any:
    """A number in [0, inf]."""
    return _checked(name, value, "a number, at least 0", lambda x: x >= 0)


def count(name: str, value: Any) -> Any:
    """A whole number in [0, inf)."""
    return _checked(
        name,
        value,
        "a whole number, at least 0 (this mechanism has no fractional powers)",
        lambda x: (x >= 0) & (x < np.inf) & (x == x.round()),
    )


def probability(name: str, value: Any) -> Any:
    """A number in [0, 1]."""
    return _checked(name, value, "in [0, 1]", lambda x: (x >= 0) & (x <= 1))


def below_one(name: str, value: Any) -> Any:
    """A number in [0, 1)."""
    return _checked(name, value, "in [0, 1)", lambda x: (x >= 0) & (x < 1))


def real(name: str, value: Any) -> Any:
    """Any number but NaN; infinities are allowed."""
    return _checked(name, value, "a number", lambda x: x == x)


def scalar(name: str, value: Any) -> Any:
    """A single number (after one of the other checks)."""
    if getattr(value, "ndim", 0) != 0:
        raise ValueError(f"{name} must be one number, got an array of {value.shape}")
    return value
