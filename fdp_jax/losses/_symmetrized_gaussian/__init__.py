"""Gaussian noise where a record may displace another one."""

from ._loss import SymmetrizedGaussianLoss as SymmetrizedGaussianLoss
