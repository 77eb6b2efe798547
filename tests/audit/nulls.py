"""Trade-off functions in NumPy, for tests that ask often and of nothing compiled."""

import dataclasses

import numpy as np
from scipy.stats import norm


@dataclasses.dataclass(frozen=True)
class Gaussian:
    mu: float

    def tpr(self, *, fpr):
        return norm.sf(norm.isf(fpr) - self.mu)

    def beta(self, *, alpha):
        return norm.cdf(norm.isf(alpha) - self.mu)


@dataclasses.dataclass(frozen=True)
class ApproxDP:
    epsilon: float
    delta: float

    def tpr(self, *, fpr):
        steep = self.delta + np.exp(self.epsilon) * fpr
        flat = 1 - np.exp(-self.epsilon) * (1 - self.delta - fpr)
        return np.minimum(np.minimum(steep, flat), 1.0)

    def beta(self, *, alpha):
        return 1 - self.tpr(fpr=alpha)


@dataclasses.dataclass(frozen=True)
class Subsampled:
    """One step of Poisson sampling with Gaussian noise: not symmetric."""

    mu: float
    prob: float

    def tpr(self, *, fpr):
        return (1 - self.prob) * fpr + self.prob * norm.sf(norm.isf(fpr) - self.mu)


@dataclasses.dataclass(frozen=True)
class Points:
    """Linear between the points of a ROC curve."""

    fpr: tuple[float, ...]
    power: tuple[float, ...]

    def tpr(self, *, fpr):
        return np.interp(fpr, self.fpr, self.power)
