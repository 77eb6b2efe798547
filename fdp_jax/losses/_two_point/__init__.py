"""The pair of (epsilon, delta)-DP."""

from ._loss import TwoPointLoss as TwoPointLoss
