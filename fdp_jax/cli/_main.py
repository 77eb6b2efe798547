"""The commands themselves."""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax

from .. import calibration, mechanisms, plot, reports
from ..reports import Interval
from ._demo import demo
from ._parser import SOLVABLE, build_parser
from ._scheme import name_within, numbers_of, scheme_of
from ._sweep import sweep

_OK, _BAD_VALUE, _UNREACHABLE = 0, 2, 3
_VACUOUS = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; those of the process if None.

    Returns:
        The exit status: 0, 2 or 3 (see the package's docstring).
    """
    arguments = build_parser().parse_args(argv)
    prefix = f"fdp-jax {arguments.command}: error:"
    try:
        # An application, unlike the library, may choose its precision.
        with jax.enable_x64(True):
            return _COMMANDS[arguments.command](arguments)
    except calibration.UnreachableTarget as error:
        print(prefix, error, file=sys.stderr)
        return _UNREACHABLE
    except (ValueError, ImportError, OSError) as error:
        print(prefix, " ".join(str(error).split()), file=sys.stderr)
        return _BAD_VALUE


def _epsilon(arguments: argparse.Namespace) -> int:
    run = _run(arguments)
    found = Interval.of(run.bounds(delta=arguments.delta))
    return _answer(arguments, run, "epsilon", found, {"delta": arguments.delta})


def _delta(arguments: argparse.Namespace) -> int:
    run = _run(arguments)
    found = Interval.of(run.bounds(epsilon=arguments.epsilon))
    return _answer(arguments, run, "delta", found, {"epsilon": arguments.epsilon})


def _answer(
    arguments: argparse.Namespace,
    run,
    name: str,
    found: Interval,
    at: dict[str, float],
) -> int:
    place = ", ".join(f"{k} = {v:g}" for k, v in at.items())
    if found.status == _VACUOUS:
        print(f"{name}: nothing could be certified at {place}")
    else:
        print(
            f"{name} <= {reports.round_up(found.upper, 10)} at {place} "
            f"(certified; at least {reports.round_down(found.lower, 10)})"
        )
    _write(arguments, run, {"query": name, "at": at, name: found.to_dict()})
    return _UNREACHABLE if found.status == _VACUOUS else _OK


def _calibrate(arguments: argparse.Namespace) -> int:
    name = arguments.solve_for
    poisson = arguments.sampling == "poisson"
    others = SOLVABLE if poisson else ("noise_multiplier", "num_steps")
    known = {p: getattr(arguments, p) for p in others if p != name}
    missing = [_flag(p) for p, value in known.items() if value is None]
    if missing:
        raise ValueError(f"{' and '.join(missing)} must be given to find {name}")
    if getattr(arguments, name) is not None:
        raise ValueError(f"{_flag(name)} is what --solve-for asks for; leave it out")
    found = calibration.calibrate(
        _run(arguments, name), _target(arguments), solve_for=_name(arguments, name)
    )
    value, status = float(found.value), int(found.status)
    if status == _VACUOUS:
        print(f"{name}: no value could be certified to meet the target")
    else:
        private_side = (
            reports.round_up if name == "noise_multiplier" else reports.round_down
        )
        print(f"{name} = {private_side(value, 10)}")
        print(found.guarantee)
    answer = {
        "solved_for": name,
        "value": value,
        "guarantee": found.guarantee,
        "status": reports.status_name(status),
    }
    _write(arguments, found.mechanism, answer)
    return _UNREACHABLE if status == _VACUOUS else _OK


def _report(arguments: argparse.Namespace) -> int:
    run = _run(arguments)
    report = reports.privacy_report(run, delta=arguments.delta)
    print(report.text())
    _write(arguments, run, report.to_dict())
    return _UNREACHABLE if report.epsilon.status == _VACUOUS else _OK


def _demo(arguments: argparse.Namespace) -> int:
    demo(pathlib.Path(arguments.output))
    return _OK


def _sweep(arguments: argparse.Namespace) -> int:
    quiet = False if arguments.quiet else None
    found = sweep(arguments.file, arguments.out, arguments.plot, progress=quiet)
    print(found.summary())
    return _OK


_COMMANDS = {
    "epsilon": _epsilon,
    "delta": _delta,
    "calibrate": _calibrate,
    "report": _report,
    "demo": _demo,
    "sweep": _sweep,
}


def _run(arguments: argparse.Namespace, unknown: str | None = None) -> mechanisms.DPSGD:
    named = {
        name: getattr(arguments, name) for name in ("noise_multiplier", "num_steps")
    }
    named["relation"] = arguments.relation.replace("-", "_")
    if arguments.sampling == "poisson":
        prob = numbers_of(arguments, unknown).get("prob")
        return mechanisms.DPSGD(sampling_prob=prob, **named)
    return mechanisms.DPSGD(sampling=scheme_of(arguments, unknown), **named)


def _name(arguments: argparse.Namespace, unknown: str) -> str:
    """What the run calls the number that is sought."""
    poisson = arguments.sampling == "poisson"
    return unknown if poisson else name_within(arguments, unknown)


def _target(arguments: argparse.Namespace) -> calibration.AbstractTarget:
    given = {
        name
        for name in ("epsilon", "delta", "alpha", "beta", "advantage")
        if getattr(arguments, name) is not None
    }
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


def _write(arguments: argparse.Namespace, run, answer: dict[str, Any]) -> None:
    if arguments.json is not None:
        answer = {"command": arguments.command} | answer
        answer.setdefault("parameters", reports.parameters(run))
        answer.setdefault("versions", reports.versions())
        text = json.dumps(answer, indent=2, allow_nan=False) + "\n"
        pathlib.Path(arguments.json).write_text(text, encoding="utf-8")
    if arguments.plot is not None:
        plot.save(run, arguments.plot)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
