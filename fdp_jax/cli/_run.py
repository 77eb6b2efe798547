"""The run that arguments describe."""

import argparse
import inspect
from typing import Any

from .. import sampling
from .._internal._text import json_ready
from ._early import numbers_of
from ._expression import mechanism_in
from ._options import DESCRIPTION, NUMBERS, PARAMETERS, SCHEMES


def run_of(arguments: argparse.Namespace, unknown: str | None = None) -> Any:
    """The run, without the parameter that is sought."""
    kind = mechanism_in(
        arguments.mechanism if arguments.mechanism is not None else "DPSGD"
    )
    if not isinstance(kind, type):
        return kind
    names = (*PARAMETERS, "relation", *NUMBERS)
    given = {name: getattr(arguments, name) for name in names}
    if given["relation"] is not None:
        given["relation"] = str(given["relation"]).replace("-", "_")
    scheme = arguments.sampling
    if scheme == "poisson":
        given["sampling_prob"] = numbers_of(arguments, unknown).get("prob")
    elif scheme is not None:
        make = getattr(sampling, SCHEMES[scheme].kind)
        own = make(**numbers_of(arguments, unknown))
        given |= dict.fromkeys(NUMBERS) | {"sampling": own}
    given = {name: value for name, value in given.items() if value is not None}
    sought = inspect.signature(kind).parameters.get(unknown or "")
    if sought is not None and sought.default is sought.empty:
        given.setdefault(sought.name, 1.0)  # any value will do
    return kind(**given)


def description_of(
    arguments: argparse.Namespace, **found: float
) -> dict[str, str | float | None]:
    """The arguments that describe a run, as `verify` reads them."""
    given = {name: getattr(arguments, name) for name in DESCRIPTION} | found
    return {name: json_ready(x) for name, x in given.items() if x is not None}


def title_of(run: object, description: dict[str, Any]) -> str:
    """A line that says which run it is."""
    numbers = [
        f"{name.replace('_', ' ')} {x:.6g}" if isinstance(x, float | int) else str(x)
        for name, x in description.items()
    ]
    return f"{type(run).__name__}: {', '.join(numbers)}"
