"""Files that are written at once or not at all."""

import os
import pathlib
import tempfile


def write_at_once(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file beside its place, then moves it there.

    Raises:
        FileNotFoundError: If there is no folder for it.
    """
    target = pathlib.Path(path)
    require_folder(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        pathlib.Path(name).chmod(_usual_mode())
        pathlib.Path(name).replace(target)
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise


def require_folder(path: str | os.PathLike[str]) -> None:
    """Raises `FileNotFoundError` if there is no folder in which a file could be."""
    folder = pathlib.Path(path).parent
    if not folder.is_dir():
        raise FileNotFoundError(f"path must be in a folder that is there, got {path}")


def _usual_mode() -> int:
    """Who may read and write a new file; temporary ones are their owner's alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
