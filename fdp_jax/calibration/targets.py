"""Targets of a calibration; `fdp_jax.targets`."""

from ._targets import (
    AbstractTarget as AbstractTarget,
    Advantage as Advantage,
    AllOf as AllOf,
    ApproxDP as ApproxDP,
    BayesError as BayesError,
    ErrorRates as ErrorRates,
    Reconstruction as Reconstruction,
)
from ._whole import (
    DeltaDivergence as DeltaDivergence,
    MuGDP as MuGDP,
    TradeOff as TradeOff,
)
