"""Laws of the number of runs, by the mean and shape of dp_accounting's selection."""

from typing import Any

import numpy as np
from scipy import optimize

from .._internal import _checks
from .._internal._concrete import is_traced
from ..selection import (
    AbstractRepetitions,
    Geometric,
    NegativeBinomial,
    Poisson,
)


def law_of(mean: Any, shape: Any) -> AbstractRepetitions | None:
    """The law of this mean, None where it is one run; of shape inf a Poisson law."""
    known = not is_traced(mean, shape)
    _checks.require(known, "mean and shape must be known: call it outside of jit")
    mean, shape = float(mean), float(shape)
    if shape == np.inf:
        return Poisson(mean=mean)
    shape = float(_checks.nonnegative("shape", shape))
    _checks.require(1 <= mean < np.inf, "mean must be finite and at least 1", mean)
    if mean == 1:
        return None
    if shape == 1:
        return Geometric(success_prob=1 / mean)
    excess = lambda rate: _log_mean(rate, shape) - np.log(mean)
    options: Any = {"xtol": 1e-300, "rtol": 1e-15}
    rate: Any = optimize.brentq(excess, 1e-300, 700.0, **options)
    return NegativeBinomial(shape=shape, success_prob=np.exp(-rate))


def mean_and_shape(law: Any) -> tuple[float, float]:
    """The mean and the shape of a law."""
    number: Any = float
    if isinstance(law, Poisson):
        return number(law.expected), np.inf
    prob, shape = number(law.success_prob), number(law.shape)
    if shape == 1:
        return 1 / prob, shape
    return float(np.exp(_log_mean(-np.log(prob), shape))), shape


def _log_mean(rate: float, shape: float) -> float:
    """Log mean of a truncated negative binomial law that stops with exp(-rate)."""
    power = shape * rate
    share = -np.expm1(-power) / shape if power > 1e-300 else rate
    return float(rate + np.log(-np.expm1(-rate)) - np.log(share))
