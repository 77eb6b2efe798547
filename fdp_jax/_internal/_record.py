"""The base of what users see: printed with its values, explained where misused."""

import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import equinox as eqx
import jax

from ._calls import ASKED_FOR, called, explained, suggestion
from ._show import Call, fields_of, pretty, short


class Printed:
    """Anything that shows its fields when it is printed."""

    _room: ClassVar[str] = ""
    """Where users find the class, if not at the top: "targets."."""

    def _shown(self, parent: Any) -> Call:
        """The printed form: a call, of which `parent` is an argument's owner."""
        return Call(public_name(type(self)), fields_of(self))

    def __repr__(self) -> str:
        return pretty(self)


def public_name(kind: type) -> str:
    """The name of a class as users write it after `fdp.`."""
    return f"{getattr(kind, '_room', '')}{kind.__name__}"


class Method:
    """A method that was taken from a module: a PyTree of it, as Equinox's is.

    Equinox makes a module of each, which takes 25 microseconds, with dozens of them in
    a question, and which `jax.jit` refuses if there are arrays in it.
    """

    __name__ = property(lambda self: self.__func__.__name__)
    __wrapped__ = property(lambda self: types.MethodType(self.__func__, self.__self__))

    def __init__(self, fn: Callable[..., Any], owner: Any):
        self.__func__, self.__self__, self.__doc__ = fn, owner, fn.__doc__

    def __call__(self, *args: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        return self.__func__(self.__self__, *args, **named)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Method) and self.__wrapped__ == other.__wrapped__

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __repr__(self) -> str:
        return f"{self.__self__!r}.{self.__name__}"


jax.tree_util.register_pytree_node(
    Method,
    lambda method: ((method.__self__,), method.__func__),
    lambda fn, owner: Method(fn, *owner),
)


if TYPE_CHECKING:  # to a type checker it is an Equinox module like any other

    class Record(Printed, eqx.Module):
        """An Equinox module that users see."""

else:

    class _RecordMeta(type(eqx.Module)):
        """Classes whose calls say in one line what is wrong with them."""

        def __call__(cls, *args: Any, **named: Any) -> Any:
            __tracebackhide__ = True
            return called(super().__call__, public_name(cls), cls, args, named)

    class Record(Printed, eqx.Module, metaclass=_RecordMeta):
        """An Equinox module that users see."""

        def __init_subclass__(cls, **options: Any):
            super().__init_subclass__(**options)
            for name, value in list(vars(cls).items()):
                if isinstance(value, classmethod) and not name.startswith("_"):
                    setattr(cls, name, classmethod(explained(value.__func__)))

        def __getattribute__(self, name: str) -> Any:
            found = object.__getattribute__(self, name)
            taken = type(found) is types.MethodType and found.__self__ is self
            return Method(found.__func__, self) if taken else found

        def __getattr__(self, name: str) -> Any:
            # Only asked for what is not there.
            if hasattr(type(self), name) or name.startswith("_"):
                return object.__getattribute__(self, name)  # the original error
            raise AttributeError(no_attribute(self, name))


_ELSEWHERE = {
    "with_": "dataclasses.replace(..., name=value) gives a changed copy",
    "replace": "dataclasses.replace(..., name=value) gives a changed copy",
    "compose": "fdp_jax.compose(one, other) composes",
}


def no_attribute(owner: Any, name: str) -> str:
    """The message where an object lacks an attribute."""
    start = f"{public_name(type(owner))} has no attribute {name!r}"
    names = [n for n in dir(type(owner)) if not n.startswith("_")]
    names += [n for n in getattr(owner, "__dict__", {}) if not n.startswith("_")]
    asked = ASKED_FOR.get(name)
    right = asked if asked in names else None
    if right is None and name in _ELSEWHERE:
        return f"{start}: {_ELSEWHERE[name]}"
    right = right or suggestion(name, names)
    return f"{start}: did you mean {right}?" if right else start


def sketch(kind: type) -> str:
    """A call that makes an instance, with dots for what must be given."""
    parameters = inspect.signature(kind).parameters.values()
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    needed = [p for p in parameters if p.default is p.empty and p.kind not in variable]
    given = [
        f"{p.name}=..." if p.kind is inspect.Parameter.KEYWORD_ONLY else "..."
        for p in needed
    ]
    return f"fdp_jax.{public_name(kind)}({', '.join(given)})"


def refuse(name: str, value: Any, wanted: str, kinds: Any, usual: type) -> NoReturn:
    """The error where an argument is of another kind, with what was probably meant.

    Args:
        name: The argument.
        value: What was given.
        wanted: What it must be, in words.
        kinds: A namespace of classes of the right kind.
        usual: The class to name where none has the name of the value's own.
    """
    own = value if isinstance(value, type) else type(value)
    right = getattr(kinds, own.__name__, None)
    got = f"got {described(value)}"
    if right is None or isinstance(value, right):
        raise TypeError(f"{name} must be {wanted}, such as {sketch(usual)}, {got}")
    if right is value:
        made = f"an instance is needed, such as {sketch(right)}"
        raise TypeError(f"{name} must be {wanted}, {got}: {made}")
    raise TypeError(f"{name} must be {wanted}, {got}: did you mean {sketch(right)}?")


def described(value: Any) -> str:
    """A value in messages: classes by name, and objects in one short line."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, int) and value.bit_length() > 10_000:
        return f"a number of {value.bit_length()} bits"  # Python does not print it
    return f"fdp_jax.{short(value)}" if isinstance(value, Printed) else short(value)
