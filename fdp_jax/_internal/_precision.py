"""Float64 accounting inside programs of any precision.

Privacy accounting needs float64: a Fourier transform in float32 has a noise floor
near 1e-7, larger than most values of delta. Training programs run in float32 with
`jax_enable_x64` off. `in_float64` joins the two without touching the global flag.

Entering `jax.enable_x64(True)` around the computation is not enough under a JAX
transformation, because lowering and transposition run after the context was left.
So the computation is traced once into a `_Program`, which the primitive
`float64_call` carries through the caller's program as a unit. All rules of that
primitive (evaluation, lowering, batching, linearization, transposition) enter the
context again, and express their result as another `_Program`.

Limits: second-order reverse mode needs `jax>=0.10`; `jax.shard_map` needs
`check_vma=False`; host callbacks inside see float32 under the caller's `jit`
(`eqx.error_if` works).
"""

import contextlib
import contextvars
import enum
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, overload

import equinox as eqx
import jax
import jax.core
import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from ._compilation import jit_on_its_own
from ._concrete import is_traced, outside_transformations

_Fn = TypeVar("_Fn", bound=Callable[..., Any])
_Mask = tuple[bool, ...]

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


def narrow() -> bool:
    """Whether the caller gets float32 numbers, so that bounds are rounded outward."""
    return float_dtype() == np.float32


_native_float32 = contextvars.ContextVar("native_float32", default=False)


@contextlib.contextmanager
def native_float32() -> Iterator[None]:
    """Inside this context the engines compute in float32, for backends without float64.

    Estimates are then accurate to about 1e-4 relative where delta >= 1e-20; certified
    bounds stay valid, with the rounding of float32 in them, and so are wider.  The
    choice is made when a function is traced.

    Example:
        >>> import fdp_jax as fdp
        >>> run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=1000)
        >>> with fdp.native_float32():
        ...     print(f"{run.epsilon(delta=1e-5, bound=fdp.Bound.ESTIMATE):.4f}")
        1.8282
    """
    token = _native_float32.set(True)
    try:
        yield
    finally:
        _native_float32.reset(token)


def accounts_in_float64() -> bool:
    """Whether the engines compute in float64 here; see `native_float32`."""
    return not _native_float32.get()


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

    traceable = jax.jit(_flatten(fn, cast_out), static_argnums=0)
    program_for = functools.lru_cache(_MAX_PROGRAMS)(_Program)

    @functools.wraps(fn)
    def promoted(*args, **kwargs):
        args, kwargs = jax.tree.map(_promote, (args, kwargs))
        return fn(*args, **kwargs)

    with_x64_on, on_its_own = eqx.filter_jit(promoted), jit_on_its_own(promoted)

    @eqx.filter_jit
    @functools.wraps(fn)
    def in_single(*args, **kwargs):
        args, kwargs = jax.tree.map(_demote, (args, kwargs))
        return fn(*args, **kwargs)

    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        if _native_float32.get():
            args, kwargs = jax.tree.map(_as_dynamic, (args, kwargs))
            with jax.enable_x64(False):
                return in_single(*args, **kwargs)
        if outside_transformations():
            # Nothing is being traced, so no rule has to enter the context later.
            args, kwargs = jax.tree.map(_as_dynamic, (args, kwargs))
            narrow = cast_out and float_dtype() != np.float64
            with jax.enable_x64(True):
                out = on_its_own(*args, **kwargs)
            return jax.tree.map(_narrow_array, out) if narrow else out
        if float_dtype() == np.float64:
            args, kwargs = jax.tree.map(_as_dynamic, (args, kwargs))
            return with_x64_on(*args, **kwargs)
        signature, arrays = _split(args, kwargs)
        with jax.enable_x64(True):
            return _call(traceable, program_for, signature, arrays)

    return wrapped


def _call(
    traceable: Any,
    program_for: "Callable[[jec.ClosedJaxpr], _Program]",
    signature: "_Signature",
    arrays: list[Any],
) -> Any:
    """Call from a trace with x64 off; runs inside the x64 context.

    The eager gradient of a trivial function of three numbers takes 590 us, while a
    plain call takes 35 us (CPU, 2 cores, jax 0.10.2).
    """
    structs = [_struct(x) for x in arrays]
    # `jax.jit` owns the cache of traces: keyed on signature, types and trace context.
    traced = traceable.trace(signature, *structs)
    closed = traced.jaxpr
    if len(closed.in_avals) == len(arrays):
        program, captured = program_for(closed), ()
    else:
        # `fn` closes over tracers of the caller; `jit` made them extra inputs.
        program, captured = _capture(traceable, signature, structs)
    # Bound in the context, so that JAX keeps concrete float64 arguments as they are.
    outs = _float64_call_p.bind(*captured, *arrays, program=program)
    out, static = jax.tree.unflatten(traced.out_tree, outs)
    return eqx.combine(out, static.value)


