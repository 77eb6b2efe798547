"""Parts of a program that XLA for CPUs compiles as functions of their own.

Its runtime schedules the operations of a program as tasks, of which a small one takes
a tenth of a microsecond to begin, and its compiler takes arithmetic for so cheap that
it repeats some for every use.  Both cost a search more than its arithmetic does.  Here
two attributes of calls say otherwise; elsewhere, and to other versions of XLA, they say
nothing.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxlib.version
from jax import lax
from jax.custom_batching import custom_vmap
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jaxtyping import Array

from ._concrete import evaluates_at_once, is_traced

FEW = 16
"""Numbers up to which a call costs more than to compute something again."""
_MANY = 4096
"""Numbers from which on XLA leaves a sum to a library, which needs a task."""
_TRIED = {(0, 10)}
"""Versions of jaxlib that are known to compile what `as_one_function` asks for.  Others
are not asked: where XLA expects something else of a call it ends the process.  See
CONTRIBUTING.md."""
_KEPT_TOGETHER = {"inlineable": "false", "xla_cpu_small_call": "true"}

# Names of what is compiled without tasks: no products of matrices, sorts, transforms,
# scattering, random numbers or calls to a host.  The tests compile each.
_STRUCTURE = """
    cond while scan jit pjit closed_call custom_jvp_call custom_vjp_call
    custom_vmap_call stop_gradient
"""
_REDUCTIONS = """
    reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin
    cumsum cummax cummin cumlogsumexp cumprod
"""
_ARITHMETIC = """
    add add_any sub mul div rem neg abs sign square max min clamp exp exp2 expm1 log
    log1p sqrt rsqrt cbrt pow integer_pow sin cos tan tanh atan2 logistic erf erfc
    lgamma floor ceil round is_finite eq ne lt le gt ge and or not xor shift_left
    shift_right_arithmetic select_n
"""
# The last three only say on which devices something is.
_PLACES = """
    broadcast_in_dim reshape squeeze transpose rev iota concatenate stack pad slice
    split dynamic_slice dynamic_update_slice gather copy convert_element_type
    bitcast_convert_type reduce_precision optimization_barrier reshard pvary pcast
"""
_SUMS = frozenset(_REDUCTIONS.split())
_WITHOUT_TASKS = _SUMS.union((_STRUCTURE + _ARITHMETIC + _PLACES).split())


def apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled as a function of its own where there are many numbers.

    Otherwise XLA for CPUs computes it again for everyone who uses the result, and for
    each number of a larger array that it is spread over: a third of the time of a
    sweep.
    """

    @jax.jit
    def inner(*args: Array) -> tuple[Any, Array]:
        # What it calls is not set apart from it.
        with set_xla_metadata(inlineable=None):
            found = function(*args)
        # Functions that return one array may be dealt to several threads, and then XLA
        # cannot link them into a loop that is itself one function.
        return found, jnp.ravel(args[0])[0]

    @functools.wraps(function)
    def called(*args: Array) -> Any:
        if max(map(jnp.size, args)) <= FEW or jax.default_backend() != "cpu":
            return function(*args)
        with set_xla_metadata(inlineable="false"):
            return inner(*args)[0]

    return called


def as_one_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled as one function, loops and all, rather than as tasks.

    For searches of which every step is short: a sweep of epsilons takes 0.17 ms each in
    place of 0.44.  Only in a program, on a CPU and one at a time; and only if nothing
    in it needs a task, else it stays as it is.

    Args:
        function: Of PyTrees, all whose arrays are arguments; gives a PyTree of arrays.

    Returns:
        The same without derivative.
    """

    @functools.wraps(function)
    def called(*args: Any) -> Any:
        arrays, rest = eqx.partition(args, eqx.is_array)
        arrays = lax.stop_gradient(arrays)
        run = lambda arrays: function(*eqx.combine(arrays, rest))
        if evaluates_at_once() or not can_link():
            return run(arrays)
        closed, shape = jax.make_jaxpr(run, return_shape=True)(arrays)
        if is_traced(closed.consts):
            raise TypeError("all arrays that a function uses must be its arguments")
        leaves = jax.tree.leaves(arrays)
        if _needs_no_task(closed.jaxpr):
            flat = _linked(closed.jaxpr, closed.consts, leaves)
        else:
            flat = jaxpr_as_fun(closed)(*leaves)
        return jax.tree.unflatten(jax.tree.structure(shape), flat)

    return called


def can_link() -> bool:
    """Whether `as_one_function` does anything here."""
    known = tuple(map(int, jaxlib.version.__version__.split(".")[:2])) in _TRIED
    # With that setting constants are hidden arguments.
    hidden = getattr(jax.config, "jax_use_simplified_jaxpr_constants", False)
    return known and not hidden and jax.default_backend() == "cpu"


def _linked(jaxpr: Jaxpr, consts: list[Array], leaves: list[Array]) -> list[Array]:
    # Constants are arguments, too: JAX does not batch what holds on to them.
    run = lambda *args: jaxpr_as_fun(ClosedJaxpr(jaxpr, args[0]))(*args[1])
    one = custom_vmap(functools.partial(_call, run))

    @one.def_vmap
    def many(axis_size: int, in_batched: Any, *args: Any) -> tuple[Any, Any]:
        del axis_size
        axes = jax.tree.map(lambda moves: 0 if moves else None, tuple(in_batched))
        found = jax.vmap(run, axes)(*args)
        return found, jax.tree.map(lambda _: True, found)

    return one(consts, leaves)


def _call(run: Callable[..., list[Array]], *args: list[Array]) -> list[Array]:
    @jax.jit
    def inner(*args: list[Array]) -> tuple[list[Array], Any]:
        # What it calls is compiled as usual.
        with set_xla_metadata(**dict.fromkeys(_KEPT_TOGETHER)):
            return run(*args), args

    with set_xla_metadata(**_KEPT_TOGETHER):
        found = inner(*args)
    # XLA fails on an argument that is no longer used once all is simplified: return
    # all of them, and claim to need them.
    return lax.optimization_barrier(found)[0]


def _needs_no_task(jaxpr: Jaxpr) -> bool:
    return all(map(_is_linkable, jaxpr.eqns))


def _is_linkable(equation: Any) -> bool:
    name = equation.primitive.name
    if name not in _WITHOUT_TASKS:
        return False
    if name in _SUMS and any(x.aval.size >= _MANY for x in equation.invars):
        return False
    leaves = jax.tree.leaves(
        equation.params, is_leaf=lambda x: isinstance(x, Jaxpr | ClosedJaxpr)
    )
    inner = (getattr(x, "jaxpr", x) for x in leaves)
    return all(_needs_no_task(x) for x in inner if isinstance(x, Jaxpr))
