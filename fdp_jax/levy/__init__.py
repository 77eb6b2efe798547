"""Infinitely divisible privacy losses, by their Levy triplets.

A loss is infinitely divisible if for every n it is the sum of n independent losses of
one kind: what is left in the limit of many releases, of which each gives away little.
(Not to be confused with the divisibility of canonical noise, where trade-off functions
are composed as functions, for groups of records.)
"""

from ..mechanisms import (
    LevyTriplet as LevyTriplet,
    SubordinatedGaussian as SubordinatedGaussian,
)
from ._approximate import (
    LevyApproximation as LevyApproximation,
    from_density as from_density,
    small_jump_error as small_jump_error,
)
from ._limits import (
    CentralLimit as CentralLimit,
    central_limit as central_limit,
    jump_limit as jump_limit,
)
