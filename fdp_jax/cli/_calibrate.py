"""`fdp-jax calibrate`: the parameter that just meets a target."""

import argparse
import textwrap

from .. import calibration, reports
from .._internal._show import short
from .._internal._text import json_ready
from ..curves import Status
from ._options import OK, SCHEMES, TARGETS, UNREACHABLE
from ._output import Output
from ._run import description_of, run_of

_MOST = 100_000
"""Characters of a mechanism that was found."""


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Find the parameter; the exit status."""
    name: str = arguments.solve_for
    given = {n: getattr(arguments, n) for names in TARGETS.values() for n in names}
    given = {n: x for n, x in given.items() if x is not None}
    # A probability of Poisson sampling is DP-SGD's own parameter.
    plain = arguments.sampling in (None, "poisson")
    own = {} if plain else SCHEMES[arguments.sampling].names
    found = calibration.calibrate(
        run_of(arguments, name),
        _target(given),
        solve_for=own.get(name, name),
        whole=arguments.whole,
    )
    value, status = float(found.value), int(found.status)
    if status == Status.VACUOUS:
        output.say(f"{name}: no value could be certified to meet the target")
    else:
        falls = float(found.leaks) < 0
        private_side = reports.round_up if falls else reports.round_down
        output.say(f"{name} = {private_side(value, 10)}")
        output.say(found.guarantee)
    description = description_of(arguments, **{name: value})
    if arguments.mechanism is not None:
        description = {"mechanism": short(found.mechanism, most=_MOST)}
    output.write(
        {
            "solved_for": name,
            "value": json_ready(value),
            "guarantee": found.guarantee,
            "status": reports.status_name(status),
            "target": given,
            "parameters": reports.parameters(found.mechanism),
            "run": description,
        }
    )
    if status != Status.VACUOUS:
        output.draw(found.mechanism, textwrap.fill(found.guarantee, 120))
    return UNREACHABLE if status == Status.VACUOUS else OK


def _target(given: dict[str, float]) -> calibration.AbstractTarget:
    for kind, names in TARGETS.items():
        if given.keys() == set(names):
            return getattr(calibration.targets, kind)(**given)
    raise ValueError(
        "give one target: --epsilon with --delta, --alpha with --beta, or --advantage"
    )
