"""The configurations of a sweep: all combinations of some axes, or the rows of a table.

A grid is never laid out: its rows are worked out for one chunk at a time.
"""

import abc
import math
from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np

from .._internal import _checks
from ._store import digest_of

_RESERVED = "mechanism", "refused"
"""Names of what is no column: a parameter of functions, and a part of the answers."""
_MOST = 10**12
"""More could not even be counted through."""
_WIDE = {"f": np.float64, "i": np.int64, "u": np.int64, "b": np.bool_}
"""Types of numbers by their kinds; of anything else there are objects."""


class Configurations(abc.ABC):
    """Named columns, of which any part can be asked for.

    `axes` says what is known of their origin: for a grid its axes, else nothing.
    """

    count: int
    axes: dict[str, np.ndarray]

    def __init__(self, columns: Mapping[str, Any]):
        self.columns = {name: _values(name, x) for name, x in columns.items()}
        self.names = tuple(self.columns)
        self.vectors = {name: x for name, x in self.columns.items() if x.ndim == 1}

    @abc.abstractmethod
    def _places(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The places of some rows in each vector."""

    def kind(self, name: str) -> np.dtype:
        """The type of a column's entries."""
        return self.columns[name].dtype

    def rows(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Some rows of all columns; what is no vector is the same in all."""
        places = self._places(rows)
        return {
            name: x[places[name]] if name in places else np.broadcast_to(x, rows.shape)
            for name, x in self.columns.items()
        }

    def digest(self) -> str:
        """A name for these numbers."""
        return f"{type(self).__name__} {digest_of(self.columns)}"


class Grid(Configurations):
    """All combinations of values, the last axis the fastest; constants are no axes."""

    def __init__(self, axes: Mapping[str, Any]):
        super().__init__(axes)
        self.axes = self.vectors
        self.shape = tuple(x.size for x in self.axes.values())
        self.count = math.prod(self.shape)
        _checks.require(
            self.count <= _MOST,
            f"a grid may have {_MOST:.0e} configurations",
            f"{self.count:.1e} from axes of {list(self.shape)}",
        )

    def _places(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        places = np.unravel_index(rows, (*self.shape, 1))
        return dict(zip(self.axes, places, strict=False))


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
        super().__init__(columns)
        lengths = {name: x.size for name, x in self.vectors.items()}
        _checks.require(
            len(set(lengths.values())) == 1,
            "columns must have one length, and one of them must be a vector",
            f"lengths {lengths}",
        )
        (self.count,) = set(lengths.values())
        self.axes = {}

    def _places(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        return dict.fromkeys(self.vectors, rows)


def configurations_of(given: Any) -> Configurations:
    """Configurations as users give them: a mapping, `Columns` or a DataFrame."""
    if isinstance(given, Configurations):
        return given
    if isinstance(given, Mapping):
        _checks.require(given, "configurations must have a column", "none")
        return Grid(given)
    if hasattr(given, "columns") and hasattr(given, "to_numpy"):
        names = [str(name) for name in given.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        _checks.require(not twice, "a DataFrame must name each column once", twice)
        return Columns(**{str(name): given[name].to_numpy() for name in given.columns})
    raise TypeError(
        "configurations must be a mapping of names to values (a grid), "
        f"sweeps.Columns or a pandas DataFrame, got {type(given).__name__}"
    )


def _values(name: str, given: Any) -> np.ndarray:
    """Numbers, or anything else as objects, of no or one dimension."""
    _checks.require(
        name not in _RESERVED,
        f"a column must not be named {name!r}, which has a meaning",
    )
    _checks.require(
        not isinstance(given, Iterator | Mapping | Set),
        f"{name} must be a value or a vector of them",
        f"a {type(given).__name__}",
    )
    given = list(given) if isinstance(given, range) else given
    found = np.asarray(given) if _is_plain(given) else _objects(given)
    if found.dtype.kind == "u" and np.any(found > np.iinfo(np.int64).max):
        raise ValueError(f"{name} must be below 2^63, got {found.max()}")
    wide = _WIDE.get(found.dtype.kind)
    found = _objects(given) if wide is None else found.astype(wide)
    _checks.require(
        found.ndim <= 1 and (found.ndim != 1 or found.size != 0),
        f"{name} must be a value or a vector of at least one",
        f"shape {found.shape}",
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
    if isinstance(given, list | tuple):
        return np.fromiter(given, object, len(given))
    found = np.empty((), object)
    found[()] = given
    return found
