"""Argument checks that work on plain numbers, arrays and traced values alike.

Every check returns its argument, and the result must be used: under `jit` the check
hangs on it.  A bad value raises `ValueError` at once, under `jax.vmap` and `jax.grad`
too; in `jax.jit` the program stops with the same sentence when it runs, and
`equinox.filter_jit` raises `equinox.EquinoxRuntimeError`.
"""

import contextlib
import contextvars
import decimal
import enum
import fractions
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np

from ._concrete import behind, is_traced, known, trace_level
from ._record import described
from ._refusals import TracedValueError, refuse
from ._setting import setting
from ._subnormal import in_programs, is_subnormal

_Member = TypeVar("_Member", bound=enum.Enum)
_Value = TypeVar("_Value")
_Taker = Callable[[Any, str], None]
Check = Callable[[str, Any], Any]
"""Of the name and the value of an argument: the value, or an error."""
_taken = contextvars.ContextVar[tuple[Any, _Taker] | None]("taken", default=None)


def handed_over(take: _Taker) -> contextlib.AbstractContextManager[None]:
    """Inside, failures of traced values are handed over in place of ending a program.

    Only of checks that are met at the level of tracing at which this is entered: what
    is traced further inside may be kept by JAX for other callers.  `take` is given a
    flag, traced, and the message that belongs to it.
    """
    return setting(_taken, (trace_level(), take))


def error_if(
    value: Any,
    wrong: Callable[[Any], Any],
    message: str,
    shown: Callable[[Any], Any] = lambda x: x,
    *,
    kind: str = "",
) -> Any:
    """An array or a PyTree, unless it is refused; the message ends in a number.

    What is known is looked at by NumPy, at once; else JAX looks while programs run.

    Args:
        value: What is checked, and carries the check.
        wrong: Finds what is wrong in it: flags for all numbers shown, or one flag.
        message: What is right.
        shown: Finds the numbers in it of which a wrong one is shown.
        kind: What these are, if they are not the value's own.
    """
    text, numbers = f"{message}, got {kind}".rstrip(), behind(value)
    if not is_traced(numbers):
        plain = lambda x: np.asarray(x) if eqx.is_inexact_array_like(x) else x
        numbers = jax.tree.map(plain, numbers)
        flags, found = wrong(numbers), shown(numbers)
        if not is_traced(flags, found):  # Either may hang on something else.
            if np.any(flags):
                error = TracedValueError if is_traced(value) else ValueError
                raise error(f"{text} {_first(flags, found)}".removesuffix(".0"))
            return value
    taken = _taken.get()
    if taken is not None and taken[0] == trace_level():
        taken[1](wrong(value), message)
        return value
    to_array = lambda x: np.asarray(x) if isinstance(x, np.generic | float) else x
    return refuse(jax.tree.map(to_array, value), lambda x: (wrong(x), shown(x)), text)


def _first(flags: Any, numbers: Any) -> Any:
    """The first number that is flagged; one flag is for all of them."""
    if np.ndim(numbers) == 0:
        return numbers
    return np.asarray(numbers)[np.broadcast_to(flags, np.shape(numbers))].flat[0]


def checked(name: str, value: Any, allowed: str, test: Callable[[Any], Any]) -> Any:
    """The value, if it passes a test: `allowed` says which numbers do."""
    message = f"{name} must be {allowed}"
    if is_traced(value):
        return error_if(value, lambda x: ~test(x), message)
    one = type(value) is int or isinstance(value, fractions.Fraction | decimal.Decimal)
    try:
        numbers = np.asarray(float(value) if one else value)
    except OverflowError:
        return _require_kind(False, f"{message}, in the range of floats", value)
    dtype = numbers.dtype
    real = dtype.kind in "iuf" or jax.numpy.issubdtype(dtype, np.floating)
    _require_kind(real, message, value)
    seen = in_programs(numbers)
    if np.any((seen == 0) & (numbers != 0)):
        message += " (in programs numbers below the least normal one are 0)"
    error_if(numbers, lambda _: ~test(seen), message)
    # NumPy float64 keeps every digit whatever the caller's precision.
    return value if isinstance(value, jax.Array) else numbers.astype(np.float64)


