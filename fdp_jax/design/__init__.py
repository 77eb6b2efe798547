"""Design: the best mechanism that meets a privacy target.

All of it rests on `calibrate`: one parameter is solved for, so that the constraint
holds at every step of an optimization, and the others are free.
"""

from ._budget import scale_to_budget as scale_to_budget, spend_rest as spend_rest
from ._learned import learn_noise as learn_noise
from ._minimize import Design as Design, minimize as minimize, pareto as pareto
from ._noise import NoiseDesign as NoiseDesign, optimal_noise as optimal_noise
