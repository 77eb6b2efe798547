"""Curves: the three equivalent pictures of a guarantee, and questions put to them.

The privacy profile delta(eps), the trade-off function f(alpha) and the Bayes error
R(pi) are one object on one grid, eps = logit(pi), slope of f = -e^eps.
"""

from ._bounds import (
    Bound as Bound,
    Bounds as Bounds,
    LooseBoundWarning as LooseBoundWarning,
    Status as Status,
)
from ._curve import Curve as Curve, GridCurve as GridCurve
from ._guarantee import AbstractGuarantee as AbstractGuarantee
from ._subject import Subject as Subject
