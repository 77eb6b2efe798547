"""The engine that a guarantee is asked by, as arguments of `using`."""

import dataclasses
import warnings
from typing import Any

from .._internal import _checks
from ..engines import METHODS
from ..losses import Method


def choices(method: Method) -> str:
    """The arguments of `using` that give a method."""
    others = [
        f"{field.name}={getattr(method, field.name)}"
        for field in dataclasses.fields(method)[1:]
        if getattr(method, field.name) != field.default
    ]
    return ", ".join([repr(method.name), *others])


def check_method(name: str, value: Any) -> str:
    """The name of an engine, or "auto"; a former name warns."""
    if isinstance(value, str) and value == "spectral":
        renamed = "method 'spectral' is called 'contour' now"
        warnings.warn(renamed, DeprecationWarning, stacklevel=7)
        return "contour"
    return _checks.choice(name, value, METHODS)


def check_points(method: str, points: int) -> None:
    """Raises `ValueError` if so many points are none that an engine takes."""
    power = isinstance(points, int) and points > 0 and points & (points - 1) == 0
    _checks.require(
        power and 1 << 10 <= points <= 1 << 26,
        "points must be a power of two from 2**10 to 2**26",
        f"{points!r}",
    )
    _checks.require(
        method == "grid", "points are for method 'grid'", f"method {method!r}"
    )
