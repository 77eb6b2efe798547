"""The Poisson-subsampled Gaussian."""

from ._loss import SubsampledGaussianLoss as SubsampledGaussianLoss
from ._separated import separated as separated