def numbers_that_are(allowed: str, test: Callable[[Any], Any]) -> Check:
    """The check that all of some numbers pass a test, see `checked`."""
    return lambda name, value: checked(name, value, allowed, test)


positive = numbers_that_are("a positive number", lambda x: x > 0)
"""Numbers in (0, inf]."""
finite_positive = numbers_that_are(
    "a finite positive number", lambda x: (x > 0) & (x < np.inf)
)
"""Numbers in (0, inf)."""
nonnegative = numbers_that_are(
    "a finite number, at least 0", lambda x: (x >= 0) & (x < np.inf)
)
"""Numbers in [0, inf)."""
nonnegative_or_inf = numbers_that_are("a number, at least 0", lambda x: x >= 0)
"""Numbers in [0, inf]."""
count = numbers_that_are(
    "a whole number, at least 0 (this mechanism has no fractional powers)",
    lambda x: (x >= 0) & (x < np.inf) & (x == x.round()),
)
"""Whole numbers in [0, inf)."""
positive_count = numbers_that_are(
    "a whole number, at least 1", lambda x: (x >= 1) & (x < np.inf) & (x == x.round())
)
"""Whole numbers in [1, inf)."""
whole_number = numbers_that_are(
    "a whole number", lambda x: (abs(x) < np.inf) & (x == x.round())
)
"""Whole numbers, negative ones included."""
share = numbers_that_are("in (0, 1]", lambda x: (x > 0) & (x <= 1))
"""Numbers in (0, 1]."""
below_one = numbers_that_are("in [0, 1)", lambda x: (x >= 0) & (x < 1))
"""Numbers in [0, 1)."""
open_share = numbers_that_are("in (0, 1)", lambda x: (x > 0) & (x < 1))
"""Numbers in (0, 1)."""
below_infinity = numbers_that_are("a number below inf", lambda x: x < np.inf)
"""Numbers in [-inf, inf): logarithms of masses."""
finite = numbers_that_are("a finite number", lambda x: abs(x) < np.inf)
"""Finite numbers."""
real = numbers_that_are("a number", lambda x: x == x)
"""All numbers but NaN."""


def noise(name: str, value: Any) -> Any:
    """Numbers in (0, inf], with what it means that there is none."""
    if not is_traced(value) and np.ndim(value) == 0 and np.asarray(value) == 0:
        raise ValueError(
            f"{name} must be a positive number, got {value}: without noise epsilon is "
            "inf and delta 1, as of fdp_jax.BlatantNonPrivacy()"
        )
    return positive(name, value)


def probability(name: str, value: Any) -> Any:
    """Numbers in [0, 1], or known and above by a rounding error of sums."""
    value = _at_most_one(value)
    return checked(name, value, "in [0, 1]", lambda x: (x >= 0) & (x <= 1))


_ULPS = 4


def _at_most_one(value: Any) -> Any:
    """Known numbers up to 4 ulp above 1, as sums of probabilities have, are 1."""
    if isinstance(value, list | tuple) or (number := known(value)) is None:
        return value
    if not np.issubdtype(number.dtype, np.floating):
        return value
    over = (number > 1) & (number <= 1 + _ULPS * np.finfo(number.dtype).eps)
    if not np.any(over):
        return value
    found = np.where(over, number.dtype.type(1), number)
    return jax.numpy.asarray(found) if isinstance(value, jax.Array) else found


def rate(name: str, value: Any) -> Any:
    """A number in [0, 1] that programs do not take for zero unless it is.

    Compiled programs flush subnormal numbers to zero, where the answer is another one.
    """
    traced = is_traced(value)
    kept = traced or isinstance(value, jax.Array)
    dtype = jax.numpy.result_type(value) if kept else np.dtype(np.float64)
    if not jax.numpy.issubdtype(dtype, np.floating):
        return probability(name, value)
    least = jax.numpy.finfo(dtype).tiny
    allowed = f"0 or at least {least}, the least normal {dtype}"
    if traced:
        inside = lambda x: (x >= 0) & (x <= 1) & ~is_subnormal(x)
        return checked(name, value, f"in [0, 1], and {allowed}", inside)
    value = probability(name, value)
    return error_if(value, is_subnormal, f"{name} must be {allowed}")


