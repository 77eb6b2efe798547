"""`fdp-jax calibrate`: the parameter that just meets a target."""

import argparse
import textwrap

from .. import calibration, reports
from .._internal._show import short
from ._early import TARGETS
from ._output import Output
from ._run import description_of, json_ready, run_of
from ._scheme import name_within
from ._status import OK, UNREACHABLE, VACUOUS

_MOST = 100_000
"""Characters of a mechanism that was found."""


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Find the parameter; the exit status."""
    name = arguments.solve_for
    target = _target(arguments)
    found = calibration.calibrate(
        run_of(arguments, name),
        target,
        solve_for=_name(arguments, name),
        whole=arguments.whole,
    )
    value, status = float(found.value), int(found.status)
    if status == VACUOUS:
        output.say(f"{name}: no value could be certified to meet the target")
    else:
        falls = float(found.leaks) < 0
        private_side = reports.round_up if falls else reports.round_down
        output.say(f"{name} = {private_side(value, 10)}")
        output.say(found.guarantee)
    description = description_of(arguments, **{name: value})
    if arguments.mechanism is not None:
        description = {"mechanism": short(found.mechanism, most=_MOST)}
    given = {n: getattr(arguments, n) for n in TARGETS}
    output.write(
        {
            "solved_for": name,
            "value": json_ready(value),
            "guarantee": found.guarantee,
            "status": reports.status_name(status),
            "target": {n: x for n, x in given.items() if x is not None},
            "parameters": reports.parameters(found.mechanism),
            "run": description,
        }
    )
    if status != VACUOUS:
        output.draw(found.mechanism, textwrap.fill(found.guarantee, 120))
    return UNREACHABLE if status == VACUOUS else OK


def _name(arguments: argparse.Namespace, unknown: str) -> str:
    """The run's name of the number that is sought."""
    own = arguments.sampling in (None, "poisson")
    return unknown if own else name_within(arguments, unknown)


def _target(arguments: argparse.Namespace) -> calibration.AbstractTarget:
    given = {name for name in TARGETS if getattr(arguments, name) is not None}
    if given == {"epsilon", "delta"}:
        return calibration.targets.ApproxDP(
            epsilon=arguments.epsilon, delta=arguments.delta
        )
    if given == {"alpha", "beta"}:
        return calibration.targets.ErrorRates(
            alpha=arguments.alpha, beta=arguments.beta
        )
    if given == {"advantage"}:
        return calibration.targets.Advantage(arguments.advantage)
    raise ValueError(
        "give one target: --epsilon with --delta, --alpha with --beta, or --advantage"
    )
