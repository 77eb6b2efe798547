"""Mechanisms that are written out: a name, or a call as mechanisms are printed."""

import ast
import importlib
import inspect
from typing import Any

from .. import levy, mechanisms, sampling, selection
from .._internal import _checks
from .._internal._calls import suggestion
from .._internal._record import Record
from ..curves import AbstractGuarantee

_ROOMS = mechanisms, sampling, levy, selection
_PUBLIC = importlib.import_module("fdp_jax").__all__
_METHODS = "group", "repeat"
_CONSTRUCTORS = (
    "bifr",
    "bisr",
    "for_sensitivity",
    "lambda_cgd",
    "lipschitz",
    "of_clipped_sum",
    "of_vectors",
    "tree",
    "with_gaussian_noise",
)
"""Other ways to make a mechanism, functions of its class."""


def mechanism_in(text: Any) -> Any:
    """The mechanism of a call such as `Laplace(2).repeat(10)`, or the class of a name.

    Raises:
        ValueError: If the text is neither, or an argument is refused.
        TypeError: If a call has the wrong arguments.
    """
    try:
        found = _value(ast.parse(str(text).strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError):
        found = None
    except AttributeError as error:
        raise ValueError(str(error)) from error
    kind = found if isinstance(found, type) else type(found)
    _checks.require(
        issubclass(kind, AbstractGuarantee),
        "mechanism must be the name of one, or a call such as 'Laplace(2).repeat(10)'",
        f"{text!r}",
    )
    return found


def class_in(rooms: tuple[Any, ...], what: str, name: str) -> type[Record]:
    """The class of a name.

    Raises:
        ValueError: If there is none, with the one that was probably meant.
    """
    classes = {
        key: value
        for room in reversed(rooms)
        for key, value in vars(room).items()
        if isinstance(value, type) and issubclass(value, Record)
    }
    if name not in classes:
        hidden = lambda kind: (
            inspect.isabstract(kind)
            or (issubclass(kind, AbstractGuarantee) and kind.__name__ not in _PUBLIC)
        )
        known = [x for x in sorted(classes) if not hidden(classes[x])]
        own = [x for x in known if issubclass(classes[x], AbstractGuarantee)]
        right = suggestion(name, known)
        listed = ", ".join(own or known)
        hint = f"did you mean {right}?" if right else f"there are {listed}"
        raise ValueError(f"{what} must be the name of one, got {name!r}: {hint}")
    return classes[name]


def _value(node: ast.expr, relation: Any = None) -> Any:
    """The value of an expression: numbers, sequences, names and calls of classes.

    A neighboring relation is that of all parts, which are printed without it.
    """
    match node:
        case ast.BinOp(left=top, op=ast.Div(), right=bottom):
            return _value(top) / _value(bottom)
        case ast.List(elts=entries) | ast.Tuple(elts=entries):
            return tuple(_value(entry, relation) for entry in entries)
        case ast.Name(id=name):
            return _named(name)
        case ast.Attribute(value=owner, attr=name) if name in _CONSTRUCTORS:
            return getattr(_value(owner), name)
        case ast.Attribute(value=ast.Name(id=place), attr=name):
            rooms = tuple(r for r in _ROOMS if r.__name__.endswith(f".{place}"))
            return class_in(rooms or _ROOMS, "mechanism", name)
        case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            return ast.literal_eval(node)
        case ast.Call(func=ast.Attribute(value=ast.Call() as owner, attr=name)):
            if name not in _METHODS:
                allowed = " and ".join(f".{method}(...)" for method in _METHODS)
                raise ValueError(f"mechanism may be followed by {allowed}, got .{name}")
            function = getattr(_value(owner, relation), name)
        case ast.Call(func=called):
            function = _value(called)
        case _:
            raise SyntaxError(ast.unparse(node))
    words = {str(word.arg): word.value for word in node.keywords}
    stated = words.pop("relation", None)
    if stated is not None:
        kind = mechanisms.NeighboringRelation
        relation = _checks.member("relation", kind, _value(stated))
    known = inspect.signature(function).parameters
    # Where a query has the name of an argument, the field is printed with a 0.
    named = {
        name if name in known else name.removesuffix("0"): _value(word, relation)
        for name, word in words.items()
    }
    if relation is not None and "relation" in known:
        named["relation"] = relation
    found = function(*(_value(entry, relation) for entry in node.args), **named)
    _checks.require(
        stated is None or getattr(found, "relation", None) is relation,
        f"relation means nothing to {ast.unparse(node.func)}",
    )
    return found


def _named(name: str) -> Any:
    if name == "inf":
        return float(name)
    if name == "compose":
        return mechanisms.compose
    if name in mechanisms.NeighboringRelation.__members__:
        return mechanisms.NeighboringRelation[name]
    return class_in(_ROOMS, "mechanism", name)
