"""Reads the arguments, and has the command carried out."""

import importlib
import sys
from collections.abc import Sequence

from ._early import check
from ._options import BAD_VALUE
from ._parser import build_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; those of the process if None.

    Returns:
        The exit status: 0, 2 or 3 (see the package's docstring), or 141 where nobody
        reads the output any more.
    """
    arguments = build_parser().parse_args(argv)
    try:
        check(arguments)
    except (ValueError, OSError, ImportError) as error:
        print(f"fdp-jax {arguments.command}: error:", error, file=sys.stderr)
        return BAD_VALUE
    # Now for what takes a second, JAX among it.
    importlib.import_module("fdp_jax.mechanisms")
    from ._dispatch import dispatch

    return dispatch(arguments)
