"""Questions that a compiled program leaves to the host, and their derivatives.

The programs of plain calls are compiled once for each kind of question, kept on disk,
and chosen in view of what the one before has said.  None of that can be part of a
program of `jax.jit`, so that program calls back: its compilation costs next to nothing
and its answers are those of plain calls.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from ._compilation import constituents, is_foreign
from ._concrete import evaluates_at_once, is_traced
from ._masks import merge, select, spread
from ._place import device, on_cpu, processors
from ._setting import setting

Answer = tuple[list[Any], list[Any]]
"""Arrays that have derivatives, and others."""
Ask = Callable[..., Answer]
"""A question about known numbers."""
Kinds = tuple[list[Any], list[Any]]
"""Shapes and types of an answer."""

_WHOLE = contextvars.ContextVar("whole", default=False)


def whole_programs(asked: bool = True) -> contextlib.AbstractContextManager[None]:
    """Inside this context programs hold all that they need, and never call back.

    Args:
        asked: Whether they do; if not, the context is without effect.
    """
    return setting(_WHOLE, asked or _WHOLE.get())


def may_ask_the_host() -> bool:
    """Whether a question may be answered by plain calls here."""
    return not _WHOLE.get() and (evaluates_at_once() or on_one_cpu())


def on_one_cpu() -> bool:
    """Whether programs may call the host.

    Only where it computes with the machine that it is, and that is one device: a call
    from another one and back would wait for itself, as do those of several devices,
    whose threads are all that could answer.
    """
    return on_cpu() and len(processors()) == 1


def calls_the_host() -> bool:
    """Whether what is asked here becomes part of a program that may call back."""
    return may_ask_the_host() and not evaluates_at_once()


def asked_of_host(
    ask: Callable[[Any], Sequence[Any]], args: Any, kinds: Sequence[tuple[Any, bool]]
) -> list[Any]:
    """The answer to a question about a PyTree, found while the program runs.

    Where operations run at once it is for batches, whose rows are asked one by one.

    Args:
        ask: The question, a pure function of PyTrees with known numbers; arrays.
        args: What it is about; known leaves stay what they are, to the last digit.
        kinds: Of these arrays the shape and type, and whether it has derivatives with
            respect to the traced leaves.
    """
    leaves, structure = jax.tree.flatten(args)
    traced = [is_traced(leaf) for leaf in leaves]
    shapes, flags = zip(*kinds, strict=True)

    def known(*moving: Any) -> Answer:
        full = merge(traced, list(map(_in_full, moving)), leaves)
        return _parted(flags, ask(jax.tree.unflatten(structure, full)))

    moving = select(traced, leaves)
    smooth, rest = _hosted(_as_here(known), _parted(flags, shapes))(*moving)
    return merge(flags, smooth, spread([not flag for flag in flags], rest))


def closes_over_traced(tree: Any) -> bool:
    """Whether a function in a tree may need what is traced, as far as can be seen.

    Of a user's own classes nothing is known, so they may.
    """
    leaves, structure = jax.tree.flatten(tree)
    seen: set[int] = set()
    return any(_holds_traced(x, seen) for x in constituents(structure, leaves))


def _holds_traced(value: Any, seen: set[int]) -> bool:
    if not isinstance(value, FunctionType):
        return is_foreign(value if isinstance(value, type) else type(value))
    if id(value) in seen:  # it may call itself
        return False
    seen.add(id(value))
    held = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    for cell in value.__closure__ or ():
        with contextlib.suppress(ValueError):  # one that is empty as yet
            held.append(cell.cell_contents)
    return is_traced(held) or any(_holds_traced(x, seen) for x in held)


def _parted(flags: Sequence[bool], values: Sequence[Any]) -> tuple[list, list]:
    return select(flags, values), select([not flag for flag in flags], values)


def _in_full(value: Any) -> Any:
    """A known number as plain calls have it, so that they share their programs."""
    single = isinstance(value, np.ndarray) and value.dtype == np.float32
    return value.astype(np.float64) if single else value


def _as_here(ask: Ask) -> Ask:
    """A question asked under the settings of where the program is traced."""
    context = contextvars.copy_context()
    # Pyright does not see the flags, which JAX adds to its configuration on import.
    double = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    here = device()

    def asked(*moving: Any) -> Answer:
        def there() -> Answer:
            with jax.enable_x64(double), jax.default_device(here):
                return ask(*moving)

        return context.copy().run(there)

    return asked


def _hosted(ask: Ask, kinds: Kinds) -> Callable[..., Answer]:
    """A function of traced arrays, with derivatives of every order."""

    @jax.custom_jvp
    def asked(*moving: Any) -> Answer:
        known = lambda *x: jax.tree.map(np.asarray, ask(*map(_number, x)))
        return _called(known, kinds)(*moving)

    @functools.partial(asked.defjvp, symbolic_zeros=True)
    def _jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Answer, Answer]:
        active = [not isinstance(t, SymbolicZero) for t in tangents]
        steps = select(active, tangents)
        smooth, rest = kinds
        slopes = [
            jax.ShapeDtypeStruct((*y.shape, *t.shape), y.dtype)
            for y in smooth
            for t in steps
        ]
        more = _hosted(_with_slopes(ask, active), ([*smooth, *slopes], rest))
        found, others = more(*primals)
        values, products = found[: len(smooth)], iter(found[len(smooth) :])
        moved = [
            sum(
                (jnp.tensordot(next(products), t, t.ndim) for t in steps),
                start=jnp.zeros(y.shape, y.dtype),
            )
            for y in smooth
        ]
        return (values, others), (moved, list(map(_still, others)))

    return asked


def _called(known: Ask, kinds: Kinds) -> Ask:
    """A function of known numbers, called by programs or, of batches, at once."""
    call = lambda *x: jax.pure_callback(known, kinds, *x, vmap_method="sequential")
    if not evaluates_at_once():
        return call
    mapped = custom_vmap(call)

    @mapped.def_vmap
    def _one_by_one(size: int, batched: list[bool], *moving: Any) -> tuple[Any, Any]:
        found = []
        for i in range(size):
            pairs = zip(moving, batched, strict=True)
            row = [x[i] if moves else x for x, moves in pairs]
            if is_traced(row):  # a batch of batches
                found.append(mapped(*row))
                continue
            with jax.core.eval_context():
                found.append(known(*row))
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *found)
        return stacked, jax.tree.map(lambda _: True, kinds)

    return mapped


def _still(value: Any) -> Any:
    """The tangent of what does not move."""
    whole = not jnp.issubdtype(value.dtype, jnp.inexact)
    return np.zeros(value.shape, jax.dtypes.float0) if whole else jnp.zeros_like(value)


def _with_slopes(ask: Ask, active: Sequence[bool]) -> Ask:
    """The answers, and the derivatives of the smooth ones in the active numbers."""

    def asked(*moving: Any) -> Answer:
        def along(*varying: Any) -> Answer:
            return ask(*merge(active, varying, moving))

        smooth, rest = ask(*moving)
        at = list(map(jnp.asarray, select(active, moving)))
        values, back = jax.vjp(lambda *x: along(*x)[0], *at)
        slopes = [x for i in range(len(values)) for x in _rows(back, values, i, at)]
        return [*smooth, *slopes], rest

    return asked


def _rows(back: Any, values: Sequence[Any], index: int, at: Sequence[Any]) -> list[Any]:
    """The derivatives of one array in each of some others."""
    zeros = [jnp.zeros_like(x) for x in values]
    shape = values[index].shape
    rows = []
    for unit in np.eye(values[index].size):
        along = jnp.asarray(unit.reshape(shape), values[index].dtype)
        rows.append(back([*zeros[:index], along, *zeros[index + 1 :]]))
    return [
        jnp.stack(parts).reshape(*shape, *x.shape).astype(values[index].dtype)
        for parts, x in zip(zip(*rows, strict=True), at, strict=True)
    ]


def _number(value: Any) -> Any:
    """A number by itself where that is all an array holds."""
    return np.asarray(value)[()]
