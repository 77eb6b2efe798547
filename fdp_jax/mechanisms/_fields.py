"""Numeric parameters of mechanisms: checked, exact, and never cast by JAX."""

import dataclasses
import math
import operator
from collections.abc import Callable
from typing import Any, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._concrete import known
from .._internal._precision import in_float64
from .._internal._show import PARAMETER

_Kind = TypeVar("_Kind")

_SEARCH, _OPTION = PARAMETER, "option"
"""Keys among the metadata of a field."""
OPTION = {_OPTION: True}
"""Metadata of static fields that a saved mechanism must share with the one that it is
read into: see `AbstractMechanism`."""


@dataclasses.dataclass(frozen=True)
class Search:
    """A parameter's declaration, for `calibrate` to search its values."""

    leaks: int = 0
    """+1 if the privacy loss grows with it, -1 if it falls, 0 if that depends."""
    lowest: float = 1e-6
    highest: float = 1e6
    start: float = 1.0
    """Where a search begins for want of anything better."""
    cap: float = math.inf
    """The largest value that it may take as one of several with a common factor."""
    counts: bool = False
    """Whether it is a number of releases: see `AbstractMechanism.takes_fractions`."""

    @property
    def metadata(self) -> dict[str, "Search"]:
        """Metadata for `equinox.field`, by which a parameter declares it."""
        return {_SEARCH: self}


UNKNOWN = Search()
"""The search for parameters that declare none."""
NOISE = Search(-1, 1e-2, 1e12)
SCALE = Search(-1, 1e-2, 4096.0)
"""The scale of noise on the integers."""
RATE = Search(1, 1e-15, 1.0, 1e-2, cap=1.0)
"""A sampling probability."""
STEPS = Search(1, 1e-6, 1e15, 1e3, counts=True)
COUNT = Search(0, 1.0, 1e12, 10.0)
"""A number of batches, records or groups."""
EPSILON = Search(1, 1e-9, 500.0)
RHO = Search(1, 1e-15, 1e6, 1e-1)
DELTA = Search(1, 1e-300, 1.0, 1e-5)
PROBABILITIES = Search(0, 1e-12, 1.0, 0.1)


def options_of(owner: Any) -> list[str]:
    """The options of a mechanism that are not the default ones, in words."""
    return [
        f"{field.name}={getattr(owner, field.name)}"
        for field in dataclasses.fields(owner)
        if _OPTION in field.metadata and getattr(owner, field.name) != field.default
    ]


def parameter(
    name: str,
    check: Callable[[str, Any], Any],
    search: Search = UNKNOWN,
    **options: Any,
) -> Any:
    """An Equinox field holding one number that passes a check.

    Args:
        name: For error messages.
        check: Takes the name and a value, which it returns, or raises `ValueError`.
        search: How `calibrate` varies it.
        **options: Those of `equinox.field`.
    """
    one = lambda x: None if x is None else _checks.checked_scalar(name, check, x)
    return eqx.field(converter=one, metadata=search.metadata, **options)


def several(
    name: str,
    check: Callable[[str, Any], Any],
    search: Search = UNKNOWN,
    **options: Any,
) -> Any:
    """An Equinox field holding a vector of numbers that passes a check.

    Args:
        name: For error messages.
        check: Takes the name and the vector, which it returns, or raises `ValueError`.
        search: How `calibrate` varies it.
        **options: Those of `equinox.field`.
    """
    every = lambda x: _checks.vector(name, check, x)
    return eqx.field(converter=every, metadata=search.metadata, **options)


def option(
    name: str, check: Callable[..., Any], *limits: Any, optional: bool = False, **rest
) -> Any:
    """A static Equinox field holding one choice of the user's that passes a check.

    Args:
        name: For error messages.
        check: Takes the name, a value and the limits; it returns the value or raises.
        *limits: Those of the check.
        optional: Whether None is a value that is not checked.
        **rest: Further options of `equinox.field`.
    """
    one = lambda x: x if optional and x is None else check(name, x, *limits)
    return eqx.field(static=True, converter=one, metadata=OPTION, **rest)


def search_of(owner: Any, name: str) -> Search:
    """The declaration of a mechanism's field."""
    fields = {field.name: field for field in dataclasses.fields(owner)}
    return fields[name].metadata.get(_SEARCH, UNKNOWN) if name in fields else UNKNOWN


