"""Calibration: solve a mechanism's parameter for a target on its curve.

In comes a mechanism with one parameter open and a target; out comes the value at which
the certified guarantee just meets the target, differentiable in everything else.
"""

from . import targets as targets
from ._calibrate import calibrate as calibrate
from ._calibration import Calibration as Calibration
from ._require import require_target as require_target
from ._targets import (
    AbstractTarget as AbstractTarget,
    UnreachableTarget as UnreachableTarget,
    require_reachable as require_reachable,
)
