"""Other packages, imported when they are needed, and their neighboring relations."""

import enum
from typing import Any

from .._internal import _checks
from .._internal._extras import imported
from ..mechanisms import NeighboringRelation


def library(needed_by: str, name: str = "dp_accounting") -> Any:
    """One of these packages, or a module of it.

    Raises:
        ImportError: If it is not installed.
    """
    return imported(name, needed_by, name.partition(".")[0].replace("_", "-"))


def public(made: type, name: str) -> type:
    """A class that a function makes, under the name where it is found (by pickle)."""
    made.__module__ = __name__.rpartition(".")[0]
    made.__qualname__ = made.__name__ = name
    return made


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
