"""Mechanisms that add independent noise to a real statistic."""

import abc
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, ArrayLike, PyTree, Real

from .._internal import _checks
from .._internal._calls import explained
from .._internal._special import safe_log
from ..losses import (
    AbstractLoss,
    AtomicLoss,
    ComposedLoss,
    DensityLoss,
    GaussianLoss,
    LaplaceLoss,
    LogisticLoss,
)
from ._base import AbstractMechanism, one_release
from ._black_box import AbstractTwoPoint
from ._exact import Exact, Family
from ._fields import (
    DELTA,
    EPSILON,
    NOISE,
    Search,
    as_float,
    parameter,
    quotient,
    with_noise_over,
)
from ._relations import ADD_OR_REMOVE_ONE, Sensitivity, relation_field

_shape = _checks.numbers_that_are("in (1, 16]", lambda x: (x > 1) & (x <= 16))


class AdditiveNoise(AbstractMechanism):
    """A statistic plus noise, log-concave and symmetric about zero.

    The pair at the full sensitivity dominates all smaller shifts, because half-lines
    are the best tests and their power rises with the shift.  With independent noise in
    every coordinate that carries over to vectors in L1 (one coordinate at a time).
    """

    norms: ClassVar[tuple[str, ...]] = ()
    """Norms of the sensitivity for which the pair is proved to dominate."""

    if TYPE_CHECKING:  # a field of this class would come before all others
        noise_multiplier: ClassVar[Any]
        """Scale of the noise over the sensitivity."""

    @classmethod
    @explained(scale=_checks.positive)
    def for_sensitivity(
        cls, sensitivity: Sensitivity, *, scale: Any, **options: Any
    ) -> "AdditiveNoise":
        """The mechanism from the noise's own scale and a typed sensitivity.

        Args:
            sensitivity: Of the statistic; it also states the neighboring relation.
            scale: Of the noise (a Gaussian's standard deviation), in (0, inf].
            **options: Other parameters of the mechanism.

        Returns:
            The mechanism, with noise_multiplier = scale / sensitivity.

        Raises:
            ValueError: If the theorem does not cover the sensitivity's norm.
            TypeError: If it is not a `Sensitivity`.
        """
        wanted = Sensitivity, "a Sensitivity(value, norm=..., relation=...)"
        _checks.instance("sensitivity", sensitivity, *wanted)
        ratio = quotient(scale, sensitivity.in_norm(*cls.norms))
        named = {"noise_multiplier": ratio, "relation": sensitivity.relation}
        return cls(**named, **options)

    @abc.abstractmethod
    def _term(self, noise: Array) -> AbstractLoss:
        """The loss for a finite noise multiplier."""

    def loss(self) -> ComposedLoss:
        noise = as_float(self.noise_multiplier)
        # Nothing is released where the noise is infinite.
        released = noise != jnp.inf
        term = self._term(jnp.where(released, noise, 1.0))
        return ComposedLoss((term,), (jnp.where(released, 1.0, 0.0),), single=True)

    # The shift of a group is `size` times as far.
    _group = with_noise_over


def _noise_field() -> Any:
    return parameter("noise_multiplier", _checks.noise, NOISE, default=None)


class Gaussian(AdditiveNoise):
    """Adds Gaussian noise to a statistic; mu-GDP with mu = 1 / noise_multiplier.

    Args:
        noise_multiplier: Standard deviation of the noise over the L2 sensitivity under
            the stated relation, in (0, inf].
        relation: The neighboring relation the sensitivity refers to.

    Raises:
        ValueError: If it is not positive.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.Gaussian(1.0).epsilon(delta=1e-5):.6f}")
        4.377178

    References:
        Dong, Roth, Su (2022); Balle and Wang (2018).
    """

    noise_multiplier: Real[ArrayLike, ""] | None = _noise_field()
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    _divisible: ClassVar = True
    norms: ClassVar = ("l2", "absolute")

    def exact(self) -> Exact:
        return Exact(Family.GAUSSIAN, (quotient(1, self.noise_multiplier),))

    def _term(self, noise):
        return GaussianLoss(noise)


class Laplace(AdditiveNoise):
    """Adds Laplace noise to a statistic, independently in every coordinate.

    Args:
        noise_multiplier: Scale of the noise over the L1 sensitivity under the stated
            relation, in (0, inf]; pure epsilon = 1 / noise_multiplier.
        relation: The neighboring relation the sensitivity refers to.

    Raises:
        ValueError: If it is not positive.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.Laplace(1.0).delta(epsilon=0.5):.6f}")
        0.221199

    References:
        Dong, Roth, Su (2022), Section 2.
    """

    noise_multiplier: Real[ArrayLike, ""] | None = _noise_field()
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    norms: ClassVar = ("l1", "absolute")

    def exact(self) -> Exact:
        return Exact(Family.LAPLACE, (quotient(1, self.noise_multiplier),))

    def _term(self, noise):
        return LaplaceLoss(noise)


class Logistic(AdditiveNoise):
    """Adds logistic noise to a statistic, independently in every coordinate.

    Args:
        noise_multiplier: Scale of the noise over the L1 sensitivity under the stated
            relation, in (0, inf]; pure epsilon = 1 / noise_multiplier.
        relation: The neighboring relation the sensitivity refers to.

    Raises:
        ValueError: If it is not positive.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.Logistic(1.0).delta(epsilon=0.5):.6f}")
        0.077405
    """

    noise_multiplier: Real[ArrayLike, ""] | None = _noise_field()
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    norms: ClassVar = ("l1", "absolute")

    def exact(self) -> Exact:
        return Exact(Family.LOGISTIC, (quotient(1, self.noise_multiplier),))

    def _term(self, noise):
        return LogisticLoss(1 / noise)


