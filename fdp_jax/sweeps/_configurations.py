"""The configurations of a sweep: all combinations of some axes, or the rows of a table.

A grid is never laid out: its rows are worked out for one chunk at a time.
"""

import abc
import hashlib
import math
from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np

_RESERVED = "mechanism", "refused"
"""Names of what is no column: a parameter of functions, and a part of the answers."""
_MOST = 10**12
"""More could not even be counted through."""


class Configurations(abc.ABC):
    """Named columns, of which any part can be asked for.

    `axes` says what is known of their origin: for a grid its axes, else nothing.
    """

    names: tuple[str, ...]
    count: int
    axes: dict[str, np.ndarray]
    constants: dict[str, Any]

    @abc.abstractmethod
    def column(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Some rows of a column."""

    def kind(self, name: str) -> np.dtype:
        """The type of a column's entries."""
        return self.column(name, np.arange(min(self.count, 1))).dtype

    def rows(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Some rows of all columns."""
        return {name: self.column(name, rows) for name in self.names}

    def digest(self) -> str:
        """A name for these numbers."""
        found = hashlib.sha256()
        for name, values in self._parts():
            found.update(f"{name} {values.dtype} {values.shape}".encode())
            found.update(_bytes(values))
        return found.hexdigest()

    @abc.abstractmethod
    def _parts(self) -> list[tuple[str, np.ndarray]]:
        """Parts of the columns, by name."""


class Grid(Configurations):
    """All combinations of values, the last axis the fastest; constants are no axes."""

    def __init__(self, axes: Mapping[str, Any]):
        every = {name: _values(name, x) for name, x in axes.items()}
        self.axes = {name: x for name, x in every.items() if x.ndim == 1}
        self.constants = {name: x for name, x in every.items() if x.ndim == 0}
        self.names = tuple(every)
        self.shape = tuple(x.size for x in self.axes.values())
        self.count = math.prod(self.shape)
        if self.count > _MOST:
            raise ValueError(
                f"a grid may have {_MOST:.0e} configurations, got {self.count:.1e} "
                f"from axes of {list(self.shape)}"
            )

    def column(self, name: str, rows: np.ndarray) -> np.ndarray:
        if name in self.constants:
            return np.broadcast_to(self.constants[name], rows.shape)
        place = list(self.axes).index(name)
        inner = math.prod(self.shape[place + 1 :])
        return self.axes[name][rows // inner % self.shape[place]]

    def _parts(self):
        names = np.asarray(self.names)
        return [("grid", names), *self.constants.items(), *self.axes.items()]


class Columns(Configurations):
    """A table of configurations, one in each row.

    Args:
        **columns: One-dimensional arrays of one length by the names of parameters, or
            single values that all rows share.

    Raises:
        ValueError: If there are none, or the lengths differ.

    Example:
        >>> import fdp_jax as fdp
        >>> fdp.sweeps.Columns(num_steps=[10, 100], sampling_prob=0.01).count
        2
    """

    def __init__(self, **columns: Any):
        every = {name: _values(name, x) for name, x in columns.items()}
        lengths = {name: x.size for name, x in every.items() if x.ndim == 1}
        if len(set(lengths.values())) != 1:
            raise ValueError(
                "columns must have one length, and one of them must be a vector, got "
                f"lengths {lengths}"
            )
        self.names = tuple(every)
        (self.count,) = set(lengths.values())
        self.axes = {}
        self.constants = {name: x for name, x in every.items() if x.ndim == 0}
        self._columns = {
            name: np.broadcast_to(x, (self.count,)) for name, x in every.items()
        }

    def column(self, name: str, rows: np.ndarray) -> np.ndarray:
        return self._columns[name][rows]

    def _parts(self):
        return [("columns", np.asarray(self.names)), *self._columns.items()]


def configurations_of(given: Any) -> Configurations:
    """Configurations as users give them: a mapping, `Columns` or a DataFrame."""
    if isinstance(given, Configurations):
        return given
    if isinstance(given, Mapping):
        if not given:
            raise ValueError("configurations must have a column, got none")
        return Grid(given)
    if hasattr(given, "columns") and hasattr(given, "to_numpy"):
        names = [str(name) for name in given.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"a DataFrame must name each column once, got {twice}")
        return Columns(**{str(name): given[name].to_numpy() for name in given.columns})
    raise TypeError(
        "configurations must be a mapping of names to values (a grid), "
        f"sweeps.Columns or a pandas DataFrame, got {type(given).__name__}"
    )


def _values(name: str, given: Any) -> np.ndarray:
    """Numbers, or anything else as objects, of no or one dimension."""
    if name in _RESERVED:
        raise ValueError(f"a column must not be named {name!r}, which has a meaning")
    if isinstance(given, Iterator | Mapping | Set):
        raise ValueError(
            f"{name} must be a value or a vector of them, got a {type(given).__name__}"
        )
    given = list(given) if isinstance(given, range) else given
    found = np.asarray(given) if _is_plain(given) else _objects(given)
    if found.dtype.kind not in "fiub":
        found = _objects(given)
    elif found.dtype.kind == "f":
        found = found.astype(np.float64)
    elif found.dtype.kind in "iu":
        if found.size and found.max() > np.iinfo(np.int64).max:
            raise ValueError(f"{name} must be below 2^63, got {found.max()}")
        found = found.astype(np.int64)
    if found.ndim > 1 or (found.ndim == 1 and found.size == 0):
        raise ValueError(
            f"{name} must be a value or a vector of at least one, got shape "
            f"{found.shape}"
        )
    return found


def _is_plain(given: Any) -> bool:
    if isinstance(given, list | tuple):
        return all(isinstance(x, int | float | np.number | np.bool_) for x in given)
    return hasattr(given, "dtype") or isinstance(given, int | float)


def _objects(given: Any) -> np.ndarray:
    """Names, schemes of sampling and the like, each one object."""
    if isinstance(given, np.ndarray):
        return given.astype(object)
    several = isinstance(given, list | tuple)
    found = np.empty((len(given),) if several else (), object)
    if several:
        for place, value in enumerate(given):
            found[place] = value
    else:
        found[()] = given
    return found


def _bytes(values: np.ndarray) -> bytes:
    if values.dtype.kind == "O":
        return "\0".join(map(repr, values.ravel())).encode()
    return np.ascontiguousarray(values).tobytes()
