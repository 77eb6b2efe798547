"""Printing of bounds: digits rounded to the side on which the bound stays one."""

import decimal
import math
from typing import Any


def round_up(value: float, digits: int = 6) -> str:
    """Print with the given digits, rounded towards plus infinity.

    An upper bound stays an upper bound in print.
    """
    return _directed(value, digits, decimal.ROUND_CEILING)


def round_down(value: float, digits: int = 6) -> str:
    """Print with the given digits, rounded towards minus infinity."""
    return _directed(value, digits, decimal.ROUND_FLOOR)


def at_most(value: float) -> str:
    """In few digits, as `:g`, but never less than the value: for "at most" claims."""
    text = f"{value:g}"
    return text if float(text) >= value else f"{float(round_up(value)):g}"


def at_least(value: float) -> str:
    """In few digits, as `:g`, but never more than the value: for "at least" claims."""
    text = f"{value:g}"
    return text if float(text) <= value else f"{float(round_down(value)):g}"


def json_ready(value: Any) -> Any:
    """The value with infinite numbers by name, as JSON has none."""
    if isinstance(value, dict):
        return {key: json_ready(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(x) for x in value]
    bare = isinstance(value, float) and not math.isfinite(value)
    return f"{value:g}" if bare else value


def joined_methods(*methods: str) -> str:
    """The engines of several answers, each of them once, if engines have found them."""
    names = ", ".join(methods).split(", ")
    return ", ".join(dict.fromkeys(name for name in names if name))


def _directed(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value) or value == 0.0:
        return f"{value:g}"
    context = decimal.Context(prec=digits, rounding=rounding)
    return f"{context.plus(decimal.Decimal(value)).normalize(context):g}"
