"""A line on standard error where an answer waits for the compiler."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

from ._program_cache import folder, is_off

_VARIABLE = "FDP_JAX_WAITING"
_AFTER = 5.0
"""Seconds of waiting until it is said why."""
_PAUSE = 1.0
"""Programs that follow each other sooner are for one question."""


class _Wait:
    """The wait for the programs of a question."""

    since = until = -float("inf")
    told = False

    @classmethod
    def tell(cls) -> None:
        """Say it, once."""
        if not cls.told:
            cls.told, place = True, folder()
            where = f"kept in {place}" if place else "not kept: FDP_JAX_CACHE is off"
            message = "programs for new kinds of questions are made once, and"
            print(f"fdp_jax: still working: {message} {where}", file=sys.stderr)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """A context in which programs are made, or answer before they are compiled.

    If that takes longer than five seconds, with what was made just before, it is said:
    on a terminal, and elsewhere if `FDP_JAX_WAITING` is set, unless to "off".
    """
    asked = os.environ.get(_VARIABLE) or (
        sys.stderr is not None and sys.stderr.isatty()
    )
    if not asked or is_off(_VARIABLE):
        yield
        return
    now = time.monotonic()
    if now - _Wait.until > _PAUSE:
        _Wait.since, _Wait.told = now, False
    timer = threading.Timer(max(_Wait.since + _AFTER - now, 0.0), _Wait.tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        _Wait.until = time.monotonic()
