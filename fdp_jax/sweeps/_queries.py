"""What a sweep asks about each configuration."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._internal import _checks
from ..calibration import AbstractTarget, calibrate
from ..curves import BY_ARGUMENT, AbstractGuarantee, Bounds

Row = dict[str, Any]
"""A configuration: a value for each name."""
Answer = dict[str, Any]
"""Arrays by the last part of their names: "" for a number that is no interval."""

_PARTS = "lower", "estimate", "upper", "status"


class Query(NamedTuple):
    """A question with the name of its answer."""

    label: str
    argument: str | None
    """Of `bounds`; None for what is no query of a guarantee."""
    value: Any
    """Of that argument: a number, an array, or the name of a column.  Else a target
    or a function of columns."""
    options: Mapping[str, Any] = {}
    """Of a calibration."""

    def ask(self, guarantee: AbstractGuarantee | None, row: Row) -> Answer:
        """The answer for one configuration."""
        if self.argument is not None:
            known = self._known(guarantee)
            return _ends(known.bounds(**{self.argument: self._argument(row)}))
        found = self.subject(guarantee, row)
        if isinstance(found, AbstractTarget):
            options: dict[str, Any] = {"solve_for": self.label} | dict(self.options)
            family: Any = self._known(guarantee)
            solved = calibrate(family, found, **options)
            return {"": solved.value, "status": solved.status}
        if isinstance(found, Bounds):
            return _ends(found)
        if found is None or isinstance(found, str):
            raise TypeError(
                f"query {self.label!r} must return a target, bounds, a number or an "
                f"array, got {found!r}"
            )
        return {"": jnp.asarray(found)}

    def check(self, guarantee: AbstractGuarantee | None, row: Row) -> Any:
        """Makes the checks of the arguments alone; returns what they decide on."""
        if self.argument is None:
            return self.subject(guarantee, row)
        return BY_ARGUMENT[self.argument].check(self.argument, self._argument(row))

    def subject(self, guarantee: AbstractGuarantee | None, row: Row) -> Any:
        """The target, or what the user's function returns."""
        if not callable(self.value):
            return self.value
        return call(self.value, row | {"mechanism": guarantee})

    def uses(self) -> frozenset[str] | None:
        """The columns that it looks at; None if any may be."""
        if isinstance(self.value, str):
            return frozenset({self.value})
        return parameters_of(self.value) if callable(self.value) else frozenset()

    def _known(self, guarantee: AbstractGuarantee | None) -> AbstractGuarantee:
        if guarantee is None:
            raise TypeError(
                f"query {self.label!r} is about a mechanism, but the function returns "
                "None"
            )
        return guarantee

    def _argument(self, row: Row) -> Any:
        return row[self.value] if isinstance(self.value, str) else self.value


def queries_of(
    given: Any, names: tuple[str, ...], gradients: tuple[str, ...] = ()
) -> tuple[Query, ...]:
    """Queries of a user, by label.

    Raises:
        TypeError: If that is no mapping of names to queries.
        ValueError: If there is none, a query names what is no column, or two columns of
            the result would have one name.
    """
    _checks.require(
        isinstance(given, Mapping) and given,
        'queries must be a mapping such as {"epsilon": {"delta": 1e-5}}',
        f"{given!r}",
        TypeError,
    )
    found = tuple(_query(str(label), value) for label, value in given.items())
    for query in found:
        _checks.require(
            query.label not in names or query.options,
            f"query {query.label!r} has the name of a column",
        )
        _checks.require(
            not isinstance(query.value, str) or query.value in names,
            f"query {query.label!r} must name one of the columns {list(names)}",
            f"{query.value!r}",
        )
        if callable(query.value):
            require_columns(f"query {query.label!r}", query.value, names)
    _require_own_names(found, names, gradients)
    return found


def _require_own_names(
    queries: tuple[Query, ...], names: tuple[str, ...], gradients: tuple[str, ...]
) -> None:
    """Refuses a name that a part of an answer has already: one would be lost."""
    taken = {*names, "refused", *(query.label for query in queries)}
    for query in queries:
        parts = *_PARTS, *(f"by_{name}" for name in gradients)
        for part in parts:
            _checks.require(
                f"{query.label}_{part}" not in taken,
                f"{query.label}_{part} is a part of the answer to query "
                f"{query.label!r}: no column or other query may have that name",
            )
        _checks.require(
            query.label != "refused",
            "no query may have the name 'refused': that is a column",
        )


def require_columns(
    owner: str, function: Callable[..., Any], names: tuple[str, ...]
) -> None:
    """Refuses a function with a parameter that nothing fills.

    Raises:
        ValueError: If there is one.
    """
    if isinstance(function, type):
        return  # what a mechanism leaves open is solved for, or refused by itself
    known = {*names, "mechanism"}
    variable = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    for p in _signature(function) or ():
        _checks.require(
            p.kind in variable or p.default is not p.empty or p.name in known,
            f"{owner} has a parameter {p.name!r} that is no column: there are "
            f"{list(names)}",
        )


def _query(label: str, given: Any) -> Query:
    if isinstance(given, AbstractTarget) or callable(given):
        return Query(label, None, given)
    if isinstance(given, Mapping) and "target" in given:
        options = dict(given)
        target = options.pop("target")
        _checks.require(
            isinstance(target, AbstractTarget) or callable(target),
            f"target of query {label!r} must be one of fdp.targets or a "
            "function that returns one",
            f"{target!r}",
            TypeError,
        )
        return Query(label, None, target, options)
    if isinstance(given, Mapping) and len(given) == 1:
        ((argument, value),) = given.items()
        if argument in BY_ARGUMENT:
            if not isinstance(value, str):
                value = _numbers(f"{argument} of query {label!r}", value)
            return Query(label, argument, value)
    raise TypeError(
        f"query {label!r} must be an argument of bounds such as {{'delta': 1e-5}}, a "
        f"target, {{'target': ..., 'solve_for': ...}} or a function, got {given!r}"
    )


def _numbers(name: str, given: Any) -> np.ndarray:
    try:
        found = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    _checks.require(
        found.size,
        f"{name} must be a number, an array of them or the name of a column",
        f"{given!r}",
    )
    return found


def parameters_of(function: Callable[..., Any]) -> frozenset[str] | None:
    """The names that a function takes; None if it takes any."""
    parameters = _signature(function)
    if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters)


def _signature(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """The parameters of a function; None of what does not tell them."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def call(function: Callable[..., Any], row: Row) -> Any:
    """A function of those columns that it has parameters for."""
    names = parameters_of(function)
    if names is None:
        return function(**{k: x for k, x in row.items() if k != "mechanism"})
    return function(**{name: row[name] for name in names if name in row})


def _ends(found: Bounds) -> Answer:
    return {part: getattr(found, part) for part in _PARTS}
