"""Random allocation ("balls in bins"): every record in one of t batches of an epoch."""

from ._any_base import dominating as dominating
from ._law import Laws as Laws
from ._loss import (
    BracketedLoss as BracketedLoss,
    EnclosedLoss as EnclosedLoss,
    RandomAllocationLoss as RandomAllocationLoss,
)
from ._quantized import dominated as dominated
from ._sums import LawSums as LawSums
