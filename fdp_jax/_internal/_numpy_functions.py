"""Functions of this package that NumPy has of its own.

They are written out for XLA's compiler, in dozens of operations, where a library for
NumPy computes as well in one.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from ._elementary import _arctan2, _log
from ._numpy_rules import CALLS
from ._rotation import rotation
from ._special import _log1p
from ._waves import short_product

_KNOWN: dict[str, tuple[Callable[..., Any], int, str]] = {
    "_log": (_log, 1, "(log({0}),)"),
    "_log1p": (_log1p, 1, "(log1p({0}),)"),
    "_arctan2": (_arctan2, 2, "(arctan2({0}, {1}),)"),
    "rotation": (rotation, 1, "versine_and_sine({0})"),
    "short_product": (short_product, 2, "({0} @ {1}.T,)"),
}
"""By name: the function, how many arguments it takes, and its expression."""


def known_function(eqn: Any) -> str | None:
    """The expression of a call of one of them: see `_numpy_rules.expression`.

    None for other calls, and for what is left of such a function where a program does
    not need all of it.
    """
    name = getattr(_info(eqn), "func_name", "")
    _, args, template = _KNOWN.get(name, (None, -1, ""))
    if len(eqn.invars) != args:
        return None
    if name == "short_product" and any(x.aval.ndim != 2 for x in eqn.invars):
        return None  # of a batch
    kinds = tuple((x.aval.shape, x.aval.dtype) for x in eqn.invars)
    same = tuple(_outline(eqn)) == _original(name, kinds)
    return template if same else None


@functools.cache
def _original(name: str, kinds: tuple[tuple[Any, Any], ...]) -> tuple[Any, ...]:
    """The outline of the function itself."""
    with jax.enable_x64(True):
        args = [jax.ShapeDtypeStruct(*kind) for kind in kinds]
        closed = jax.make_jaxpr(_KNOWN[name][0])(*args)
    (eqn,) = closed.jaxpr.eqns
    return tuple(_outline(eqn))


def _body(eqn: Any) -> Any:
    inner = eqn.params.get(CALLS.get(eqn.primitive.name, ""))
    return getattr(inner, "jaxpr", inner)


def _info(eqn: Any) -> Any:
    return getattr(_body(eqn), "debug_info", None)


def _outline(eqn: Any) -> Iterator[Any]:
    """The source of a call, its operations, and the shapes of their results."""
    yield getattr(_info(eqn), "func_src_info", eqn.primitive.name)
    yield [x.aval.shape for x in eqn.outvars]
    for part in getattr(_body(eqn), "eqns", ()):
        yield from _outline(part)
