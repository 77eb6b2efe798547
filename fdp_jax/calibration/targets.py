"""Targets of a calibration; `fdp_jax.targets`."""

from ._targets import (
    AbstractTarget as AbstractTarget,
    Advantage as Advantage,
    ApproxDP as ApproxDP,
    ErrorRates as ErrorRates,
)
