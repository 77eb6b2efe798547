"""Keeping account of a run while it goes on."""

from ._accountant import Accountant as Accountant
from ._filters import (
    AbstractFilter as AbstractFilter,
    GaussianFilter as GaussianFilter,
    RenyiFilter as RenyiFilter,
    ZCDPFilter as ZCDPFilter,
)
from ._odometers import (
    AbstractOdometer as AbstractOdometer,
    GaussianOdometer as GaussianOdometer,
    RenyiOdometer as RenyiOdometer,
    ZCDPOdometer as ZCDPOdometer,
)
