"""One line for a call with the wrong arguments, with the names that were meant."""

import difflib
import functools
import importlib
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

_Fn = TypeVar("_Fn", bound=Callable[..., Any])
_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)

_SAME = (
    # What peers, papers and newcomers call it; a group holds our names as well.
    ("noise_multiplier sigma noise std stddev noise_std noise_scale scale z stdev"),
    ("sampling_prob prob q sample_rate sampling_rate sampling_probability rate p"),
    ("num_steps steps iterations num_iterations n_steps t count num_compositions"),
    ("delta target_delta delta0 failure_probability"),
    ("epsilon target_epsilon eps target_eps epsilon0 max_epsilon"),
    ("alpha fpr false_positive_rate type_i_error x"),
    ("beta fnr false_negative_rate type_ii_error"),
    ("dataset_size num_records num_examples sample_size n num_samples"),
    ("batch_size lot_size bs"),
    ("solve_for parameter unknown param name"),
    ("relation neighboring_relation neighbouring_relation adjacency neighbors"),
    ("true_positives tp"),
    ("false_positives fp"),
    ("false_negatives fn"),
    ("true_negatives tn"),
    ("clipping max_grad_norm clip l2_norm_clip clipping_norm"),
)
_OF_RUNS = "noise_multiplier", "sampling_prob", "num_steps"
_SYNONYMS = [group.split() for group in _SAME]
ASKED_FOR = {
    "get_epsilon": "epsilon",
    "get_delta": "delta",
    "get_privacy_spent": "epsilon",
    "get_beta": "beta",
    "get_advantage": "advantage",
    "get_epsilon_for_delta": "epsilon",
    "get_delta_for_epsilon": "delta",
    "get_noise_multiplier": "calibrate",
    "compute_epsilon": "epsilon",
    "self_compose": "repeat",
    "tradeoff": "beta",
    "rate_of_tpr": "tpr",
    "guarantees": "guarantee",
}
"""What calls that other libraries have are called here."""


def suggestion(wrong: str, allowed: Iterable[str]) -> str | None:
    """The name among the allowed ones that was most likely meant."""
    allowed, wrong = list(allowed), wrong.lower()
    same = [name for group in _SYNONYMS if wrong in group for name in group]
    folded = {name.lower(): name for name in reversed(allowed)}
    close = difflib.get_close_matches(wrong, folded, n=1, cutoff=0.6)
    found = [*(x for x in same if x in allowed), *(folded[x] for x in close)]
    return found[0] if found else None


@overload
def explained(fn: _Fn, /) -> _Fn: ...
@overload
def explained(**checks: Callable[[str, Any], Any]) -> Callable[[_Fn], _Fn]: ...


def explained(fn: Any = None, /, **checks: Any) -> Any:
    """A function whose calls with wrong arguments say in one line what is right.

    Nothing is done about calls that Python accepts, but for the checks of arguments.  A
    class is called by its `__init__`, which is changed in place.

    Args:
        fn: The function or class.
        **checks: Checks by argument, such as those of `_checks`, made in this order
            before the function runs, which gets what they return.  None is not checked
            where it is the default.
    """
    if fn is None:
        return functools.partial(explained, **checks)
    if isinstance(fn, type):
        fn.__init__ = explained(fn.__init__)  # pyright: ignore
        return fn
    is_init = fn.__name__ == "__init__"
    shown = fn.__qualname__.split(".")[-2] if is_init else fn.__name__
    run = _checking(fn, checks) if checks else fn

    @functools.wraps(fn)
    def call(*args: Any, **named: Any) -> Any:
        return called(run, shown, fn, args, named)

    return call


def _checking(
    fn: Callable[..., Any], checks: dict[str, Callable[[str, Any], Any]]
) -> Callable[..., Any]:
    """A function that gets arguments as their checks return them."""
    parameters = inspect.signature(fn).parameters.values()
    places = [p.name for p in parameters if p.kind in _BY_POSITION]
    usual = {p.name: p.default for p in parameters if p.default is not p.empty}
    optional = {name for name, value in usual.items() if value is None}

    def run(*args: Any, **named: Any) -> Any:
        given = usual | dict(zip(places, args, strict=False)) | named
        found = {
            name: check(name, given[name])
            for name, check in checks.items()
            if name in given and (given[name] is not None or name not in optional)
        }
        first = [found.pop(name, x) for name, x in zip(places, args, strict=False)]
        return fn(*first, *args[len(places) :], **named | found)

    return run


