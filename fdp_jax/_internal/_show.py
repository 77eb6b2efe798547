"""How objects are printed: their values, in one line where that fits.

What a class shows is said by its fields alone: private ones are left out, and metadata
under `SHOWN` is a function that prints a field's value.
"""

import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import wadler_lindig as wl

from ._concrete import is_traced
from ._text import round_down, round_up

WIDTH = 88
SHOWN = "shown"
"""Key among the metadata of a field: a function from its value to what is printed."""
PARAMETER = "search"
"""Key among the metadata of a field that may be left open: shown then, too."""
_FEW = 6
"""Entries of an array or a sequence that are all shown."""
_ENDS = 3, 1
"""How many are shown of a longer one, from its start and from its end."""
_DIGITS = 10
"""Of certified ends, which are rounded outward."""


@dataclasses.dataclass
class Shown:
    """A text that stands for itself."""

    text: str

    def __repr__(self) -> str:
        return self.text


@dataclasses.dataclass
class Call:
    """Something that is shown as a call: a name with arguments."""

    name: str
    entries: list[tuple[str, Any]]
    after: str = ""


def pretty(value: Any, *, width: int = WIDTH, parent: Any = None) -> str:
    """The text of a value: one line if it fits, else indented lines."""
    custom = functools.partial(_doc, parent=parent)
    return wl.pformat(value, width=width, custom=custom)


def short(value: Any, *, most: int = 60, parent: Any = None) -> str:
    """One line for messages, cut where it is long."""
    text = " ".join(pretty(value, width=10_000, parent=parent).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def fields_of(owner: Any) -> list[tuple[str, Any]]:
    """Names and values of what a dataclass shows."""
    entries = []
    for field in dataclasses.fields(owner):
        if not field.repr or field.name.startswith("_"):
            continue
        value = getattr(owner, field.name, None)
        if value is None and field.default is None and PARAMETER not in field.metadata:
            continue
        show = field.metadata.get(SHOWN)
        if show is not None and not is_traced(value):
            value = Shown(show(value))
        entries.append((argument_of(type(owner), field.name), value))
    return entries


def argument_of(kind: type, name: str) -> str:
    """The argument that a field holds: `epsilon0` is the `epsilon` that a class takes.

    As attributes those names are queries.
    """
    taken = inspect.signature(kind.__init__).parameters
    names = name, name.removesuffix("0"), name.removesuffix("_grid")
    return next((x for x in names if x in taken), name)


def _doc(value: Any, *, parent: Any) -> wl.AbstractDoc | None:
    """The layout of a value for the formatter; None leaves it to the formatter."""
    if isinstance(value, Call) or hasattr(type(value), "_shown"):
        ready = isinstance(value, Call)
        call, owner = (value, parent) if ready else (value._shown(parent), value)
        inner = functools.partial(_doc, parent=owner)
        return _bracketed(f"{call.name}(", call.entries, f"){call.after}", inner)
    if isinstance(value, Shown):
        return wl.TextDoc(value.text)
    if isinstance(value, enum.Enum):
        return wl.TextDoc(value.name)
    if isinstance(value, list | tuple) and len(value) > _FEW and type(value) in _PAIRS:
        begin, end = _PAIRS[type(value)]
        entries = [("", x) for x in _ends_of(list(value))]
        return _bracketed(begin, entries, end, functools.partial(_doc, parent=parent))
    if isinstance(value, jax.Array | np.ndarray | np.generic | float):
        return wl.TextDoc(array_text(value))
    # Functions by their name alone.
    name = getattr(value, "__name__", None)
    return wl.TextDoc(name) if callable(value) and isinstance(name, str) else None


_PAIRS = {list: ("[", "]"), tuple: ("(", ")")}


def _bracketed(
    begin: str, entries: list[tuple[str, Any]], end: str, custom: Any
) -> wl.AbstractDoc:
    """Entries between brackets, with their names where they have one."""
    docs = [
        wl.TextDoc(f"{name}=" if name else "") + wl.pdoc(value, custom=custom)
        for name, value in entries
    ]
    return wl.bracketed(wl.TextDoc(begin), docs, wl.comma, wl.TextDoc(end), indent=2)


def _ends_of(values: list[Any]) -> list[Any]:
    """A long sequence without its middle."""
    first, last = _ENDS
    left_out = len(values) - first - last
    return [*values[:first], Shown(f"... {left_out} more ..."), *values[-last:]]


def number_text(value: Any) -> str:
    """A number with all its digits: what is read off is what was computed with.

    Of a float32 number the usual text is another one, maybe on the wrong side.
    """
    if isinstance(value, np.floating):
        value = float(value)
    return str(value).removesuffix(".0")


def array_text(value: Any, entry: Callable[[Any], str] = number_text) -> str:
    """A number, or the type of an array with a few of its entries."""
    if is_traced(value):
        return f"traced {_kind(value)}"
    if isinstance(value, jax.Array) and (
        value.is_deleted() or jnp.issubdtype(value.dtype, jax.dtypes.extended)
    ):
        return _kind(value)
    numbers = np.asarray(value)
    if numbers.ndim == 0:
        return entry(value if isinstance(value, float) else numbers[()])
    if numbers.size == 0:
        return _kind(value)
    (first, last), flat = _ENDS, numbers.ravel()
    few = flat if flat.size <= _FEW else np.append(flat[:first], flat[-last:])
    texts = [_few(x) if entry is number_text else entry(x) for x in few]
    if numbers.size > _FEW:
        texts.insert(_ENDS[0], "...")
    return f"{_kind(value)}[{', '.join(texts)}]"


def _few(value: Any) -> str:
    """An entry of an array, in few digits."""
    return f"{value:g}" if isinstance(value, np.floating | float) else str(value)


def _kind(value: Any) -> str:
    """The type and shape of an array: f64[3]."""
    dtype = value.dtype
    extended = jnp.issubdtype(dtype, jax.dtypes.extended)
    kind = "" if extended else np.dtype(dtype).kind
    name = f"{kind}{8 * dtype.itemsize}" if kind and kind in "fiuc" else str(dtype)
    return f"{name}[{','.join(map(str, value.shape))}]"


_ENTRIES = (
    lambda x: round_down(float(x), _DIGITS),
    lambda x: f"{float(x):.{_DIGITS}g}",
    lambda x: round_up(float(x), _DIGITS),
)
LOWER, MIDDLE, UPPER = (
    {SHOWN: functools.partial(array_text, entry=entry)} for entry in _ENTRIES
)
"""Metadata of the ends of certified intervals, and of what lies between them."""


def members(kind: type[enum.IntEnum]) -> dict[str, Callable[[Any], str]]:
    """Metadata of a field that holds values of an enumeration of integers."""
    return {SHOWN: lambda value: array_text(value, lambda x: kind(int(x)).name)}
