"""Carries out a command.  Imported when it is known which: JAX takes a second."""

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import jax

from .. import calibration
from . import (
    _calibrate,
    _compare,
    _completion,
    _demo,
    _query,
    _report,
    _sweep,
    _verify,
    _warm,
)
from ._early import QUERIES
from ._output import Output
from ._progress import progress
from ._status import BAD_VALUE, PIPE_CLOSED, UNREACHABLE

_COMMANDS: dict[str, Callable[[argparse.Namespace, Output], int]] = {
    **dict.fromkeys(QUERIES, _query.run),
    "calibrate": _calibrate.run,
    "report": _report.run,
    "compare": _compare.run,
    "verify": _verify.run,
    "demo": _demo.run,
    "sweep": _sweep.run,
    "warm": _warm.run,
    "completion": _completion.run,
}


def _progress_of(arguments: argparse.Namespace) -> AbstractContextManager[None]:
    """A sweep has a progress bar of its own."""
    own = arguments.command == "sweep"
    return nullcontext() if own else progress(arguments.command)


def dispatch(arguments: argparse.Namespace) -> int:
    """Carry out the command; the exit status."""
    prefix = f"fdp-jax {arguments.command}: error:"
    try:
        output = Output(arguments)
        # An application, unlike the library, may choose its precision.
        with jax.enable_x64(True), _progress_of(arguments):
            status = _COMMANDS[arguments.command](arguments, output)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Python flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except calibration.UnreachableTarget as error:
        print(prefix, error, file=sys.stderr)
        return UNREACHABLE
    except (ValueError, TypeError, ImportError, OSError) as error:
        print(prefix, " ".join(str(error).split()), file=sys.stderr)
        return BAD_VALUE
