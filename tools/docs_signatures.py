"""Signatures for the API reference of classes that Equinox makes constructors for.

What reads the sources to document them does not run them, and finds no `__init__` in a
class whose fields are its arguments. Here the signature is that of the class itself,
with annotations as they stand in the sources.
"""

import importlib
import inspect
from typing import Any

import griffe

_SHOWN = (bool, int, float, str, tuple, type(None))


def _attributes(cls: griffe.Class) -> dict[str, griffe.Attribute]:
    """Fields by name, with those of base classes."""
    found: dict[str, griffe.Attribute] = {}
    try:
        classes = [*reversed(cls.mro()), cls]
    except ValueError:  # a base that was not read
        classes = [cls]
    for each in classes:
        found |= {
            k: v for k, v in each.members.items() if isinstance(v, griffe.Attribute)
        }
    return found


def _default(parameter: inspect.Parameter) -> str | None:
    value = parameter.default
    if value is inspect.Parameter.empty:
        return None
    return repr(value) if isinstance(value, _SHOWN) else "..."


def _parameter(
    parameter: inspect.Parameter, fields: dict[str, griffe.Attribute]
) -> griffe.Parameter:
    field = fields.get(parameter.name)
    return griffe.Parameter(
        parameter.name,
        annotation=field.annotation if field else None,
        kind=griffe.ParameterKind(parameter.kind.description),
        default=_default(parameter),
    )


class Signatures(griffe.Extension):
    """Give every class without an `__init__` of its own the one that it has in fact."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the constructor's signature."""
        if "__init__" in cls.members or not cls.path.startswith("fdp_jax."):
            return
        module = importlib.import_module(cls.module.path)
        made = getattr(module, cls.name, None)
        try:
            signature = inspect.signature(made)  # pyright: ignore
        except (TypeError, ValueError):
            return
        fields = _attributes(cls)
        own = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        shown = [_parameter(x, fields) for x in signature.parameters.values()]
        init = griffe.Function("__init__", parameters=griffe.Parameters(own, *shown))
        cls.set_member("__init__", init)
