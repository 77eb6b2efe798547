"""What is wrong with arguments as far as plain Python can tell: JAX takes a second."""

import argparse
import math
import pathlib

from .._internal._files import require_picture, require_writable
from ._scheme import NUMBERS, numbers_of

QUERIES = {
    "epsilon": "delta",
    "delta": "epsilon",
    "beta": "alpha",
    "tpr": "fpr",
    "bayes-error": "prior",
    "advantage": None,
}
"""Commands that ask for a number, and what it is asked at."""
PARAMETERS = "noise_multiplier", "num_steps"
DESCRIPTION = "mechanism", *PARAMETERS, "relation", "sampling", *NUMBERS
"""Names of all arguments that describe a run."""
USUAL = {"relation": "add-or-remove-one", "sampling": "poisson"}
"""What is meant where a run of DP-SGD does not say."""
WARM = "dpsgd", "calibrate", "account", "gaussian", "laplace"
"""Kinds of questions whose programs can be made beforehand."""
STANDARD = "-"
"""Stands for standard output."""
TARGETS = "epsilon", "delta", "alpha", "beta", "advantage"
_SOLVABLE = *PARAMETERS, "sampling_prob"
_UNIT = "in [0, 1]", lambda x: 0 <= x <= 1
_ALLOWED = dict.fromkeys(
    ("sampling_prob", "delta", "alpha", "beta", "fpr", "prior", "advantage"), _UNIT
) | {
    # Of no noise at all the library says what that is.
    "noise_multiplier": ("a positive number", lambda x: x >= 0),
    "num_steps": ("a finite number, at least 0", lambda x: 0 <= x < math.inf),
    "epsilon": ("a number", lambda x: x == x),
}
"""Ranges of numbers, those of the library's own checks."""


def check(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be answered, and fill in what is usual.

    Raises:
        ValueError: If a number is out of range, or a run is not described.
        OSError: If a file is not there, or cannot be written.
        ImportError: If a picture is wanted and matplotlib is missing.
    """
    for name, value in vars(arguments).items():
        _require_range(name.removeprefix("other_"), value)
    file = getattr(arguments, "file", None)
    if file is not None and not pathlib.Path(file).is_file():
        raise FileNotFoundError(f"there is no file {file!r}")
    _require_outputs(arguments)
    unknown = getattr(arguments, "solve_for", None)
    if unknown in DESCRIPTION and getattr(arguments, unknown) is not None:
        raise ValueError(f"{_flag(unknown)} is what --solve-for asks for; leave it out")
    for prefix in ("", "other_"):
        _require_alone(arguments, prefix)
    if getattr(arguments, "mechanism", "") is None:
        _complete(arguments, unknown)


def is_page(name: str) -> bool:
    """Whether a picture is to be a page, which sweeps alone have."""
    return pathlib.Path(name).suffix.lower() == ".html"


def _require_range(name: str, value: object) -> None:
    allowed, test = _ALLOWED.get(name, ("", lambda _: True))
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, float) and not test(number):
            raise ValueError(f"{name} must be {allowed}, got {number}")


def _require_outputs(arguments: argparse.Namespace) -> None:
    json, picture = (getattr(arguments, name, None) for name in ("json", "plot"))
    if json not in (None, STANDARD):
        require_writable("--json", json)
    if picture is not None:
        page = arguments.command == "sweep" and is_page(picture)
        (require_writable if page else require_picture)("--plot", picture)


def _require_alone(arguments: argparse.Namespace, prefix: str) -> None:
    """A mechanism that is written as a call has all its arguments there."""
    written = getattr(arguments, f"{prefix}mechanism", None) or ""
    others = [f"{prefix}{name}" for name in DESCRIPTION[1:]]
    given = [x for x in others if getattr(arguments, x, None) is not None]
    if "(" in written and given:
        raise ValueError(
            f"{_flag(given[0])} means nothing beside {written!r}: write it there"
        )


def _complete(arguments: argparse.Namespace, unknown: str | None) -> None:
    """A whole run of DP-SGD, but for what is sought."""
    if unknown is not None and unknown not in _SOLVABLE:
        raise ValueError(
            f"--solve-for must be one of {', '.join(_SOLVABLE)} without --mechanism, "
            f"got {unknown}"
        )
    for name, usual in USUAL.items():
        setattr(arguments, name, getattr(arguments, name) or usual)
    known = [name for name in PARAMETERS if name != unknown]
    missing = [_flag(name) for name in known if getattr(arguments, name) is None]
    if missing:
        raise ValueError(f"{' and '.join(missing)} must be given, or a --mechanism")
    numbers_of(arguments, unknown)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
