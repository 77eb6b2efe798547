"""Pictures of a curve: trade-off function, privacy profile and Bayes error.

`tradeoff`, `profile` and `bayes_error` take a mechanism or its curve and an optional
matplotlib `Axes`, draw on it and return it; `compare` does so for two guarantees,
`overlay` for several;
`posterior_band` and `power_envelope` show what an output can tell at most, `audit` what
an attack has told; `sweep_map` and `pareto_front` show a sweep, and `sweep_page` writes
one for browsers.
Figures are left to the caller. `save` writes a picture to a file. Matplotlib is
imported on the first call only (install the extra `plot`). Lines differ in dashes
and in colors that everybody can tell apart; `paper` has sizes for a paper's figures:

    with matplotlib.pyplot.rc_context(fdp.plot.paper()):
        ax = fdp.plot.overlay({"before": run, "after": other}, scale="log")
"""

from ._audit import audit as audit
from ._compare import bayes_error as bayes_error, compare as compare
from ._limits import posterior_band as posterior_band, power_envelope as power_envelope
from ._overlay import overlay as overlay
from ._page import sweep_page as sweep_page
from ._plot import (
    profile as profile,
    save as save,
    tradeoff as tradeoff,
)
from ._style import paper as paper
from ._sweep import pareto_front as pareto_front, sweep_map as sweep_map
