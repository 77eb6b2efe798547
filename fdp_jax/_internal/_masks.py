"""Parts of sequences that are marked, and the rest."""

from collections.abc import Sequence
from typing import Any

Mask = Sequence[bool]


def select(mask: Mask, values: Sequence[Any]) -> list[Any]:
    """The marked values."""
    return [x for marked, x in zip(mask, values, strict=True) if marked]


def spread(mask: Mask, values: Sequence[Any]) -> list[Any]:
    """Inverse of `select`, with `None` at the places that are not marked."""
    return merge(mask, values, [None] * len(mask))


def merge(mask: Mask, values: Sequence[Any], full: Sequence[Any]) -> list[Any]:
    """`full` with the marked places replaced by `values`, in order."""
    rest = iter(values)
    return [next(rest) if m else x for m, x in zip(mask, full, strict=True)]
