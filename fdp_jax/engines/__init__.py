"""Engines: from a composed privacy loss to certified numbers.

In comes a `ComposedLoss`; out come intervals (`Interval`, `Profile`) for one direction
of its dominating pair.  Three engines stand behind `plan`/`profile`, `epsilon` and
`threshold`: closed forms, the spectral engine (contour integrals of the characteristic
function), and the grid engine (losses on a grid, composed by FFT); the last two with an
a-posteriori certificate.
"""

from .._internal._interval import (
    Interval as Interval,
    log_complement as log_complement,
    without as without,
)
from ._bounds import Profile as Profile, select as select
from ._closed_queries import exact_rates as exact_rates
from ._epsilon import (
    epsilon as epsilon,
    largest_epsilon as largest_epsilon,
    span as span,
)
from ._profile import LocalPlan as LocalPlan, plan as plan, profile as profile
from ._rare import can_split as can_split
from ._route import METHODS as METHODS, over as over, route as route
from ._shared import (
    Prepared as Prepared,
    log_delta_estimate as log_delta_estimate,
    log_delta_from as log_delta_from,
    prepare as prepare,
)
from ._spectral import rough_log_delta as rough_log_delta
from ._threshold import crossing as crossing, threshold as threshold
