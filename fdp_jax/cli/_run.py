"""The run that arguments describe."""

import argparse
import math
from typing import Any

from .. import mechanisms
from ._scheme import NUMBERS, numbers_of, scheme_of

PARAMETERS = "noise_multiplier", "num_steps"
DESCRIPTION = *PARAMETERS, "relation", "sampling", *NUMBERS
"""Names of all arguments that describe a run."""


def run_of(
    arguments: argparse.Namespace, unknown: str | None = None
) -> mechanisms.DPSGD:
    """The run, without the parameter that is sought."""
    named = {name: getattr(arguments, name) for name in PARAMETERS}
    named["relation"] = arguments.relation.replace("-", "_")
    if arguments.sampling == "poisson":
        prob = numbers_of(arguments, unknown).get("prob")
        return mechanisms.DPSGD(sampling_prob=prob, **named)
    return mechanisms.DPSGD(sampling=scheme_of(arguments, unknown), **named)


def description_of(
    arguments: argparse.Namespace, **found: float
) -> dict[str, str | float | None]:
    """The arguments that describe a run, as `verify` reads them."""
    given = {name: getattr(arguments, name) for name in DESCRIPTION} | found
    return {name: json_ready(x) for name, x in given.items() if x is not None}


def title_of(run: mechanisms.DPSGD, description: dict[str, Any]) -> str:
    """A line that says which run it is."""
    numbers = [
        f"{name.replace('_', ' ')} {x:.6g}" if isinstance(x, float | int) else str(x)
        for name, x in description.items()
    ]
    return f"{type(run).__name__}: {', '.join(numbers)}"


def json_ready(value: Any) -> Any:
    """The value, or the name of a number that JSON has none for."""
    bare = isinstance(value, float) and not math.isfinite(value)
    return f"{value:g}" if bare else value
