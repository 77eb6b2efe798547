"""Commands that answer a question about one run, or compare it with another one."""

import argparse

from .. import comparison, reports
from .._internal import _checks
from ..curves import BY_ARGUMENT, Status
from ..reports import Interval, round_down, round_up
from ._options import DESCRIPTION, NUMBERS, OK, QUERIES, UNREACHABLE
from ._output import Output
from ._run import description_of, run_of, title_of


def _status(found: Interval) -> int:
    return UNREACHABLE if found.status == Status.VACUOUS else OK


def query(arguments: argparse.Namespace, output: Output) -> int:
    """Print and write a number about a run, at one place or more; the exit status."""
    mechanism, description = run_of(arguments), description_of(arguments)
    asked, given = arguments.command.replace("-", "_"), QUERIES[arguments.command]
    # The advantage is delta at epsilon = 0.
    places = [0.0] if given is None else getattr(arguments, given)
    answers, lines, status = [], [], OK
    for place in places:
        at = {given or "epsilon": place}
        bounds = mechanism.bounds(**at)
        found = Interval.of(bounds)
        where = "" if given is None else f" at {given} = {place:g}"
        lines.append(_line(asked, found, where, *at))
        output.say(lines[-1])
        answers.append({"at": at, asked: found.to_dict(), "method": bounds.method})
        status = _status(found)
        if status != OK:
            break
    several = {"answers": answers} if len(places) > 1 else answers[0]
    common = {"parameters": reports.parameters(mechanism), "run": description}
    output.write({"query": asked} | several | common)
    output.draw(mechanism, f"{title_of(mechanism, description)}\n{lines[0]}")
    return status


def _line(name: str, found: Interval, place: str, given: str) -> str:
    if found.status == Status.VACUOUS:
        return f"{name}: nothing could be certified{place}"
    lower, upper = round_down(found.lower, 10), round_up(found.upper, 10)
    bound, other = f">= {lower}", f"most {upper}"
    if BY_ARGUMENT[given].upper_is_pessimistic:
        bound, other = f"<= {upper}", f"least {lower}"
    negative = name == "epsilon" and found.upper < 0
    more = (
        "; negative: delta exceeds the advantage of every attack, so a smaller delta "
        "would do for epsilon = 0"
    )
    return f"{name} {bound}{place} (certified; at {other}{more if negative else ''})"


def report(arguments: argparse.Namespace, output: Output) -> int:
    """Print and write the report of a run; the exit status."""
    run, description = run_of(arguments), description_of(arguments)
    found = reports.privacy_report(run, delta=arguments.delta)
    output.say(found.text())
    output.write(found.to_dict() | {"run": description})
    output.draw(run, f"{title_of(run, description)}\n{found.guarantee}")
    return _status(found.epsilon)


def compare(arguments: argparse.Namespace, output: Output) -> int:
    """Compare the run with another one; the exit status."""
    other = _other(arguments)
    found = comparison.compare(run_of(arguments), run_of(other))
    output.say(str(found))
    runs = {"a": description_of(arguments), "b": description_of(other)}
    output.write(found.to_dict() | {"runs": runs})
    return OK


def _other(arguments: argparse.Namespace) -> argparse.Namespace:
    """The other run: the same, but for what is said of it.

    Numbers of a scheme or a mechanism are not those of another one.
    """
    other = {name: getattr(arguments, f"other_{name}") for name in DESCRIPTION}
    said = {name: x for name, x in other.items() if x is not None}
    _checks.require(said, "say what differs in the other run: --other-num-steps ...")
    same_scheme = said.get("sampling", arguments.sampling) == arguments.sampling
    same = {
        name: getattr(arguments, name)
        for name in DESCRIPTION
        if "mechanism" not in said and (same_scheme or name not in NUMBERS)
    }
    return argparse.Namespace(**other | same | said)