def _capture(
    traceable: Any, signature: "_Signature", structs: Sequence[jax.ShapeDtypeStruct]
) -> "tuple[_Program, list[Any]]":
    """Trace a function that closes over tracers; these become leading arguments.

    Not cached: the program belongs to the caller's current trace.
    """
    closed = jax.make_jaxpr(functools.partial(traceable, signature))(*structs)
    captured, n = list(closed.consts), len(closed.consts)

    def lifted(*args):
        return jax.core.eval_jaxpr(closed.jaxpr, args[:n], *args[n:])

    program = _Program(jax.make_jaxpr(lifted)(*map(_struct, captured), *structs))
    return program, captured


# ------------------------------------------------------------------ leaves and dtypes


class _Signature(NamedTuple):
    """The static part of a call. Hashable, so that it can be a key of caches."""

    treedef: Any
    static: tuple[Any, ...]  # one per leaf, `_DYNAMIC` in place of arrays

    def rebuild(self, arrays: Sequence[Any]) -> Any:
        """Put arrays back in their places, giving `(args, kwargs)`."""
        remaining = iter(arrays)
        leaves = [next(remaining) if x is _DYNAMIC else x for x in self.static]
        return jax.tree.unflatten(self.treedef, leaves)


class _Dynamic:
    """Marks the place of an array in a `_Signature`."""


_DYNAMIC = _Dynamic()


class _Static(eqx.Module):
    """Carries the non-array part of a result through the output tree of `jit`."""

    value: Any = eqx.field(static=True)


def _split(args: tuple, kwargs: dict[str, Any]) -> tuple[_Signature, list[Any]]:
    """Separate the arrays (and scalars, made arrays) of a call from the rest."""
    leaves, treedef = jax.tree.flatten((args, kwargs))
    leaves = [_as_dynamic(x) for x in leaves]
    arrays = [x for x in leaves if eqx.is_array(x)]
    static = tuple(_DYNAMIC if eqx.is_array(x) else x for x in leaves)
    return _Signature(treedef, static), arrays


def _flatten(fn: Callable[..., Any], cast_out: bool) -> Callable[..., Any]:
    """The function of a signature and arrays that is traced into a `_Program`."""

    @functools.wraps(fn)
    def flat(signature, *arrays):
        args, kwargs = signature.rebuild([_promote(x) for x in arrays])
        out, static = eqx.partition(fn(*args, **kwargs), eqx.is_array)
        if cast_out:
            out = jax.tree.map(_narrow, out)
        return out, _Static(static)

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


def _demote(leaf: Any) -> Any:
    """Floating arrays as float32, the rest unchanged."""
    if eqx.is_inexact_array(leaf):
        return jnp.asarray(leaf, np.float32)
    return leaf


def _narrow(array: Any) -> Any:
    """The array in the dtype that a caller with x64 off expects."""
    narrow = _NARROW.get(array.dtype)
    return array if narrow is None else jnp.asarray(array, narrow)


def _narrow_array(leaf: Any) -> Any:
    """`_narrow` for a leaf of any kind."""
    return _narrow(leaf) if eqx.is_array(leaf) else leaf


