"""A sign of life, on a terminal, of what takes longer than two seconds."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from .._internal._waiting import said_elsewhere

_AFTER = 2.0


@contextlib.contextmanager
def progress(command: str) -> Iterator[None]:
    """Shows on standard error how long a command has been computing.

    Nothing is shown where standard error is no terminal, or within two seconds.
    """
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(command, done), daemon=True)
    thread.start()
    try:
        with said_elsewhere():
            yield
    finally:
        done.set()
        thread.join()


def _show(command: str, done: threading.Event) -> None:
    started, width = time.monotonic(), 0
    wait = _AFTER
    while not done.wait(wait):
        seconds = time.monotonic() - started
        text = f"fdp-jax {command}: computing for {seconds:.0f} s"
        text += " (what is new is compiled first, and kept)"
        print(f"\r{text}", end="", file=sys.stderr, flush=True)
        width, wait = len(text), 1.0
    if width:
        print(f"\r{' ' * width}\r", end="", file=sys.stderr, flush=True)
