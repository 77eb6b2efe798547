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


def at_most(value: float) -> str:
    """In few digits, as `:g`, but never less than the value: for "at most" claims."""
    text = f"{value:g}"
    return text if float(text) >= value else f"{float(round_up(value)):g}"


def at_least(value: float) -> str:
    """In few digits, as `:g`, but never more than the value: for "at least" claims."""
    text = f"{value:g}"
    return text if float(text) <= value else f"{float(round_down(value)):g}"


def _directed(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value) or value == 0.0:
        return f"{value:g}"
    context = decimal.Context(prec=digits, rounding=rounding)
    return f"{context.plus(decimal.Decimal(value)).normalize(context):g}"
