"""Numbers next to zero count as zero, as in the programs that XLA compiles for CPUs.

Certificates are written for that: the logarithm of a number below 2.2e-308 would have
an error that no count of roundings covers.  NumPy does what the processor is told to,
which the C library's floating-point environment holds, thread by thread.
"""

import contextlib
import ctypes
import ctypes.util
import functools
import platform
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ._concrete import is_traced

_PLACES = {
    ("Linux", "x86_64"): (28, np.uint32, 0x8040),
    ("Linux", "aarch64"): (0, np.uint32, 1 << 24),
    ("Darwin", "x86_64"): (4, np.uint32, 0x8040),
    ("Darwin", "arm64"): (8, np.uint64, 1 << 24),
}
"""Where `fenv_t` holds the mode of the processor, as what, and its bits for this."""
_BYTES = 256


@functools.cache
def _library() -> Any:
    return ctypes.CDLL(ctypes.util.find_library("m"))


@contextlib.contextmanager
def flushed(flush: bool = True) -> Iterator[None]:
    """A context in which this thread takes subnormal numbers for zero, or does not.

    Raises:
        OSError: If that is not known for this machine.
    """
    place = _PLACES.get((platform.system(), platform.machine()))
    if place is None:
        raise OSError("subnormal numbers cannot be flushed on this machine")
    before = np.zeros(_BYTES, np.uint8)
    library, (offset, kind, bits) = _library(), place
    library.fegetenv(before.ctypes.data_as(ctypes.c_void_p))
    inside = before.copy()
    mode = inside[offset : offset + kind().itemsize].view(kind)
    mode[0] = mode[0] | kind(bits) if flush else mode[0] & ~kind(bits)
    library.fesetenv(inside.ctypes.data_as(ctypes.c_void_p))
    try:
        yield
    finally:
        library.fesetenv(before.ctypes.data_as(ctypes.c_void_p))


@functools.cache
def can_flush() -> bool:
    """Whether it works here, by its effect."""
    tiny = np.full(9, 1e-310)

    def kept(flush: bool) -> Any:
        with flushed(flush):
            return tiny * np.ones(9) > 0, tiny > 0

    try:
        # XLA's threads, which call back, flush them already.
        return bool(np.all(kept(False)) and not np.any(kept(True)))
    except (OSError, AttributeError):
        return False


def in_programs(numbers: np.ndarray) -> np.ndarray:
    """Numbers as compiled programs take them: subnormal ones are zero there."""
    found = numbers.astype(np.float64)
    if numbers.dtype.kind in "iu":
        return found
    return np.where(abs(found) < jax.numpy.finfo(numbers.dtype).tiny, 0.0, found)


def is_subnormal(value: Any) -> Any:
    """Whether numbers are subnormal, by their bits: programs compare these as zero."""
    limits = jax.numpy.finfo(value.dtype)
    if not is_traced(value):
        return (value != 0) & (abs(np.asarray(value)) < limits.tiny)
    kind = np.dtype(f"uint{limits.bits}")
    bits = jax.lax.bitcast_convert_type(value, kind) << 1  # without the sign
    least = np.asarray(limits.tiny, value.dtype).view(kind) << 1
    return (bits > 0) & (bits < least)