def _struct(array: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype, without weak type, which would only split the caches."""
    aval = jax.typeof(array)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


# ----------------------------------------------------------------------- the programs


def _remember(method: Callable[..., Any]) -> Callable[..., Any]:
    """Cache a method on its program, so that the cache dies with the program.

    Without this each eager `grad` would build, and compile, new programs.
    """

    @functools.wraps(method)
    def wrapped(self, *args):
        key = (method.__name__, *args)
        if key not in self.derived:
            with jax.enable_x64(True):
                self.derived[key] = method(self, *args)
        return self.derived[key]

    return wrapped


class _Linearized(NamedTuple):
    """A program split for differentiation, both parts at the same point.

    `forward` maps primals to `(*outputs, *residuals)`, `push` maps
    `(*residuals, *tangents)` to the tangents of the inexact outputs, linearly.
    """

    forward: "_Program"
    push: "_Program"


class _Program:
    """A function of flat arrays, traced with x64 on, and what is derived from it.

    Compared and hashed by identity, which makes it a valid primitive parameter.
    """

    def __init__(self, closed: jec.ClosedJaxpr):
        self.closed = closed
        self.run = jec.jaxpr_as_fun(closed)
        self.compiled = jit_on_its_own(self.run)  # gives readable `eqx.error_if`
        self.derived: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"<float64 program of {len(self.closed.eqns)} equations>"

    @classmethod
    def trace(cls, fn: Callable[..., Any], structs: Sequence[Any]) -> "_Program":
        """Trace a function of flat arrays; call with x64 on."""
        return cls(jax.make_jaxpr(fn)(*structs))

    @property
    def in_structs(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the arguments."""
        return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.closed.in_avals]

    @property
    def out_structs(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the outputs."""
        return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.closed.out_avals]

    @property
    def inexact_out(self) -> _Mask:
        """Which outputs have tangents."""
        return tuple(
            jnp.issubdtype(a.dtype, jnp.inexact) for a in self.closed.out_avals
        )

    def depends_on(self, inputs: _Mask) -> _Mask:
        """Which outputs may depend on the marked inputs."""
        jaxpr = self.closed.jaxpr
        reached = {v for v, marked in zip(jaxpr.invars, inputs, strict=True) if marked}

        def is_reached(atom):
            return not isinstance(atom, jec.Literal) and atom in reached

        for eqn in jaxpr.eqns:
            if any(map(is_reached, eqn.invars)):
                reached.update(eqn.outvars)
        return tuple(map(is_reached, jaxpr.outvars))

    @_remember
    def batched(
        self, size: int, dims: tuple[int | None, ...]
    ) -> tuple["_Program", tuple[int | None, ...]]:
        """The program over a batch, and the batch axis of each output.

        Outputs that do not depend on the batch stay single: residuals of a
        linearization can be large grids shared by all elements.
        """
        moving = self.depends_on(tuple(d is not None for d in dims))
        out_dims = tuple(0 if m else None for m in moving)
        structs = [
            _with_axis(s, d, size) for s, d in zip(self.in_structs, dims, strict=True)
        ]
        run = jax.vmap(
            lambda *args: tuple(self.run(*args)), in_axes=dims, out_axes=out_dims
        )
        return _Program.trace(run, structs), out_dims

    @_remember
    def linearized(self, active: _Mask) -> _Linearized:
        """Split for differentiation with respect to the marked inputs."""
        pushes: list[tuple[Any, _Mask, list[Any]]] = []

        def forward(*primals):
            def run(*varying):
                return self.run(*_merge(active, varying, primals))

            outs, push = jax.linearize(run, *_select(active, primals))
            leaves, treedef = jax.tree.flatten(push)
            is_residual = tuple(map(_is_tracer, leaves))
            # No tracer may outlive this trace, so `push` itself is not kept.
            constants = [None if _is_tracer(x) else x for x in leaves]
            pushes.append((treedef, is_residual, constants))
            return [*outs, *_select(is_residual, leaves)]

        forward_program = _Program.trace(forward, self.in_structs)
        treedef, is_residual, constants = pushes.pop()
        count = sum(is_residual)

        def push(*args):
            residuals, tangents = args[:count], args[count:]
            run = jax.tree.unflatten(treedef, _merge(is_residual, residuals, constants))
            return _select(self.inexact_out, run(*tangents))

        residuals = forward_program.out_structs[len(self.closed.out_avals) :]
        structs = [*residuals, *_select(active, self.in_structs)]
        return _Linearized(forward_program, _Program.trace(push, structs))

    @_remember
    def transposed(self, linear: _Mask, nonzero: _Mask) -> "_Program":
        """Transpose in the marked, linear inputs.

        Args:
            linear: Which inputs to transpose in; the others are residuals.
            nonzero: Which outputs have a cotangent.

        Returns:
            Program from `(*residuals, *cotangents)` to cotangents of the inputs.
        """
        known = tuple(not x for x in linear)
        count = sum(known)
        linear_structs = _select(linear, self.in_structs)

        def transpose(*args):
            residuals, cotangents = args[:count], args[count:]

            def run(*varying):
                full = _merge(linear, varying, _spread(known, residuals))
                return _select(nonzero, self.run(*full))

            pull = jax.linear_transpose(run, *linear_structs)
            return list(pull(list(cotangents)))

        residuals = _select(known, self.in_structs)
        cotangents = _select(nonzero, self.out_structs)
        return _Program.trace(transpose, [*residuals, *cotangents])


def _with_axis(
    struct: jax.ShapeDtypeStruct, axis: int | None, size: int
) -> jax.ShapeDtypeStruct:
    """A struct with a batch axis inserted."""
    if axis is None:
        return struct
    shape = (*struct.shape[:axis], size, *struct.shape[axis:])
    return jax.ShapeDtypeStruct(shape, struct.dtype)


def _is_tracer(x: Any) -> bool:
    return is_traced(x)


def _select(mask: _Mask, values: Sequence[Any]) -> list[Any]:
    """The marked values."""
    return [x for marked, x in zip(mask, values, strict=True) if marked]


def _spread(mask: _Mask, values: Sequence[Any]) -> list[Any]:
    """Inverse of `_select`, with `None` at the places that are not marked."""
    remaining = iter(values)
    return [next(remaining) if marked else None for marked in mask]


def _merge(mask: _Mask, values: Sequence[Any], full: Sequence[Any]) -> list[Any]:
    """`full` with the marked places replaced by `values`, in order."""
    spread = _spread(mask, values)
    return [s if m else x for m, s, x in zip(mask, spread, full, strict=True)]


# ---------------------------------------------------------------------- the primitive

_float64_call_p = jec.Primitive("float64_call")
_float64_call_p.multiple_results = True


@_float64_call_p.def_impl
def _evaluate(*args: Any, program: _Program) -> list[Any]:
    # Under an eager `grad` arguments may be Python numbers, which are static for
    # `filter_jit`, or have another dtype than the program was traced for.
    args = tuple(
        x if isinstance(x, jax.Array) else np.asarray(x, a.dtype)
        for x, a in zip(args, program.closed.in_avals, strict=True)
    )
    with jax.enable_x64(True):
        return program.compiled(*args)


@_float64_call_p.def_effectful_abstract_eval
def _abstract(*avals: Any, program: _Program) -> tuple[list[Any], Any]:
    del avals
    return list(program.closed.out_avals), program.closed.effects


def _lower(ctx: mlir.LoweringRuleContext, *args: Any, program: _Program) -> Any:
    with jax.enable_x64(True):
        return mlir.lower_fun(program.run, multiple_results=True)(ctx, *args)


def _batch(
    args: Sequence[Any], dims: Sequence[int | None], *, program: _Program
) -> tuple[list[Any], tuple[int | None, ...]]:
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    batched, out_dims = program.batched(size, tuple(dims))
    return _float64_call_p.bind(*args, program=batched), out_dims


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, program: _Program
) -> tuple[list[Any], list[Any]]:
    # Two calls, not one: the first has no tangents among its arguments, so that
    # reverse mode can run it forwards and keep the second, linear one for later.
    active = tuple(not isinstance(t, ad.Zero) for t in tangents)
    parts = program.linearized(active)
    results = _float64_call_p.bind(*primals, program=parts.forward)
    count = len(program.closed.out_avals)
    outs, residuals = results[:count], results[count:]
    moving = _select(active, tangents)
    inexact_tangents = _float64_call_p.bind(*residuals, *moving, program=parts.push)
    zeros = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in outs]
    return outs, _merge(program.inexact_out, inexact_tangents, zeros)


def _transpose(cotangents: Sequence[Any], *args: Any, program: _Program) -> list[Any]:
    linear = tuple(ad.is_undefined_primal(x) for x in args)
    nonzero = tuple(not isinstance(c, ad.Zero) for c in cotangents)
    residuals = _select(tuple(not x for x in linear), args)
    transposed = program.transposed(linear, nonzero)
    outs = _float64_call_p.bind(
        *residuals, *_select(nonzero, cotangents), program=transposed
    )
    return _spread(linear, outs)


mlir.register_lowering(_float64_call_p, _lower)
batching.primitive_batchers[_float64_call_p] = _batch
ad.primitive_jvps[_float64_call_p] = _jvp
ad.primitive_transposes[_float64_call_p] = _transpose
