"""What is known while a program is traced, and what is not: asked here alone."""

import contextlib
import functools
import pathlib
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.core
import jax.extend.core as jec
import numpy as np

from ._batching import anywhere

_Fn = TypeVar("_Fn", bound=Callable[..., Any])
_UNKNOWN = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_OURS = str(pathlib.Path(__file__).parents[1])
_THEIRS = str(pathlib.Path(jax.__file__).parent)

# What the state of tracing is outside of all transformations.
with jax.ensure_compile_time_eval():
    _EAGER = jec.get_opaque_trace_state()


def outside_transformations() -> bool:
    """Whether nothing is being traced, so that all numbers are known."""
    return jec.get_opaque_trace_state() == _EAGER


def trace_level() -> Any:
    """The trace that is current here, to be compared with that of another place."""
    return jec.get_opaque_trace_state()


def evaluates_at_once() -> bool:
    """Whether operations are carried out as they are met, not recorded for later.

    Under `jax.grad`, `jax.vmap` and the like by themselves they are: what is a tracer
    has numbers behind it then, which `holds_anywhere` looks at.
    """
    return outside_transformations() or not is_traced(jax.lax.add(0.0, 0.0))


def ahead_of_time(fn: _Fn) -> _Fn:
    """A function whose calls with known numbers alone are carried out as they are met.

    Inside of `jax.jit` too, where the result becomes a constant of the program: it is
    that of a plain call, and nothing of how it is found has to be compiled there.
    """

    @functools.wraps(fn)
    def call(*args: Any, **options: Any) -> Any:
        if not outside_transformations() and not is_traced(args, options):
            # A function among the arguments may close over what is traced.
            with (
                contextlib.suppress(jax.errors.UnexpectedTracerError),
                jax.core.eval_context(),
            ):
                return fn(*args, **options)
        return fn(*args, **options)

    return call  # pyright: ignore[reportReturnType]


def holds_anywhere(flags: Any) -> bool:
    """Whether any flag is set, for any element of a batch; see `evaluates_at_once`."""
    return bool(anywhere(flags) if is_traced(flags) else np.any(np.asarray(flags)))


def is_traced(*values: Any) -> bool:
    """Whether an array among the leaves of some PyTrees is traced."""
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(values))


def held_fixed(x: Any) -> Any:
    """An array without derivative, and what is no traced one as it is."""
    return jax.lax.stop_gradient(x) if is_traced(x) else x


def behind(values: Any) -> Any:
    """The numbers behind what is only differentiated; what has none yet stays traced.

    Tests of them are carried out by NumPy, where JAX would compile each operation.
    """

    def one(value: Any) -> Any:
        number = value.to_concrete_value() if is_traced(value) else None
        return value if number is None else np.asarray(number)

    return jax.tree.map(one, values)


def asks_for_numbers(error: TypeError, given: Any) -> bool:
    """Whether this package has asked JAX for a number among arguments that is traced.

    Functions of users that do so, such as a loss, keep JAX's own message.
    """
    if not isinstance(error, _UNKNOWN) or not is_traced(given):
        return False
    frames = [x.filename for x in traceback.extract_tb(error.__traceback__)]
    asking = [x for x in frames if not x.startswith(_THEIRS)]
    return bool(asking) and asking[-1].startswith(_OURS)


def known(value: Any) -> np.ndarray | None:
    """The numbers of a value, unless it is traced.

    NumPy's own: JAX traces whatever is computed inside of a transformation, also from
    arrays that are not traced themselves.
    """
    return None if isinstance(value, jax.core.Tracer) else np.asarray(value)
