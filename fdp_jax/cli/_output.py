"""Where an answer goes: to the terminal, to a JSON file, to a picture."""

import argparse
import json
import os
import pathlib
import sys
from typing import Any

from .. import plot, reports

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
            _require_writable("--json", self.json)
        if self.plot is not None:
            _require_writable("--plot", self.plot)
            if not (self.command == "sweep" and is_page(self.plot)):
                _require_format(self.plot)

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


def _require_writable(flag: str, name: str) -> None:
    path = pathlib.Path(name)
    if path.is_dir():
        raise OSError(f"{flag} must be a file, got the folder {name!r}")
    if not path.parent.is_dir():
        raise OSError(f"{flag} {name!r}: there is no folder {str(path.parent)!r}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OSError(f"{flag} {name!r} cannot be written")


def _require_format(name: str) -> None:
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise ImportError(
            "--plot needs matplotlib; install fdp-jax with the extra 'plot'"
        ) from error
    known = FigureCanvasBase.get_supported_filetypes()
    suffix = pathlib.Path(name).suffix.lstrip(".").lower()
    if suffix not in known:
        raise ValueError(
            f"--plot must end in one of .{', .'.join(sorted(known))}, got {name!r}"
        )
