"""The results of a sweep on disk: a file for each chunk, written at once or not.

A folder holds `sweep.json`, which says what is asked, and the chunks that are finished.
Every chunk names the sweep it belongs to and the digest of its numbers, so that one
that is damaged or foreign is noticed.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import io
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import filelock
import numpy as np

from .._internal import _checks
from .._internal._files import head_of, write_at_once
from ..curves import Status

FORMAT, VERSION = "fdp_jax sweep", 1
_MANIFEST = "sweep.json"
_LOCK = ".lock-"
_KEYS = {
    *("fingerprint", "count", "chunk_size", "names", "queries", "axes", "versions"),
    "suffix",
}
REFUSED = int(max(Status)) + 1
"""In place of a `Status`: there is no such configuration."""
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some rows of a sweep: configurations, answers, and why there are none."""

    arrays: Arrays
    messages: dict[int, str]
    """By the row's number in the whole sweep."""


class Store:
    """A folder with the results of one sweep."""

    def __init__(self, folder: str | os.PathLike[str], manifest: dict[str, Any]):
        self.folder = pathlib.Path(folder)
        self.manifest = manifest

    @classmethod
    def create(
        cls, folder: str | os.PathLike[str], manifest: dict[str, Any]
    ) -> "Store":
        """The store of a sweep, which may have been begun before.

        Raises:
            ValueError: If the folder holds another sweep.
        """
        place = pathlib.Path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ValueError(
                f"folder must not be a file or in one, got {place}"
            ) from None
        has_parquet = importlib.util.find_spec("pyarrow") is not None
        manifest = {"format": FORMAT, "version": VERSION} | manifest
        if (place / _MANIFEST).exists():
            found = cls.open(place)
            _checks.require(
                found.manifest["fingerprint"] == manifest["fingerprint"],
                f"{place} holds another sweep (other configurations, questions, "
                "code or versions): give another folder, or delete it",
            )
            _checks.require(
                _text(manifest | {"suffix": found.manifest["suffix"]})
                == _text(found.manifest),
                f"{place / _MANIFEST} is damaged",
            )
            return found
        manifest["suffix"] = ".parquet" if has_parquet else ".npz"
        write_at_once(place / _MANIFEST, (_text(manifest) + "\n").encode())
        return cls(place, manifest)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "Store":
        """The store that is in a folder.

        Raises:
            ValueError: If there is none, or it is damaged.
        """
        file = pathlib.Path(folder) / _MANIFEST
        try:
            manifest = head_of(file, file.read_bytes(), FORMAT, VERSION)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise ValueError(f"{folder} holds no sweep") from None
        _checks.require(manifest.keys() >= _KEYS, f"{file} is damaged")
        return cls(folder, manifest)

    @contextlib.contextmanager
    def locked(self, worker: int) -> Iterator[None]:
        """Keeps other processes from doing the same work; ends with the process.

        Raises:
            ValueError: If another process is at it.
        """
        try:
            lock = filelock.FileLock(self.folder / f"{_LOCK}{worker}").acquire(
                timeout=0
            )
        except filelock.Timeout:
            raise ValueError(
                f"another process is writing to {self.folder}: wait for it, or give "
                "another folder"
            ) from None
        with lock:
            yield

    def workers(self) -> set[int]:
        """The processes that have ever held their lock here."""
        names = (file.name for file in self.folder.glob(f"{_LOCK}*"))
        return {int(name.removeprefix(_LOCK)) for name in names}

    def path(self, index: int) -> pathlib.Path:
        """The file of a chunk."""
        return self.folder / f"chunk-{index:09d}{self.manifest['suffix']}"

    def finished(self) -> list[int]:
        """The chunks that are there."""
        name = re.compile(rf"chunk-(\d{{9,}}){re.escape(self.manifest['suffix'])}")
        found = (name.fullmatch(file.name) for file in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def clear(self, index: int) -> None:
        """Removes what a process left behind that was stopped as it wrote a chunk."""
        for file in self.folder.glob(f".{self.path(index).name}.*"):
            file.unlink(missing_ok=True)

    def write(self, index: int, chunk: Chunk) -> None:
        """Writes a chunk."""
        about = {
            "fingerprint": self.manifest["fingerprint"],
            "chunk": index,
            "versions": self.manifest["versions"],
            "sha256": digest_of(chunk.arrays),
            "shapes": {name: x.shape[1:] for name, x in chunk.arrays.items()},
            "refused": {str(row): text for row, text in chunk.messages.items()},
        }
        encode = _to_parquet if self.path(index).suffix == ".parquet" else _to_npz
        write_at_once(self.path(index), encode(chunk.arrays, about))

    def read(self, index: int) -> Chunk:
        """Reads a chunk.

        Raises:
            ValueError: If it is damaged, or of another sweep.
            ImportError: If it is in Parquet and pyarrow is missing.
        """
        path = self.path(index)
        content = path.read_bytes()
        decode = _from_parquet if path.suffix == ".parquet" else _from_npz
        try:
            arrays, about = decode(content)
            found = about["fingerprint"], about["chunk"], about["sha256"]
            messages = {int(row): text for row, text in about["refused"].items()}
        except ImportError:
            raise
        except Exception:
            found = ()
            arrays, messages = {}, {}
        wanted = self.manifest["fingerprint"], index, digest_of(arrays)
        _checks.require(
            found == wanted,
            f"{path} is damaged or of another sweep: delete it, and it will be "
            "computed again",
        )
        return Chunk(arrays, messages)


def blank(name: str, count: int, like: np.ndarray) -> np.ndarray:
    """A column of answers, before there are any or where there are none."""
    nothing = np.nan if like.dtype.kind == "f" else 0
    nothing = REFUSED if name.endswith("_status") else nothing
    return np.full((count, *like.shape[1:]), nothing, like.dtype)


def _text(manifest: dict[str, Any]) -> str:
    """As it is written; an axis may have values that are refused, NaN among them."""
    return json.dumps(manifest, sort_keys=True, indent=1)


def digest_of(arrays: Arrays) -> str:
    """A checksum of named numbers, and of texts and other objects as printed."""
    parts = [
        f"{name} {values.dtype.kind} {values.shape}".encode() + _bytes(values)
        for name, values in arrays.items()
    ]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _bytes(values: np.ndarray) -> bytes:
    if values.dtype.kind in "OU":
        return "\0".join(map(repr, values.ravel().tolist())).encode()
    return values.tobytes()


def _to_parquet(arrays: Arrays, about: dict[str, Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column(values: np.ndarray) -> Any:
        if values.ndim == 1:
            return pa.array(values)
        width = int(np.prod(values.shape[1:]))
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), width)

    table = pa.table({name: column(x) for name, x in arrays.items()})
    text = json.dumps(about, sort_keys=True)
    table = table.replace_schema_metadata({"fdp_jax": text})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _from_parquet(content: bytes) -> tuple[Arrays, dict[str, Any]]:
    import pyarrow.parquet as pq

    # One small file: no threads, which would have to be ended with the process.
    table = pq.ParquetFile(io.BytesIO(content)).read(use_threads=False)
    about = json.loads(table.schema.metadata[b"fdp_jax"])
    arrays = {}
    for name in table.column_names:
        shape = tuple(about["shapes"][name])
        column = table.column(name).combine_chunks()
        flat = column.flatten() if shape else column
        values = flat.to_numpy(zero_copy_only=False)
        arrays[name] = values.reshape(table.num_rows, *shape)
    return arrays, about


def _to_npz(arrays: Arrays, about: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    plain: dict[str, Any] = {
        f"_{name}": x.astype(str) if x.dtype.kind == "O" else x
        for name, x in arrays.items()
    }
    np.savez(sink, **plain, about=np.asarray(json.dumps(about, sort_keys=True)))
    return sink.getvalue()


def _from_npz(content: bytes) -> tuple[Arrays, dict[str, Any]]:
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        about = json.loads(str(found["about"]))
        arrays = {name[1:]: found[name] for name in found.files if name != "about"}
    return {
        name: x.astype(object) if x.dtype.kind == "U" else x
        for name, x in arrays.items()
    }, about
