"""Sampling: how a training loop draws its batches, and what may be claimed for it.

A scheme goes wherever `sampling_prob` goes: `DPSGD(noise_multiplier=..., sampling=...,
num_steps=...)` and `Subsampled(mechanism, sampling)`.
"""

from ..mechanisms import AbstractSampling as AbstractSampling, Sampling as Sampling
from ._allocation import RandomAllocation as RandomAllocation
from ._fixed_size import FixedSize as FixedSize
from ._min_separation import MinSeparation as MinSeparation
from ._poisson import CyclicPoisson as CyclicPoisson, Poisson as Poisson
from ._shuffled import ShuffledEpochs as ShuffledEpochs
from ._truncated import TruncatedPoisson as TruncatedPoisson
from ._users import UserLevel as UserLevel
from ._with_replacement import WithReplacement as WithReplacement
