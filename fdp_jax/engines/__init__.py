"""Engines: from a composed privacy loss to certified numbers.

In comes a `ComposedLoss`; out come intervals (`Interval`, `Profile`) for one direction
of its dominating pair.  Two engines stand behind `plan`/`profile`, `epsilon` and
`threshold`: closed forms, and the spectral engine (contour integrals of the
characteristic function, with an a-posteriori certificate).
"""

from ._bounds import (
    Interval as Interval,
    Profile as Profile,
    log_complement as log_complement,
    select as select,
)
from ._engine import (
    LocalPlan as LocalPlan,
    epsilon as epsilon,
    plan as plan,
    profile as profile,
    span as span,
    threshold as threshold,
)
from ._spectral import rough_log_delta as rough_log_delta
