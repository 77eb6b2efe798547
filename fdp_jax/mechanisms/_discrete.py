"""Mechanisms with discrete outputs, whose losses lie on a lattice."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks
from .._internal._logs import LOG_2
from ..losses import AtomicLoss, ComposedLoss
from ._base import AbstractMechanism, one_release
from ._black_box import AbstractTwoPoint
from ._fields import (
    EPSILON,
    OPTION,
    SCALE,
    as_float,
    parameter,
)
from ._relations import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    ZERO_OUT,
    NeighboringRelation,
    relation_field,
)

_HALF_WIDTH = 1 << 15
"""Integers to either side at which discrete Gaussian noise is represented."""
_MOST_INTEGER = 1 << 12
_REACH = 64.0
"""Scales to either side that are looked at."""


class _IntegerNoise(AbstractMechanism):
    """Noise on integers, for an integer statistic that moves by whole steps."""

    if TYPE_CHECKING:  # a field of this class would come before all others
        sensitivity: ClassVar[Any]
        """Number of whole steps by which neighbors differ."""

    def __check_init__(self):
        _checks.whole("sensitivity", self.sensitivity, 1, _MOST_INTEGER)

    def _group(self, size):
        farther = _checks.whole(
            "sensitivity", self.sensitivity * size, 1, _MOST_INTEGER
        )
        return dataclasses.replace(self, sensitivity=farther)


class DiscreteGaussian(_IntegerNoise):
    """Adds discrete Gaussian noise, P(x) proportional to exp(-x^2 / (2 scale^2)).

    For vectors with independent noise the sensitivity is the L1 one; the pair of the L2
    sensitivity does not dominate (Canonne, Kamath, Steinke 2020 go by zCDP).

    Args:
        scale: The parameter sigma, in (0, 4096].  Above about 800 the noise beyond
            32768 counts as an infinite loss.
        sensitivity: By how many whole steps neighbors differ, from 1 to 4096.
        truncation: If given, noise is limited to [-truncation, truncation] (sampled
            conditionally), at most 32768.
        relation: The neighboring relation the sensitivity refers to.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.DiscreteGaussian(2.0).repeat(10).epsilon(delta=1e-5):.6f}")
        7.495254

    References:
        Canonne, Kamath, Steinke (2020).
    """

    scale: Real[ArrayLike, ""] | None = parameter(
        "scale", _checks.discrete_scale, SCALE, default=None
    )
    sensitivity: int = eqx.field(static=True, default=1, kw_only=True, metadata=OPTION)
    truncation: int | None = eqx.field(static=True, default=None, kw_only=True)
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def __check_init__(self):
        if self.truncation is not None:
            _checks.whole("truncation", self.truncation, 1, _HALF_WIDTH)

    def loss(self) -> ComposedLoss:
        scale, step = as_float(self.scale), self.sensitivity
        width = self.truncation or _HALF_WIDTH
        outputs = np.arange(-width, width + step + 1)
        precision = 1 / jnp.square(scale)
        logs = -0.5 * precision * np.square(np.arange(-width, width + 1.0))
        logs = logs - jnp.log(jnp.sum(jnp.exp(logs)))
        none = jnp.full(step, -jnp.inf, logs.dtype)
        log_p, log_q = jnp.append(logs, none), jnp.append(none, logs)
        lost = None
        if self.truncation is None:
            # Outputs that both have, as far as there is any mass to speak of.
            reach = jnp.minimum(jnp.ceil(_REACH * scale), width)
            kept = (outputs >= step - reach) & (outputs <= reach)
            log_p, log_q = (jnp.where(kept, x, -jnp.inf) for x in (log_p, log_q))
            missing = _log_tail(scale, reach - step)
            lost = missing, missing
        unit = step * precision * (1.0 if step % 2 == 0 else 0.5)
        return one_release(AtomicLoss(log_p, log_q, unit, lost, symmetric=True))


def _log_tail(scale: Array, width: Array) -> Array:
    """Log of a bound on the mass beyond `width`, relative to that within.

    Terms fall at least by e^{-width / scale^2} each, and the one at 0 is 1.
    """
    some = width > 0  # else nothing is known
    width = jnp.where(some, width, 1.0)
    ratio = -width / jnp.square(scale)
    first = -0.5 * jnp.square((width + 1) / scale)
    bound = LOG_2 + first - jnp.log(-jnp.expm1(ratio))
    return jnp.where(some, jnp.minimum(bound, 0.0), 0.0)


class DiscreteLaplace(_IntegerNoise):
    """Adds discrete Laplace (geometric) noise, P(x) proportional to e^(-|x| / scale).

    Args:
        scale: In (0, inf); pure epsilon = sensitivity / scale.
        sensitivity: By how many whole steps neighbors differ (for vectors in L1), from
            1 to 4096.
        relation: The neighboring relation the sensitivity refers to.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> noise = fdp.DiscreteLaplace(2.0, sensitivity=3)
        >>> print(f"{noise.delta(epsilon=1.0):.6f}")
        0.244919

    References:
        Ghosh, Roughgarden, Sundararajan (2012).
    """

    scale: Real[ArrayLike, ""] | None = parameter(
        "scale", _checks.finite_positive, SCALE, default=None
    )
    sensitivity: int = eqx.field(static=True, default=1, kw_only=True, metadata=OPTION)
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def loss(self) -> ComposedLoss:
        rate, step = 1 / as_float(self.scale), self.sensitivity
        # The outputs 0 and below, those between, and `step` and above.
        outputs = np.arange(step + 1.0)
        end = -jnp.log1p(jnp.exp(-rate))
        inner = jnp.log(-jnp.expm1(-rate)) + end
        log_p = jnp.where((outputs == 0) | (outputs == step), end, inner)
        log_p = log_p - rate * outputs
        return one_release(AtomicLoss(log_p, log_p[::-1], rate, symmetric=True))


class RandomizedResponse(AbstractTwoPoint):
    """Reports a bit truthfully with odds e^epsilon: pure epsilon-DP, and tight.

    Args:
        epsilon: In [0, inf).
        relation: Replacing the record is the default; with another relation, epsilon
            must be the guarantee under that one.

    Raises:
        ValueError: If it is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.RandomizedResponse(1.0).repeat(2).advantage():.6f}")
        0.462117

    References:
        Warner (1965); Kairouz, Oh, Viswanath (2015).
    """

    epsilon0: Real[ArrayLike, ""] = eqx.field(metadata=EPSILON.metadata)
    relation: Any = relation_field(REPLACE_ONE)

    def __init__(self, epsilon: Any, *, relation: Any = REPLACE_ONE):
        self.epsilon0 = _checks.checked_scalar("epsilon", _checks.nonnegative, epsilon)
        self.relation = relation


class KaryRandomizedResponse(AbstractMechanism):
    """Reports one of k categories, the true one with odds e^epsilon to any other.

    Args:
        epsilon: In (0, inf).
        num_categories: k, at least 2.
        relation: REPLACE_ONE, where two categories exchange their roles, or ZERO_OUT,
            where an empty record is reported as any category, uniformly.

    Raises:
        ValueError: If a parameter is out of range or the relation is another one.

    Example:
        >>> import fdp_jax as fdp
        >>> report = fdp.KaryRandomizedResponse(1.0, num_categories=5)
        >>> print(f"{report.advantage():.6f}")
        0.255762

    References:
        Kairouz, Oh, Viswanath (2016).
    """

    epsilon0: Real[ArrayLike, ""] = eqx.field(metadata=EPSILON.metadata)
    num_categories: int = eqx.field(static=True, metadata=OPTION)
    relation: Any = relation_field(REPLACE_ONE)

    def __init__(
        self, epsilon: Any, *, num_categories: int, relation: Any = REPLACE_ONE
    ):
        self.epsilon0 = _checks.checked_scalar(
            "epsilon", _checks.finite_positive, epsilon
        )
        self.num_categories = _checks.whole("num_categories", num_categories, 2, 10**9)
        # A report cannot be absent.
        self.relation = _checks.member(
            "relation", NeighboringRelation, relation, (REPLACE_ONE, ZERO_OUT)
        )

    def loss(self) -> ComposedLoss:
        epsilon, k = as_float(self.epsilon0), self.num_categories
        others = jnp.log(jnp.exp(-epsilon) * (k - 1) + 1)
        true, false = -others, -epsilon - others
        if self.relation is ZERO_OUT:
            log_p = jnp.asarray([-math.log(k), math.log1p(-1 / k)], true.dtype)
            log_q = jnp.stack([true, false + math.log(k - 1)])
            return one_release(AtomicLoss(log_p, log_q))
        rest = false + (math.log(k - 2) if k > 2 else -math.inf)
        log_p = jnp.stack([true, rest, false])
        return one_release(AtomicLoss(log_p, log_p[::-1], epsilon, symmetric=True))
