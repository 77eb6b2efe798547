"""Which mechanisms have a trade-off function of a family with a name."""

import enum
from typing import Any, NamedTuple


class Family(enum.Enum):
    """Trade-off functions in closed form, with their parameters."""

    GAUSSIAN = "mu"
    LAPLACE = "mu of Laplace noise"
    LOGISTIC = "mu of logistic noise"
    APPROX_DP = "epsilon, delta"


class Exact(NamedTuple):
    """The trade-off function of a mechanism, in both directions."""

    family: Family
    parameters: tuple[Any, ...]