def called(
    run: Callable[..., Any], name: str, meant: Any, args: tuple, named: dict[str, Any]
) -> Any:
    """The result of a call, or its mistake in one line.

    Only a call that has failed is looked at again.

    Args:
        run: Is called.
        name: The name in messages.
        meant: The function or class that says what is right.
        args: Arguments without a name.
        named: Those with one.
    """
    __tracebackhide__ = True
    try:
        return run(*args, **named)
    except TypeError as error:
        message = wrong_call(name, inspect.signature(meant), args, named)
        if message is None:
            from ._concrete import asks_for_numbers  # JAX takes a second

            if not asks_for_numbers(error, (args, named)):
                raise
            message = f"{name} needs known numbers: call it outside of jit, vmap, grad"
    raise TypeError(message)


def wrong_call(
    name: str, signature: inspect.Signature, args: tuple, named: dict[str, Any]
) -> str | None:
    """The mistake in the arguments of a call; None if Python takes them."""
    try:
        signature.bind(*args, **named)
    except TypeError as error:
        parameters = list(signature.parameters.values())
        if parameters and parameters[0].name in ("self", "cls"):
            parameters, args = parameters[1:], args[1:]
        return (
            _unknown(name, parameters, named)
            or _by_position(name, parameters, args)
            or _missing(name, parameters, args, named)
            or f"{name}: {error}"
        )
    return None


def _names(parameters: list[inspect.Parameter]) -> list[str]:
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [p.name for p in parameters if p.kind not in variable]


def _unknown(
    name: str, parameters: list[inspect.Parameter], named: dict[str, Any]
) -> str | None:
    """The message if an argument has a name that the function does not know."""
    known = _names(parameters)
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    wrong = [] if open_ended else [n for n in named if n not in known]
    if not wrong:
        return None
    left = [n for n in known if n not in named]
    takes = f"it takes {', '.join(known)}" if known else "it takes none"
    right = suggestion(wrong[0], left)
    hint = f"did you mean {right}? (" + takes + ")" if right else takes
    if not right and "mechanism" in left and suggestion(wrong[0], _OF_RUNS):
        hint = f"put it into the mechanism, as in {name}(fdp_jax.DPSGD(...))"
    return f"{name} has no argument {wrong[0]!r}: {hint}"


def _by_position(
    name: str, parameters: list[inspect.Parameter], args: tuple
) -> str | None:
    """The message if there are too many arguments without a name."""
    kinds = {p.kind for p in parameters}
    places = [p.name for p in parameters if p.kind in _BY_POSITION]
    if inspect.Parameter.VAR_POSITIONAL in kinds or len(args) <= len(places):
        return None
    others = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    shown = [p for p in others if p.default is p.empty] or others
    call = ", ".join([*places, *(f"{p.name}=..." for p in shown)])
    given = (
        f"only {', '.join(places)} without a name"
        if places
        else "its arguments by name"
    )
    return f"{name} takes {given}, as in {name}({call}), got {len(args)} without one"


def _missing(
    name: str, parameters: list[inspect.Parameter], args: tuple, named: dict[str, Any]
) -> str | None:
    """The message if a required argument is not given."""
    taken = [p.name for p in parameters if p.kind in _BY_POSITION][: len(args)]
    known = _names(parameters)
    required = [p.name for p in parameters if p.default is p.empty and p.name in known]
    missing = [n for n in required if n not in named and n not in taken]
    if not missing:
        return None
    call = ", ".join(f"{n}=..." for n in required if n not in taken)
    before = ", ".join([*("..." for _ in taken), *([call] if call else [])])
    return f"{name} needs {' and '.join(missing)}, as in {name}({before})"


def no_name(package: str, name: str, own: list[str]) -> str:
    """The message where a package has no such name, maybe but one of its modules."""
    start = f"{package} has no {name!r}"
    top = importlib.import_module(package)
    is_module = lambda value: isinstance(value, types.ModuleType)
    parts = [x for x in own if is_module(getattr(top, x))]
    places = {part: dir(getattr(top, part)) for part in parts}
    for part, names in places.items():
        if name in names and not is_module(getattr(getattr(top, part), name)):
            return f"{start}: did you mean {package}.{part}.{name}?"
    queries = [x for x in dir(top.AbstractGuarantee) if not x.startswith("_")]
    stem = ASKED_FOR.get(name, name.removesuffix("Mechanism"))
    right = stem if stem in own else suggestion(stem, queries)
    if right in queries:
        return f"{start}: {right} is asked of a mechanism, as in mechanism.{right}(...)"
    right = right or suggestion(name, own)
    if right:
        return f"{start}: did you mean {right}?"
    for part, names in places.items():
        inner = suggestion(name, [n for n in names if not n.startswith("_")])
        if inner:
            return f"{start}: did you mean {package}.{part}.{inner}?"
    return start
