"""The bounds that a JSON file states, and the run that they are about."""

import argparse
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from .. import reports
from .._internal import _checks
from .._internal._show import short
from ..mechanisms import AbstractMechanism, View
from ._options import DESCRIPTION, QUERIES, SCHEMES, TARGETS, USUAL
from ._run import run_of


class Claim(NamedTuple):
    """A bound of an answer to a query."""

    what: str
    value: float
    upper: bool
    query: dict[str, float]
    direction: str = "both"

    def of(self, mechanism: AbstractMechanism) -> AbstractMechanism | View:
        """The mechanism in the direction of the bound."""
        whole = self.direction == "both"
        return mechanism if whole else getattr(mechanism, self.direction)


def run_in(document: dict[str, Any]) -> Any:
    """The run that a file is about.

    Raises:
        ValueError: If it does not say.
    """
    given: Any = document.get("run")
    _checks.require(
        isinstance(given, dict) and given.keys() <= set(DESCRIPTION),
        'the file must say which run it is about: "run" has some of '
        + ", ".join(DESCRIPTION),
        short(given),
    )
    numbers = given if "mechanism" in given else USUAL | given
    _checks.require(
        numbers.get("sampling", "poisson") in tuple(SCHEMES),
        f"sampling must be one of {', '.join(SCHEMES)}",
        numbers.get("sampling"),
    )
    # Infinite numbers are strings, JSON has none.
    numbers = {k: float(x) if x == "inf" else x for k, x in numbers.items()}
    blank: dict[str, Any] = dict.fromkeys(DESCRIPTION)
    run = run_of(argparse.Namespace(**blank | numbers))
    stated = document.get("parameters", {})
    for name, value in reports.parameters(run).items():
        said = _number(stated, name) if name in stated else value
        _checks.require(
            math.isclose(said, value, rel_tol=1e-6),
            f"the file's parameters must be those of its run: {name} is {value:g}",
            f"{said:g}",
        )
    return run


UNCHECKED = {
    "report": "status",
    "receipt": "status, mu, unit, clipping, normalization, notes",
}
"""What is in documents that no second engine can judge."""


def claims_of(document: dict[str, Any]) -> list[Claim]:
    """All bounds of a file.

    Raises:
        ValueError: If it states none.
    """
    kind = _KINDS.get(str(document.get("command")))
    try:
        found = [] if kind is None else list(kind(document))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the file lacks {error}") from error
    _checks.require(
        found,
        f"the file must be a receipt or written by {', '.join(_KINDS)} with --json",
        f"command {document.get('command')!r}",
    )
    return found


def _of_query(document: dict[str, Any]) -> Iterator[Claim]:
    asked = document["query"]
    # The advantage is delta at epsilon = 0.
    name = QUERIES[asked.replace("_", "-")] or "epsilon"
    for entry in document.get("answers", [document]):
        at = {name: _number(entry["at"], name)}
        yield from _ends(asked, entry[asked], at)


def _number(entry: dict[str, Any], name: str) -> float:
    """A number of a file; infinite ones are texts there."""
    value = entry[name]
    return _checks.number(_checks.real)(
        f"{name!r} in the file", float(value) if value in ("inf", "-inf") else value
    )


def _ends(
    asked: str, interval: dict[str, Any], query: dict[str, float], direction="both"
) -> Iterator[Claim]:
    ((name, place),) = query.items()
    where = "" if direction == "both" else f" ({direction})"
    what = f"{asked} at {name} = {place:g}{where}"
    stated = {"estimate": interval["lower"]} | interval
    low, middle, high = (_number(stated, x) for x in ("lower", "estimate", "upper"))
    _checks.require(
        low > high or low <= middle <= high,
        f"{what}: the estimate must lie between the bounds",
        f"{middle:g}",
    )
    for end, upper in (("upper", True), ("lower", False)):
        yield Claim(what, _number(interval, end), upper, query, direction)


def _of_report(document: dict[str, Any]) -> Iterator[Claim]:
    query = {"delta": _number(document, "delta")}
    yield from _ends("epsilon", document["epsilon"], query)
    for direction, entry in document["directions"].items():
        yield from _ends("epsilon", entry["epsilon"], query, direction)
    attack = document["attack"]
    rates = attack["tpr_upper_at_fpr"]
    for fpr in rates:
        most = _number(rates, fpr)
        yield Claim(f"TPR at FPR = {fpr}", most, True, {"fpr": float(fpr)})
    most = _number(attack, "advantage_upper")
    yield Claim("advantage", most, True, {"epsilon": 0.0})
    least = _number(attack, "bayes_error_lower_at_prior_0.5")
    yield Claim("Bayes error at prior = 0.5", least, False, {"prior": 0.5})


def _of_receipt(document: dict[str, Any]) -> Iterator[Claim]:
    yield from _of_report(document)
    for point in document["curve"]:
        yield from _ends("beta", point["beta"], {"alpha": float(point["alpha"])})


def _of_calibration(document: dict[str, Any]) -> Iterator[Claim]:
    target = {name: _number(document["target"], name) for name in document["target"]}
    for names in TARGETS.values():
        if set(names) != target.keys():
            continue
        # Of error rates the first one is the place, of (epsilon, delta) the second.
        asked, *place = names[::-1] if "alpha" in target else names
        query = {name: target[name] for name in place}
        what = "".join([asked, *(f" at {name} = {x:g}" for name, x in query.items())])
        yield Claim(what, target[asked], asked != "beta", query or {"epsilon": 0.0})


_KINDS = {
    **dict.fromkeys(QUERIES, _of_query),
    "report": _of_report,
    "receipt": _of_receipt,
    "calibrate": _of_calibration,
}
