"""The sampling scheme that arguments name."""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import sampling


class _Scheme(NamedTuple):
    make: Callable[..., sampling.AbstractSampling]
    names: dict[str, str]
    """Arguments of the command line, and what the scheme calls them."""


_PROB = {"sampling_prob": "prob"}
_SIZES = {"batch_size": "batch_size", "dataset_size": "dataset_size"}
SCHEMES = {
    "poisson": _Scheme(sampling.Poisson, _PROB),
    "fixed-size": _Scheme(sampling.FixedSize, _SIZES),
    "truncated-poisson": _Scheme(sampling.TruncatedPoisson, _PROB | _SIZES),
    "random-allocation": _Scheme(
        sampling.RandomAllocation, {"num_batches": "num_batches"}
    ),
    "cyclic-poisson": _Scheme(
        sampling.CyclicPoisson, _PROB | {"num_groups": "num_groups"}
    ),
    "shuffled-epochs": _Scheme(sampling.ShuffledEpochs, {"num_batches": "num_batches"}),
    "user-examples": _Scheme(
        sampling.UserLevel, _PROB | {"max_examples": "max_examples"}
    ),
}
NUMBERS = tuple(dict.fromkeys(n for s in SCHEMES.values() for n in s.names))
"""All arguments that describe a scheme."""


def scheme_of(
    arguments: argparse.Namespace, unknown: str | None = None
) -> sampling.AbstractSampling:
    """The scheme, with its numbers but for the one that is sought.

    Raises:
        ValueError: If an argument is missing, or is none of the scheme's.
    """
    return SCHEMES[arguments.sampling].make(**numbers_of(arguments, unknown))


def numbers_of(
    arguments: argparse.Namespace, unknown: str | None = None
) -> dict[str, Any]:
    """The scheme's numbers by its own names, but for the one that is sought.

    Raises:
        ValueError: If an argument is missing, or is none of the scheme's.
    """
    scheme = SCHEMES[arguments.sampling]
    given = {n: getattr(arguments, n) for n in NUMBERS}
    given = {name: value for name, value in given.items() if value is not None}
    wanted = set(scheme.names) - {unknown}
    missing, foreign = wanted - set(given), set(given) - wanted
    if missing:
        raise ValueError(
            f"{_flags(missing)} must be given with --sampling {arguments.sampling}"
        )
    if foreign:
        raise ValueError(
            f"{_flags(foreign)} means nothing with --sampling {arguments.sampling}"
            + (f" --solve-for {unknown}" if unknown in foreign else "")
        )
    return {scheme.names[n]: value for n, value in given.items()}


def name_within(arguments: argparse.Namespace, name: str) -> str:
    """What the run calls the number that is sought."""
    return SCHEMES[arguments.sampling].names.get(name, name)


def _flags(names: Any) -> str:
    ordered = [n for n in NUMBERS if n in names]
    return " and ".join("--" + n.replace("_", "-") for n in ordered)
