"""Users' programs, without the compiler where that is sooner."""

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.extend.core as jec
import numpy as np
from jax.core import Tracer

from fdp_jax._internal import _compilation, _interpreted
from fdp_jax._internal._program_cache import is_off

_called_by, _expression_of = _interpreted.called_by, _interpreted.expression


def _called(eqn: Any) -> Any:
    """The package's float64 programs are called, too."""
    if eqn.primitive.name == "float64_call":
        return eqn.params["program"].closed
    return _called_by(eqn)


def _expression(eqn: Any, writer: Any) -> str:
    """So are functions of the host, which say what is wrong with a number."""
    if eqn.primitive.name != "pure_callback":
        return _expression_of(eqn, writer)
    name = f"c{len(writer.constants)}"
    writer.constants[name] = eqn.params["callback"]
    every = ", ".join(f"{{{i}}}" for i in range(len(eqn.invars)))
    return f"tuple({name}({every}))"


def _sooner(closed: jec.ClosedJaxpr) -> Any:
    def text(args: list[Any]) -> list[Any]:
        return jec.jaxpr_as_fun(closed)(*args)

    rules = {"called_by": _called, "expression": _expression}
    with mock.patch.multiple(_interpreted, **rules):
        source = _interpreted.source_of(closed)
    return source and _compilation._Sooner(
        source, lambda: jax.jit(text, keep_unused=True).lower(list(closed.in_avals))
    )


def jitted(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jax.jit(fn)`, traced as that is and then run as plain calls are.

    So it is run in NumPy, and compiled where that is much work; `make
    test-compiled` compiles it at once.  Arguments that are static are texts.
    """
    program = jax.jit(fn, **options)
    known: dict[int, Any] = {}

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves = [x for x in jax.tree.leaves((args, kwargs)) if not isinstance(x, str)]
        traced = any(isinstance(x, Tracer) for x in leaves)
        if traced or is_off(_compilation._SWITCH):
            return program(*args, **kwargs)
        found = program.trace(*args, **kwargs)
        closed = found.jaxpr
        if id(closed) not in known:
            # Kept beside it, so that no other one takes its address.
            known[id(closed)] = closed, _sooner(closed)
        _, run = known[id(closed)]
        if run is None:
            return program(*args, **kwargs)
        values = run(
            [
                x if isinstance(x, jax.Array) else np.asarray(x, kind.dtype)
                for x, kind in zip(leaves, closed.in_avals, strict=True)
            ]
        )
        return jax.tree.unflatten(found.out_tree, values)

    return call
