"""Carries out a command.  Imported when it is known which: JAX takes a second."""

import argparse
import importlib
import os
import sys

import jax

from .. import calibration
from ._options import BAD_VALUE, COMMANDS, PIPE_CLOSED, UNREACHABLE
from ._output import Output


def dispatch(arguments: argparse.Namespace) -> int:
    """Carry out the command; the exit status."""
    prefix = f"fdp-jax {arguments.command}: error:"
    module, name = COMMANDS[arguments.command].run.split(".")
    run = getattr(importlib.import_module(f".{module}", __package__), name)
    try:
        output = Output(arguments)
        # An application, unlike the library, may choose its precision.
        with jax.enable_x64(True):
            status = run(arguments, output)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Python flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except calibration.UnreachableTarget as error:
        print(prefix, error, file=sys.stderr)
        return UNREACHABLE
    except (ValueError, TypeError, ImportError, OSError, RecursionError) as error:
        print(prefix, " ".join(str(error).split()), file=sys.stderr)
        return BAD_VALUE