class GeneralizedGaussian(AdditiveNoise):
    """Adds noise of density proportional to exp(-|x / scale|^shape), shape > 1.

    Its masses are Gauss-Legendre sums, whose error is estimated with a second rule.

    Args:
        noise_multiplier: Scale over the sensitivity, in (0, inf].  For vectors the L1
            sensitivity: the Lp one is not enough unless p is 1 or 2.
        shape: In (1, 16]; 2 is a Gaussian of standard deviation scale / sqrt(2).
        relation: The neighboring relation the sensitivity refers to.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> noise = fdp.GeneralizedGaussian(2**0.5, shape=2.0)
        >>> print(f"{noise.delta(epsilon=1.0):.6f}")
        0.126937
    """

    noise_multiplier: Real[ArrayLike, ""] | None = _noise_field()
    shape: Real[ArrayLike, ""] | None = parameter(
        "shape", _shape, Search(0, 1.001, 16.0, 2.0), default=None, kw_only=True
    )
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    norms: ClassVar = ("l1", "absolute")

    def _term(self, noise):
        shape = as_float(self.shape)
        # Beyond 800^(1 / shape) scales there is less mass than a float can hold.
        reach = noise * jnp.exp(jnp.log(800.0) / shape)
        return DensityLoss(
            log_p=_log_generalized,
            log_q=_log_generalized_shifted,
            parameters=(noise, shape),
            low=-reach,
            high=1 + reach,
            log_beyond=jnp.full_like(noise, -790.0),
            symmetric=True,
        )


def _log_generalized(x: Array, parameters: PyTree) -> Array:
    scale, shape = parameters
    size = jnp.abs(x) / scale
    zero = size == 0
    power = jnp.where(zero, 0, jnp.exp(shape * jnp.log(jnp.where(zero, 1, size))))
    return -power - jnp.log(2 * scale) - gammaln(1 + 1 / shape)


def _log_generalized_shifted(x: Array, parameters: PyTree) -> Array:
    return _log_generalized(x - 1, parameters)


class Staircase(AbstractMechanism):
    """Adds staircase noise to one number: the best noise of pure epsilon-DP.

    Args:
        epsilon: In (0, inf).
        gamma: Where the step lies between multiples of the sensitivity, in (0, 1].
        relation: The neighboring relation the (absolute) sensitivity refers to.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.Staircase(1.0, gamma=0.3).advantage():.6f}")
        0.423567

    References:
        Geng, Kairouz, Oh, Viswanath (2015).  The loss is +-epsilon or 0 at any shift;
        the mass at epsilon, like the total variation of a unimodal density from its
        shift, is largest at the full one.
    """

    epsilon0: Real[ArrayLike, ""] | None = parameter(
        "epsilon", _checks.finite_positive, EPSILON
    )
    gamma: Real[ArrayLike, ""] | None = parameter(
        "gamma", _checks.share, Search(0, 1e-3, 1.0, 0.5)
    )
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def __init__(self, epsilon: Any, *, gamma: Any, relation: Any = ADD_OR_REMOVE_ONE):
        self.epsilon0, self.gamma, self.relation = epsilon, gamma, relation

    def loss(self) -> ComposedLoss:
        epsilon, gamma = as_float(self.epsilon0), as_float(self.gamma)
        small = jnp.exp(-epsilon)
        inner = jnp.minimum(2 * gamma + small * jnp.maximum(1 - 2 * gamma, 0), 1)
        most = inner / (2 * (gamma + small * (1 - gamma)))
        log_most = jnp.log(most)
        # 1 - p (1 + e^-eps), without cancellation: with D = 2 (gamma + (1 - gamma) e).
        rest = jnp.abs(1 - 2 * gamma) * jnp.where(
            gamma < 0.5, small * -jnp.expm1(-epsilon), -jnp.expm1(-epsilon)
        )
        log_rest = safe_log(rest / (2 * (gamma + small * (1 - gamma))))
        log_p = jnp.stack([log_most, log_rest, log_most - epsilon])
        return one_release(AtomicLoss(log_p, log_p[::-1], epsilon, symmetric=True))


class Tulap(AbstractTwoPoint):
    """Adds Tulap noise, the canonical noise of (epsilon, delta)-DP, to one number.

    Args:
        epsilon: In [0, inf).
        delta: In [0, 1].
        relation: The neighboring relation under which the number moves by at most 1.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.Tulap(1.0).advantage():.6f}")
        0.462117

    References:
        Awan and Vadhan (2023): at a shift of 1 its trade-off function is exactly that
        of (epsilon, delta)-DP, at smaller shifts it is no smaller.
    """

    epsilon0: Real[ArrayLike, ""] | None = parameter(
        "epsilon", _checks.nonnegative, EPSILON
    )
    delta0: Real[ArrayLike, ""] | None = parameter("delta", _checks.probability, DELTA)
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def __init__(
        self, epsilon: Any, *, delta: Any = 0.0, relation: Any = ADD_OR_REMOVE_ONE
    ):
        self.epsilon0, self.delta0, self.relation = epsilon, delta, relation
