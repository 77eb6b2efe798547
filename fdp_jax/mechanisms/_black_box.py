"""Mechanisms of which only a guarantee is known: its worst pair stands for them."""

import abc
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks
from ..losses import ComposedLoss, LaplaceLoss, LogisticLoss, TwoPointLoss
from ._base import AbstractMechanism, AbstractWrapped, one_release
from ._exact import Exact, Family
from ._fields import (
    DELTA,
    EPSILON,
    as_float,
    option,
    parameter,
)
from ._relations import ADD_OR_REMOVE_ONE, relation_field


class AbstractTwoPoint(AbstractMechanism):
    """A mechanism whose worst pair is that of (epsilon, delta)-DP itself."""

    if TYPE_CHECKING:  # a field of this class would come before all others
        epsilon0: ClassVar[Any]
        """Epsilon, where delta is 0."""

    def _numbers(self) -> tuple[Any, Any]:
        """Epsilon and delta."""
        return self.epsilon0, getattr(self, "delta0", 0.0)

    def exact(self) -> Exact:
        return Exact(Family.APPROX_DP, self._numbers())

    def loss(self) -> ComposedLoss:
        return one_release(TwoPointLoss.of(*map(as_float, self._numbers())))


class ApproxDP(AbstractTwoPoint):
    """Any mechanism of which only (epsilon, delta)-DP is known: the worst such pair.

    Args:
        epsilon: In [0, inf).
        delta: In [0, 1].
        relation: The neighboring relation the guarantee is for.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.ApproxDP(epsilon=1.0, delta=0.05).beta(alpha=0.1):.6f}")
        0.678172

    References:
        Kairouz, Oh, Viswanath (2015), Theorem 3.3.
    """

    epsilon0: Real[ArrayLike, ""] | None = parameter(
        "epsilon", _checks.nonnegative, EPSILON
    )
    delta0: Real[ArrayLike, ""] | None = parameter("delta", _checks.probability, DELTA)
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def __init__(self, *, epsilon: Any, delta: Any, relation: Any = ADD_OR_REMOVE_ONE):
        self.epsilon0, self.delta0, self.relation = epsilon, delta, relation


class PureDP(AbstractTwoPoint):
    """Any mechanism of which only epsilon-DP is known: randomized response.

    Args:
        epsilon: In [0, inf).
        relation: The neighboring relation the guarantee is for.

    Raises:
        ValueError: If it is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.PureDP(0.1).repeat(100).epsilon(delta=1e-6):.4f}")
        4.7746

    References:
        Kairouz, Oh, Viswanath (2015).
    """

    epsilon0: Real[ArrayLike, ""] | None = parameter(
        "epsilon", _checks.nonnegative, EPSILON
    )
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def __init__(self, epsilon: Any, *, relation: Any = ADD_OR_REMOVE_ONE):
        self.epsilon0, self.relation = epsilon, relation


class PerfectPrivacy(AbstractTwoPoint):
    """Releases nothing about the record: f(alpha) = 1 - alpha.

    Args:
        relation: Any neighboring relation.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.PerfectPrivacy().beta(alpha=0.25):.2f}")
        0.75
    """

    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def _numbers(self):
        return 0.0, 0.0


class BlatantNonPrivacy(AbstractTwoPoint):
    """Tells the record: f = 0, delta = 1 at every epsilon.

    Args:
        relation: Any neighboring relation.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.BlatantNonPrivacy().advantage():.0f}")
        1
    """

    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def _numbers(self):
        return 0.0, 1.0


class AbstractChoice(AbstractMechanism):
    """The candidate with the best noisy score, of scores that the data decide.

    What counts is by how much one set of candidates beats the others.  Of one release
    every test of the pair has data, and two candidates, that attain it; but other tests
    have other data, so that compositions are bounds.  What certain data do leak: two
    candidates change places, which tells one bit.
    """

    @abc.abstractmethod
    def _halves(self) -> tuple[Array, Array]:
        """Half of what scores may move, r, over the scale; and e^r P(noise > r)."""

    def alone(self, way: str) -> AbstractMechanism:
        return _Alone.unchecked(mechanism=self)

    def attained(self) -> AbstractMechanism | None:
        return _TwoCandidates.unchecked(mechanism=self)


