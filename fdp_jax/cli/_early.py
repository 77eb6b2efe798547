"""Faults of arguments as far as plain Python can tell: JAX takes a second."""

import argparse
import pathlib
from typing import Any

from .._internal._files import require_picture, require_writable
from ._options import (
    ALLOWED,
    DESCRIPTION,
    NUMBERS,
    PARAMETERS,
    SCHEMES,
    STANDARD,
    USUAL,
    flag,
)

_SOLVABLE = *PARAMETERS, "sampling_prob"


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
    there = file is None or pathlib.Path(file).is_file()
    _require(there, f"there is no file {file!r}", FileNotFoundError)
    _require_outputs(arguments)
    unknown = getattr(arguments, "solve_for", None)
    _require(
        unknown not in DESCRIPTION or getattr(arguments, unknown) is None,
        f"{flag(str(unknown))} is what --solve-for asks for; leave it out",
    )
    for prefix in ("", "other_"):
        _require_alone(arguments, prefix)
    if getattr(arguments, "mechanism", "") is None:
        _complete(arguments, unknown)


def is_page(name: str) -> bool:
    """Whether a picture is to be a page, which sweeps alone have."""
    return pathlib.Path(name).suffix.lower() == ".html"


def _require(holds: object, rule: str, wrong: type[Exception] = ValueError) -> None:
    # That of `_internal._checks` needs JAX, which takes longer than all checks here.
    if not holds:
        raise wrong(rule)


def _require_range(name: str, value: object) -> None:
    allowed, test = ALLOWED.get(name, ("", lambda _: True))
    for number in value if isinstance(value, list) else [value]:
        fine = not isinstance(number, float) or test(number)
        _require(fine, f"{name} must be {allowed}, got {number}")


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
    given = [flag(x) for x in others if getattr(arguments, x, None) is not None]
    _require(
        "(" not in written or not given,
        f"{' '.join(given[:1])} means nothing beside {written!r}: write it there",
    )


def _complete(arguments: argparse.Namespace, unknown: str | None) -> None:
    """A whole run of DP-SGD, but for what is sought."""
    _require(
        unknown is None or unknown in _SOLVABLE,
        f"--solve-for must be one of {', '.join(_SOLVABLE)} without --mechanism, got "
        f"{unknown}",
    )
    for name, usual in USUAL.items():
        setattr(arguments, name, getattr(arguments, name) or usual)
    known = [name for name in PARAMETERS if name != unknown]
    missing = [flag(name) for name in known if getattr(arguments, name) is None]
    _require(not missing, f"{' and '.join(missing)} must be given, or a --mechanism")
    numbers_of(arguments, unknown)


def numbers_of(
    arguments: argparse.Namespace, unknown: str | None = None
) -> dict[str, Any]:
    """The numbers of a scheme by its own names, but for the one that is sought.

    Raises:
        ValueError: If an argument is missing, or is none of the scheme's.
    """
    names, own = SCHEMES[arguments.sampling].names, f"--sampling {arguments.sampling}"
    given = [n for n in NUMBERS if getattr(arguments, n) is not None]
    missing = [flag(n) for n in names if n not in (*given, unknown)]
    _require(not missing, f"{' and '.join(missing)} must be given with {own}")
    foreign = [n for n in given if n not in names or n == unknown]
    sought = f" --solve-for {unknown}" if unknown in foreign else ""
    shown = " and ".join(map(flag, foreign))
    _require(not foreign, f"{shown} means nothing with {own}{sought}")
    return {names[n]: getattr(arguments, n) for n in given}
