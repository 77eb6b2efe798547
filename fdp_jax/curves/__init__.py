"""Curves: the three equivalent pictures of a guarantee, and questions put to them.

The privacy profile delta(eps), the trade-off function f(alpha) and the Bayes error
R(pi) are one object on one grid, eps = logit(pi), slope of f = -e^eps.
"""

from ._answers import (
    common_profile as common_profile,
    delta_of as delta_of,
)
from ._bounds import (
    DELTA as DELTA,
    EPSILON as EPSILON,
    LOGARITHM as LOGARITHM,
    Bound as Bound,
    Bounds as Bounds,
    LooseBoundWarning as LooseBoundWarning,
    Range as Range,
    Status as Status,
    bayes_error_range as bayes_error_range,
    beta_range as beta_range,
    between as between,
    classify as classify,
    intersection as intersection,
    one_end as one_end,
    tpr_range as tpr_range,
    uncrossed as uncrossed,
    with_attained as with_attained,
    with_gradient as with_gradient,
    within as within,
)
from ._by_name import (
    BY_ARGUMENT as BY_ARGUMENT,
    QUERIES as QUERIES,
    Query as Query,
    log_range as log_range,
)
from ._curve import (
    Curve as Curve,
    certainty as certainty,
    curve_by_rows as curve_by_rows,
    make_curve as make_curve,
    pessimistic as pessimistic,
)
from ._doubts import (
    is_loose as is_loose,
    is_nearly_tight as is_nearly_tight,
    is_vague as is_vague,
    is_wide as is_wide,
    leaves_doubt as leaves_doubt,
)
from ._grid_curve import GridCurve as GridCurve
from ._guarantee import AbstractGuarantee as AbstractGuarantee
from ._nodes import profile_by_rows as profile_by_rows
from ._queries import (
    ProfilePoint as ProfilePoint,
    at_any_length as at_any_length,
    bounds_of as bounds_of,
    elementwise as elementwise,
    epsilon_bounds as epsilon_bounds,
    ordered as ordered,
    over_signs as over_signs,
    signs_of as signs_of,
)
from ._subject import (
    Directed as Directed,
    Subject as Subject,
    profiles as profiles,
)
