"""The engine that a guarantee is asked by, as arguments of `using`."""

import dataclasses

from ..losses import Method


def choices(method: Method) -> str:
    """The arguments of `using` that give a method."""
    others = [
        f"{field.name}={getattr(method, field.name)}"
        for field in dataclasses.fields(method)[1:]
        if getattr(method, field.name) != field.default
    ]
    return ", ".join([repr(method.name), *others])


def check_points(method: str, points: int) -> None:
    """Raises `ValueError` if so many points are none that an engine takes."""
    power = isinstance(points, int) and points > 0 and points & (points - 1) == 0
    if not (power and 1 << 10 <= points <= 1 << 26):
        raise ValueError(
            f"points must be a power of two from 2**10 to 2**26, got {points!r}"
        )
    if method != "grid":
        raise ValueError(f"points are for method 'grid', got method {method!r}")
