"""Audits: from guesses about membership to lower bounds that hold with confidence.

Evidence is `Counts` of right and wrong guesses, `Scores` of canaries, or the guesses of
`OneRun`.  All of it is host statistics: NumPy and SciPy on known numbers.
"""

from ._counts import Counts as Counts
from ._evidence import (
    AbstractEvidence as AbstractEvidence,
    Verdict as Verdict,
    epsilon_lower_bound as epsilon_lower_bound,
    falsifies as falsifies,
    mu_lower_bound as mu_lower_bound,
    tradeoff_points as tradeoff_points,
)
from ._limits import clopper_pearson as clopper_pearson
from ._one_run import OneRun as OneRun
from ._points import TradeOffPoints as TradeOffPoints
from ._scores import Scores as Scores, Split as Split
