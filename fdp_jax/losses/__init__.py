"""Privacy losses: the first stage.

A dominating pair (P, Q) enters as its log-moment function Lambda(w); see
`AbstractLoss`.  Out comes all that an engine needs to compose and invert it.
"""

from ._base import (
    FREQUENCY_BLOCK as FREQUENCY_BLOCK,
    AbstractLoss as AbstractLoss,
    Atoms as Atoms,
    Cells as Cells,
    CharacteristicBlock as CharacteristicBlock,
)
from ._composed import ComposedLoss as ComposedLoss
from ._gaussian import GaussianLoss as GaussianLoss
from ._laplace import LaplaceLoss as LaplaceLoss
from ._subsampled_gaussian import SubsampledGaussianLoss as SubsampledGaussianLoss
from ._two_point import TwoPointLoss as TwoPointLoss
