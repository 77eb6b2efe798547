"""Settings that hold inside of a context."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TypeVar

_T = TypeVar("_T")


@contextlib.contextmanager
def setting(variable: contextvars.ContextVar[_T], value: _T) -> Iterator[None]:
    """A context in which a variable has a value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
