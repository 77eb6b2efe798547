"""fdp_jax: certified, differentiable differential-privacy accounting in JAX.

The way of the data:
losses -> engines -> curves -> mechanisms -> divergences -> calibration -> reports
-> plot -> cli.
"""

import importlib.metadata

from . import data as data, divergences as divergences, plot as plot, reports as reports
from ._internal._precision import native_float32 as native_float32
from .calibration import (
    Calibration as Calibration,
    UnreachableTarget as UnreachableTarget,
    calibrate as calibrate,
    targets as targets,
)
from .curves import (
    AbstractGuarantee as AbstractGuarantee,
    Bound as Bound,
    Bounds as Bounds,
    Curve as Curve,
    GridCurve as GridCurve,
    Status as Status,
)
from .mechanisms import (
    DPSGD as DPSGD,
    ZCDP as ZCDP,
    AbstractMechanism as AbstractMechanism,
    ApproxDP as ApproxDP,
    Gaussian as Gaussian,
    Laplace as Laplace,
    NeighboringRelation as NeighboringRelation,
    PoissonSubsampled as PoissonSubsampled,
    RandomizedResponse as RandomizedResponse,
    RenyiDP as RenyiDP,
    compose as compose,
)

__version__ = importlib.metadata.version("fdp-jax")
