"""Answers for the configurations of a chunk, by whatever it takes."""

import concurrent.futures
import contextlib
import contextvars
import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from .._internal import _checks
from .._internal._compilation import compiled_at_once
from .._internal._place import is_accelerator, processors
from ._problem import CONTOUR, REFUSALS
from ._program import DOUBT, REFUSED, Asked, Traced, program_for, trace
from ._queries import Row
from ._store import REFUSED as NO_SUCH, Arrays, blank

_FEW = 8
"""Rows in doubt of a short sweep that plain calls answer at once."""


class Worker:
    """Answers for configurations that differ in numbers alone.

    The smallest program is asked first, larger ones about those that it leaves in
    doubt, and a plain call, which may ask other engines, about what remains loose.  Of
    an accelerator only the contour is asked, of the CPU beside it all else.
    Configurations on which Python itself has to decide are all answered by plain calls.
    """

    def __init__(
        self,
        asked: Asked,
        size: int,
        mesh: Mesh,
        *,
        again: bool,
        many: bool,
        exact: bool,
    ):
        self.asked, self.mesh, self.again = asked, mesh, again
        self.many, self.exact = many, exact
        self.problem, self.moving, self.size = asked.problem, asked.moving, size
        self.accelerated = is_accelerator(mesh.devices.flat[0])
        cpus = Mesh(np.asarray(processors()), ("part",)) if self.accelerated else mesh
        self.cpus, self.devices = cpus, cpus.size

    @functools.cached_property
    def traced(self) -> Traced | None:
        """Facts of the programs; None if there can be none."""
        try:
            with jax.enable_x64(True):
                return trace(self.asked)
        except Exception:
            # A plain call says what is wrong, or finds nothing wrong.
            return None

    @functools.cache  # noqa: B019 - a worker lives as long as its sweep
    def _program(self, stage: str) -> Any:
        assert self.traced is not None
        mesh = self._mesh(stage)
        with contextlib.nullcontext() if mesh is self.mesh else self._there():
            return program_for(self.asked, self.traced, self._part(mesh), mesh, stage)

    def _mesh(self, stage: str) -> Mesh:
        return self.mesh if stage == CONTOUR else self.cpus

    def _part(self, mesh: Mesh) -> int:
        """Rows of a device."""
        return -(-self.size // mesh.size)

    def _there(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which calls are made on the CPU."""
        if not self.accelerated:
            return contextlib.nullcontext()
        return jax.default_device(self.cpus.devices.flat[0])

    def answers(self, columns: Arrays) -> tuple[Arrays, dict[int, str]]:
        """The answers for some rows, and why there are none, by the row."""
        count = len(next(iter(columns.values())))
        every = np.arange(count)
        traced = self.traced if self.moving else None
        if traced is None:
            with compiled_at_once() if self.many else contextlib.nullcontext():
                return self._plainly(columns, every, {})
        try:
            stages = [x for x in traced.stages if self.accelerated or x != CONTOUR]
            found = self._asked(columns, every, stages[0])
            for stage in stages[1:]:
                left = np.flatnonzero(found[DOUBT])
                if self.again and not self.many and left.size <= _FEW:
                    break  # plain calls are there before a program is compiled
                better = self._asked(columns, left, stage) if left.size else {}
                for name, values in better.items():
                    found[name][left] = values
            doubt = found.pop(DOUBT)
        except REFUSALS as error:
            # One of them ended it, or it needs more memory than there is.
            warnings.warn(
                f"a program for {count} configurations failed, so that each of them is "
                f"asked by itself, which takes long: {' '.join(str(error).split())}",
                RuntimeWarning,
                stacklevel=2,
            )
            return self._plainly(columns, every, {})
        refused = found.pop(REFUSED)
        messages = {
            int(row): self._why(columns, int(row)) or traced.messages[refused[row]]
            for row in np.flatnonzero(refused >= 0)
        }
        for name, values in found.items():
            if name.endswith("_status"):
                values[refused >= 0] = NO_SUCH
        if self.again and doubt.any():
            found, more = self._plainly(columns, np.flatnonzero(doubt), found)
            messages |= more
        return found, messages

    def _asked(self, columns: Arrays, rows: np.ndarray, stage: str) -> Arrays:
        """A program's answers for some rows, dealt to the devices in turn."""
        mesh, turns = self._mesh(stage), np.arange(len(rows))
        part, devices = self._part(mesh), mesh.size
        places = turns % devices * part + turns // devices
        # Rows that do not count repeat the first one, in batches asked like the others.
        dealt = np.zeros(part * devices, int)
        inside = np.zeros(part * devices, bool)
        dealt[places], inside[places] = turns, True
        given = {
            name: columns[name][rows][dealt].astype(np.float64) for name in self.moving
        }
        with jax.enable_x64(True):
            found = self._program(stage)(given, inside)
        return {name: np.array(values[places]) for name, values in found.items()}

    def _row(self, columns: Arrays, place: int) -> Row:
        return {
            name: columns[name][place].item() for name in self.moving
        } | self.asked.static

    def _why(self, columns: Arrays, place: int) -> str:
        """The message of a plain construction about a configuration."""
        row = self._row(columns, place)
        try:
            guarantee = self.problem.build(row)
            for query in self.problem.queries:
                query.check(guarantee, row)
        except REFUSALS as error:
            return " ".join(str(error).split())
        return ""

    def _by_themselves(
        self, columns: Arrays, rows: Sequence[int]
    ) -> Iterator[tuple[int, dict[str, np.ndarray] | str]]:
        """Plain calls, as many at a time as there are devices.

        All are made on the first device of the CPU: each of them takes a core.
        """

        def ask(row: int) -> dict[str, np.ndarray] | str:
            with self._there():
                return self.problem.with_known(self._row(columns, row))

        alone = rows if self.devices == 1 else rows[:1]
        for row in alone:  # compiles what the others need as well
            yield row, ask(row)
        rest = rows[len(alone) :]
        if not rest:
            return
        pool = concurrent.futures.ThreadPoolExecutor(self.devices)
        here = contextvars.copy_context()
        try:
            # Two threads cannot be inside of one context.
            found = pool.map(lambda row: here.copy().run(ask, row), rest)
            yield from zip(rest, found, strict=True)
        finally:
            # What is wrong with one answer ends the sweep, not after all the others.
            pool.shutdown(cancel_futures=True)

    def _plainly(
        self, columns: Arrays, rows: np.ndarray, found: Arrays
    ) -> tuple[Arrays, dict[int, str]]:
        """Plain calls for some rows; what is refused keeps what is known of it."""
        messages, known = {}, dict(found)
        count = len(next(iter(columns.values())))
        # A sweep that goes on has the bytes of one that was not stopped; what is not
        # kept does not wait for a compiler.
        with compiled_at_once() if self.exact else contextlib.nullcontext():
            answered = list(self._by_themselves(columns, rows.tolist()))
        for row, answers in answered:
            if isinstance(answers, str):
                messages[row] = answers
                answers = {}
            for name, value in answers.items():
                if name not in known:
                    known[name] = blank(name, count, value[None])
                _checks.require(
                    known[name].shape[1:] == value.shape,
                    f"{name} must have one shape for all configurations",
                    f"{known[name].shape[1:]} and {value.shape}",
                )
                known[name][row] = value
        return known, messages
