"""Files that are written at once or not at all."""

import json
import os
import pathlib
import tempfile
from typing import Any


def require_writable(name: str, path: str | os.PathLike[str]) -> pathlib.Path:
    """The path of a file that can be written.

    Raises:
        TypeError: If it is no path.
        OSError: If it is a folder, is in none, or may not be written.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name} must be the path of a file, got {path!r}")
    found, shown = pathlib.Path(path), str(path)
    if found.is_dir():
        raise IsADirectoryError(f"{name} must be a file, got the folder {shown!r}")
    if not found.parent.is_dir():
        parent = str(found.parent)
        raise FileNotFoundError(f"{name} {shown!r}: there is no folder {parent!r}")
    if not os.access(found if found.exists() else found.parent, os.W_OK):
        raise PermissionError(f"{name} {shown!r} cannot be written")
    return found


def require_picture(name: str, path: str | os.PathLike[str]) -> None:
    """Refuse a file that matplotlib will not write, before a picture is made.

    Raises:
        TypeError, OSError: If it cannot be written.
        ValueError: If its suffix is no format that matplotlib knows.
        ImportError: If matplotlib is missing.
    """
    suffix = require_writable(name, path).suffix.lstrip(".").lower()
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise ImportError(
            f"{name} needs matplotlib; install fdp-jax with the extra 'plot'"
        ) from error
    known = FigureCanvasBase.get_supported_filetypes()
    if suffix not in known:
        raise ValueError(
            f"{name} must end in one of .{', .'.join(sorted(known))}, got {str(path)!r}"
        )


def write_at_once(
    path: str | os.PathLike[str], content: bytes, *, private: bool = False
) -> None:
    """Writes a file beside its place, then moves it there.

    One that is private can be made anew: it need not outlast a power failure.
    """
    target = require_writable("path", path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if not private:
                file.flush()
                os.fsync(file.fileno())
        if not private:
            pathlib.Path(name).chmod(_usual_mode())
        pathlib.Path(name).replace(target)
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise


def head_of(
    path: str | os.PathLike[str], text: bytes, kind: str, version: int
) -> dict[str, Any]:
    """The JSON object that says of which kind and version a file is.

    Raises:
        ValueError: If it is damaged, or says something else.
    """
    try:
        found = json.loads(text.decode("ascii"))
        stated = found["format"], found["version"]
    except (ValueError, KeyError, TypeError):
        stated, found = (None, None), {}
    if stated[0] != kind:
        raise ValueError(f"{os.fspath(path)} is damaged, or no {kind}")
    if stated[1] != version:
        raise ValueError(
            f"{os.fspath(path)} has version {stated[1]!r}, this is for {version}"
        )
    return found


def _usual_mode() -> int:
    """Who may read and write a new file; temporary ones are their owner's alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
