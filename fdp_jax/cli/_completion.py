"""`fdp-jax completion`: completions for a shell, to be sourced by it."""

import argparse

from ._output import Output
from ._status import OK


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Print the script; the exit status."""
    try:
        import shtab  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "completions need shtab; install fdp-jax with the extra 'completion'"
        ) from error
    from ._parser import build_parser

    output.say(shtab.complete(build_parser(), shell=arguments.shell))
    return OK
