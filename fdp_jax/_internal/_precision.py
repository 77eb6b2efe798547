"""Float64 accounting inside programs of any precision.

Privacy accounting needs float64: a Fourier transform in float32 has a noise floor
near 1e-7, larger than most values of delta. Training programs run in float32 with
`jax_enable_x64` off. `in_float64` joins the two without touching the global flag.

Entering `jax.enable_x64(True)` around the computation is not enough under a JAX
transformation, because lowering and transposition run after the context was left.
So the computation is traced once into a `Program`, which the primitive
`float64_call` carries through the caller's program as a unit. All rules of that
primitive (evaluation, lowering, batching, linearization, transposition) enter the
context again, and express their result as another `Program`.

Limits: second-order reverse mode needs `jax>=0.10`; `jax.shard_map` needs
`check_vma=False`; host callbacks inside see float32 under the caller's `jit`
(`eqx.error_if` works).
"""

import contextlib
import enum
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, overload

import equinox as eqx
import jax
import jax.core
import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np

from ._compilation import jit_on_its_own, struct_of
from ._concrete import evaluates_at_once, outside_transformations
from ._float64_call import Program, float64_call
from ._host import calls_the_host, whole_programs
from ._signature import Signature

_T = TypeVar("_T")
_Fn = TypeVar("_Fn", bound=Callable[..., Any])

# What a 64-bit result becomes for a caller with x64 off.
_NARROW = {
    np.dtype(np.float64): np.float32,
    np.dtype(np.complex128): np.complex64,
    np.dtype(np.int64): np.int32,
    np.dtype(np.uint64): np.uint32,
}

# Per decorated function. An entry is one signature (structure, dtypes and shapes), so
# a sweep over values needs one; the bound only stops growth in very long sessions.
_MAX_PROGRAMS = 256


def float_dtype() -> np.dtype:
    """The caller's default float dtype: float64 if x64 is on, else float32."""
    # Pyright does not see the flags, which JAX adds to its configuration on import.
    x64 = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    return np.dtype(np.float64 if x64 else np.float32)


class Outward(NamedTuple):
    """Two ends of an interval, rounded outward where they become float32."""

    lower: Any
    upper: Any

    def _in_single(self) -> "Outward":
        """The ends that such a program gets."""
        return Outward(round_down_to_single(self.lower), round_up_to_single(self.upper))


@jax.custom_jvp
def round_down_to_single(x: Any) -> Any:
    """The greatest float32 at or below x, as float64; subnormals count as zero.

    Its derivative is that of x.
    """
    single = x.astype(jnp.float32)
    below = jnp.nextafter(single, jnp.asarray(-jnp.inf, jnp.float32))
    rounded = jnp.where(single.astype(x.dtype) > x, below, single).astype(x.dtype)
    least = float(jnp.finfo(jnp.float32).tiny)
    small = jnp.where(x < 0, -least, 0.0)
    return jnp.where(jnp.abs(x) < least, small, rounded)


round_down_to_single.defjvps(lambda tangent, rounded, x: tangent)


def round_up_to_single(x: Any) -> Any:
    """The least float32 at or above x, as float64; subnormals count as zero."""
    return 0.0 - round_down_to_single(-x)  # no negative zero


@contextlib.contextmanager
def native_float32() -> Iterator[None]:
    """Does nothing any more: engines compute in float64 on every backend.  Deprecated.

    For a device without 64-bit numbers make plain calls on the CPU, inside of
    `jax.default_device(jax.devices("cpu")[0])`.
    """
    warnings.warn(_FORMER, DeprecationWarning, stacklevel=3)
    yield


_FORMER = (
    "native_float32 is deprecated and changes nothing: privacy is accounted for in "
    "float64 everywhere"
)


# --------------------------------------------------------------------- the decorator


@overload
def in_float64(fn: _Fn, /, *, cast_out: bool = True) -> _Fn: ...
@overload
def in_float64(*, cast_out: bool = True) -> Callable[[_Fn], _Fn]: ...


