"""`fdp-jax epsilon`: epsilon at one or more deltas."""

import argparse

from ._output import Output
from ._query import answer


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Answer the question; the exit status."""
    return answer(arguments, output, asked="epsilon", given="delta")
