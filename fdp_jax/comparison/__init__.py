"""Comparing guarantees: by how much, where, and against which attackers.

The Delta-divergence (`delta_divergence`) is the largest difference of Bayes errors over
all priors, certified.  With it come Blackwell dominance and the points where curves
cross, the lattice operations, divergences weighted by a density of the prior, the order
that emerges after many releases, and a bound for reconstruction attacks.

Everything rests on one search (`explore`), which looks at both guarantees at the same
adaptively chosen thresholds.
"""

from ..losses import LossMoments as LossMoments
from ._arrays import (
    ArrayLimit as ArrayLimit,
    ArrayMoments as ArrayMoments,
    array_limit as array_limit,
    array_moments as array_moments,
)
from ._berry_esseen import berry_esseen_bound as berry_esseen_bound
from ._compare import (
    Attack as Attack,
    Comparison as Comparison,
    compare as compare,
    describe as describe,
)
from ._dominance import (
    Crossings as Crossings,
    Dominance as Dominance,
    blackwell_dominates as blackwell_dominates,
    crossing_priors as crossing_priors,
)
from ._emergent import (
    EmergentBound as EmergentBound,
    EmergentOrder as EmergentOrder,
    emergent_bound as emergent_bound,
    first_dominating_num_steps as first_dominating_num_steps,
)
from ._errors import (
    BayesErrors as BayesErrors,
    certified_bayes_errors as certified_bayes_errors,
)
from ._extremal import (
    distance_from_perfect_privacy as distance_from_perfect_privacy,
    minimax_error as minimax_error,
)
from ._lattice import Join as Join, Meet as Meet
from ._moments import loss_moments as loss_moments
from ._reconstruction import reconstruction_bound as reconstruction_bound
from ._weighted import (
    AverageErrors as AverageErrors,
    HyperPrior as HyperPrior,
    WeightedDivergence as WeightedDivergence,
    best_on_average as best_on_average,
    jeffreys as jeffreys,
    uquadratic as uquadratic,
    weighted_divergence as weighted_divergence,
)
from .delta import (
    DeltaDivergence as DeltaDivergence,
    delta_divergence as delta_divergence,
    symmetrized_divergence as symmetrized_divergence,
)
