"""Sweeps over very many configurations."""

import hashlib
import importlib.metadata
import importlib.util
import os
import pickle
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from .._internal import _checks
from .._internal._calls import explained
from .._internal._program_cache import sources_digest
from ..curves import AbstractGuarantee
from ._configurations import Configurations, configurations_of
from ._problem import Fingerprint, Problem, fingerprint
from ._program import Asked
from ._queries import Row, queries_of, require_columns
from ._result import Sweep, about, of_store
from ._store import Chunk, Store, blank
from ._worker import Worker

_CHUNK = 2048
_LENGTHS = 64, 256, 1024
"""Of arrays for few configurations: a program is compiled for one length, and told how
many rows count."""
_MOST_IN_MEMORY = 10**8
_PATIENCE, _LOOK_AGAIN = 600.0, 0.2
"""Seconds until all processes must have begun, and between two looks."""
_LIBRARIES = "fdp-jax", "jax", "jaxlib", "numpy"


@explained
def sweep(
    mechanism: Any,
    configurations: Any,
    *,
    queries: Any,
    gradients: Sequence[str] = (),
    folder: str | os.PathLike[str] | None = None,
    chunk_size: int = _CHUNK,
    mesh: Mesh | None = None,
    again: bool = True,
    progress: bool | None = None,
) -> Sweep:
    """Asks the same questions about very many configurations.

    Runs chunk by chunk in bounded memory, on all devices of this process, and in step
    with other processes where `jax.distributed` has been initialized: each takes its
    share of the chunks, and the numbers do not depend on how many there are.  A
    configuration that is out of range is refused, with the reason, and ends nothing.
    What no compiled program answers is asked by plain calls, on as many threads as
    there are devices, which JAX's own context managers do not reach.

    Args:
        mechanism: A class of mechanisms or another function of columns, by their names,
            or a mechanism whose fields the columns fill in.
        configurations: A grid, as a mapping of names to vectors (axes) or single values
            (constants); or a table, as `sweeps.Columns` or a pandas DataFrame.
        queries: A mapping of the names of answers to what is asked: an argument of
            `bounds`, as in `{"epsilon": {"delta": 1e-5}}` (a number, an array or the
            name of a column); a target, as in `{"noise_multiplier": target}`, that is
            to be met by the parameter of that name (more options of `calibrate` by
            `{"target": target, "solve_for": ...}`); or a function of columns, and of
            `mechanism` if it has a parameter of that name, that returns a target,
            bounds, a number or an array.
        gradients: Columns with respect to which all estimates are differentiated.
        folder: Where results are kept as they arrive (in Parquet where pyarrow is
            installed), and where a sweep that was stopped goes on.  Several processes
            share it.  Beyond 10^8 configurations there must be one.
        chunk_size: How many configurations at a time, 1 to 10^6.
        mesh: The devices of this process that share each chunk; all of them if None.
        again: Whether what the compiled program leaves loose is asked once more by a
            plain call, which may ask another engine.
        progress: Whether to show a bar, for which tqdm is needed; by default if that is
            installed and the output is a terminal.

    Returns:
        The table of answers, see `Sweep`.

    Guarantee:
        Each interval is that of `bounds`, or of `calibrate`.

    Raises:
        ValueError: If a name is no column, the folder holds another sweep or a damaged
            file, or another process is writing there.
        TypeError: If something is of another kind.

    Example:
        >>> import fdp_jax as fdp
        >>> found = fdp.sweep(
        ...     fdp.Laplace,
        ...     {"noise_multiplier": [1.0, 2.0, -1.0]},
        ...     queries={"epsilon": {"delta": 1e-5}},
        ... )
        >>> print(found["epsilon"])
        [0.99998 0.49998     nan]
        >>> print(found.refused[2])
        noise_multiplier must be a positive number, got -1.0
    """
    table = configurations_of(configurations)
    moving = _moving_only(gradients, table)
    questions = queries_of(queries, table.names, moving)
    size = _checks.whole("chunk_size", chunk_size, 1, 1_000_000)
    again = _checks.flag("again", again)
    if not callable(mechanism) and not isinstance(mechanism, AbstractGuarantee):
        raise TypeError(
            f"mechanism must be a function or a mechanism, got {mechanism!r}"
        )
    if not isinstance(mechanism, AbstractGuarantee):
        require_columns("mechanism", mechanism, table.names)
    if folder is None and table.count > _MOST_IN_MEMORY:
        raise ValueError(
            f"without a folder there may be {_MOST_IN_MEMORY:,} configurations, got "
            f"{table.count:,}: give a folder for the results"
        )
    problem = Problem(mechanism, questions, moving)
    problem.require_use(table.names)
    question = _question(problem, table)
    manifest = _manifest(problem, question.text, table, size, again)
    workers = _Workers(problem, question, table, size, _mesh(mesh), again)
    chunks = range(-(-table.count // size))
    if folder is None:
        return _in_memory(workers, chunks, manifest, progress)
    store = Store.create(folder, manifest)
    with store.locked(jax.process_index()):
        done = set(store.finished())
        for index in done:
            store.read(index)  # refuses what is damaged
        own = [i for i in _own(chunks) if i not in done]
        for index in own:
            store.clear(index)
        for index, chunk in _with_bar(workers, own, progress):
            store.write(index, chunk)
        _wait_for_all(store, chunks)
    return of_store(store)


def _in_memory(
    workers: "_Workers", chunks: range, manifest: dict[str, Any], progress: bool | None
) -> Sweep:
    found = dict(_with_bar(workers, _own(chunks), progress))
    if jax.process_count() > 1:
        found = _from_all(found)
    return Sweep(about(manifest), list(chunks), found.__getitem__)


class _Workers:
    """Those for all values that are no numbers, made when they are needed."""

    def __init__(
        self,
        problem: Problem,
        question: Fingerprint,
        table: Configurations,
        size: int,
        mesh: Mesh,
        again: bool,
    ):
        self.question = question
        self.problem, self.table, self.size = problem, table, size
        self.mesh, self.again = mesh, again
        self.moving = _numbers(table)
        self.static = tuple(name for name in table.names if name not in self.moving)
        self.known: dict[str, Worker] = {}

    def chunk(self, index: int) -> Chunk:
        """The answers for one chunk."""
        last = min((index + 1) * self.size, self.table.count)
        rows = np.arange(index * self.size, last)
        columns = self.table.rows(rows)
        arrays = {name: _kept(x) for name, x in columns.items()}
        groups: dict[str, list[int]] = {}
        for place in range(len(rows)) if self.static else ():
            key = repr([columns[name][place] for name in self.static])
            groups.setdefault(key, []).append(place)
        messages: dict[int, str] = {}
        for key, places in (groups or {"": list(range(len(rows)))}).items():
            part = {name: x[places] for name, x in columns.items()}
            answers, refused = self._worker(key, part).answers(part)
            for name, values in answers.items():
                if name not in arrays:
                    arrays[name] = blank(name, len(rows), values)
                arrays[name][places] = values
            messages |= {int(rows[places[i]]): text for i, text in refused.items()}
        return Chunk(arrays, messages)

    def _worker(self, key: str, part: dict[str, np.ndarray]) -> Worker:
        if key not in self.known:
            static = {name: part[name][0] for name in self.static}
            question = self.question
            if static:  # other classes, perhaps
                question = _fingerprint(self.problem, self.moving, static)
            name = f"{question.text} {key}" if question.whole else None
            asked = Asked(self.problem, self.moving, static, name)
            lengths = (x for x in _LENGTHS if x >= self.table.count)
            length = min(self.size, next(lengths, self.size))
            many = self.table.count >= _MANY
            self.known[key] = _lasting(asked, length, self.mesh, self.again, many)
        return self.known[key]


_LASTING: dict[Any, Worker] = {}
_MOST_WORKERS = 16
_MANY = 500
"""Plain calls from which on it pays to compile them for speed."""


def _lasting(asked: Asked, size: int, mesh: Mesh, again: bool, many: bool) -> Worker:
    """The worker of an earlier sweep that asked the same, with its programs."""
    key = asked.name, size, mesh, again, many
    if asked.name is None or key not in _LASTING:
        worker = Worker(asked, size, mesh, again, many)
        if asked.name is None:
            return worker
        while len(_LASTING) >= _MOST_WORKERS:
            del _LASTING[next(iter(_LASTING))]
        _LASTING[key] = worker
    return _LASTING[key]


def _kept(values: np.ndarray) -> np.ndarray:
    """A column as it is written: what is no number as text."""
    if values.dtype.kind != "O":
        return np.ascontiguousarray(values)
    found = np.empty(values.shape, object)
    found[:] = [x if isinstance(x, str) else repr(x) for x in values]
    return found


def _numbers(table: Configurations) -> tuple[str, ...]:
    return tuple(name for name in table.names if table.kind(name).kind in "fiu")


def _moving_only(names: Sequence[str], table: Configurations) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"gradients must be a list of names, got {names!r}")
    known = _numbers(table)
    for name in names:
        if name not in known:
            raise ValueError(
                f"gradients must name columns of numbers, {list(known)}, got {name!r}"
            )
    return tuple(names)


def _mesh(mesh: Mesh | None) -> Mesh:
    """The devices that share a chunk."""
    own = jax.local_devices()
    if mesh is not None:
        mesh = _checks.instance("mesh", mesh, Mesh, "a jax.sharding.Mesh or None")
        here = [d for d in mesh.devices.flat if d in own]
        if not here:
            raise ValueError("mesh must have devices of this process, got none")
        own = here
    return Mesh(np.asarray(own), ("part",))


def _question(problem: Problem, table: Configurations) -> Fingerprint:
    moving, columns = _numbers(table), table.rows(np.arange(min(table.count, 1)))
    static = {name: columns[name][0] for name in table.names if name not in moving}
    return _fingerprint(problem, moving, static)


def _fingerprint(problem: Problem, moving: tuple[str, ...], static: Row) -> Fingerprint:
    with jax.enable_x64(True):
        return fingerprint(problem, moving, static)


def _manifest(
    problem: Problem, asked: str, table: Configurations, size: int, again: bool
) -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    parts = asked, table.digest(), size, again, sorted(versions.items())
    text = "\0".join([*map(str, parts), sources_digest()])
    return {
        "fingerprint": hashlib.sha256(text.encode()).hexdigest(),
        "count": table.count,
        "chunk_size": size,
        "names": list(table.names),
        "queries": {query.label: query.argument for query in problem.queries},
        "axes": {name: _kept(x).tolist() for name, x in table.axes.items()},
        "versions": versions,
    }


# ------------------------------------------------------------------- progress


def _with_bar(
    workers: _Workers, chunks: Sequence[int], wanted: bool | None
) -> Iterable[tuple[int, Chunk]]:
    """The chunks as they are finished, with the rest of the time."""
    bar = _bar(sum(_length(workers, i) for i in chunks), wanted)
    for index in chunks:
        yield index, workers.chunk(index)
        if bar is not None:
            bar.update(_length(workers, index))
    if bar is not None:
        bar.close()


def _length(workers: _Workers, index: int) -> int:
    size, count = workers.size, workers.table.count
    return min(size, count - index * size)


def _bar(total: int, wanted: bool | None) -> Any:
    if wanted is None and importlib.util.find_spec("tqdm") is None:
        return None
    if wanted is not None and not _checks.flag("progress", wanted):
        return None
    import tqdm.auto

    return tqdm.auto.tqdm(
        total=total, unit=" configurations", disable=None if wanted is None else False
    )


# ------------------------------------------------------------------- processes


def _own(chunks: Sequence[int]) -> list[int]:
    """The share of this process."""
    count, index = jax.process_count(), jax.process_index()
    return [i for i in chunks if i % count == index]


def _wait_for_all(store: Store, chunks: range) -> None:
    """Until the chunks of the others are there, by looking: a barrier has a time limit.

    If another process dies, JAX ends this one.

    Raises:
        ValueError: If another process does not write to this folder.
    """
    began = time.monotonic()
    while len(store.finished()) < len(chunks):
        others = set(range(jax.process_count())) - store.workers()
        if others and time.monotonic() - began > _PATIENCE:
            raise ValueError(
                f"all processes must share {store.folder}, but numbers "
                f"{sorted(others)} of them do not write there"
            )
        time.sleep(_LOOK_AGAIN)


def _from_all(own: dict[int, Chunk]) -> dict[int, Chunk]:
    """The chunks of all processes, sent as bytes: no digit is touched."""
    content = np.frombuffer(pickle.dumps(own), np.uint8)
    try:
        sizes = multihost_utils.process_allgather(np.asarray(content.size, np.int32))
    except jax.errors.JaxRuntimeError as error:
        raise RuntimeError(
            "the processes of the sweep did not finish near enough to each other for "
            "JAX to gather the results: give a folder that they share"
        ) from error
    padded = np.zeros(int(np.max(sizes)), np.uint8)
    padded[: content.size] = content
    every = np.asarray(multihost_utils.process_allgather(padded))
    found: dict[int, Chunk] = {}
    for size, sent in zip(np.ravel(sizes), every, strict=True):
        found |= pickle.loads(sent[: int(size)].tobytes())
    return found
