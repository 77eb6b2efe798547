"""`fdp-jax epsilon`, `beta` and others: a number about a run, at one place or more."""

import argparse

from .. import reports
from ..curves import BY_ARGUMENT
from ..reports import Interval
from ._early import QUERIES
from ._output import Output
from ._run import description_of, run_of, title_of
from ._status import OK, UNREACHABLE, VACUOUS


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Print and write the answers; the exit status."""
    mechanism, description = run_of(arguments), description_of(arguments)
    asked, given = arguments.command.replace("-", "_"), QUERIES[arguments.command]
    # The advantage is delta at epsilon = 0.
    places = [0.0] if given is None else getattr(arguments, given)
    answers, lines = [], []
    for place in places:
        query = {given or "epsilon": place}
        bounds = mechanism.bounds(**query)
        found = Interval.of(bounds)
        at = "" if given is None else f" at {given} = {place:g}"
        lines.append(_line(asked, found, at, *query))
        entry = {"at": query, asked: found.to_dict(), "method": bounds.method}
        answers.append(entry)
        output.say(lines[-1])
        if found.status == VACUOUS:
            break
    several = {"answers": answers} if len(places) > 1 else answers[0]
    common = {"parameters": reports.parameters(mechanism), "run": description}
    output.write({"query": asked} | several | common)
    title = title_of(mechanism, description)
    output.draw(mechanism, f"{title}\n{lines[0]}")
    vacuous = any(a[asked]["status"] == reports.status_name(VACUOUS) for a in answers)
    return UNREACHABLE if vacuous else OK


def _line(name: str, found: Interval, place: str, given: str) -> str:
    if found.status == VACUOUS:
        return f"{name}: nothing could be certified{place}"
    lower, upper = (
        reports.round_down(found.lower, 10),
        reports.round_up(found.upper, 10),
    )
    above = BY_ARGUMENT[given].upper_is_pessimistic
    bound, other = (
        (f"<= {upper}", f"least {lower}") if above else (f">= {lower}", f"most {upper}")
    )
    words = [f"certified; at {other}"]
    if name == "epsilon" and found.upper < 0:
        words.append(
            "negative: delta exceeds the advantage of every attack, so a smaller "
            "delta would do for epsilon = 0"
        )
    return f"{name} {bound}{place} ({'; '.join(words)})"
