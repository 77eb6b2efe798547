"""Mechanisms: what a user writes down, with every numeric parameter a leaf.

A mechanism states its neighboring relation and its dominating pair, as a composed
privacy loss, and answers queries (`AbstractGuarantee`) through the engines.
"""

from ._base import (
    AbstractMechanism as AbstractMechanism,
    NeighboringRelation as NeighboringRelation,
    View as View,
)
from ._composed import Composition as Composition, compose as compose
from ._renyi import ZCDP as ZCDP, AbstractRenyi as AbstractRenyi, RenyiDP as RenyiDP
from ._sampled import DPSGD as DPSGD, PoissonSubsampled as PoissonSubsampled
from ._simple import (
    ApproxDP as ApproxDP,
    Gaussian as Gaussian,
    Laplace as Laplace,
    RandomizedResponse as RandomizedResponse,
)