def member(
    name: str,
    kind: type[_Member],
    value: Any,
    allowed: Sequence[_Member] | None = None,
) -> _Member:
    """A member of an enumeration, given itself, by its name or by its value.

    An `is` comparison takes whatever is no member for "another one", so every option
    passes here before anything is computed.
    """
    allowed = tuple(kind) if allowed is None else tuple(allowed)
    for one in allowed:
        if value is one or (isinstance(value, str) and value in (one.name, one.value)):
            return one
    names = ", ".join(repr(one.value) for one in allowed)
    known = isinstance(value, str | kind)
    raise (ValueError if known else TypeError)(
        f"{name} must be one of {names} or of {kind.__name__}, got {described(value)}"
    )


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """One of a few names."""
    if not isinstance(value, str) or value not in allowed:
        wrong = ValueError if isinstance(value, str) else TypeError
        raise wrong(f"{name} must be one of {allowed}, got {described(value)}")
    return value


def flag(name: str, value: Any) -> bool:
    """True or False: any other object would count as one of them."""
    _require_kind(
        isinstance(value, bool | np.bool_), f"{name} must be True or False", value
    )
    return bool(value)


def instance(name: str, value: _Value, kinds: Any, wanted: str) -> _Value:
    """An object of some classes: `wanted` says of which."""
    _require_kind(
        isinstance(value, kinds), f"{name} must be {wanted}", value, TypeError
    )
    return value


def require(
    holds: Any, rule: str, got: Any = None, wrong: type[Exception] = ValueError
) -> None:
    """Refuses known arguments for which a rule does not hold, with what was given.

    Args:
        holds: Whether it does.
        rule: The name of the argument and what it must be, as it is told.
        got: What was given, as it is told; nothing if None.
        wrong: The kind of error.
    """
    if not holds:
        raise wrong(rule if got is None else f"{rule}, got {got}")


def _require_kind(
    holds: Any, rule: str, value: Any, wrong: type[Exception] = ValueError
) -> None:
    """As `require`, of an object that may take long to describe."""
    if not holds:
        raise wrong(f"{rule}, got {described(value)}")


def random_key(value: Any) -> jax.Array:
    """One key of `jax.random`, typed or as its numbers."""
    dtype, shape = getattr(value, "dtype", bool), getattr(value, "shape", None)
    typed = jax.numpy.issubdtype(dtype, jax.dtypes.prng_key) and shape == ()
    if not (typed or (dtype == np.uint32 and len(shape or ()) == 1)):
        raise TypeError(f"key must be one key of jax.random, got {described(value)}")
    return value


def whole(name: str, value: Any, least: int, most: int) -> int:
    """A whole number that decides a shape, so known to Python."""
    number = value.item() if isinstance(value, np.generic) else value
    shown = repr(number) if isinstance(number, float) else described(value)
    is_whole = isinstance(number, int) and not isinstance(number, bool)
    require(is_whole, f"{name} must be a Python integer", shown)
    require(least <= number <= most, f"{name} must be in [{least}, {most}]", shown)
    return int(number)


def known_whole(name: str, number: float | None) -> int:
    """A whole number, of which there is None where it is traced or not set."""
    whole = number is not None and number == round(number)
    require(whole, f"{name} must be a known whole number", number)
    return int(number or 0)


def concrete(name: str, value: Any) -> Any:
    """An array that is not traced."""
    require(
        not is_traced(value), f"{name} must be concrete", "a traced array", TypeError
    )
    return value


def scalar(name: str, value: Any) -> Any:
    """A single number (after one of the other checks)."""
    if getattr(value, "ndim", 0) != 0:
        raise ValueError(
            f"{name} must be one number, got an array of {value.shape}: "
            "map over its entries with jax.vmap"
        )
    return value


def checked_scalar(name: str, check: Check, value: Any) -> Any:
    """A single number that passes a check."""
    return scalar(name, check(name, value))


