"""A word where an answer is not tight: once for each line of a program that asks."""

import os
import pathlib
import sys
import warnings
from types import FrameType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._internal._concrete import (
    behind,
    holds_anywhere,
    is_traced,
    outside_transformations,
)
from ._bounds import Bounds, LooseBoundWarning, Range, Status
from ._by_name import QUERIES

_OWN = tuple(
    str(pathlib.Path(str(file)).parent) + os.sep
    for file in (pathlib.Path(__file__).parent, eqx.__file__)
)
"""The folders of this package and of Equinox, whose methods call ours."""
_SEEN: set[tuple[str, int, str]] = set()


def is_loose(found: Bounds) -> bool:
    """Whether an answer, known now, leaves something to be desired."""
    return outside_transformations() and leaves_doubt(found)


def leaves_doubt(found: Bounds) -> bool:
    """Whether any element of a batch is in doubt, where operations run at once."""
    status, lower, upper = map(_numbers, (found.status, found.lower, found.upper))
    loose = status != Status.TIGHT
    return holds_anywhere(loose) and holds_anywhere(loose & is_wide(lower, upper))


def is_vague(found: Bounds, anyway: Range) -> bool:
    """Whether derivatives of an answer, though it be tight, may be those of no test.

    A beta next to 1 - alpha is tight if nothing but that is known of it.  So the width
    is compared with how far the answer is from what is known anyway.  Known numbers,
    which have no derivative, are never vague.
    """
    if not is_traced(found.estimate):
        return False
    estimate, lower, upper, least, most = map(
        _numbers, (found.estimate, found.lower, found.upper, *anyway[:2])
    )
    xp = jnp if is_traced(estimate, lower, upper, most) else np
    room = xp.maximum(xp.minimum(estimate - least, most - estimate), 0)
    size = xp.maximum(abs(lower), abs(upper))
    wide = upper - lower > _VAGUE * room + _ROUNDING * size
    return holds_anywhere(wide & is_wide(lower, upper))


_VAGUE, _ROUNDING = 1e-6, 1e-14
"""Width over the distance from what is known anyway, and over the answer."""


def is_wide(lower: Any, upper: Any) -> Any:
    """Whether there is anything to gain: not where numbers underflow."""
    return ~(upper <= lower + 1e-300)


def is_nearly_tight(found: Bounds) -> bool:
    """Whether a loose answer would be tight with a sixteenth of the width."""
    if not is_loose(found):
        return False
    lower, upper, status = map(_numbers, (found.lower, found.upper, found.status))
    wide = ~(upper - lower <= 1.5e-5 * np.maximum(np.abs(lower), np.abs(upper)))
    return not holds_anywhere((status != Status.TIGHT) & wide)


def _numbers(value: Any) -> Any:
    """NumPy's own where they are known: these are looked at in microseconds."""
    numbers = behind(value)
    return jax.lax.stop_gradient(numbers) if is_traced(numbers) else np.asarray(numbers)


def warn_of_loose(name: str, found: Bounds) -> None:
    """Warns whoever asked for `name`, with the bracket and what may help.

    Numbers make each text another one, so that Python's own memory would not do.
    """
    frame, level = _caller()
    asked = frame.f_code.co_filename, frame.f_lineno, name
    if asked in _SEEN:
        return
    _SEEN.add(asked)
    warnings.warn(_text(name, found), LooseBoundWarning, stacklevel=level)


def _caller() -> tuple[FrameType, int]:
    """The innermost frame that is not ours, and how far it is from `warn_of_loose`."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame, level = frame.f_back, level + 1
    return frame, level


def _text(name: str, found: Bounds) -> str:
    lower, upper, status = map(np.ravel, (found.lower, found.upper, found.status))
    doubtful = np.flatnonzero(status != Status.TIGHT)
    worst = doubtful[np.argmax(status[doubtful])]
    count = f" ({doubtful.size} of {status.size} values)" if status.size > 1 else ""
    argument = QUERIES[name].argument
    return (
        f"{name} is certified to lie in [{lower[worst]:.6g}, {upper[worst]:.6g}] only, "
        f"{Status(int(status[worst])).name}{count}: bounds({argument}=...) "
        'has both ends, and using("grid", points=2**20) may be tighter'
    )
