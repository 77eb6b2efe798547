# The names that `import fdp_jax` offers, with their types; `__init__.py` reads them.

from . import (
    accounting as accounting,
    audit as audit,
    comparison as comparison,
    data as data,
    design as design,
    divergences as divergences,
    experiments as experiments,
    inference as inference,
    interop as interop,
    levy as levy,
    limits as limits,
    noise as noise,
    plot as plot,
    reports as reports,
    sampling as sampling,
    selection as selection,
    sweeps as sweeps,
    tradeoff as tradeoff,
    training as training,
)
from ._internal._precision import native_float32 as native_float32
from ._internal._refusals import (
    TracedValueError as TracedValueError,
    checked as checked,
)
from .accounting import Accountant as Accountant
from .calibration import (
    Calibration as Calibration,
    UnreachableTarget as UnreachableTarget,
    calibrate as calibrate,
    targets as targets,
)
from .comparison import (
    blackwell_dominates as blackwell_dominates,
    compare as compare,
    delta_divergence as delta_divergence,
)
from .curves import (
    AbstractGuarantee as AbstractGuarantee,
    Bound as Bound,
    Bounds as Bounds,
    Curve as Curve,
    GridCurve as GridCurve,
    LooseBoundWarning as LooseBoundWarning,
    Status as Status,
)
from .design import scale_to_budget as scale_to_budget
from .levy import (
    LevyTriplet as LevyTriplet,
    SubordinatedGaussian as SubordinatedGaussian,
)
from .mechanisms import (
    DPSGD as DPSGD,
    ZCDP as ZCDP,
    AboveThreshold as AboveThreshold,
    AbstractMechanism as AbstractMechanism,
    ApproxDP as ApproxDP,
    BlatantNonPrivacy as BlatantNonPrivacy,
    DiscreteGaussian as DiscreteGaussian,
    DiscreteLaplace as DiscreteLaplace,
    DistributedDiscreteGaussian as DistributedDiscreteGaussian,
    ExponentialMechanism as ExponentialMechanism,
    FromLogDensities as FromLogDensities,
    FromLossDistribution as FromLossDistribution,
    FromProbabilities as FromProbabilities,
    FromTradeOffPoints as FromTradeOffPoints,
    Gaussian as Gaussian,
    GeneralizedGaussian as GeneralizedGaussian,
    KaryRandomizedResponse as KaryRandomizedResponse,
    Laplace as Laplace,
    LastIterate as LastIterate,
    Logistic as Logistic,
    MatrixMechanism as MatrixMechanism,
    MixtureOfGaussians as MixtureOfGaussians,
    NeighboringRelation as NeighboringRelation,
    PartitionSelection as PartitionSelection,
    PerfectPrivacy as PerfectPrivacy,
    PermuteAndFlip as PermuteAndFlip,
    PoissonMechanism as PoissonMechanism,
    PoissonSubsampled as PoissonSubsampled,
    PureDP as PureDP,
    RandomizedResponse as RandomizedResponse,
    RandomRepeat as RandomRepeat,
    RenyiDP as RenyiDP,
    ReportNoisyMax as ReportNoisyMax,
    RevealedMixture as RevealedMixture,
    Schedule as Schedule,
    Sensitivity as Sensitivity,
    Shuffled as Shuffled,
    Skellam as Skellam,
    Staircase as Staircase,
    Subsampled as Subsampled,
    Tulap as Tulap,
    compose as compose,
)
from .montecarlo import monte_carlo as monte_carlo
from .noise import canonical_noise as canonical_noise
from .selection import SelectBest as SelectBest
from .sweeps import sweep as sweep

__version__: str
