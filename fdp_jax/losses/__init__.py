"""Privacy losses: the first stage.

A dominating pair (P, Q) enters by its masses (`AbstractLoss`) and, if it has one, its
log-moment function Lambda(w) (`AnalyticLoss`).  Out comes all that an engine needs to
compose and invert it.
"""

from ._analytic import (
    AnalyticLoss as AnalyticLoss,
    CharacteristicBlock as CharacteristicBlock,
    is_analytic as is_analytic,
)
from ._analytic_revealed import revealed_mixture as revealed_mixture
from ._atomic import AtomicLoss as AtomicLoss
from ._base import AbstractLoss as AbstractLoss, CompoundJumps as CompoundJumps
from ._cells import Atoms as Atoms, Cells as Cells
from ._closed_form import AbstractClosedForm as AbstractClosedForm
from ._composed import AUTO as AUTO, ComposedLoss as ComposedLoss, Method as Method
from ._compound_poisson import (
    CompoundPoissonLoss as CompoundPoissonLoss,
    listed_jumps as listed_jumps,
)
from ._density import DensityLoss as DensityLoss
from ._displacing import DisplacingLoss as DisplacingLoss
from ._distribution import DistributionLoss as DistributionLoss
from ._gaussian import (
    GaussianForm as GaussianForm,
    GaussianLoss as GaussianLoss,
    total_mu as total_mu,
)
from ._gaussian_mixture import GaussianMixtureLoss as GaussianMixtureLoss
from ._glued import GluedLoss as GluedLoss, symmetrized as symmetrized
from ._laplace import LaplaceForm as LaplaceForm, LaplaceLoss as LaplaceLoss
from ._listed_outputs import (
    listed_outputs as listed_outputs,
    short_lists as short_lists,
)
from ._logistic import LogisticForm as LogisticForm, LogisticLoss as LogisticLoss
from ._loss_moments import LossMoments as LossMoments
from ._mass import MassLoss as MassLoss
from ._normal_mixtures import (
    LOST as LOST,
    Frame as Frame,
    NormalMixtures as NormalMixtures,
    bend as bend,
    densities as densities,
    kept_slip as kept_slip,
    log_kept as log_kept,
    where as where,
)
from ._normal_nodes import mesh_moments as mesh_moments
from ._normal_rules import (
    envelope as envelope,
    law_error as law_error,
    rule_error as rule_error,
    turned_error as turned_error,
)
from ._poisson import (
    PoissonLoss as PoissonLoss,
    normalized_jumps as normalized_jumps,
)
from ._random_allocation import (
    BracketedLoss as BracketedLoss,
    EnclosedLoss as EnclosedLoss,
    Laws as Laws,
    LawSums as LawSums,
    RandomAllocationLoss as RandomAllocationLoss,
    dominated as dominated,
    dominating as dominating,
)
from ._revealed import (
    Alternatives as Alternatives,
    RevealedLoss as RevealedLoss,
    single_losses as single_losses,
)
from ._schedule import ScheduleLoss as ScheduleLoss
from ._shuffled import (
    ShuffledLoss as ShuffledLoss,
    ShuffledOnce as ShuffledOnce,
)
from ._shuffled_responses import (
    AttainedOnce as AttainedOnce,
    ResponsesOnce as ResponsesOnce,
)
from ._subordinated import SubordinatedGaussianLoss as SubordinatedGaussianLoss
from ._subsampled import SubsampledLoss as SubsampledLoss
from ._subsampled_gaussian import (
    SubsampledGaussianLoss as SubsampledGaussianLoss,
    separated as separated,
)
from ._symmetrized_gaussian import SymmetrizedGaussianLoss as SymmetrizedGaussianLoss
from ._two_point import TwoPointLoss as TwoPointLoss