def in_float64(fn: Any = None, /, *, cast_out: bool = True) -> Any:
    """Run a function in float64, jitted, whatever the caller's precision.

    Works eagerly and under `jit`, `vmap`, `grad`, `jvp`, their combinations and
    higher orders, control flow and `jax.checkpoint`, with x64 on or off.

    Arguments may be any PyTrees, among them Equinox modules. Their leaves arrive as:

    - Python and NumPy *scalars* (`2.5`, `1000`, `np.int64(3)`): float64 arrays of no
      dimension. They are dynamic, so a new value does not compile again. This holds
      for integers too; an integer that sets a shape belongs in a static field.
    - Floating (complex) arrays and tracers: float64 (complex128) arrays.
    - Integer and boolean arrays, random keys: unchanged.
    - `bool`, `str`, enumeration members, functions and other objects: unchanged and
      static, so they must be hashable.

    Derivatives have the caller's precision at the boundary, and are computed in
    float64 inside. A number that is differentiated or passed through the caller's
    `jit` with x64 off was already rounded to float32 by JAX; all others stay exact.

    Only arguments are promoted: an array that `fn` closes over, or that a function
    among the arguments closes over, arrives in its own precision (and works, also if
    it is a tracer). A NumPy array that both `fn` and a float32 program close over
    fails in JAX 0.10.2, which mixes the two up: pass it as an argument.

    Args:
        fn: Function to run. Written for float64; it never needs to cast.
        cast_out: Whether results come back in the caller's default precision
            (float32, complex64, int32 if x64 is off). `False` leaves 64-bit arrays,
            for objects that keep float64 leaves inside and are only read by other
            `in_float64` functions.

    Returns:
        The decorated function (or the decorator, if `fn` is not given).
    """
    if fn is None:
        return functools.partial(in_float64, cast_out=cast_out)

    @functools.wraps(fn)
    def promoted(*args, **kwargs):
        args, kwargs = jax.tree.map(_promote, (args, kwargs))
        with whole_programs():
            return fn(*args, **kwargs)

    wide, narrow = (
        jax.jit(_flatten(promoted, cast), static_argnums=0)
        for cast in (False, cast_out)
    )
    program_for = functools.lru_cache(_MAX_PROGRAMS)(Program)
    on_its_own = jit_on_its_own(promoted)

    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        if outside_transformations():
            # Nothing is being traced, so no rule has to enter the context later.
            args, kwargs = jax.tree.map(_as_dynamic, (args, kwargs))
            with jax.enable_x64(True):
                out = on_its_own(*args, **kwargs)
            return of_caller(out) if cast_out else out
        x64_is_on = float_dtype() == np.float64
        traceable = wide if x64_is_on else narrow
        # The arrays (and scalars, made arrays) of a call, and the rest.
        signature, arrays = Signature.of(jax.tree.map(_as_dynamic, (args, kwargs)))
        inline = x64_is_on and not evaluates_at_once()
        with jax.enable_x64(True):
            return _call(traceable, program_for, signature, arrays, inline=inline)

    return wrapped


def _call(
    traceable: Any,
    program_for: Callable[[jec.ClosedJaxpr], Program],
    signature: Signature,
    arrays: list[Any],
    *,
    inline: bool,
) -> Any:
    """Call from a trace; runs inside the x64 context.

    Part of the caller's program if that may be, and is not large.

    The eager gradient of a trivial function of three numbers takes 590 us, while a
    plain call takes 35 us (CPU, 2 cores, jax 0.10.2).
    """
    structs, hosted = [struct_of(x) for x in arrays], calls_the_host()
    # `jax.jit` owns the cache of traces: keyed on signature, types and trace context.
    traced = traceable.trace(signature, *structs)
    closed = traced.jaxpr
    if len(closed.in_avals) == len(arrays):
        program, captured = program_for(closed), ()
    else:
        # `fn` closes over tracers of the caller; `jit` made them extra inputs.
        program, captured = _capture(traceable, signature, structs)
    if inline and not (hosted and program.is_large):
        out, static = traceable(signature, *arrays)
        return eqx.combine(out, static.value)
    # Bound in the context, so that JAX keeps concrete float64 arguments as they are.
    outs = float64_call.bind(*captured, *arrays, program=program, hosted=hosted)
    out, static = jax.tree.unflatten(traced.out_tree, outs)
    return eqx.combine(out, static.value)


