"""`fdp-jax delta`: delta at one or more epsilons."""

import argparse

from ._output import Output
from ._query import answer


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Answer the question; the exit status."""
    return answer(arguments, output, asked="delta", given="epsilon")