def is_number(value: Any, number: float | None) -> bool:
    """Whether a parameter is known, outside any trace, to be some number."""
    found = known(value)
    return found is not None and bool(found == number)


def is_one(value: Any) -> bool:
    """Whether a parameter is known to be 1."""
    return is_number(value, 1)


def is_zero(value: Any) -> bool:
    """Whether a parameter is known to be 0."""
    return is_number(value, 0)


def as_known(value: Any) -> float | None:
    """The number of a parameter that is set and known, outside any trace."""
    number = None if value is None else known(value)
    return None if number is None else float(number)


def has_whole_steps(mechanism: Any) -> bool:
    """Whether all numbers of steps in a mechanism are known, and none is a fraction."""
    own = [
        getattr(mechanism, x.name)
        for x in dataclasses.fields(mechanism)
        if x.metadata.get(_SEARCH) is STEPS
    ]
    numbers = [known(x) for x in jax.tree.leaves(own)]
    whole = all(x is not None and np.all(x == np.round(x)) for x in numbers)
    return whole and all(map(has_whole_steps, mechanism.made_of()))


def as_float(value: Any) -> Float[Array, ""]:
    """A parameter inside a float64 computation."""
    return jnp.asarray(value, jnp.result_type(float))


def as_number(value: Any) -> Any:
    """A parameter that is set, as it stands; see `at_full_precision`."""
    if value is None:
        raise ValueError("a parameter is not set")
    return value


def at_full_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of parameters to be calculated outside of a query, in float64.

    JAX would round what it makes of its own arrays to float32 in programs without
    64-bit numbers, to either side.
    """
    traced = in_float64(function, cast_out=False)

    def calculate(*values: Any) -> Any:
        numbers = [known(as_number(x)) for x in values]
        if any(x is None for x in numbers):
            return traced(*values)
        # Infinity is for the checks of what is made of it.
        with np.errstate(divide="ignore", over="ignore"):
            return np.float64(function(*map(np.float64, numbers)))

    return calculate


product = at_full_precision(operator.mul)
quotient = at_full_precision(operator.truediv)


def with_noise_over(self: Any, size: Any) -> Any:
    """The mechanism where what is released moves `size` times as far."""
    noise = quotient(self.noise_multiplier, size)
    return dataclasses.replace(self, noise_multiplier=noise)


def where_released(noise: Array, prob: Array) -> tuple[Array, Array, Array]:
    """Whether anything is released, and numbers that are safe to evaluate if not.

    What is no number is no promise, so that it goes on.
    """
    released = (noise != jnp.inf) & (prob != 0)
    return released, jnp.where(released, noise, 1.0), jnp.where(released, prob, 0.5)


def identity(owner: Any) -> Any:
    """A key that mechanisms of one kind and with equal numbers share, while they exist.

    A traced number is equal to itself alone.
    """
    leaves, structure = jax.tree.flatten(owner)
    return structure, *map(_identity_of_number, leaves)


def _identity_of_number(leaf: Any) -> Any:
    number = known(leaf)
    if number is None:
        return id(leaf)
    return number.shape, np.asarray(number, np.float64).tobytes()


def pieces(owner: Any, kind: type[_Kind]) -> list[_Kind]:
    """Objects of a kind among the fields of an owner, in their order."""
    is_one = lambda x: x is not owner and isinstance(x, kind)
    return [x for x in jax.tree.leaves(owner, is_leaf=is_one) if is_one(x)]


class Declared:
    """Declared parameters, some of which may be open or taken as they are."""

    @classmethod
    def unchecked(cls, **fields: Any) -> Self:
        """One with these fields as they are and defaults for the rest, in programs."""
        made = object.__new__(cls)
        for field in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
            value = fields.get(field.name, field.default)
            object.__setattr__(made, field.name, value)
        return made

    def require_complete(self) -> None:
        """Raises `ValueError` if a parameter was left open, of its pieces as well.

        Fields that the class names as `_optional` may be None.
        """
        optional = getattr(self, "_optional", ())
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            value = getattr(self, field.name)
            needed = field.name not in optional and not field.metadata.get("static")
            if value is None and needed:
                raise ValueError(
                    f"{field.name} of {type(self).__name__} is not set: give it a "
                    f"value, or find one with calibrate(..., solve_for={field.name!r})"
                )
            asked = lambda x: hasattr(x, "require_complete")
            for part in filter(asked, jax.tree.leaves(value, is_leaf=asked)):
                part.require_complete()
