"""`fdp-jax verify`: an answer computed again, by other means."""

import argparse
import json
import math
import pathlib
from typing import Any

from .. import interop, reports
from .._internal import _checks
from .._internal._text import json_ready
from ..curves import Status
from ..mechanisms import DPSGD, NeighboringRelation
from ..reports import Interval
from ._claims import UNCHECKED, Claim, claims_of, run_in
from ._options import OK, UNREACHABLE
from ._output import Output

_ENGINES = "grid", "contour", "closed_form"
_CLOSE = 1e-3
"""How far apart bounds by two engines may be, relatively, to confirm each other."""
_FEW_POINTS = 2**15
"""Of a grid that is asked first: it is close enough for most runs."""


_Known = dict[Any, tuple[str, Interval]]
"""Answers by questions."""


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Check all bounds of a file; 3 if one of them is contradicted."""
    document = _read(arguments.file)
    mechanism, claims = run_in(document), claims_of(document)
    if document["command"] in UNCHECKED:
        reports.require_words(mechanism, document)
    known: _Known = {}
    found = [_checked(claim, mechanism, document, known) for claim in claims]
    for one in found:
        output.say(one.pop("text"))
    verdicts = {one["verdict"] for one in found}
    worst = next(v for v in ("contradicted", "open", "confirmed") if v in verdicts)
    aside = UNCHECKED.get(document["command"])
    left = f" (not checked: {aside})" if aside else ""
    output.say(f"{arguments.file}: {_SUMMARY[worst]}{left}")
    output.write({"file": arguments.file, "verdict": worst, "bounds": found})
    return UNREACHABLE if worst == "contradicted" else OK


_SUMMARY = {
    "contradicted": "CONTRADICTED",
    "open": "not contradicted, but not everything could be confirmed",
    "confirmed": "confirmed",
}


def _read(name: str) -> dict[str, Any]:
    try:
        document = json.loads(pathlib.Path(name).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{name!r} is no JSON file: {error}") from error
    _checks.require(
        isinstance(document, dict), f"{name!r} is no answer that fdp-jax has written"
    )
    return document


def _checked(
    claim: Claim, mechanism: DPSGD, document: dict[str, Any], known: _Known
) -> dict[str, Any]:
    """One bound beside those of another engine, and of dp-accounting."""
    for points in (_FEW_POINTS, None):
        # Two bounds may be the ends of one answer.
        asked = claim.direction, *claim.query.items(), points
        if asked not in known:
            args = claim, mechanism, document.get("method"), points
            known[asked] = _other_engine(*args)
        engine, found = known[asked]
        verdict, distance = _verdict(claim, found)
        if verdict == "confirmed" or engine != "grid":
            break
    side = "at most" if claim.upper else "at least"
    rounded = reports.round_up if claim.upper else reports.round_down
    text = (
        f"{claim.what} {side} {rounded(claim.value, 10)}; by engine {engine}: "
        f"{found.text}: {verdict}"
    )
    if verdict == "confirmed":
        text += f" to {distance:.1g}"
    entry = {
        "bound": claim.what,
        "side": side,
        "value": json_ready(claim.value),
        "engine": engine,
        "found": found.to_dict(),
        "verdict": verdict,
    }
    peer = _peer_epsilon(claim, mechanism)
    if peer is not None:
        entry["dp_accounting"] = peer if isinstance(peer, str) else float(peer)
        shown = peer if isinstance(peer, str) else f"{peer:.10g} (no bound)"
        text += f"\n  dp-accounting: {shown}"
    return entry | {"text": text}


def _other_engine(
    claim: Claim, mechanism: DPSGD, used: str | None, points: int | None
) -> tuple[str, Interval]:
    """A question put to an engine that did not answer it before."""
    reasons = []
    for engine in _ENGINES:
        if used is not None and engine in used:
            continue
        try:
            size = points if engine == "grid" else None
            asked = claim.of(mechanism).using(engine, points=size)
            return engine, Interval.of(asked.bounds(**claim.query))
        except (ValueError, TypeError, AttributeError) as error:
            reasons.append(str(error))
    raise ValueError(f"no other engine answers for this run: {reasons[0]}")


def _verdict(claim: Claim, found: Interval) -> tuple[str, float]:
    """The verdict of an interval on a bound, and the distance of its two ends."""
    if claim.upper:
        wrong, end = found.lower > claim.value, found.upper
    else:
        wrong, end = found.upper < claim.value, found.lower
    if wrong and found.status != Status.VACUOUS:
        return "contradicted", math.inf
    if end == claim.value:
        return "confirmed", 0.0
    distance = abs(end - claim.value) / max(abs(end), abs(claim.value))
    return ("confirmed" if distance <= _CLOSE else "open"), distance


def _peer_epsilon(claim: Claim, mechanism: DPSGD) -> float | str | None:
    """The epsilon of dp-accounting, or why there is none; None for other questions.

    It is near a bound for usual deltas, and too small or infinite for small ones.
    """
    if not (claim.upper and claim.direction == "both" and "delta" in claim.query):
        return None
    try:
        import dp_accounting
    except ImportError:
        return "not installed"
    foreign = dp_accounting.UnsupportedEventError
    try:
        if mechanism.relation is NeighboringRelation.ZERO_OUT:
            return "has no zero-out relation"
        theirs = dp_accounting.NeighboringRelation[mechanism.relation.name]
        accountant = dp_accounting.pld.PLDAccountant(theirs)
        accountant.compose(interop.to_dp_event(mechanism))
        return float(accountant.get_epsilon(claim.query["delta"]))
    except (NotImplementedError, ValueError, TypeError, KeyError, foreign) as error:
        return f"no answer for this run ({' '.join(str(error).split())})"
