"""Divergences of a mechanism and conversions into other notions of privacy.

Functions of a mechanism (or of its `.remove` or `.add`, or of a trade-off function,
which has the divergences of its `as_mechanism()`); `fdp_jax.divergences`.
"""

from ._approximations import clt_gdp as clt_gdp, edgeworth_beta as edgeworth_beta
from ._auc import auc as auc
from ._f_divergence import f_divergence as f_divergence
from ._gdp import GDPSummary as GDPSummary, gdp as gdp, gdp_regret as gdp_regret
from ._renyi import (
    chernoff_information as chernoff_information,
    chi_squared as chi_squared,
    kl as kl,
    max_divergence as max_divergence,
    renyi as renyi,
    renyi_dp as renyi_dp,
    squared_hellinger as squared_hellinger,
    total_variation as total_variation,
)
from ._zcdp import zcdp as zcdp
