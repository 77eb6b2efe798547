"""Private selection: the best of a random number of runs, with the cost of tuning."""

from ._laws import (
    AbstractRepetitions as AbstractRepetitions,
    Geometric as Geometric,
    Logarithmic as Logarithmic,
    NegativeBinomial as NegativeBinomial,
    Poisson as Poisson,
)
from ._select_best import SelectBest as SelectBest
