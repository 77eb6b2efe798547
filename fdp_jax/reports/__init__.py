"""Privacy reports: what to print, store and publish about one mechanism.

A report evaluates a mechanism once, at one delta, and keeps plain numbers: the
certified interval of epsilon in both directions, what an attacker can achieve at fixed
false positive rates, the advantage, the Bayes error, and the assumptions under which
all this holds. It comes after calibration and before plots and the command line.
Printed digits are rounded to the private side, so that the text is a bound too.

A receipt adds what others need to judge a training and to compute its privacy again:
the unit, the sampler, clipping and normalization, mu, and points of the curve.
"""

from .._internal._text import round_down as round_down, round_up as round_up
from ._format import (
    Interval as Interval,
    parameters as parameters,
    status_name as status_name,
    versions as versions,
)
from ._receipt import (
    Receipt as Receipt,
    receipt as receipt,
    require_words as require_words,
)
from ._report import (
    PrivacyReport as PrivacyReport,
    privacy_report as privacy_report,
)
