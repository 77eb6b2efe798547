"""Where an answer goes: to the terminal, to a JSON file, to a picture."""

import argparse
import json
import pathlib
import sys
from typing import Any

from .. import plot, reports
from .._internal._files import require_picture, require_writable

_STANDARD = "-"


class Output:
    """The outputs of a command, checked before anything is computed.

    Raises:
        OSError: If a file cannot be written.
        ValueError: If a picture has an unknown format.
        ImportError: If matplotlib is missing for one.
    """

    def __init__(self, arguments: argparse.Namespace):
        self.command: str = arguments.command
        self.json: str | None = getattr(arguments, "json", None)
        self.plot: str | None = getattr(arguments, "plot", None)
        if self.json is not None and self.json != _STANDARD:
            require_writable("--json", self.json)
        if self.plot is not None:
            page = self.command == "sweep" and is_page(self.plot)
            (require_writable if page else require_picture)("--plot", self.plot)

    def say(self, text: str) -> None:
        """Print for people: to standard error where standard output is for JSON."""
        print(text, file=sys.stderr if self.json == _STANDARD else sys.stdout)

    def write(self, answer: dict[str, Any]) -> None:
        """Write the answer as JSON, if that is wanted."""
        if self.json is None:
            return
        answer = {"command": self.command} | answer
        answer.setdefault("versions", reports.versions())
        text = json.dumps(answer, indent=2, allow_nan=False) + "\n"
        if self.json == _STANDARD:
            sys.stdout.write(text)
        else:
            pathlib.Path(self.json).write_text(text, encoding="utf-8")

    def draw(self, run: Any, title: str) -> None:
        """Draw a run, if that is wanted; the title says which."""
        if self.plot is not None:
            plot.save(run, self.plot, title=title)


def is_page(name: str) -> bool:
    """Whether a picture is to be a page, which sweeps alone have."""
    return pathlib.Path(name).suffix.lower() == ".html"
