"""`fdp-jax report`: everything about one run."""

import argparse

from .. import reports
from ._output import Output
from ._run import description_of, run_of, title_of
from ._status import OK, UNREACHABLE, VACUOUS


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Print and write the report; the exit status."""
    run, description = run_of(arguments), description_of(arguments)
    report = reports.privacy_report(run, delta=arguments.delta)
    output.say(report.text())
    output.write(report.to_dict() | {"run": description})
    output.draw(run, f"{title_of(run, description)}\n{report.guarantee}")
    return UNREACHABLE if report.epsilon.status == VACUOUS else OK
