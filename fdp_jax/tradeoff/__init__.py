"""Trade-off functions as objects: three views of one curve, and closed forms.

    TradeOff  alpha -> f(alpha)     PrivacyProfile  eps -> delta     BayesError  pi -> R

are one object on one grid (eps = logit pi, slope of f = -e^eps).  All trade-off
functions answer the queries of a guarantee.
"""

from ._base import (
    AbstractSymmetric as AbstractSymmetric,
    AbstractTradeOff as AbstractTradeOff,
)
from ._derived import Group as Group, Mixture as Mixture, Subsampled as Subsampled
from ._dominating import dominating_pair as dominating_pair
from ._families import (
    AbstractLocation as AbstractLocation,
    ApproxDP as ApproxDP,
    BlatantNonPrivacy as BlatantNonPrivacy,
    Gaussian as Gaussian,
    Identity as Identity,
    Laplace as Laplace,
    Logistic as Logistic,
)
from ._piecewise import PiecewiseLinear as PiecewiseLinear
from ._poisson import Poisson as Poisson
from ._quantized import QuantizedGaussian as QuantizedGaussian, quantized as quantized
from ._symmetric import Inverse as Inverse, Symmetrized as Symmetrized
from ._validate import (
    check_bayes_error as check_bayes_error,
    check_profile as check_profile,
    check_tradeoff as check_tradeoff,
)
from ._views import (
    BayesError as BayesError,
    LossAtoms as LossAtoms,
    PrivacyProfile as PrivacyProfile,
    TradeOff as TradeOff,
)
