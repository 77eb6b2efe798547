"""What a sweep has found."""

import collections
import functools
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from .._internal._extras import imported
from ..curves import BY_ARGUMENT, Status
from ._store import Arrays, Chunk, Store, blank


class Sweep:
    """The answers for all configurations that are finished, as columns of a table.

    `sweep["epsilon"]` is the answer to the query of that name: the end of the certified
    interval on the private side, or the calibrated value.  Beside it stand
    `epsilon_lower`, `epsilon_estimate`, `epsilon_upper` and `epsilon_status` (a
    `Status`; 3 where the configuration was refused, whose numbers are NaN),
    `epsilon_by_noise_multiplier` for a gradient, and the columns of the configuration.
    """

    def __init__(
        self, about: dict[str, Any], finished: list[int], read: Callable[[int], Chunk]
    ):
        self._about, self._finished, self._read = about, finished, read

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of a configuration."""
        return tuple(self._about["names"])

    @property
    def queries(self) -> tuple[str, ...]:
        """The names of the answers."""
        return tuple(self._about["queries"])

    @property
    def asked(self) -> dict[str, dict[str, Any]]:
        """Argument of `bounds` for each query, with its value or its column's name.

        It is empty for what is no such query, as targets and functions are.
        """
        return {name: dict(x) for name, x in self._about["queries"].items()}

    @property
    def axes(self) -> dict[str, np.ndarray]:
        """The axes of a grid, in the order of its shape; empty for a table."""
        return {name: np.asarray(x) for name, x in self._about["axes"].items()}

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the packages that computed the answers."""
        return dict(self._about["versions"])

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """The numbers of the configurations that are finished."""
        size, count = self._about["chunk_size"], self._about["count"]
        each = [np.arange(i * size, min((i + 1) * size, count)) for i in self._finished]
        return np.concatenate(each) if each else np.zeros(0, int)

    @property
    def complete(self) -> bool:
        """Whether there are answers for all configurations."""
        return len(self.rows) == self._about["count"]

    @functools.cached_property
    def table(self) -> Arrays:
        """All columns, read when they are first asked for."""
        chunks = [self._read(index) for index in self._finished]
        like: Arrays = {}
        for chunk in chunks:
            like |= {name: x for name, x in chunk.arrays.items() if name not in like}
        return {
            name: np.concatenate([_part(chunk, name, x) for chunk in chunks])
            for name, x in like.items()
        }

    @functools.cached_property
    def refused(self) -> dict[int, str]:
        """Why there is no answer, by the number of the configuration."""
        messages = (self._read(index).messages for index in self._finished)
        return {row: text for each in messages for row, text in each.items()}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self.table:
            return self.table[name]
        argument = next(iter(self._about["queries"].get(name, ())), None)
        ends = f"{name}_lower", f"{name}_upper"
        if ends[1] in self.table:
            upper = argument is None or BY_ARGUMENT[argument].upper_is_pessimistic
            return self.table[ends[upper]]
        if name in self._about["queries"]:
            return np.full(len(self), np.nan)  # nothing but refusals
        raise KeyError(f"no column {name!r}: there are {self._columns()}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns())

    def assign(self, **columns: Any) -> "Sweep":
        """A copy with more columns, made from those that are there.

        Args:
            **columns: Arrays with a row for each configuration, by their names.

        Raises:
            ValueError: If a name is taken, or an array has another length.

        Example:
            >>> import fdp_jax as fdp
            >>> found = fdp.sweep(
            ...     fdp.Laplace,
            ...     {"noise_multiplier": [1.0, 2.0]},
            ...     queries={"advantage": {"epsilon": 0.0}},
            ... )
            >>> more = found.assign(percent=100 * found["advantage"])
            >>> print(more["percent"])
            [39.34693403 22.11992169]
        """
        more = {name: np.asarray(x) for name, x in columns.items()}
        for name, values in more.items():
            _checks.require(
                name not in self._columns() and name != "refused",
                f"there is a column {name!r} already",
            )
            _checks.require(
                values.shape[:1] == (len(self),),
                f"{name} must have a row for each of {len(self):,} configurations",
                f"shape {values.shape}",
            )
        found = Sweep(self._about, self._finished, self._read)
        found.table = self.table | more
        return found

    def grid(self, name: str) -> np.ndarray:
        """A column in the shape of the grid's axes.

        Args:
            name: Of a column.

        Raises:
            ValueError: If the sweep is no grid, or not complete.
        """
        _checks.require(
            self._about["axes"] and self.complete,
            "grid needs a complete sweep over the axes of a grid",
        )
        shape = tuple(len(x) for x in self._about["axes"].values())
        values = self[name]
        return values.reshape(*shape, *values.shape[1:])

    def _columns(self) -> list[str]:
        labels = [x for x in self._about["queries"] if x not in self.table]
        return [*labels, *self.table]

    def summary(self) -> str:
        """Counts of answers: tight, loose, without content or refused, and why."""
        count = self._about["count"]
        lines = [f"{len(self):,} of {count:,} configurations"]
        for label in self.queries:
            if f"{label}_status" not in self.table:
                continue
            status = self.table[f"{label}_status"].reshape(len(self), -1).max(axis=1)
            names = [*(s.name.lower() for s in Status), "refused"]
            each = np.bincount(status, minlength=len(names))
            told = [f"{n:,} {name}" for n, name in zip(each, names, strict=True) if n]
            lines.append(f"{label}: {', '.join(told)}")
        first = {text: row for row, text in reversed(self.refused.items())}
        counts = collections.Counter(self.refused.values())
        for text, number in counts.most_common(10):
            more = f" and {number - 1:,} others" if number > 1 else ""
            lines.append(f"configuration {first[text]}{more}: {text}")
        if len(counts) > 10:
            lines.append(f"... and {len(counts) - 10:,} other reasons")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Sweep({self.summary().splitlines()[0]}; {', '.join(self.queries)})"

    def to_pandas(self) -> Any:
        """A pandas DataFrame with a row for each configuration.

        Raises:
            ImportError: If pandas is missing.
        """
        pandas = imported("pandas", "to_pandas", "sweep")
        columns = {name: self[name] for name in self._columns()}
        found = pandas.DataFrame(
            {
                name: values if values.ndim == 1 else list(values)
                for name, values in columns.items()
            },
            index=pandas.Index(self.rows, name="configuration"),
        )
        found["refused"] = [self.refused.get(int(row), "") for row in self.rows]
        return found

    def to_xarray(self) -> Any:
        """An xarray Dataset over the axes of the grid.

        Raises:
            ValueError: If the sweep is no grid, or not complete.
            ImportError: If xarray is missing.
        """
        xarray = imported("xarray", "to_xarray", "sweep")
        axes, found = self.axes, {}
        for name in self._columns():
            if name not in axes:
                values = self.grid(name)
                inner = [f"{name}_{i}" for i in range(values.ndim - len(axes))]
                found[name] = ([*axes, *inner], values)
        return xarray.Dataset(found, coords=axes)


@explained
def load(folder: str | os.PathLike[str]) -> Sweep:
    """Finished part of a sweep in a folder, also while it runs.

    Args:
        folder: Where `sweep` keeps its results (`folder=`).

    Returns:
        A `Sweep`; its files are read when its columns are asked for.

    Raises:
        ValueError: If the folder holds no sweep, or (from a column) a file is damaged.
    """
    return of_store(Store.open(folder))


def of_store(store: Store) -> Sweep:
    """Finished part of a sweep in a store."""
    return Sweep(store.manifest, store.finished(), store.read)


def about(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest as it is read again."""
    return json.loads(json.dumps(manifest))


def _part(chunk: Chunk, name: str, example: np.ndarray) -> np.ndarray:
    """A column of a chunk, which has none where all of it was refused."""
    count = len(next(iter(chunk.arrays.values())))
    return chunk.arrays.get(name, blank(name, count, example))
