"""`fdp-jax calibrate`: the parameter that just meets a target."""

import argparse

from .. import calibration, reports
from ._output import Output
from ._parser import SOLVABLE
from ._run import description_of, json_ready, run_of, title_of
from ._scheme import name_within
from ._status import OK, UNREACHABLE, VACUOUS

_TARGETS = "epsilon", "delta", "alpha", "beta", "advantage"


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Find the parameter; the exit status."""
    name = arguments.solve_for
    _require_the_rest(arguments, name)
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
        rising = name == "noise_multiplier"
        private_side = reports.round_up if rising else reports.round_down
        output.say(f"{name} = {private_side(value, 10)}")
        output.say(found.guarantee)
    description = description_of(arguments, **{name: value})
    given = {n: getattr(arguments, n) for n in _TARGETS}
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
        title = title_of(run_of(arguments, name), description)
        output.draw(found.mechanism, f"{title}\n{found.guarantee}")
    return UNREACHABLE if status == VACUOUS else OK


def _require_the_rest(arguments: argparse.Namespace, name: str) -> None:
    poisson = arguments.sampling == "poisson"
    others = SOLVABLE if poisson else ("noise_multiplier", "num_steps")
    known = {p: getattr(arguments, p) for p in others if p != name}
    missing = [_flag(p) for p, value in known.items() if value is None]
    if missing:
        raise ValueError(f"{' and '.join(missing)} must be given to find {name}")
    if getattr(arguments, name) is not None:
        raise ValueError(f"{_flag(name)} is what --solve-for asks for; leave it out")


def _name(arguments: argparse.Namespace, unknown: str) -> str:
    """The run's name of the number that is sought."""
    poisson = arguments.sampling == "poisson"
    return unknown if poisson else name_within(arguments, unknown)


def _target(arguments: argparse.Namespace) -> calibration.AbstractTarget:
    given = {name for name in _TARGETS if getattr(arguments, name) is not None}
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


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
