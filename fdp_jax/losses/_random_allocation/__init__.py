"""Random allocation ("balls in bins"): every record in one of t batches of an epoch."""

from ._loss import (
    BracketedLoss as BracketedLoss,
    EnclosedLoss as EnclosedLoss,
    RandomAllocationLoss as RandomAllocationLoss,
)
from ._sums import LawSums as LawSums
