"""Targets of a calibration; `fdp_jax.targets`."""

from ._all_of import AllOf as AllOf
from ._targets import (
    AbstractTarget as AbstractTarget,
    Advantage as Advantage,
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