class _Alone(AbstractWrapped):
    """A single choice."""

    mechanism: AbstractChoice

    def attained(self) -> AbstractMechanism | None:
        return None

    def loss(self) -> ComposedLoss:
        return self.mechanism.loss()


class _TwoCandidates(_Alone):
    """A choice of two candidates that change places."""

    def loss(self) -> ComposedLoss:
        half, tail = self.mechanism._halves()
        # Log odds of the better one, rounded down.
        odds = (half + jnp.log(1 / tail - jnp.exp(-half))) * (1 - 1e-12) - 1e-15
        return one_release(TwoPointLoss.of(jnp.maximum(odds, 0.0), 0.0 * odds))


class _Selection(AbstractChoice):
    """Chooses a candidate by its noisy quality score."""

    epsilon0: Real[ArrayLike, ""] | None = parameter(
        "epsilon", _checks.finite_positive, EPSILON
    )
    monotonic: bool = option("monotonic", _checks.flag, default=False)
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def __init__(
        self,
        epsilon: Any,
        *,
        monotonic: bool = False,
        relation: Any = ADD_OR_REMOVE_ONE,
    ):
        self.epsilon0, self.monotonic, self.relation = epsilon, monotonic, relation

    def _range(self) -> Any:
        # Scores that all move the same way halve what a change can do.
        return as_float(self.epsilon0) * (0.5 if self.monotonic else 1.0)


class ExponentialMechanism(_Selection):
    """Chooses i with probability in proportion to exp(epsilon score_i / 2 sensitivity).

    It has epsilon-bounded range, half of that if the scores are monotonic.  The pair is
    the worst of that range: exact for one release, and a bound that composes adaptively
    (the optimal formula of Dong, Durfee, Rogers for equal releases is a little lower).
    The other end of `bounds` is then that of two candidates that change places, which
    is randomized response of epsilon / 2.

    Args:
        epsilon: In (0, inf), of the formula above.
        monotonic: Whether a change of the data moves all scores the same way.
        relation: The neighboring relation the score's sensitivity refers to.

    Raises:
        ValueError: If epsilon is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.ExponentialMechanism(1.0).advantage():.6f}")
        0.244919

    References:
        Durfee and Rogers (2019); Dong, Durfee, Rogers (2020).
    """

    def _halves(self):
        half = 0.5 * self._range()
        return half, jax.nn.sigmoid(half)

    def loss(self) -> ComposedLoss:
        return one_release(LogisticLoss(self._range()))


class PermuteAndFlip(_Selection):
    """Permute-and-flip with exp(epsilon (score_i - best) / (2 sensitivity)).

    It is report-noisy-max with exponential noise of scale b = 2 sensitivity / epsilon
    (Ding et al. 2021).  What counts for a set S of candidates is the difference X of
    the best noisy scores inside and outside of S, which neighbors move by at most
    2 sensitivity.  A maximum of shifted exponentials has a hazard rate of at most
    1 / b, so X has a density of at most min(F, 1 - F) / b, as a Laplace variable has:
    the Laplace pair of epsilon dominates.  Of one release two candidates attain it; of
    several the other end of `bounds` is that of two candidates that change places.  Its
    range is not bounded by epsilon.

    Args:
        epsilon: In (0, inf), of the formula above.
        monotonic: Whether a change of the data moves all scores the same way.
        relation: The neighboring relation the score's sensitivity refers to.

    Raises:
        ValueError: If epsilon is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.PermuteAndFlip(1.0).advantage():.6f}")
        0.393469

    References:
        McKenna and Sheldon (2020); Ding et al. (2021).
    """

    def _halves(self):
        half = 0.5 * self._range()
        return half, jnp.full_like(half, 0.5)

    def loss(self) -> ComposedLoss:
        return one_release(LaplaceLoss(1 / self._range()))
