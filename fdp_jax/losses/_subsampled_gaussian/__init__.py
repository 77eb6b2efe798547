"""The Poisson-subsampled Gaussian."""

from ._loss import SubsampledGaussianLoss as SubsampledGaussianLoss
