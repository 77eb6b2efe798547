"""States of a training in files: by public names, each bound to its plan.

A file is a line of JSON with a digest of all that follows, one with the plan's fields
and the names, types and shapes of the state's arrays, and the bytes of these.
"""

import dataclasses
import enum
import hashlib
import json
import math
import os
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._internal import _checks
from .._internal._files import head_of, write_at_once
from .._internal._show import pretty, short
from .._internal._tolerances import SAME_NOISE
from ._plan import Plan

_FORMAT, _VERSION = "fdp_jax training", 2
_NOISE = "mechanism.noise_multiplier"
_KEPT: Any = np.ndarray | np.generic | bool | int | float | complex


def write(path: str | os.PathLike[str], plan: Plan, state: PyTree, key: Array) -> None:
    """Writes a state of a plan, with a sample of what its key draws."""
    named = [(name, *_plain(leaf)) for name, leaf in _leaves(state)]
    content = {
        "plan": {name: value for name, (value, _) in _fields(plan).items()},
        "draws": _drawn(key),
        "arrays": [(name, kind, x.dtype.name, x.shape) for name, kind, x in named],
    }
    lines = [json.dumps(content).encode("ascii"), b"\n"]
    body = b"".join([*lines, *(np.asarray(x).tobytes() for *_, x in named)])
    head = {
        "format": _FORMAT,
        "version": _VERSION,
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    write_at_once(path, json.dumps(head).encode("ascii") + b"\n" + body)


def read(path: str | os.PathLike[str], plan: Plan, like: PyTree) -> PyTree:
    """The state that was written for the same plan.

    Raises:
        ValueError: If the file is damaged, of another version or another plan, or holds
            another kind of state.
    """
    name = os.fspath(path)
    head, _, body = pathlib.Path(path).read_bytes().partition(b"\n")
    stated = head_of(path, head, _FORMAT, _VERSION).get("sha256")
    _checks.require(stated == hashlib.sha256(body).hexdigest(), f"{name} is damaged")
    about, _, data = body.partition(b"\n")
    content = json.loads(about)
    _require_plan(name, content["plan"], plan)
    stored, place = {}, 0
    for field, kind, dtype, shape in content["arrays"]:
        flat = np.frombuffer(data, jnp.dtype(dtype), math.prod(shape), place)
        stored[field] = kind, flat.reshape(shape)
        place += flat.nbytes
    state = _restored(name, stored, like)
    _checks.require(
        _drawn(state.key) == content["draws"],
        f"{name} was written where JAX drew other random numbers from a key "
        "(see jax_threefry_partitionable): batches that depend on earlier "
        "ones would not be those of the plan",
    )
    return state


def _fields(owner: Any, before: str = "") -> dict[str, tuple[Any, Any]]:
    """Public fields and those of what they hold, by name: values and defaults."""
    found = {}
    for field in dataclasses.fields(owner):
        # Sums do not depend on how a batch is cut.
        if field.name.startswith("_") or field.name == "microbatch_size":
            continue
        name, value = before + field.name, getattr(owner, field.name)
        missing = field.default is dataclasses.MISSING
        found[name] = _value(value), None if missing else _value(field.default)
        if dataclasses.is_dataclass(value):
            found |= _fields(value, f"{name}.")
    return found


def _value(value: Any) -> Any:
    """A field in JSON; of an object the class, whose fields have their own names."""
    if dataclasses.is_dataclass(value):
        return type(value).__name__
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return np.asarray(value, np.float64).tolist()
    if isinstance(value, list | tuple):
        return [_value(x) for x in value]
    known = value is None or isinstance(value, bool | int | float | str)
    return value if known else pretty(value)


def _require_plan(name: str, there: dict[str, Any], plan: Plan) -> None:
    """Raises `ValueError` with the fields in which the plan of a file differs."""
    here, unknown = _fields(plan), (None, None)
    pairs = {}
    for field in here | there:
        new, usual = here.get(field, unknown)
        # A field that was not there yet was as its default is.
        pairs[field] = there.get(field, usual), new
    if plan._noise_factor() == 1 and math.isclose(*pairs[_NOISE], rel_tol=SAME_NOISE):
        del pairs[_NOISE]
    differ = {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}
    shown = lambda value: short(value).strip("'")
    different = [
        f"{field} is {shown(old)} there and {shown(new)} here"
        for field, (old, new) in differ.items()
        # Of another class that alone is told.
        if field.rpartition(".")[0] not in differ
    ]
    _checks.require(
        not different,
        f"{name} was written for another plan: {', '.join(different[:3])}",
    )


def _drawn(key: Array) -> list[int]:
    """Some of what is drawn from a key, to know the generator by."""
    return jax.random.bits(jax.random.split(key)[1], (4,), np.uint32).tolist()


def _leaves(state: PyTree) -> list[tuple[str, Any]]:
    """Leaves with numbers, by the fields that lead to them."""
    found = jax.tree_util.tree_leaves_with_path(state)
    return [
        (jax.tree_util.keystr(path).lstrip("."), leaf)
        for path, leaf in found
        if _has_numbers(leaf)
    ]


def _has_numbers(leaf: Any) -> bool:
    """Whether a leaf is written; functions and texts are the restored model's own."""
    if not isinstance(leaf, _KEPT):
        return isinstance(leaf, jax.Array)
    dtype = np.asarray(leaf).dtype
    return dtype.kind == "b" or bool(jnp.issubdtype(dtype, np.number))


def _is_key(x: object) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> tuple[str, Any]:
    """The type of an array and an array of its numbers; of a random key its data."""
    if _is_key(leaf):
        return str(leaf.dtype), jax.random.key_data(leaf)
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return array.dtype.name, array


def _restored(name: str, stored: dict[str, Any], like: PyTree) -> PyTree:
    """The state with the numbers of a file.

    Raises:
        ValueError: If an array is missing there or here, or is of another kind.
    """
    here = {field: _plain(leaf) for field, leaf in _leaves(like)}
    shown = lambda entry: (
        f"{entry[0]}[{','.join(map(str, entry[1].shape))}]" if entry else "missing"
    )
    # Some optimizers begin in another precision than they go on in.
    kind = lambda entry: re.sub(r"^bfloat16|^float16", "float32", shown(entry))
    for field in stored | here:
        one, other = stored.get(field), here.get(field)
        _checks.require(
            kind(one) == kind(other),
            f"like must be a state as in {name}: {field} is {shown(one)} there "
            f"and {shown(other)} here",
        )
    numbers = iter(_leaves(like))

    def put(old: Any) -> Any:
        if not _has_numbers(old):
            return old
        _, array = stored[next(numbers)[0]]
        if _is_key(old):
            return jax.random.wrap_key_data(array, impl=jax.random.key_impl(old))
        if isinstance(old, jax.Array):
            return jnp.asarray(array)
        return array.copy() if isinstance(old, np.ndarray) else type(old)(array.item())

    with jax.enable_x64(True):  # every array keeps its type
        return jax.tree.map(put, like)
