"""Refusals of traced numbers, with the number that is refused.

Equinox raises one of several messages, chosen by a whole number while the program runs.
Here that number is the refused value itself, bit by bit, and the message is made of it.
"""

import contextlib
import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.lax import stop_gradient

from ._concrete import evaluates_at_once, holds_anywhere
from ._precision import float_dtype, in_float64

_Fn = TypeVar("_Fn", bound=Callable[..., Any])
_SENTENCE = re.compile("_?EquinoxRuntimeError: (.*)")
_LOGGER = logging.getLogger("jax._src.callback")


class TracedValueError(ValueError, eqx.EquinoxRuntimeError):
    """An argument out of range, found under a transformation."""


TracedValueError.__module__ = "fdp_jax"


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A message of `equinox.internal.branched_error_if`, for a value given as bits."""

    text: str
    """All that stands before the value."""
    dtype: str

    def __getitem__(self, bits: int) -> str:
        dtype = np.dtype(self.dtype)
        if np.issubdtype(dtype, np.floating):
            kind = np.dtype(f"int{8 * dtype.itemsize}")
            value = np.asarray(bits, kind).view(dtype)[()]
        else:
            value = bits
        return f"{self.text} {value}".removesuffix(".0")


def refuse(value: Any, look: Callable[[Any], tuple[Any, Any]], text: str) -> Any:
    """A traced PyTree, unless it is refused, with the number that speaks against it.

    Args:
        value: The PyTree.
        look: Finds in it which numbers are wrong, flags, and these numbers; either all
            of one shape or one flag for all.
        text: What the message says before the number.
    """
    wide = any(x.dtype == np.float64 for x in filter(_is_array, jax.tree.leaves(value)))
    if wide and float_dtype() != np.float64:
        return _in_double(value, look, text)
    if evaluates_at_once():
        _refuse_now(*look(_fixed(value)), text)
        return value
    return _later(value, look, text)


def _later(value: Any, look: Callable[[Any], tuple[Any, Any]], text: str) -> Any:
    flags, shown = look(_fixed(value))
    shown = _seen(jnp.asarray(_fixed(shown)))
    sentence: Any = Sentence(text, str(shown.dtype))
    return eqx.internal.branched_error_if(
        value, jnp.any(flags), _bits(flags, shown), sentence
    )


_in_double = in_float64(cast_out=False)(_later)


def _fixed(value: Any) -> Any:
    """The PyTree with arrays of JAX that nothing is differentiated in."""
    fix = lambda x: jnp.asarray(stop_gradient(x)) if _is_array(x) else x
    return jax.tree.map(fix, value)


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic)


def _seen(value: Any) -> Any:
    """The value in a type whose bits are a whole number's."""
    narrow = jnp.issubdtype(value.dtype, jnp.floating) and value.dtype.itemsize < 4
    return value.astype(np.float32) if narrow else value


def _bits(flags: Any, value: Any) -> Any:
    """The bits of one of the entries that are wrong."""
    if jnp.issubdtype(value.dtype, jnp.floating):
        kind = np.dtype(f"int{8 * value.dtype.itemsize}")
        bits = jax.lax.bitcast_convert_type(value, kind)
    else:
        bits = value.astype(np.int64 if value.dtype.itemsize == 8 else np.int32)
    return _one_of(jnp.broadcast_to(flags, bits.shape), bits)


@custom_vmap
def _one_of(flags: jax.Array, bits: jax.Array) -> jax.Array:
    """The numbers of a wrong entry, if any; in a program of one number its own."""
    if bits.ndim == 0:
        return bits
    least = np.iinfo(bits.dtype).min
    return jnp.max(jnp.where(flags, bits, least), initial=least)


@_one_of.def_vmap
def _of_a_batch(
    _size: int, _batched: list[bool], flags: jax.Array, bits: jax.Array
) -> Any:
    return _one_of(flags, bits), False


def _refuse_now(flags: Any, shown: Any, text: str) -> None:
    if holds_anywhere(flags):
        shown = _seen(jnp.asarray(_fixed(shown)))
        found = int(_bits(flags, shown))
        raise TracedValueError(Sentence(text, str(shown.dtype))[found])


def checked(function: _Fn) -> _Fn:
    """A function that refuses numbers in one line, also where it is compiled.

    What stops a program of `jax.jit` comes out as `JaxRuntimeError`, with the sentence
    at the end of a long traceback.  Here it is a `ValueError` with that sentence alone.
    JAX runs programs while Python goes on; this waits until they are done.

    Args:
        function: Any function, compiled or not.

    Returns:
        A function of the same arguments.

    Raises:
        ValueError: From a call, if an argument of this package's functions is out of
            range.  Other errors are left as they are.

    Example:
        >>> import fdp_jax as fdp, jax
        >>> epsilon = fdp.checked(jax.jit(lambda s: fdp.PureDP(s).epsilon(delta=0.0)))
        >>> epsilon(-1.0)
        Traceback (most recent call last):
        fdp_jax.TracedValueError: epsilon must be a finite number, at least 0, got -1
    """

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            with _nothing_logged():
                return jax.block_until_ready(function(*args, **named))
        except (RuntimeError, ValueError) as error:
            found = _SENTENCE.search(str(error))
            if found is None:
                raise
        raise TracedValueError(found.group(1))

    return call  # pyright: ignore[reportReturnType]


@contextlib.contextmanager
def _nothing_logged() -> Iterator[None]:
    """JAX logs the traceback of a callback before it raises it."""
    refuse = lambda _: False
    _LOGGER.addFilter(refuse)
    try:
        yield
    finally:
        _LOGGER.removeFilter(refuse)
