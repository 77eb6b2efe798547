"""Printing of bounds: digits rounded to the side on which the bound stays one."""

import decimal
import math


def round_up(value: float, digits: int = 6) -> str:
    """Print with the given digits, rounded towards plus infinity.

    An upper bound stays an upper bound in print.
    """
    return _directed(value, digits, decimal.ROUND_CEILING)


def round_down(value: float, digits: int = 6) -> str:
    """Print with the given digits, rounded towards minus infinity."""
    return _directed(value, digits, decimal.ROUND_FLOOR)


def _directed(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value) or value == 0.0:
        return f"{value:g}"
    context = decimal.Context(prec=digits, rounding=rounding)
    return f"{context.plus(decimal.Decimal(value)).normalize(context):g}"
