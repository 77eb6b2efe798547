"""Compiled programs on disk, so that the next process neither traces nor compiles.

Only for queries from outside of all transformations: what stands in a user's program is
compiled with it.  The folder is the user's cache folder; `FDP_JAX_CACHE` names another
one, or switches this off ("off").  Files are written whole and then renamed, each holds
its own digest, and one that is damaged or does not fit counts as missing.  Loading a
program runs machine code: the folder must be as private as the user's own programs.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import itertools
import os
import pathlib
import pickle
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jaxlib.version
import platformdirs
from jax.experimental import serialize_executable

from ._files import write_at_once
from ._place import device

_T = TypeVar("_T")
_VARIABLE = "FDP_JAX_CACHE"
_OFF = {"off", "0", "false", "no"}
_MOST_BYTES = 1 << 29
_MOST_UNSEEN = _MOST_BYTES // 16
"""Bytes that a process writes before it looks through a folder again."""
_STORED: dict[pathlib.Path, int] = {}
"""Bytes written since then, by folder."""
_SUFFIX = ".program"
_ABANDONED = 3600.0
"""Seconds after which nobody is writing a file any more."""
_DIGEST = hashlib.sha256
_SOURCES = pathlib.Path(__file__).resolve().parent.parent
_LIBRARIES = "equinox", "jax", "numpy", "optimistix", "scipy"
"""Libraries whose code or constants are part of compiled programs."""
_ENVIRONMENT = ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_DISABLE_JIT", "EQX_ON_ERROR")


def is_off(variable: str) -> bool:
    """Whether a variable of the environment switches something off."""
    return os.environ.get(variable, "").strip().lower() in _OFF


def folder() -> pathlib.Path | None:
    """The folder in which programs are kept, or None if they are not."""
    if is_off(_VARIABLE):
        return None
    chosen = os.environ.get(_VARIABLE) or platformdirs.user_cache_dir(
        "fdp_jax", appauthor=False
    )
    return pathlib.Path(chosen)


def key_of(*parts: str) -> str | None:
    """The name of a program: a digest of all that it depends on.

    None if that is not known from the text: objects that print their address are others
    in every process.
    """
    if any(" at 0x" in part or "<function" in part for part in parts):
        return None
    every = *_surroundings(), *_settings(), *parts
    return _DIGEST("\0".join(every).encode()).hexdigest()


@functools.cache
def sources_digest() -> str:
    """A name for this package's own sources."""
    sources = [file.read_bytes() for file in sorted(_SOURCES.rglob("*.py"))]
    return _DIGEST(b"".join(sources)).hexdigest()


@functools.cache
def _surroundings() -> tuple[str, ...]:
    """Versions, the machine, and this package's own sources."""
    return (
        jaxlib.version.__version__,
        *(f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES),
        platform.python_version(),
        platform.machine(),
        _processor(),
        sources_digest(),
        *(f"{name}={os.environ.get(name)}" for name in _ENVIRONMENT),
        f"process {jax.process_index()}",  # of several: its device is its own
    )


def _settings() -> list[str]:
    """JAX's own settings, but for places and for what only concerns logging."""
    found: dict[str, Any] = dict(jax.config.values)
    return [
        f"{name}={found[name]}"
        for name in sorted(found)
        if not any(part in name for part in ("dir", "log", "cache"))
    ]


def _processor() -> str:
    """The features that machine code may use; another computer may lack some."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return platform.processor()


def load(key: str, devices: Sequence[Any] | None = None) -> tuple[Any, Any] | None:
    """A compiled program and what was kept with it; None if there is none that fits.

    Args:
        key: Its name.
        devices: Those it runs on; the default one if None.
    """
    place = folder()
    if place is None:
        return None
    file = place / (key + _SUFFIX)
    try:
        if not _is_private(place) or not _is_private(file):
            return None
        content = file.read_bytes()
        size = _DIGEST().digest_size
        digest, body = content[:size], content[size:]
        # Of the name too: a file under another one's name is none.
        if _digest(key, body) != digest:
            return None
        serialized, beside = pickle.loads(body)
        loaded = None
        if serialized is not None:
            chosen = [device()] if devices is None else devices
            loaded = serialize_executable.deserialize_and_load(
                *serialized, execution_devices=chosen
            )
        with contextlib.suppress(OSError):
            os.utime(file)  # used lately
    except Exception:
        # Whatever is wrong with a file, the program can be compiled.
        return None
    return loaded, beside


def remembered(name: str | None, make: Callable[[], _T]) -> _T:
    """An object made for a name, if possible from disk; the name must say all of it.

    Args:
        name: The same in every process; None if nothing is to be kept.
        make: Makes it: something that can be pickled.
    """
    key = None if name is None else key_of("remembered", name)
    found = None if key is None else load(key)
    if found is not None:
        return found[1]
    made = make()
    if key is not None:
        store(key, None, made)
    return made


def store(key: str, compiled: Any, beside: Any) -> None:
    """Keeps a compiled program, or None, and more if it can; failing is no error."""
    place = folder()
    if place is None:
        return
    try:
        known = compiled is not None
        serialized = serialize_executable.serialize(compiled) if known else None
        body = pickle.dumps((serialized, beside))
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = _digest(key, body) + body
        write_at_once(place / (key + _SUFFIX), content, private=True)
        _STORED[place] = _STORED.get(place, _MOST_UNSEEN) + len(content)
        if _STORED[place] > _MOST_UNSEEN:
            _make_room(place)
            _STORED[place] = 0
    except Exception:
        return


def _digest(key: str, body: bytes) -> bytes:
    return _DIGEST(key.encode() + b"\0" + body).digest()


def _is_private(place: pathlib.Path) -> bool:
    """Whether nobody else can have put something there (where that can be told)."""
    if not hasattr(os, "getuid"):
        return True
    found = place.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


def _make_room(place: pathlib.Path) -> None:
    """Deletes what was not used for longest, until the rest is small enough."""
    for file in place.glob(f".*{_SUFFIX}.*"):
        if time.time() - file.stat().st_mtime > _ABANDONED:
            file.unlink(missing_ok=True)
    kept = sorted(place.glob("*" + _SUFFIX), key=lambda file: file.stat().st_mtime)
    sizes = [file.stat().st_size for file in kept]
    too_much = sum(sizes) - _MOST_BYTES
    for file, freed in zip(kept, itertools.accumulate([0, *sizes]), strict=False):
        if freed < too_much:
            file.unlink(missing_ok=True)


def calls_back(jaxpr: Any) -> bool:
    """Whether a program calls Python, as checks of numbers do: it cannot be kept."""
    return any(
        "callback" in equation.primitive.name for equation in equations_of(jaxpr)
    )


def equations_of(jaxpr: Any) -> Iterator[Any]:
    """The equations of a program and of all that stand in it."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for part in value if isinstance(value, list | tuple) else [value]:
                # From JAX 0.12 on, a function with a derivative holds its program.
                part = getattr(part, "traced", part)
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from equations_of(inner)
