"""Plain numbers and their JSON forms."""

import dataclasses
import importlib.metadata
import platform
from typing import Any

import jax
import numpy as np

from .._internal._calls import explained
from .._internal._text import json_ready, round_down, round_up

STATUS = ("certified", "loose", "vacuous")


@dataclasses.dataclass(frozen=True)
class Interval:
    """A certified interval and the most accurate value in it.

    Attributes:
        lower: Certified lower bound.
        estimate: Most accurate value; not a bound.
        upper: Certified upper bound.
        status: 0 certified, 1 valid but wide, 2 vacuous.
    """

    lower: float
    estimate: float
    upper: float
    status: int

    @classmethod
    def of(cls, bounds) -> "Interval":
        """Plain numbers of a `Bounds` object of scalars."""
        return cls(
            lower=float(bounds.lower),
            estimate=float(bounds.estimate),
            upper=float(bounds.upper),
            status=int(bounds.status),
        )

    @property
    def text(self) -> str:
        """The interval with its digits rounded outwards."""
        if self.status == 2:
            return "nothing could be certified"
        wide = ", but the interval is wide" if self.status == 1 else ""
        lower, upper = round_down(self.lower, 9), round_up(self.upper, 9)
        return f"in [{lower}, {upper}], certified{wide}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form; infinite values become the strings "inf" and "-inf"."""
        return {
            "lower": json_ready(self.lower),
            "estimate": json_ready(self.estimate),
            "upper": json_ready(self.upper),
            "status": status_name(self.status),
        }


def worse(first: Interval, second: Interval) -> Interval:
    """The interval of the larger of two quantities."""
    return Interval(
        lower=max(first.lower, second.lower),
        estimate=max(first.estimate, second.estimate),
        upper=max(first.upper, second.upper),
        status=max(first.status, second.status),
    )


@explained
def status_name(status: int) -> str:
    """Status in one word: certified, loose or vacuous."""
    return STATUS[status]


@explained
def parameters(mechanism) -> dict[str, float]:
    """Scalar numeric leaves of a mechanism by name, such as `parts[0].num_steps`."""
    leaves = jax.tree_util.tree_leaves_with_path(mechanism)
    return {
        jax.tree_util.keystr(path).lstrip("."): float(leaf)
        for path, leaf in leaves
        if np.shape(leaf) == ()
    }


@explained
def versions() -> dict[str, str]:
    """Versions of the software that computes the numbers."""
    names = {"fdp_jax": "fdp-jax", "jax": "jax", "numpy": "numpy"}
    found = {name: importlib.metadata.version(dist) for name, dist in names.items()}
    return found | {"python": platform.python_version()}
