"""fdp_jax: certified, differentiable differential-privacy accounting in JAX.

The way of the data: losses -> engines -> curves -> mechanisms -> calibration -> reports.
"""

import importlib.metadata

from .curves import (
    AbstractGuarantee as AbstractGuarantee,
    Bound as Bound,
    Bounds as Bounds,
    Status as Status,
)
from .mechanisms import (
    DPSGD as DPSGD,
    AbstractMechanism as AbstractMechanism,
    ApproxDP as ApproxDP,
    Gaussian as Gaussian,
    Laplace as Laplace,
    NeighboringRelation as NeighboringRelation,
    PoissonSubsampled as PoissonSubsampled,
    RandomizedResponse as RandomizedResponse,
    compose as compose,
)

__version__ = importlib.metadata.version("fdp-jax")
