"""Sweeps over very many configurations."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import pickle
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from .._internal import _checks
from .._internal._bar import with_bar
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


@explained(again=_checks.flag, chunk_size=_checks.whole_in(1, 1000000))
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
        noise_multiplier must be a positive number, got -1
    """
    table = configurations_of(configurations)
    moving = _moving_only(gradients, table)
    questions = queries_of(queries, table.names, moving)
    _checks.require(
        callable(mechanism) or isinstance(mechanism, AbstractGuarantee),
        "mechanism must be a function or a mechanism",
        f"{mechanism!r}",
        TypeError,
    )
    if not isinstance(mechanism, AbstractGuarantee):
        require_columns("mechanism", mechanism, table.names)
    _checks.require(
        folder is not None or table.count <= _MOST_IN_MEMORY,
        f"without a folder there may be {_MOST_IN_MEMORY:,} configurations",
        f"{table.count:,}: give a folder for the results",
    )
    problem = Problem(mechanism, questions, moving)
    problem.require_use(table.names)
    workers = _Workers(
        problem,
        table,
        chunk_size,
        _mesh(mesh),
        again,
        exact=folder is not None or jax.process_count() > 1,
    )
    manifest = _manifest(workers)
    chunks = range(-(-table.count // chunk_size))
    own = [i for i in chunks if i % jax.process_count() == jax.process_index()]
    if folder is None:
        found = dict(workers.chunks(own, progress))
        if jax.process_count() > 1:
            found = _from_all(found)
        return Sweep(about(manifest), list(chunks), found.__getitem__)
    store = Store.create(folder, manifest)
    with store.locked(jax.process_index()):
        done = set(store.finished())
        for index in done:
            store.read(index)  # refuses what is damaged
        own = [i for i in own if i not in done]
        for index in own:
            store.clear(index)
        for index, chunk in workers.chunks(own, progress):
            store.write(index, chunk)
        _wait_for_all(store, chunks)
    return of_store(store)


@dataclasses.dataclass
class _Workers:
    """Those for all values that are no numbers, made when they are needed."""

    problem: Problem
    table: Configurations
    size: int
    mesh: Mesh
    again: bool
    exact: bool
    """Whether the same sweep, cut otherwise, is to have the same last digits."""
    known: dict[str, Worker] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def moving(self) -> tuple[str, ...]:
        """The columns of numbers."""
        return _numbers(self.table)

    @functools.cached_property
    def static(self) -> tuple[str, ...]:
        """All others."""
        return tuple(name for name in self.table.names if name not in self.moving)

    @functools.cached_property
    def question(self) -> Fingerprint:
        """The name of what is asked about the first configuration."""
        return self._asked(self.table.rows(np.arange(min(self.table.count, 1))))[0]

    def _asked(self, part: dict[str, np.ndarray]) -> tuple[Fingerprint, Row]:
        """The name of what is asked where others are as in the first row, and these."""
        static = {name: part[name][0] for name in self.static}
        return fingerprint(self.problem, self.moving, static), static

    def chunks(
        self, indices: list[int], progress: bool | None
    ) -> Iterator[tuple[int, Chunk]]:
        """Chunks as they are finished, behind a bar that counts configurations."""
        hidden = None if progress is None else False
        options = {"unit": " configurations", "unit_scale": self.size}
        for index in with_bar(indices, progress, disable=hidden, **options):
            yield index, self.chunk(index)

    def chunk(self, index: int) -> Chunk:
        """The answers for one chunk."""
        last = min((index + 1) * self.size, self.table.count)
        rows = np.arange(index * self.size, last)
        columns = self.table.rows(rows)
        arrays = {name: _kept(x) for name, x in columns.items()}
        groups: dict[str, list[int]] = {}
        for place in range(len(rows)):
            key = repr([columns[name][place] for name in self.static])
            groups.setdefault(key, []).append(place)
        messages: dict[int, str] = {}
        for key, places in groups.items():
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
            # Other values may be other classes.
            question, static = self._asked(part) if self.static else (self.question, {})
            name = f"{question.text} {key}" if question.whole else None
            asked = Asked(self.problem, self.moving, static, name)
            lengths = (x for x in _LENGTHS if x >= self.table.count)
            length = min(self.size, next(lengths, self.size))
            make = Worker if name is None else lasting
            self.known[key] = make(
                asked,
                length,
                self.mesh,
                again=self.again,
                many=self.table.count >= _MANY,
                exact=self.exact,
            )
        return self.known[key]


lasting = functools.lru_cache(16)(Worker)
"""The worker of an earlier sweep that asked the same, with its programs."""
_MANY = 500
"""Plain calls from which on it pays to compile their programs at once."""


def _kept(values: np.ndarray) -> np.ndarray:
    """A column as it is written: what is no number as text."""
    if values.dtype.kind != "O":
        return np.ascontiguousarray(values)
    texts = [x if isinstance(x, str) else repr(x) for x in values]
    return np.asarray(texts, object)


def _numbers(table: Configurations) -> tuple[str, ...]:
    return tuple(name for name in table.names if table.kind(name).kind in "fiu")


def _moving_only(names: Sequence[str], table: Configurations) -> tuple[str, ...]:
    _checks.require(
        not isinstance(names, str) and isinstance(names, Iterable),
        "gradients must be a list of names",
        f"{names!r}",
        TypeError,
    )
    known = _numbers(table)
    for name in names:
        _checks.require(
            name in known,
            f"gradients must name columns of numbers, {list(known)}",
            f"{name!r}",
        )
    return tuple(names)


def _mesh(mesh: Mesh | None) -> Mesh:
    """The devices that share a chunk."""
    own = jax.local_devices()
    if mesh is not None:
        mesh = _checks.instance("mesh", mesh, Mesh, "a jax.sharding.Mesh or None")
        here = [d for d in mesh.devices.flat if d in own]
        _checks.require(here, "mesh must have devices of this process", "none")
        own = here
    return Mesh(np.asarray(own), ("part",))


def _manifest(workers: _Workers) -> dict[str, Any]:
    table, size = workers.table, workers.size
    versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    asked = workers.question.text, table.digest(), size, workers.again
    text = "\0".join(
        [*map(str, asked), str(sorted(versions.items())), sources_digest()]
    )
    return {
        "fingerprint": hashlib.sha256(text.encode()).hexdigest(),
        "count": table.count,
        "chunk_size": size,
        "names": list(table.names),
        "queries": {
            x.label: {}
            if x.argument is None
            else {x.argument: x.value if isinstance(x.value, str) else x.value.tolist()}
            for x in workers.problem.queries
        },
        "axes": {name: _kept(x).tolist() for name, x in table.axes.items()},
        "versions": versions,
    }


# ------------------------------------------------------------------- processes


def _wait_for_all(store: Store, chunks: range) -> None:
    """Until the chunks of the others are there, by looking: a barrier has a time limit.

    If another process dies, JAX ends this one.

    Raises:
        ValueError: If another process does not write to this folder.
    """
    began = time.monotonic()
    while len(store.finished()) < len(chunks):
        others = set(range(jax.process_count())) - store.workers()
        _checks.require(
            not others or time.monotonic() - began <= _PATIENCE,
            f"all processes must share {store.folder}, but numbers "
            f"{sorted(others)} of them do not write there",
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
