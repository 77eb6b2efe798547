"""Mechanisms: what a user writes down, with every numeric parameter a leaf.

A mechanism states its neighboring relation and its dominating pair, as a composed
privacy loss, and answers queries (`AbstractGuarantee`) through the engines.
"""

from ._additive import (
    Gaussian as Gaussian,
    GeneralizedGaussian as GeneralizedGaussian,
    Laplace as Laplace,
    Logistic as Logistic,
    Staircase as Staircase,
    Tulap as Tulap,
)
from ._base import (
    AbstractMechanism as AbstractMechanism,
    AbstractWrapped as AbstractWrapped,
    View as View,
    least_of as least_of,
    one_release as one_release,
    require_guarantee as require_guarantee,
    require_mechanism as require_mechanism,
)
from ._black_box import (
    ApproxDP as ApproxDP,
    BlatantNonPrivacy as BlatantNonPrivacy,
    ExponentialMechanism as ExponentialMechanism,
    PerfectPrivacy as PerfectPrivacy,
    PermuteAndFlip as PermuteAndFlip,
    PureDP as PureDP,
)
from ._composed import (
    Composition as Composition,
    RevealedMixture as RevealedMixture,
    compose as compose,
)
from ._discrete import (
    DiscreteGaussian as DiscreteGaussian,
    DiscreteLaplace as DiscreteLaplace,
    DistributedDiscreteGaussian as DistributedDiscreteGaussian,
    KaryRandomizedResponse as KaryRandomizedResponse,
    RandomizedResponse as RandomizedResponse,
    Skellam as Skellam,
)
from ._exact import Exact as Exact, Family as Family
from ._fields import (
    COUNT as COUNT,
    NOISE as NOISE,
    OPTION as OPTION,
    RATE as RATE,
    STEPS as STEPS,
    Declared as Declared,
    Search as Search,
    as_float as as_float,
    as_known as as_known,
    as_number as as_number,
    at_full_precision as at_full_precision,
    identity as identity,
    is_number as is_number,
    is_one as is_one,
    is_zero as is_zero,
    option as option,
    parameter as parameter,
    product as product,
    quotient as quotient,
    search_of as search_of,
    where_released as where_released,
)
from ._joint import (
    Shared as Shared,
    raise_shared as raise_shared,
    require_alone as require_alone,
    require_joint as require_joint,
)
from ._last_iterate import LastIterate as LastIterate
from ._levy_triplet import LevyTriplet as LevyTriplet
from ._matrix import MatrixMechanism as MatrixMechanism
from ._noisy_choice import (
    AboveThreshold as AboveThreshold,
    PartitionSelection as PartitionSelection,
    ReportNoisyMax as ReportNoisyMax,
)
from ._poisson import PoissonMechanism as PoissonMechanism
from ._random_allocation import (
    BegunEpoch as BegunEpoch,
    RandomAllocationEpoch as RandomAllocationEpoch,
    SameBatchEpochs as SameBatchEpochs,
    gaussian_epoch as gaussian_epoch,
)
from ._random_repeat import RandomRepeat as RandomRepeat
from ._relations import (
    ADD_OR_REMOVE_ONE as ADD_OR_REMOVE_ONE,
    REPLACE_ONE as REPLACE_ONE,
    ZERO_OUT as ZERO_OUT,
    NeighboringRelation as NeighboringRelation,
    Sensitivity as Sensitivity,
    relation_field as relation_field,
)
from ._renyi import (
    ZCDP as ZCDP,
    AbstractRenyi as AbstractRenyi,
    RenyiDP as RenyiDP,
    compose_renyi as compose_renyi,
)
from ._renyi_composition import RenyiComposition as RenyiComposition
from ._resolve import (
    Resolved as Resolved,
    by_contour as by_contour,
    is_rare as is_rare,
    loss_like as loss_like,
    needs_no_splitting as needs_no_splitting,
    resolve as resolve,
)
from ._sampled import (
    DPSGD as DPSGD,
    ClippedSum as ClippedSum,
    MixtureOfGaussians as MixtureOfGaussians,
    PoissonSubsampled as PoissonSubsampled,
    SubsampledGroup as SubsampledGroup,
)
from ._sampling import (
    AbstractSampling as AbstractSampling,
    Sampling as Sampling,
    raise_not_proved as raise_not_proved,
)
from ._schedule import (
    Schedule as Schedule,
    can_be_stacked as can_be_stacked,
    stacked_loss as stacked_loss,
)
from ._shuffled import Shuffled as Shuffled
from ._subordinated import SubordinatedGaussian as SubordinatedGaussian
from ._subsampled import Subsampled as Subsampled
from ._user import (
    FromLogDensities as FromLogDensities,
    FromLossDistribution as FromLossDistribution,
    FromProbabilities as FromProbabilities,
    FromTradeOffPoints as FromTradeOffPoints,
)
