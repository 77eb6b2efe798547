"""Which mechanisms have a trade-off function of a family with a name."""

import enum
from typing import Any, NamedTuple

import numpy as np

from .._internal._picture import Lines


class Family(enum.Enum):
    """Trade-off functions in closed form, with their parameters."""

    GAUSSIAN = "mu"
    LAPLACE = "mu of Laplace noise"
    LOGISTIC = "mu of logistic noise"
    APPROX_DP = "epsilon, delta"


_NOISE = {
    Family.GAUSSIAN: "norm",
    Family.LAPLACE: "laplace",
    Family.LOGISTIC: "logistic",
}
"""What scipy calls the law that is moved."""


class Exact(NamedTuple):
    """The trade-off function of a mechanism, in both directions."""

    family: Family
    parameters: tuple[Any, ...]

    def lines(self) -> Lines:
        """The curve for a drawing: nothing is certified, nothing compiled."""
        from scipy import stats  # half a second, for notebooks alone

        numbers = [float(np.asarray(x)) for x in self.parameters]
        alpha = np.linspace(0.0, 1.0, 65)
        if self.family is Family.APPROX_DP:
            epsilon, delta = numbers
            top, kink = 1 - delta, (1 - delta) / (1 + np.exp(min(epsilon, 700.0)))
            return (((0.0, kink, top, 1.0), (top, kink, 0.0, 0.0)),)
        noise = getattr(stats, _NOISE[self.family])
        return ((alpha, noise.cdf(noise.isf(alpha) - numbers[0])),)
