"""Where an answer goes: to the terminal, to a JSON file, to a picture."""

import argparse
import json
import pathlib
import sys
from typing import Any

from .. import plot, reports
from ._options import STANDARD


class Output:
    """The outputs of a command, which `check` has looked at."""

    def __init__(self, arguments: argparse.Namespace):
        self.command: str = arguments.command
        self.json: str | None = getattr(arguments, "json", None)
        self.plot: str | None = getattr(arguments, "plot", None)

    def say(self, text: str) -> None:
        """Print for people: to standard error where standard output is for JSON."""
        print(text, file=sys.stderr if self.json == STANDARD else sys.stdout)

    def write(self, answer: dict[str, Any]) -> None:
        """Write the answer as JSON, if that is wanted."""
        if self.json is None:
            return
        answer = {"command": self.command} | answer
        answer.setdefault("versions", reports.versions())
        text = json.dumps(answer, indent=2, allow_nan=False) + "\n"
        if self.json == STANDARD:
            sys.stdout.write(text)
        else:
            pathlib.Path(self.json).write_text(text, encoding="utf-8")

    def draw(self, run: Any, title: str) -> None:
        """Draw a run, if that is wanted; the title says which."""
        if self.plot is not None:
            plot.save(run, self.plot, title=title)
