"""Engines: from a composed privacy loss to certified numbers.

In comes a `ComposedLoss`; out come intervals (`Interval`, `Profile`) for one direction
of its dominating pair.  Three engines stand behind `plan`/`profile`, `epsilon` and
`threshold`: closed forms, the contour engine (integrals of the characteristic
function), and the grid engine (losses on a grid, composed by FFT); the last two with an
a-posteriori certificate.
"""

from .._internal._interval import (
    Interval as Interval,
    log_complement as log_complement,
    without as without,
)
from ._bounds import (
    Profile as Profile,
    largest_loss as largest_loss,
    select as select,
    width_of as width_of,
)
from ._contour_engine import rough_log_delta as rough_log_delta
from ._enclosed import is_bracketed as is_bracketed
from ._epsilon import (
    epsilon as epsilon,
    largest_epsilon as largest_epsilon,
    span as span,
)
from ._interface import AbstractEngine as AbstractEngine, AbstractPlan as AbstractPlan
from ._profile import (
    improved as improved,
    no_release as no_release,
    plan as plan,
    profile as profile,
)
from ._rare_queries import can_split as can_split, splits as splits
from ._route import (
    METHODS as METHODS,
    engine_of as engine_of,
    neutral as neutral,
    route as route,
)
from ._shared import (
    log_delta_estimate as log_delta_estimate,
    log_delta_from as log_delta_from,
    prepare as prepare,
)
from ._threshold import (
    exact_rates as exact_rates,
    threshold as threshold,
)
