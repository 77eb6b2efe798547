"""dp_accounting, imported when it is needed, and its neighboring relations."""

import enum
import importlib
from typing import Any

from .._internal import _checks
from ..mechanisms import NeighboringRelation


def library(needed_by: str) -> Any:
    """The package dp_accounting.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        return importlib.import_module("dp_accounting")
    except ImportError as error:
        raise ImportError(
            f"{needed_by} needs dp-accounting: pip install 'fdp-jax[dp-accounting]'"
        ) from error


def events(needed_by: str) -> Any:
    """Its module of events, which offers all of them."""
    return library(needed_by).dp_event


_THEIRS = {"REPLACE_SPECIAL": NeighboringRelation.ZERO_OUT}
"""Their names of relations that have another one here."""


def relation_of(value: Any) -> NeighboringRelation:
    """A neighboring relation, of this package or of dp_accounting."""
    if isinstance(value, enum.Enum) and _is_theirs(type(value)):
        value = _THEIRS.get(value.name, value.name)
    return _checks.member("relation", NeighboringRelation, value)


def is_event(value: Any) -> bool:
    """Whether a value is a `dp_accounting.DpEvent`; it has been imported then."""
    return any(c.__name__ == "DpEvent" and _is_theirs(c) for c in type(value).__mro__)


def name_of(event: Any) -> str:
    """The name of an event's class if that is dp_accounting's own, else none."""
    kind = type(event)
    return kind.__name__ if kind.__module__ == "dp_accounting.dp_event" else ""


def _is_theirs(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "dp_accounting"