def one(check: Check) -> Check:
    """The check of a single number."""
    return lambda name, value: checked_scalar(name, check, value)


def number(check: Check) -> Check:
    """The check of a single number that is known to Python."""
    return lambda name, value: float(checked_scalar(name, check, value))


def whole_in(least: int, most: int) -> Check:
    """The check of a whole number that decides a shape, see `whole`."""
    return lambda name, value: whole(name, value, least, most)


def vector_of(check: Check) -> Check:
    """The check of a nonempty vector, see `vector`."""
    return lambda name, value: vector(name, check, value)


def one_of(allowed: tuple[str, ...]) -> Check:
    """The check of one of a few names, see `choice`."""
    return lambda name, value: choice(name, value, allowed)


def member_of(kind: type[enum.Enum]) -> Check:
    """The check of a member of an enumeration, see `member`."""
    return lambda name, value: member(name, kind, value)


def instance_of(kinds: Any, wanted: str) -> Check:
    """The check of an object of some classes, see `instance`."""
    return lambda name, value: instance(name, value, kinds, wanted)


tolerance = number(nonnegative)
"""A tolerance for the comparison of known numbers: in [0, inf)."""


def field(name: str, check: Check, **options: Any) -> Any:
    """An Equinox field for a single number, always given, that passes a check."""
    converter = functools.partial(checked_scalar, name, check)
    return eqx.field(converter=converter, **options)


def numbers(name: str, value: Any) -> Any:
    """An array as it is, or anything else as NumPy numbers of full precision."""
    if isinstance(value, jax.Array):
        return value
    try:
        return np.asarray(value, np.float64)
    except jax.errors.JAXTypeError as error:
        raise ValueError(
            f"{name} must be one array where an entry is traced, got a "
            f"{type(value).__name__}: use jax.numpy.stack"
        ) from error
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be numbers, got {described(value)}") from error


def vector(name: str, check: Check, value: Any) -> Any:
    """A nonempty vector whose entries pass a check."""
    value = numbers(name, value)
    require(
        value.ndim == 1 and value.size,
        f"{name} must be a vector of one entry or more",
        f"an array of {value.shape}",
    )
    return check(name, value)


def same_length(name: str, value: Any, other_name: str, other: Any) -> None:
    """Two vectors of one length."""
    require(
        value.shape == other.shape,
        f"{name} and {other_name} must have one length",
        f"{value.size} and {other.size}",
    )


def beside(
    value: Any, other: Any, fails: Callable[[Any, Any, Any], Any], message: str
) -> Any:
    """A vector, if none of its entries fails a test beside that of another vector.

    The test gets both vectors and the library of their kind, NumPy or jax.numpy.
    """
    numbers, others = known(value), known(other)
    if numbers is None or others is None:
        wrong = lambda x: fails(x, other, jax.numpy)
        return error_if(value, wrong, message)
    wrong = fails(numbers, others, np)
    if np.any(wrong):
        place = int(np.argmax(wrong))
        raise ValueError(f"{message}, got {numbers[place]} at {others[place]}")
    return value


def rounding(value: Any, tolerance: float) -> float:
    """The allowed error of a sum: the tolerance, or what the precision cannot tell.

    Numbers from a float32 program, such as a softmax, are right to 1e-7 or so.
    """
    dtype = np.dtype(value.dtype)
    inexact = jax.numpy.issubdtype(dtype, np.inexact)
    unit = float(jax.numpy.finfo(dtype).eps) if inexact else 0.0
    return max(tolerance, 8 * unit)


def total(name: str, value: Any, tolerance: float, rest: Any = 0.0) -> Any:
    """Probabilities whose sum, with the rest, is 1 (to `rounding`)."""
    tolerance = rounding(value, tolerance)
    return error_if(
        value,
        lambda x: ~(abs(x.sum() + rest - 1) <= tolerance),
        f"{name} must be probabilities with sum 1 (to {tolerance:g})",
        lambda x: x.sum() + rest,
        kind="a sum of",
    )


def probabilities(name: str, value: Any) -> Any:
    """A vector of probabilities whose sum is 1 (to 1e-8)."""
    return total(name, vector(name, probability, value), 1e-8)
