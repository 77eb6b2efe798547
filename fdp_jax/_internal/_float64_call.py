"""The primitive that carries a float64 computation through any program.

`float64_call` evaluates a `Program`, a traced computation. All of its rules
(evaluation, lowering, batching, linearization, transposition) enter the context in
which JAX keeps float64 numbers, and express their result as another program.

Inside of a user's program a large one is left to the host: XLA takes a millisecond for
each of its equations, while the host interprets it until compiling it is worth while,
and keeps what it has compiled.  All transformations come before that.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir

from ._compilation import jit_on_its_own
from ._concrete import is_traced
from ._masks import Mask, merge, select, spread
from ._place import device
from ._program_cache import calls_back, equations_of

_MOST_EQUATIONS = 1_500
"""Equations up to which a program becomes part of the user's own."""
_WIDE = 8
"""Bytes of a number that takes two words."""
_HOSTED = [np.dtype(x) for x in (bool, np.int32, np.int64, np.float32, np.float64)]
"""Types of the numbers that go to the host and back."""


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

    forward: "Program"
    push: "Program"


class Program:
    """A function of flat arrays, traced with x64 on, and what is derived from it.

    Compared and hashed by identity, which makes it a valid primitive parameter.
    """

    def __init__(self, closed: jec.ClosedJaxpr):
        self.closed = closed
        self.run = jec.jaxpr_as_fun(closed)
        self.compiled = jit_on_its_own(self.run)
        self.derived: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"<float64 program of {len(self.closed.eqns)} equations>"

    @classmethod
    def trace(cls, fn: Callable[..., Any], structs: Sequence[Any]) -> "Program":
        """Trace a function of flat arrays; call with x64 on."""
        return cls(jax.make_jaxpr(fn)(*structs))

    @functools.cached_property
    def is_large(self) -> bool:
        """Whether a user's program is better off without all of its equations."""
        types = [x.dtype for x in (*self.closed.in_avals, *self.closed.out_avals)]
        count = sum(1 for _ in equations_of(self.closed.jaxpr))
        plain = all(x in _HOSTED for x in types) and not calls_back(self.closed.jaxpr)
        return plain and count > _MOST_EQUATIONS

    @property
    def in_structs(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the arguments."""
        return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.closed.in_avals]

    @property
    def out_structs(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the outputs."""
        return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.closed.out_avals]

    @property
    def inexact_out(self) -> Mask:
        """Which outputs have tangents."""
        return tuple(
            jnp.issubdtype(a.dtype, jnp.inexact) for a in self.closed.out_avals
        )

    def depends_on(self, inputs: Mask) -> Mask:
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
    ) -> tuple["Program", tuple[int | None, ...]]:
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
        return Program.trace(run, structs), out_dims

    @_remember
    def linearized(self, active: Mask) -> _Linearized:
        """Split for differentiation with respect to the marked inputs."""
        pushes: list[tuple[Any, Mask, list[Any]]] = []

        def forward(*primals):
            def run(*varying):
                return self.run(*merge(active, varying, primals))

            outs, push = jax.linearize(run, *select(active, primals))
            leaves, treedef = jax.tree.flatten(push)
            is_residual = tuple(map(is_traced, leaves))
            # No tracer may outlive this trace, so `push` itself is not kept.
            constants = [None if is_traced(x) else x for x in leaves]
            pushes.append((treedef, is_residual, constants))
            return [*outs, *select(is_residual, leaves)]

        forward_program = Program.trace(forward, self.in_structs)
        treedef, is_residual, constants = pushes.pop()
        count = sum(is_residual)

        def push(*args):
            residuals, tangents = args[:count], args[count:]
            run = jax.tree.unflatten(treedef, merge(is_residual, residuals, constants))
            return select(self.inexact_out, run(*tangents))

        residuals = forward_program.out_structs[len(self.closed.out_avals) :]
        structs = [*residuals, *select(active, self.in_structs)]
        return _Linearized(forward_program, Program.trace(push, structs))

    @_remember
    def transposed(self, linear: Mask, nonzero: Mask) -> "Program":
        """Transpose in the marked, linear inputs.

        Args:
            linear: Which inputs to transpose in; the others are residuals.
            nonzero: Which outputs have a cotangent.

        Returns:
            Program from `(*residuals, *cotangents)` to cotangents of the inputs.
        """
        known = tuple(not x for x in linear)
        count = sum(known)
        linear_structs = select(linear, self.in_structs)

        def transpose(*args):
            residuals, cotangents = args[:count], args[count:]

            def run(*varying):
                full = merge(linear, varying, spread(known, residuals))
                return select(nonzero, self.run(*full))

            return list(jax.linear_transpose(run, *linear_structs)(list(cotangents)))

        residuals = select(known, self.in_structs)
        cotangents = select(nonzero, self.out_structs)
        return Program.trace(transpose, [*residuals, *cotangents])


