"""Mechanisms with discrete outputs, whose losses lie on a lattice."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks
from .._internal._calls import explained
from .._internal._logs import LOG_2
from .._internal._precision import in_float64
from .._internal._tolerances import SKELLAM_MASS
from ..losses import AtomicLoss, ComposedLoss
from ._base import AbstractMechanism, one_release
from ._black_box import AbstractTwoPoint
from ._fields import (
    EPSILON,
    SCALE,
    Search,
    as_float,
    option,
    parameter,
)
from ._relations import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    ZERO_OUT,
    NeighboringRelation,
    relation_field,
)
from ._renyi import RenyiDP

_HALF_WIDTH = 1 << 15
"""Integers to either side at which discrete Gaussian noise is represented."""
_MOST_INTEGER = 1 << 12
_SHARES = Search(-1, 1.0, 1e6, 10.0, counts=True)
_NODES = 27
_ORDERS = np.concatenate([np.arange(2.0, 129), np.arange(136.0, 1025, 8)])
_REACH = 64.0
"""Scales to either side that are looked at."""


_scale = _checks.numbers_that_are("in (0, 4096]", lambda x: (x > 0) & (x <= 4096))


def _steps_apart() -> Any:
    return option(
        "sensitivity", _checks.whole, 1, _MOST_INTEGER, default=1, kw_only=True
    )


class _IntegerNoise(AbstractMechanism):
    """Noise on integers, for an integer statistic that moves by whole steps."""

    if TYPE_CHECKING:  # a field of this class would come before all others
        sensitivity: ClassVar[Any]
        """Number of whole steps by which neighbors differ."""

    def _group(self, size):
        return dataclasses.replace(self, sensitivity=self.sensitivity * size)


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

    scale: Real[ArrayLike, ""] | None = parameter("scale", _scale, SCALE, default=None)
    sensitivity: int = _steps_apart()
    truncation: int | None = option(
        "truncation",
        _checks.whole,
        1,
        _HALF_WIDTH,
        optional=True,
        default=None,
        kw_only=True,
    )
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def loss(self) -> ComposedLoss:
        scale, step = as_float(self.scale), self.sensitivity
        width = self.truncation or _HALF_WIDTH
        precision = 1 / jnp.square(scale)
        logs = -0.5 * precision * np.square(np.arange(width + 1.0))
        logs = logs - jnp.log(2 * jnp.sum(jnp.exp(logs)) - 1)
        reach = None
        if self.truncation is None:
            # As far as there is any mass to speak of.
            reach = jnp.minimum(jnp.ceil(_REACH * scale), width)
        log_p, log_q, lost = _moved(logs, step, reach)
        unit = step * precision * (1.0 if step % 2 == 0 else 0.5)
        return one_release(AtomicLoss(log_p, log_q, unit, lost, symmetric=True))


def _moved(logs: Array, step: int, reach: Array | None) -> tuple[Any, ...]:
    """Logarithms of the masses of noise, of what is `step` above it, and of the rest.

    Args:
        logs: Of the masses at 0, 1, ... of symmetric noise whose quotients of
            neighbors fall.
        step: Whole steps.
        reach: The farthest output that is kept, of those that both have; None for all.
    """
    whole, width = jnp.append(logs[:0:-1], logs), logs.size - 1
    none = jnp.full(step, -jnp.inf, logs.dtype)
    pair = jnp.append(whole, none), jnp.append(none, whole)
    if reach is None:
        return *pair, None
    outputs = np.arange(-width, width + step + 1)
    kept = (outputs >= step - reach) & (outputs <= reach)
    last = jnp.maximum(reach - step, 0).astype(int)
    after, ratio = logs[last + 1], logs[last + 1] - logs[last]
    # Left out is a geometric series at most; a little more than its rounding.
    missing = LOG_2 + 1e-9 + after - jnp.log(-jnp.expm1(ratio))
    missing = jnp.where(reach >= step, jnp.minimum(missing, 0.0), 0.0)
    return *(jnp.where(kept, x, -jnp.inf) for x in pair), (missing, missing)


_share_scale = _checks.numbers_that_are(
    "in [1.9, 4096]: sums of narrower ones are no discrete Gaussian",
    lambda x: (x >= 1.9) & (x <= 4096),
)


class DistributedDiscreteGaussian(_IntegerNoise):
    """Adds up discrete Gaussian noise of several participants (secure aggregation).

    The sum is no discrete Gaussian, but its probabilities are those of one of parameter
    sqrt(num_shares) scale up to factors e^{+-tau},

        tau = 10 sum_{k=1}^{n-1} exp(-2 pi^2 scale^2 k / (k + 1)).

    From scale 1.9 on that is less than 1e-14, which is not told from rounding.  At
    scale 1 it is 5e-4: narrow shares leak more than the sum's variance says.

    Args:
        scale: The parameter sigma of each share, in [1.9, 4096].  Where that of the sum
            is above about 800, the noise beyond 32768 counts as an infinite loss.
        num_shares: n, how many shares are added; count only those of participants who
            keep to the protocol and do not tell theirs.
        sensitivity: By how many whole steps neighbors' sums differ (for vectors in L1),
            from 1 to 4096.
        relation: The neighboring relation the sensitivity refers to.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> shares = fdp.DistributedDiscreteGaussian(2.0, num_shares=100)
        >>> print(f"{shares.repeat(100).epsilon(delta=1e-5):.4f}")
        1.9931

    References:
        Kairouz, Liu, Steinke (2021), "The Distributed Discrete Gaussian Mechanism for
        Federated Learning with Secure Aggregation", on sums of discrete Gaussians.
    """

    scale: Real[ArrayLike, ""] | None = parameter(
        "scale", _share_scale, Search(-1, 1.9, 4096.0, 2.0), default=None
    )
    num_shares: Real[ArrayLike, ""] | None = parameter(
        "num_shares", _checks.positive_count, _SHARES, default=None, kw_only=True
    )
    sensitivity: int = _steps_apart()
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def loss(self) -> ComposedLoss:
        scale = as_float(self.scale) * jnp.sqrt(as_float(self.num_shares))
        whole = DiscreteGaussian.unchecked(scale=scale, sensitivity=self.sensitivity)
        return whole.loss()


class Skellam(_IntegerNoise):
    """Adds Skellam noise: the difference of two Poisson variables of one mean.

    Sums of such noise are such noise again, so participants of a secure aggregation add
    shares of variance scale^2 / n each.  Its masses are log-concave: the pair at the
    full sensitivity is exact in one dimension, and for vectors in L1.

    Args:
        scale: Standard deviation of all noise together, in (0, 4096].  Above about 800
            the noise beyond 32768 counts as an infinite loss.
        sensitivity: By how many whole steps neighbors differ (for vectors in L1), from
            1 to 4096.
        relation: The neighboring relation the sensitivity refers to.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.Skellam(2.0).repeat(10).epsilon(delta=1e-5):.4f}")
        7.1231

    References:
        Agarwal, Kairouz, Liu (2021), "The Skellam Mechanism for Differentially Private
        Federated Learning".
    """

    scale: Real[ArrayLike, ""] | None = parameter("scale", _scale, SCALE, default=None)
    sensitivity: int = _steps_apart()
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def loss(self) -> ComposedLoss:
        scale, step = as_float(self.scale), self.sensitivity
        logs = _log_skellam(jnp.square(scale))
        # Tails are those of Poisson laws: little noise needs some more.
        most = jnp.ceil(_REACH * scale) + 4 * _REACH + step
        reach = jnp.minimum(most, _HALF_WIDTH - 1)
        log_p, log_q, lost = _moved(logs, step, reach)
        term = AtomicLoss(
            log_p, log_q, missing=lost, symmetric=True, mass_error=SKELLAM_MASS
        )
        return one_release(term)

    @staticmethod
    @explained(scale=_checks.one(_checks.finite_positive))
    def of_vectors(
        scale: Any, *, l2_sensitivity: Any, l1_sensitivity: Any = np.inf
    ) -> RenyiDP:
        """The bound for vectors of integers with independent noise, by both norms.

        D_t <= t l2^2 / (2 scale^2)
            + min(((2 t - 1) l2^2 + 6 l1) / (4 scale^4), 3 l1 / (2 scale^2))

        at whole orders t > 1; here those up to 128, and more sparsely up to 1024.

        Args:
            scale: Standard deviation of all noise together, in (0, inf).
            l2_sensitivity: Of the vector, in [1, inf), as of all integers but zeros.
            l1_sensitivity: At least the other one; its square, which is the largest of
                integers, if this is not given.

        Returns:
            A guarantee by Rényi divergences: it composes, and has every query.

        Raises:
            ValueError: If a number is out of range.

        Example:
            >>> import fdp_jax as fdp
            >>> release = fdp.Skellam.of_vectors(100.0, l2_sensitivity=20.0)
            >>> print(f"{release.repeat(10).epsilon(delta=1e-6):.4f}")
            3.1347

        References:
            Agarwal, Kairouz, Liu (2021), on shifted multi-dimensional Skellam laws.
        """
        l1 = _checks.checked_scalar("l1_sensitivity", _checks.positive, l1_sensitivity)
        l2 = _checks.checked_scalar("l2_sensitivity", _l2_norm, l2_sensitivity)
        l1 = _checks.error_if(
            l1,
            lambda x: x < l2 * (1 - 1e-9),
            "l1_sensitivity must be at least l2_sensitivity",
        )
        return RenyiDP(_ORDERS, _vector_divergences(scale, l1, l2))


_l2_norm = _checks.numbers_that_are(
    "a finite number, at least 1", lambda x: (x >= 1) & (x < np.inf)
)


@in_float64(cast_out=False)
def _vector_divergences(scale: Any, l1: Any, l2: Any) -> Array:
    """At the orders of `_ORDERS`; of integers the L1 norm is at most the squared L2."""
    variance, l2 = jnp.square(scale), jnp.square(l2)
    l1 = jnp.minimum(l1, l2)
    more = ((2 * _ORDERS - 1) * l2 + 6 * l1) / (4 * jnp.square(variance))
    return _ORDERS * l2 / (2 * variance) + jnp.minimum(more, 1.5 * l1 / variance)


def _log_skellam(variance: Array) -> Array:
    """Logarithms of e^-x I_k(x) for k = 0 to `_HALF_WIDTH`, with x the variance.

    By the trapezoidal rule for the integral of e^(x cosh z - k z) over a period through
    its saddle point z = asinh(k / x): nothing cancels there.
    """
    k = np.arange(_HALF_WIDTH + 1.0)
    size = jnp.sqrt(np.square(k) + jnp.square(variance))
    # A period, or as much of it as counts: e^-40 is left out.
    width = jnp.minimum(math.pi, 14 / jnp.sqrt(size))
    angle = width * np.linspace(0.0, 1.0, _NODES)[:, None]
    real = jnp.exp(-2 * size * jnp.square(jnp.sin(0.5 * angle)))
    weights = np.where(np.arange(_NODES) % (_NODES - 1) == 0, 1.0, 2.0)
    total = weights @ (real * jnp.cos(k * (jnp.sin(angle) - angle)))
    saddle = jnp.square(k) / (size + variance) - k * jnp.arcsinh(k / variance)
    return saddle + jnp.log(total * width / (2 * math.pi * (_NODES - 1)))


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
    sensitivity: int = _steps_apart()
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

    epsilon0: Real[ArrayLike, ""] | None = parameter(
        "epsilon", _checks.nonnegative, EPSILON
    )
    relation: Any = relation_field(REPLACE_ONE)

    def __init__(self, epsilon: Any, *, relation: Any = REPLACE_ONE):
        self.epsilon0, self.relation = epsilon, relation


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

    epsilon0: Real[ArrayLike, ""] | None = parameter(
        "epsilon", _checks.finite_positive, EPSILON
    )
    num_categories: int = option("num_categories", _checks.whole, 2, 10**9)
    relation: Any = relation_field(REPLACE_ONE)

    def __init__(
        self, epsilon: Any, *, num_categories: int, relation: Any = REPLACE_ONE
    ):
        self.epsilon0, self.num_categories = epsilon, num_categories
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
