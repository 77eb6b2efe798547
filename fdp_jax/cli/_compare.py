"""`fdp-jax compare`: which of two runs is more private, and against whom."""

import argparse

from .. import comparison
from ._early import DESCRIPTION
from ._output import Output
from ._run import description_of, run_of
from ._scheme import NUMBERS
from ._status import OK


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Compare the run with another one; the exit status."""
    other = _other(arguments)
    found = comparison.compare(run_of(arguments), run_of(other))
    output.say(str(found))
    runs = {"a": description_of(arguments), "b": description_of(other)}
    output.write(found.to_dict() | {"runs": runs})
    return OK


def _other(arguments: argparse.Namespace) -> argparse.Namespace:
    """The other run: the same, but for what is said of it.

    Numbers of a scheme or a mechanism are not those of another one.
    """
    other = {name: getattr(arguments, f"other_{name}") for name in DESCRIPTION}
    if all(value is None for value in other.values()):
        raise ValueError("say what differs in the other run: --other-num-steps ...")
    scheme = other["sampling"]
    same_scheme = scheme is None or scheme == arguments.sampling
    for name in DESCRIPTION if other["mechanism"] is None else ():
        if other[name] is None and (same_scheme or name not in NUMBERS):
            other[name] = getattr(arguments, name)
    return argparse.Namespace(**other)