def _with_axis(
    struct: jax.ShapeDtypeStruct, axis: int | None, size: int
) -> jax.ShapeDtypeStruct:
    """A struct with a batch axis inserted."""
    if axis is None:
        return struct
    shape = (*struct.shape[:axis], size, *struct.shape[axis:])
    return jax.ShapeDtypeStruct(shape, struct.dtype)


# ---------------------------------------------------------------------- the primitive

float64_call = jec.Primitive("float64_call")
float64_call.multiple_results = True


@float64_call.def_impl
def _evaluate(*args: Any, program: Program, hosted: bool) -> list[Any]:
    # Under an eager `grad` arguments may be Python numbers, which are static for
    # `filter_jit`, or have another dtype than the program was traced for.
    args = tuple(
        x if isinstance(x, jax.Array) else np.asarray(x, a.dtype)
        for x, a in zip(args, program.closed.in_avals, strict=True)
    )
    with jax.enable_x64(True):
        return program.compiled(*args)


@float64_call.def_effectful_abstract_eval
def _abstract(*avals: Any, program: Program, hosted: bool) -> tuple[list[Any], Any]:
    return list(program.closed.out_avals), program.closed.effects


def _lower(
    ctx: mlir.LoweringRuleContext, *args: Any, program: Program, hosted: bool
) -> Any:
    here = ctx.module_context
    # What is exported may run anywhere.
    hosted = hosted and not here.lowering_parameters.for_export
    with jax.enable_x64(True):
        run = _left_to_host(program) if hosted and program.is_large else program.run
        return mlir.lower_fun(run, multiple_results=True)(ctx, *args)


def _left_to_host(program: Program) -> Callable[..., list[Any]]:
    """A function that calls the host, which runs the program as plain calls do.

    With x64 off JAX would round the numbers on their way: they go as 32-bit words.
    """
    here = device()
    kinds = jax.eval_shape(lambda xs: list(map(_words, xs)), program.out_structs)

    def on_host(*words: Any) -> list[np.ndarray]:
        with jax.enable_x64(True), jax.default_device(here):
            found = program.compiled(*map(_number, words, program.in_structs))
            return [
                np.asarray(x).view(kind.dtype).reshape(kind.shape)
                for x, kind in zip(map(np.atleast_1d, found), kinds, strict=True)
            ]

    def run(*args: Any) -> list[Any]:
        words = jax.pure_callback(on_host, kinds, *map(_words, args))
        return [
            x if x.dtype == kind.dtype else lax.bitcast_convert_type(x, kind.dtype)
            for x, kind in zip(words, program.out_structs, strict=True)
        ]

    return run


def _words(x: Any) -> Any:
    wide = x.dtype.itemsize == _WIDE
    return lax.bitcast_convert_type(x, jnp.uint32) if wide else x


def _number(words: Any, struct: jax.ShapeDtypeStruct) -> np.ndarray:
    return np.atleast_1d(words).view(struct.dtype).reshape(struct.shape)


def _batch(
    args: Sequence[Any],
    dims: Sequence[int | None],
    *,
    program: Program,
    hosted: bool,
) -> tuple[list[Any], tuple[int | None, ...]]:
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    batched, out_dims = program.batched(size, tuple(dims))
    return float64_call.bind(*args, program=batched, hosted=hosted), out_dims


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    program: Program,
    hosted: bool,
) -> tuple[list[Any], list[Any]]:
    # Two calls, not one: the first has no tangents among its arguments, so that
    # reverse mode can run it forwards and keep the second, linear one for later.
    active = tuple(not isinstance(t, ad.Zero) for t in tangents)
    parts = program.linearized(active)
    call = functools.partial(float64_call.bind, hosted=hosted)
    results = call(*primals, program=parts.forward)
    count = len(program.closed.out_avals)
    outs, residuals = results[:count], results[count:]
    moving = select(active, tangents)
    inexact_tangents = call(*residuals, *moving, program=parts.push)
    zeros = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in outs]
    return outs, merge(program.inexact_out, inexact_tangents, zeros)


def _transpose(
    cotangents: Sequence[Any], *args: Any, program: Program, hosted: bool
) -> list[Any]:
    linear = tuple(ad.is_undefined_primal(x) for x in args)
    nonzero = tuple(not isinstance(c, ad.Zero) for c in cotangents)
    residuals = select(tuple(not x for x in linear), args)
    transposed = program.transposed(linear, nonzero)
    outs = float64_call.bind(
        *residuals, *select(nonzero, cotangents), program=transposed, hosted=hosted
    )
    return spread(linear, outs)


mlir.register_lowering(float64_call, _lower)
batching.primitive_batchers[float64_call] = _batch
ad.primitive_jvps[float64_call] = _jvp
ad.primitive_transposes[float64_call] = _transpose

# `vmap` of a condition guards what the branches take by `stop_gradient`; what depends
# linearly on a tangent passes through there unchanged, of which JAX has no transpose.
ad.primitive_transposes.setdefault(
    lax.stop_gradient_p, lambda cotangent, *_: [cotangent]
)
