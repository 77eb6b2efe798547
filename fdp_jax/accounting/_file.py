"""Accounts in files: strict JSON, all digits, checked to the last bit.

The file is one JSON object in a canonical form.  It begins with the versions and a
checksum of all that follows; numbers are hexadecimal, and so exact.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

import jax
import numpy as np

from .. import sampling
from .._internal import _checks
from .._internal._files import head_of, write_at_once
from ..mechanisms import (
    AbstractMechanism,
    AbstractRenyi,
    AbstractSampling,
    NeighboringRelation,
)
from ._table import Kind, Table

_FORMAT, _VERSION = "fdp_jax accountant", 1
_KINDS = AbstractMechanism, AbstractRenyi, AbstractSampling
_DTYPES = {"float64": np.float64, "float32": np.float32}


def write(path: str | os.PathLike[str], account: Any) -> None:
    """Writes an account beside its place, then moves it there."""
    content = {
        "relation": account.relation.value,
        "sampling": sorted(scheme.value for scheme in account.samplings()),
        "capacity": account.capacity,
        "tables": [_table_to_json(table) for table in account.tables],
    }
    write_at_once(path, _text(content))


def read(
    path: str | os.PathLike[str],
) -> tuple[NeighboringRelation, int, tuple[Table, ...]]:
    """The account that was written.

    Raises:
        ValueError: If the file is damaged, or of another version.
    """
    data = pathlib.Path(path).read_bytes()
    content: Any = head_of(path, data, _FORMAT, _VERSION).get("content")
    _checks.require(
        isinstance(content, dict) and _text(content) == data,
        f"{os.fspath(path)} is damaged",
    )
    relation = NeighboringRelation(content["relation"])
    tables = tuple(_table_from_json(table) for table in content["tables"])
    return relation, content["capacity"], tables


def _text(content: dict[str, Any]) -> bytes:
    body = json.dumps(content, sort_keys=True, allow_nan=False)
    digest = hashlib.sha256(body.encode("ascii")).hexdigest()
    head = json.dumps({"format": _FORMAT, "version": _VERSION, "sha256": digest})
    return f'{head[:-1]}, "content": {body}}}\n'.encode("ascii")


def _table_to_json(table: Table) -> dict[str, Any]:
    template = table.kind.step(np.zeros(table.rows[0].shape[1]))
    return {
        "step": _to_json(template),
        "shapes": [list(shape) for shape in table.kind.shapes],
        "dtype": table.rows[0].dtype.name,
        "counts": np.asarray(table.counts).tolist(),
        "rows": [
            [[float(x).hex() for x in row] for row in np.asarray(part)]
            for part in table.rows
        ],
    }


def _table_from_json(found: dict[str, Any]) -> Table:
    step = _from_json(found["step"])
    shapes = tuple(tuple(shape) for shape in found["shapes"])
    counts = np.asarray(found["counts"], np.int32)
    dtype, width = _DTYPES[found["dtype"]], sum(int(np.prod(x)) for x in shapes)
    rows = tuple(
        np.asarray([[float.fromhex(x) for x in row] for row in part], dtype).reshape(
            counts.size, width
        )
        for part in found["rows"]
    )
    return Table(rows, counts, Kind(jax.tree.structure(step), shapes))


def _to_json(value: Any) -> Any:
    """A step without its numbers."""
    if isinstance(value, _KINDS):
        name = type(value).__name__
        _checks.require(
            _known_classes().get(name) is type(value),
            "save knows the package's mechanisms",
            name,
            TypeError,
        )
        return {
            "class": name,
            "fields": {
                field.name: _to_json(getattr(value, field.name))
                for field in dataclasses.fields(value)
            },
        }
    if isinstance(value, np.ndarray | np.generic):
        return {"number": list(np.shape(value))}
    if isinstance(value, NeighboringRelation):
        return {"relation": value.value}
    if isinstance(value, tuple):
        return {"tuple": [_to_json(x) for x in value]}
    if value is None or isinstance(value, bool | int | str):
        return {"constant": value}
    raise TypeError(f"save cannot write {value!r} of a step")


def _from_json(found: dict[str, Any]) -> Any:
    (kind, value), *rest = found.items()
    if kind == "number":
        return np.zeros(value)
    if kind == "relation":
        return NeighboringRelation(value)
    if kind == "tuple":
        return tuple(_from_json(x) for x in value)
    if kind != "class" and not rest:
        return value
    cls = _known_classes().get(found["class"])
    if cls is None:
        raise ValueError(f"there is no mechanism {found['class']!r}")
    step = object.__new__(cls)
    for name, inner in found["fields"].items():
        object.__setattr__(step, name, _from_json(inner))
    return step


def _known_classes() -> dict[str, type]:
    """The package's own mechanisms and schemes, by name."""
    found, left = {}, list(_KINDS)
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        if kind.__module__.startswith(f"{sampling.__name__.partition('.')[0]}."):
            found[kind.__name__] = kind
    return found
