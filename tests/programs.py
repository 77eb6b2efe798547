"""Users' programs, without the compiler where that is sooner."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer

from fdp_jax._internal import _interpreted
from fdp_jax._internal._compilation import compiled_text

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


_interpreted.called_by, _interpreted.expression = _called, _expression


def jitted(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jax.jit(fn)`, traced as that is and then run as plain calls are.

    So it is run in NumPy, and compiled where that is much work; `make test-all`
    compiles it at once.  Arguments that are static are texts.
    """
    program = jax.jit(fn, **options)
    known: dict[int, Any] = {}

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves = [x for x in jax.tree.leaves((args, kwargs)) if not isinstance(x, str)]
        if any(isinstance(x, Tracer) for x in leaves):
            return program(*args, **kwargs)
        traced = program.trace(*args, **kwargs)
        closed = traced.jaxpr
        # The program is kept, so that no other one takes its address.
        _, run = known.setdefault(id(closed), (closed, compiled_text(closed)))
        every = zip(leaves, closed.in_avals, strict=True)
        found = run(*(jax.numpy.asarray(x, kind.dtype) for x, kind in every))
        return jax.tree.unflatten(traced.out_tree, found)

    return call
