"""One point of a run's profile, or several."""

import argparse

from .. import reports
from ..reports import Interval
from ._output import Output
from ._run import description_of, run_of, title_of
from ._status import OK, UNREACHABLE, VACUOUS


def answer(
    arguments: argparse.Namespace, output: Output, *, asked: str, given: str
) -> int:
    """Print and write the answers; the exit status."""
    run, description = run_of(arguments), description_of(arguments)
    places: list[float] = getattr(arguments, given)
    answers, lines = [], []
    for place in places:
        bounds = run.bounds(**{given: place})
        found = Interval.of(bounds)
        lines.append(_line(asked, found, f"{given} = {place:g}"))
        at = {"at": {given: place}, asked: found.to_dict(), "method": bounds.method}
        answers.append(at)
        output.say(lines[-1])
        if found.status == VACUOUS:
            break
    several = {"answers": answers} if len(places) > 1 else answers[0]
    common = {"parameters": reports.parameters(run), "run": description}
    output.write({"query": asked} | several | common)
    title = title_of(run, description)
    output.draw(run, f"{title}\n{lines[0]}")
    vacuous = any(a[asked]["status"] == reports.status_name(VACUOUS) for a in answers)
    return UNREACHABLE if vacuous else OK


def _line(name: str, found: Interval, place: str) -> str:
    if found.status == VACUOUS:
        return f"{name}: nothing could be certified at {place}"
    words = [f"certified; at least {reports.round_down(found.lower, 10)}"]
    if name == "epsilon" and found.upper < 0:
        words.append(
            "negative: delta exceeds the advantage of every attack, so a smaller "
            "delta would do for epsilon = 0"
        )
    upper = reports.round_up(found.upper, 10)
    return f"{name} <= {upper} at {place} ({'; '.join(words)})"
