"""What all trade-off functions can do."""

import abc
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._picture import Lines
from ..curves import (
    DELTA,
    QUERIES,
    Bound,
    Query,
    bayes_error_range,
    log_range,
)
from ..curves.optimum import optimal_rates, optimal_threshold
from ..curves.pointwise import AbstractPointwise, error_rate_bounds as _rates
from . import queries as _queries
from .knots import Knots

if TYPE_CHECKING:
    from ._views import BayesError, PrivacyProfile, TradeOff

_MORE = (
    Query(
        "log_beta", "alpha", False, lambda f, x: _rates(f, x, log=True)[0], log_range
    ),
    Query("log_tpr", "fpr", True, lambda f, x: _rates(f, x, log=True)[1], log_range),
    Query(
        "beta_at_tnr",
        "tnr",
        False,
        lambda f, x: _rates(f, x, complement=True)[0],
        lambda _: DELTA,
    ),
    Query("bayes_gain", "prior", True, _queries.bayes_gain_bounds, bayes_error_range),
)
"""Queries that a formula answers better than the difference of two others."""


class AbstractTradeOff(AbstractPointwise):
    """A trade-off function f = T(P, Q): convex, non-increasing, f(alpha) <= 1 - alpha.

    It answers the queries of every guarantee (`AbstractGuarantee`) for this one order
    of the pair, called remove: `delta(epsilon=)` is its privacy profile for every real
    epsilon and `bayes_error(prior=)` its Bayes error.  `inverse()` is the other order;
    if neighbors may take both, `symmetrized()` is the guarantee.

    References:
        Dong, Roth, Su (2022); Kaissis et al. (2024) for the Bayes error.
    """

    _room: ClassVar[str] = "tradeoff."
    _queries = QUERIES | {query.name: query for query in _MORE}

    def _drawn(self) -> Lines | None:
        return self.as_mechanism()._drawn()

    def _rates(self, log_alpha, log_tnr):
        return optimal_rates(self, log_alpha, log_tnr)

    def _log_slope(
        self, log_alpha: Float[Array, ""], log_tnr: Float[Array, ""]
    ) -> Float[Array, ""]:
        """log|f'|; one of the subgradients at a kink."""
        return optimal_threshold(self, log_alpha, log_tnr)

    def _kinks(self) -> Float[Array, " m"]:
        """Thresholds at which the profile is known to have kinks."""
        return jnp.zeros(0)

    @abc.abstractmethod
    def inverse(self) -> "AbstractTradeOff":
        """f^-1 = T(Q, P): the pair in the other order, direction "add".

        f^-1(b) is the least alpha with f(alpha) <= b.

        Returns:
            A trade-off function.
        """

    # ---------------------------------------------------------------- the queries

    def log_beta(
        self, *, alpha: Any, bound: Bound | str = Bound.PESSIMISTIC
    ) -> Float[Array, "..."]:
        """Natural logarithm of `beta`, finite however small beta is.

        Args:
            alpha: In [0, 1], the attacker's false positive rate.
            bound: Which end of the certified interval.

        Returns:
            log f(alpha), at most 0.

        Guarantee:
            Lower bound by default.

        Raises:
            ValueError: If alpha is outside [0, 1].
        """
        return self._end_of("log_beta", alpha, bound)

    def log_tpr(
        self, *, fpr: Any, bound: Bound | str = Bound.PESSIMISTIC
    ) -> Float[Array, "..."]:
        """Natural logarithm of the power `tpr`.

        Args:
            fpr: In [0, 1], the attacker's false positive rate.
            bound: Which end of the certified interval.

        Returns:
            log(1 - f(fpr)), at most 0.

        Guarantee:
            Upper bound by default.

        Raises:
            ValueError: If fpr is outside [0, 1].
        """
        return self._end_of("log_tpr", fpr, bound)

    def beta_at_tnr(
        self, *, tnr: Any, bound: Bound | str = Bound.PESSIMISTIC
    ) -> Float[Array, "..."]:
        """f(1 - tnr), with full relative accuracy as the true negative rate falls to 0.

        Args:
            tnr: In [0, 1], one minus the attacker's false positive rate.
            bound: Which end of the certified interval.

        Returns:
            The false negative rate of the best attack.

        Guarantee:
            Lower bound by default.

        Raises:
            ValueError: If tnr is outside [0, 1].
        """
        return self._end_of("beta_at_tnr", tnr, bound)

    def bayes_gain(
        self, *, prior: Any, bound: Bound | str = Bound.PESSIMISTIC
    ) -> Float[Array, "..."]:
        """Error that the output saves an attacker: min(pi, 1 - pi) - R(pi).

        The complement of `bayes_error`, accurate where that says almost nothing:
        (1 - pi) delta(logit pi) for pi >= 1/2.

        Args:
            prior: In [0, 1], the probability of H0 (record absent).
            bound: Which end of the certified interval.

        Returns:
            The gain, in [0, min(prior, 1 - prior)].

        Guarantee:
            Upper bound by default.

        Raises:
            ValueError: If prior is outside [0, 1].
        """
        return self._end_of("bayes_gain", prior, bound)

    def log_slope(self, *, alpha: Any) -> Float[Array, "..."]:
        """log|f'(alpha)|: the privacy loss at the threshold of the best test.

        It is also the epsilon whose f_{eps,delta(eps)} touches f at alpha.

        Args:
            alpha: In [0, 1].

        Returns:
            The logarithm of minus the slope, an estimate; at a kink, of one of the
            subgradients.  At 0 and 1 it is taken at 1e-304 from the end.

        Raises:
            ValueError: If alpha is outside [0, 1].
        """
        return _queries.slope(self, _checks.rate("alpha", alpha))

    @explained(bound=_checks.member_of(Bound))
    def fixed_point(
        self, *, bound: Bound | str = Bound.PESSIMISTIC
    ) -> Float[Array, ""]:
        """The error rate at which f(alpha) = alpha, in [0, 1/2].

        For symmetric f it is the Bayes error at prior 1/2, (1 - TV) / 2.

        Args:
            bound: Which end of the certified interval.

        Returns:
            The fixed point.

        Guarantee:
            Lower bound by default.
        """
        zero = np.zeros(())
        found = _queries.fixed_point_bounds(self, zero)
        return found.pick(bound, upper_is_pessimistic=False)

    # ------------------------------------------------------------ other functions

    @property
    def remove(self) -> "AbstractTradeOff":
        """This function: with the record against without."""
        return self

    @property
    def add(self) -> "AbstractTradeOff":
        """The inverse: without the record against with."""
        return self.inverse()

    def symmetrized(self) -> "AbstractTradeOff":
        """The guarantee if neighbors may take either order: min(f, f^-1)**.

        The largest trade-off function below f and f^-1; its profile is the larger of
        the two.  Compose first and symmetrize last: that is the better bound.

        Returns:
            A symmetric trade-off function.

        References:
            Dong, Roth, Su (2022), Proposition 2.7 (as min(f, f^-1)**).
        """
        from ._symmetric import Symmetrized

        return self if self._is_symmetric() else Symmetrized(self)

    def _is_symmetric(self) -> bool:
        """Whether f is its own inverse, whatever its parameters."""
        return False

    def symmetric_maximum(self) -> "AbstractTradeOff":
        """max(f, f^-1): what holds if f bounds *every ordered* pair of neighbors.

        Do not use it for one direction of a mechanism, where f^-1 is the other one;
        that is `symmetrized`.

        Returns:
            A symmetric trade-off function: exact if this one is symmetric or piecewise
            linear, between certified bounds on the default grid of `to_tradeoff` if
            not.

        References:
            Dong, Roth, Su (2022), Proposition 2.
        """
        return self if self._is_symmetric() else self.to_tradeoff().symmetric_maximum()

    def to_tradeoff(self, epsilons: Any = None) -> "TradeOff":
        """A piecewise-linear function between certified bounds.

        Args:
            epsilons: Thresholds of the grid, finite; the default reaches down to delta
                about 1e-15 on both sides.  A view has its grid already, and is taken
                over without loss.

        Returns:
            Its `TradeOff` view.

        Raises:
            ValueError: If a threshold is not finite.
        """
        from ._views import TradeOff

        return TradeOff.of(self, epsilons=epsilons)

    def to_profile(self, epsilons: Any = None) -> "PrivacyProfile":
        """The function of `to_tradeoff`, seen as a privacy profile.

        Args:
            epsilons: Thresholds of the grid, finite.

        Returns:
            Its `PrivacyProfile` view.

        Raises:
            ValueError: If a threshold is not finite.
        """
        from ._views import PrivacyProfile

        return PrivacyProfile.of(self, epsilons=epsilons)

    def to_bayes_error(self, epsilons: Any = None) -> "BayesError":
        """The function of `to_tradeoff`, seen as a Bayes error.

        Args:
            epsilons: Thresholds of the grid, finite; the priors are their sigmoids.

        Returns:
            Its `BayesError` view.

        Raises:
            ValueError: If a threshold is not finite.
        """
        from ._views import BayesError

        return BayesError.of(self, epsilons=epsilons)

    def as_mechanism(self) -> Any:
        """A mechanism, or a direction of one, with this trade-off function.

        For what is answered by mechanisms only: composition, and `fdp.divergences`.

        Returns:
            A mechanism (if f is symmetric) or its `.remove` or `.add`.

        Raises:
            TypeError: If there is none in the catalogue.
        """
        raise TypeError(f"{type(self).__name__} is not that of a listed mechanism")


class AbstractSymmetric(AbstractTradeOff):
    """A function that is its own inverse."""

    def _is_symmetric(self):
        return True

    def inverse(self) -> "AbstractSymmetric":
        """The function itself: it is symmetric."""
        return self


class AbstractPolygon(AbstractTradeOff):
    """A piecewise-linear function, known by its knots."""

    @abc.abstractmethod
    def _knots(self) -> Knots:
        """The knots; float64 inside a program."""

    def _point(self, epsilon):
        return self._knots().point(epsilon)

    def _rates(self, log_alpha, log_tnr):
        return self._knots().rates(log_alpha, log_tnr)

    def _ends(self):
        return self._knots().ends()

    def _log_slope(self, log_alpha, log_tnr):
        return self._knots().log_slope(log_alpha, log_tnr)

    def _kinks(self):
        return self._knots().epsilon