def _capture(
    traceable: Any, signature: Signature, structs: Sequence[jax.ShapeDtypeStruct]
) -> tuple[Program, list[Any]]:
    """Trace a function that closes over tracers; these become leading arguments.

    Not cached: the program belongs to the caller's current trace.
    """
    closed = jax.make_jaxpr(functools.partial(traceable, signature))(*structs)
    captured, n = list(closed.consts), len(closed.consts)

    def lifted(*args):
        return jax.core.eval_jaxpr(closed.jaxpr, args[:n], *args[n:])

    program = Program(jax.make_jaxpr(lifted)(*map(struct_of, captured), *structs))
    return program, captured


# ------------------------------------------------------------------ leaves and dtypes


class _Static(eqx.Module):
    """Carries the non-array part of a result through the output tree of `jit`."""

    value: Any = eqx.field(static=True)


def _flatten(fn: Callable[..., Any], cast_out: bool) -> Callable[..., Any]:
    """The function of a signature and arrays that is traced into a `Program`."""

    @functools.wraps(fn)
    def flat(signature, *arrays):
        args, kwargs = signature.rebuild(arrays)
        out, static = eqx.partition(fn(*args, **kwargs), eqx.is_array)
        return _in_single(out) if cast_out else out, _Static(static)

    # `jit` must see the parameters of `flat`, not those of `fn`.
    del flat.__wrapped__
    return flat


def _as_dynamic(leaf: Any) -> Any:
    """Scalars as 0-d NumPy arrays: exact with x64 off, and dynamic under `jit`.

    NumPy arrays become new views. JAX (0.10.2) remembers, per array object, what it
    was rounded to in a float32 program that is still alive, and would use that here.
    """
    if isinstance(leaf, bool | np.bool_ | enum.Enum):  # `IntEnum` is an `int`
        return leaf
    if isinstance(leaf, complex | np.complexfloating):
        return np.asarray(leaf, np.complex128)
    if isinstance(leaf, float | int | np.number):
        return np.asarray(leaf, np.float64)
    if eqx.is_array(leaf) and getattr(leaf, "weak_type", False):
        with jax.enable_x64(True):  # it may be a float64 array of ours
            return jnp.asarray(leaf, leaf.dtype)  # one trace for weak and strong types
    return leaf.view() if isinstance(leaf, np.ndarray) else leaf


def _promote(leaf: Any) -> Any:
    """Floating arrays as float64, complex ones as complex128, the rest unchanged."""
    if not eqx.is_inexact_array(leaf):
        return leaf
    is_complex = jnp.issubdtype(leaf.dtype, jnp.complexfloating)
    return jnp.asarray(leaf, np.complex128 if is_complex else np.float64)


def _in_single(out: Any) -> Any:
    """A result in the types that a caller with x64 off expects.

    What has ends has a method `_in_single`, which rounds them outward.
    """
    rounds = lambda x: hasattr(x, "_in_single")

    def narrow(leaf: Any) -> Any:
        if not eqx.is_array(leaf) or leaf.dtype not in _NARROW:
            return leaf
        return jnp.asarray(leaf, _NARROW[leaf.dtype])

    rounded = lambda x: jax.tree.map(narrow, x._in_single() if rounds(x) else x)
    return jax.tree.map(rounded, out, is_leaf=rounds)


_in_single_at_once = jit_on_its_own(_in_single)


def of_caller(out: _T) -> _T:
    """A result that was found at once, in the caller's precision."""
    if float_dtype() == np.float64:
        return out
    with jax.enable_x64(True):
        return _in_single_at_once(out)
