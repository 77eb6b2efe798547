"""Privacy reports: what to print, store and publish about one mechanism.

A report evaluates a mechanism once, at one delta, and keeps plain numbers: the
certified interval of epsilon in both directions, what an attacker can achieve at fixed
false positive rates, the advantage, the Bayes error, and the assumptions under which
all this holds. It comes after calibration and before plots and the command line.
Printed digits are rounded to the private side, so that the text is a bound too.
"""

from .._internal._text import round_down as round_down, round_up as round_up
from ._format import (
    Interval as Interval,
    parameters as parameters,
    status_name as status_name,
    versions as versions,
)
from ._report import (
    PrivacyReport as PrivacyReport,
    privacy_report as privacy_report,
)
