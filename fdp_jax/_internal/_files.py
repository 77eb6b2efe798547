"""Files that are written at once or not at all."""

import os
import pathlib
import tempfile


def write_at_once(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file beside its place, then moves it there."""
    target = pathlib.Path(path)
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


def _usual_mode() -> int:
    """Who may read and write a new file; temporary ones are their owner's alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
