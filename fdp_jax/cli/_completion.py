"""`fdp-jax completion`: completions for a shell, to be sourced by it."""

import argparse

from .._internal._extras import imported
from ._options import OK
from ._output import Output


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Print the script; the exit status."""
    shtab = imported("shtab", "completion", "completion")
    from ._parser import build_parser

    output.say(shtab.complete(build_parser(), shell=arguments.shell))
    return OK
