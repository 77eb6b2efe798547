"""Canonical noise: additive noise that spends a trade-off function exactly."""

from ._discrete import RoundedNoise as RoundedNoise, rounded_noise as rounded_noise
from ._multivariate import (
    VectorNoise as VectorNoise,
    maximum_norm_guarantee as maximum_norm_guarantee,
    vector_noise as vector_noise,
)
from ._noise import (
    CanonicalNoise as CanonicalNoise,
    canonical_noise as canonical_noise,
)
from ._post_process import (
    PostProcessing as PostProcessing,
    post_process as post_process,
)
from ._verify import (
    CanonicalCheck as CanonicalCheck,
    verify_canonical as verify_canonical,
)
