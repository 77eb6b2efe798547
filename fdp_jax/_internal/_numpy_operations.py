"""Operations that programs in NumPy call and NumPy has under no name of its own.

Each computes what the documentation of `jax.lax` says of the primitive, in the same
precision.  Their arguments are NumPy's arrays and scalars.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._numpy_random import KEY, places, threefry, unwrapped, wrapped

_LOCAL = threading.local()
_BLOCK = 512


class TooLong(Exception):
    """The work that a program was given is done."""


def give(work: float) -> None:
    """Lets the programs of this thread do so much: see `spend`."""
    _LOCAL.left = work


def left() -> float:
    """The work that has not been done."""
    return _LOCAL.left


def spend(work: float) -> None:
    """Counts work: 1 for an assignment, and as much for each thousand of its numbers.

    Of repeated ones each time.  It is not measured in seconds, so that all machines
    compile the same programs.
    """
    _LOCAL.left -= work
    if _LOCAL.left < 0:
        raise TooLong


def to_int(x: Any, dtype: Any) -> Any:
    """Toward zero; what does not fit is the nearest that does, and no number is 0."""
    info = np.iinfo(dtype)
    whole = np.where(np.isnan(x), 0, np.trunc(x))
    low, high = whole <= float(info.min), whole >= float(info.max)
    safe = np.where(low | high, 0, whole).astype(dtype)
    return np.where(low, info.min, np.where(high, info.max, safe)).astype(dtype)[()]


def quotient(x: Any, y: Any) -> Any:
    """The quotient of integers, toward zero; -1 where that divides by 0."""
    safe = np.where(y == 0, 1, y)
    down = x // safe
    inexact = (down * safe != x) & ((x < 0) != (safe < 0))
    # Of whole numbers without a sign that is the largest one.
    worst = np.asarray(-1).astype(x.dtype)
    return np.where(y == 0, worst, down + inexact).astype(x.dtype)[()]


def horner(x: Any, *coefficients: Any) -> Any:
    """A polynomial, of which the constant comes first."""
    return functools.reduce(lambda total, c: total * x + c, reversed(coefficients))


def ordered(x: Any) -> Any:
    """An integer that has the order of floats, -0 before 0 and NaN last."""
    if x.dtype.kind != "f":
        return x
    bits = x.view(f"i{x.dtype.itemsize}")
    return bits ^ ((bits >> (8 * x.dtype.itemsize - 1)) & np.iinfo(bits.dtype).max)


def whole_power(x: Any, n: int) -> Any:
    if n < 0:
        return 1 / whole_power(x, -n)
    result = None
    while n:
        if n & 1:
            result = x if result is None else result * x
        n >>= 1
        x = x * x if n else x
    return np.ones_like(x) if result is None else result


def half_away(x: Any) -> Any:
    floor = np.floor(abs(x))
    return np.copysign(floor + (abs(x) - floor >= 0.5), x)


def complex(real: Any, imag: Any) -> Any:
    shape = np.broadcast_shapes(np.shape(real), np.shape(imag))
    out = np.empty(shape, np.result_type(real.dtype, np.complex64))
    out.real, out.imag = real, imag
    return out[()]


def spread(x: Any, shape: tuple[int, ...]) -> Any:
    out = np.empty(shape, x.dtype)
    out[...] = x
    return out


def _places(
    shape: Sequence[int], sizes: Sequence[int], starts: Sequence[Any]
) -> tuple[slice, ...]:
    """The window that fits, as JAX moves it."""
    firsts = [
        min(max(int(i), 0), n - size)
        for i, n, size in zip(starts, shape, sizes, strict=True)
    ]
    return tuple(slice(i, i + n) for i, n in zip(firsts, sizes, strict=True))


def window(x: Any, sizes: tuple[int, ...], *starts: Any) -> Any:
    return x[_places(x.shape, sizes, starts)]


def short_window(x: Any, size: int, start: Any) -> Any:
    """A window of one dimension, as most are."""
    first = min(max(int(start), 0), len(x) - size)
    return x[first : first + size]


def updated(x: Any, update: Any, *starts: Any) -> Any:
    out = x.copy()
    out[_places(x.shape, update.shape, starts)] = update
    return out


def padded(x: Any, value: Any, config: tuple) -> Any:
    """Numbers between those of x and around them; fewer than none cut x off."""
    room, places, kept = [], [], []
    for n, (low, high, between) in zip(x.shape, config, strict=True):
        first, size = max(low, 0), n + max(n - 1, 0) * between
        room.append(first + size + max(high, 0))
        places.append(slice(first, first + size, between + 1))
        kept.append(slice(max(-low, 0), room[-1] - max(-high, 0)))
    out = np.full(room, value, x.dtype)
    out[tuple(places)] = x
    return out[tuple(kept)]


def accumulated(op: Any, x: Any, axis: int, reverse: bool) -> Any:
    """Results up to each number, by blocks: sums round with each addition."""
    if reverse:
        return np.flip(accumulated(op, np.flip(x, axis), axis, False), axis)
    parts = [
        op.accumulate(block, axis)
        for block in np.split(x, range(_BLOCK, x.shape[axis], _BLOCK), axis)
    ]
    for i, part in enumerate(parts[1:], 1):
        before = parts[i - 1].take([-1], axis)
        parts[i] = op(before, part)
    return np.concatenate(parts, axis).astype(x.dtype)


def sorted(keys: int, axis: int, *columns: Any) -> tuple[Any, ...]:
    """All columns in the stable order of the first ones."""
    order = np.lexsort(columns[:keys][::-1], axis)
    return tuple(np.take_along_axis(x, order, axis) for x in columns)


def largest(x: Any, k: int, axis: int, dtype: Any) -> tuple[Any, Any]:
    """The k largest numbers along an axis, and where they are; NaN is largest."""
    order = np.argsort(~ordered(x), axis, kind="stable")
    order = np.take(order, np.arange(k), axis)
    return np.take_along_axis(x, order, axis), order.astype(dtype)


def _chosen(x: Any, at: Any, dims: tuple, sizes: tuple, mode: str) -> tuple[Any, Any]:
    """Indices of windows of some sizes in x, by dimension, and which of them fit."""
    mapped, batched, batched_at = dims
    batch = at.shape[:-1]
    index, fits = [], np.ones(batch, bool)
    lanes = batch + (1,) * len(sizes)
    for axis, size in enumerate(sizes):
        first = np.zeros(batch, np.int64)
        if axis in mapped:
            first = at[..., mapped.index(axis)].astype(np.int64)
            most = x.shape[axis] - size
            fits = fits & (first >= 0) & (first <= most)
            first = np.clip(first, 0, most)
        elif axis in batched:
            own = batched_at[batched.index(axis)]
            along = (-1,) + (1,) * (len(batch) - own - 1)
            first = np.broadcast_to(np.arange(batch[own]).reshape(along), batch)
        steps = [1] * len(sizes)
        steps[axis] = size
        index.append(first.reshape(lanes) + np.arange(size).reshape(steps))
    return tuple(index), fits if mode == "drop" else np.ones(batch, bool)


def gathered(
    x: Any,
    at: Any,
    offset: tuple,
    gone: tuple,
    dims: tuple,
    sizes: tuple,
    mode: str,
    fill: Any,
) -> Any:
    index, fits = _chosen(x, at, dims, sizes, mode)
    out, batch = x[index], at.ndim - 1
    if mode == "drop":
        known = fits.reshape(fits.shape + (1,) * len(sizes))
        out = np.where(known, out, np.array(fill).astype(x.dtype))
    kept = [i for i in range(len(sizes)) if i not in gone]
    out = out.reshape(out.shape[:batch] + tuple(sizes[i] for i in kept))
    places = range(batch, batch + len(kept))
    return np.moveaxis(out, tuple(places), offset)[()]


def scattered(
    op: Any, x: Any, at: Any, update: Any, window: tuple, dims: tuple, mode: str
) -> Any:
    gone, batch = window[1], at.ndim - 1
    lanes = [i for i in range(update.ndim) if i not in window[0]]
    moved = update.transpose(*lanes, *window[0])
    rest = iter(moved.shape[batch:])
    sizes = tuple(1 if i in gone else next(rest) for i in range(x.ndim))
    index, fits = _chosen(x, at, dims, sizes, mode)
    whole, kept, out = fits.shape + sizes, ... if fits.all() else fits, x.copy()
    index = tuple(np.broadcast_to(i, whole)[kept] for i in index)
    if op is None:
        out[index] = moved.reshape(whole)[kept]
    else:
        op.at(out, index, moved.reshape(whole)[kept])
    return out


def transformed(kind: int, length: int, x: Any) -> Any:
    whole = (np.fft.fft, np.fft.ifft, np.fft.rfft, np.fft.irfft)[kind]
    return whole(x, n=length)


def loop(
    test: Callable, body: Callable, work: float, tests: int, bodies: int, *args: Any
) -> tuple:
    of_test, of_body = args[:tests], args[tests : tests + bodies]
    state = args[tests + bodies :]
    while True:
        (going,) = test(*of_test, *state)
        if not (going.any() if np.ndim(going) else going):
            return state
        spend(work)
        new = body(*of_body, *state)
        # Rows of a batch stop one by one.
        state = _kept_rows(going, state, new) if np.ndim(going) else new


def _kept_rows(going: Any, state: tuple, new: tuple) -> tuple:
    more = [x.ndim - going.ndim for x in new]
    rows = [going.reshape(going.shape + (1,) * n) for n in more]
    return tuple(map(np.where, rows, new, state))


def scan(
    body: Callable,
    work: float,
    length: int,
    back: bool,
    split: tuple,
    kinds: tuple,
    *args: Any,
) -> tuple:
    consts, state = args[: split[0]], args[split[0] : sum(split)]
    rows = args[sum(split) :]
    stacks = [np.empty((length, *shape), dtype) for shape, dtype in kinds]
    for i in range(length - 1, -1, -1) if back else range(length):
        spend(work)
        out = body(*consts, *state, *[x[i] for x in rows])
        state = out[: split[1]]
        for stack, value in zip(stacks, out[split[1] :], strict=True):
            stack[i] = value
    return (*state, *stacks)


def branch(index: Any, branches: tuple, *args: Any) -> tuple:
    return branches[min(max(int(index), 0), len(branches) - 1)](*args)


_OURS = [
    to_int,
    quotient,
    horner,
    ordered,
    whole_power,
    half_away,
    complex,
    spread,
    window,
    short_window,
    updated,
    padded,
    accumulated,
    sorted,
    largest,
    gathered,
    scattered,
    transformed,
    loop,
    scan,
    branch,
]


@functools.cache
def names() -> dict[str, Any]:
    """All that the text of a program may name."""
    import scipy.special  # takes a sixth of a second

    own = {f.__name__: f for f in (*_OURS, wrapped, unwrapped, places, threefry)}
    return {**vars(scipy.special), **vars(np), **own, KEY: np.dtype(KEY)}
