"""The sampling scheme that arguments name."""

import argparse
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..sampling import AbstractSampling


class _Scheme(NamedTuple):
    kind: str
    """Its name in `fdp_jax.sampling`, which the parser does without."""
    names: dict[str, str]
    """Arguments of the command line, and what the scheme calls them."""


_PROB = {"sampling_prob": "prob"}
_SIZES = {"batch_size": "batch_size", "dataset_size": "dataset_size"}
_BATCHES = {"num_batches": "num_batches"}
SCHEMES = {
    "poisson": _Scheme("Poisson", _PROB),
    "fixed-size": _Scheme("FixedSize", _SIZES),
    "truncated-poisson": _Scheme("TruncatedPoisson", _PROB | _SIZES),
    "random-allocation": _Scheme("RandomAllocation", _BATCHES),
    "cyclic-poisson": _Scheme("CyclicPoisson", _PROB | {"num_groups": "num_groups"}),
    "shuffled-epochs": _Scheme("ShuffledEpochs", _BATCHES),
    "user-examples": _Scheme("UserLevel", _PROB | {"max_examples": "max_examples"}),
}
NUMBERS = tuple(dict.fromkeys(n for s in SCHEMES.values() for n in s.names))
"""All arguments that describe a scheme."""


def scheme_of(
    arguments: argparse.Namespace, unknown: str | None = None
) -> "AbstractSampling":
    """The scheme, with its numbers but for the one that is sought.

    Raises:
        ValueError: If an argument is missing, or is none of the scheme's.
    """
    from .. import sampling

    make = getattr(sampling, SCHEMES[arguments.sampling].kind)
    return make(**numbers_of(arguments, unknown))


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
    """The run's name of the number that is sought."""
    return SCHEMES[arguments.sampling].names.get(name, name)


def _flags(names: Any) -> str:
    ordered = [n for n in NUMBERS if n in names]
    return " and ".join("--" + n.replace("_", "-") for n in ordered)
