"""One curve seen from three sides: f(alpha), delta(eps) and R(pi) on one grid."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import mechanisms
from .._internal import _checks
from .._internal._calls import explained
from .._internal._precision import Outward, in_float64
from ..curves import AbstractGuarantee, Bound
from ..curves.logs import halfway
from . import _construct
from ._base import AbstractPolygon
from ._bracket import bracket
from ._construct import with_mirror
from .knots import Knots

_FORMER = "TradeOff.from_points (no guarantee) is now TradeOff.from_error_rates"


class LossAtoms(NamedTuple):
    """The distribution of a privacy loss with finitely many values."""

    loss: Float[Array, " n"]
    """Finite values of log dQ/dP, in increasing order."""
    without_record: Float[Array, " n"]
    """Their probabilities under P."""
    with_record: Float[Array, " n"]
    """Probabilities under Q."""
    minus_infinity: Float[Array, ""]
    """P(X = -inf): outputs that the record excludes."""
    plus_infinity: Float[Array, ""]
    """Q(Y = inf): outputs that only the record makes possible."""


_FROM_ABOVE = "log_delta", "log_reverse", "log_tpr", "log_end", "log_reverse_end"
"""Numbers that the knots of a lower bound of f bound from above, not from below."""


class _View(AbstractPolygon):
    """A piecewise-linear curve, or two with the true one in between."""

    knots: Knots
    """Knots of a lower bound of f: an upper bound of delta, a lower one of R."""
    optimistic: Knots | None = None
    """Knots of an upper bound of f; none if the curve is exact."""

    def _knots(self):
        return self.knots

    def _point(self, epsilon):
        return self._between(lambda knots: knots.point(epsilon))

    def _rates(self, log_alpha, log_tnr):
        return self._between(lambda knots: knots.rates(log_alpha, log_tnr))

    def _ends(self):
        return self._between(Knots.ends)

    def _between(self, ask: Callable[[Knots], Any]) -> Any:
        """The answer of the exact curve, or what is halfway between those of both."""
        found = ask(self.knots)
        if self.optimistic is None:
            return found
        low, high = vars(found), vars(ask(self.optimistic))
        return type(found)(
            *(
                halfway(high[name], low[name])
                if name in _FROM_ABOVE
                else halfway(low[name], high[name])
                for name in low
            )
        )

    @classmethod
    def of(cls, guarantee: AbstractGuarantee, *, epsilons: Any = None) -> Self:
        """Any guarantee between tangents and chords, both certified.

        The pessimistic curve is the maximum of the supporting lines
        1 - delta(eps_i) - e^{eps_i} alpha, with upper bounds of delta; the optimistic
        one joins points of the curve, with upper bounds of beta.  Both are convex, and
        what is proved of `guarantee` stays proved of them.

        Args:
            guarantee: A mechanism, one of its directions, a curve or a trade-off
                function.
            epsilons: Thresholds of the grid, a vector of finite numbers (0 is added),
                known outside of transformations; the default reaches down to delta
                about 1e-15 in both orders of the pair, and is the own grid of a view,
                which is taken over without loss.

        Returns:
            A view of the guarantee under its own direction or directions.

        Raises:
            ValueError: If a threshold is not finite.
            TypeError: If the argument is not a guarantee.
        """
        if isinstance(guarantee, _View) and epsilons is None:
            return cls(guarantee.knots, guarantee.optimistic)
        return cls(*bracket(guarantee, epsilons))

    @property
    def epsilon_grid(self) -> Float[Array, " n"]:
        """The shared grid: logit of the prior, log of minus the slope of f."""
        return self.knots.epsilon

    @property
    def is_exact(self) -> bool:
        """Whether this is a function itself, not bounds of one."""
        return self.optimistic is None

    def inverse(self) -> Self:
        """f^-1: the same grid with the other sign."""
        return self._changed(_exchanged)

    def _changed(self, how: Callable[[Knots], Knots]) -> Self:
        other = None if self.optimistic is None else how(self.optimistic)
        return type(self)(how(self.knots), other)

    def symmetric_maximum(self) -> Self:
        """max(f, f^-1), exact; only if f bounds every ordered pair of neighbors.

        Returns:
            A symmetric function on the grid and its mirror image.
        """
        return self._changed(with_mirror)

    def loss_atoms(self) -> LossAtoms:
        """The privacy loss of the (pessimistic) curve, as point masses.

        Returns:
            `LossAtoms`; all masses of P add to 1, and so do those of Q.
        """
        return _atoms(self.knots)

    @explained(bound=_checks.member_of(Bound))
    def auc(self, *, bound: Bound | str = Bound.PESSIMISTIC) -> Float[Array, ""]:
        """Area under the ROC curve, 1 - integral of f: exact for each of the bounds.

        Args:
            bound: Which end of the certified interval.

        Returns:
            The area, in [1/2, 1].

        Guarantee:
            Upper bound by default.
        """
        areas = [_area(x) for x in (self.knots, self.optimistic) if x is not None]
        low, high = areas[-1].lower, areas[0].upper
        middle = 0.5 * (low + high)
        ends: Any = {
            Bound.PESSIMISTIC: high,
            Bound.OPTIMISTIC: low,
            Bound.ESTIMATE: middle,
        }
        return ends[bound]

    def as_mechanism(self):
        """The remove direction of a mechanism with these point masses."""
        return mechanisms.FromProbabilities(*_pair(self.knots)).remove


class TradeOff(_View):
    """A trade-off function alpha -> f(alpha), piecewise linear.

    Made by `TradeOff.of(guarantee)`, `from_error_rates`, `from_roc`, `from_scores`
    or `from_probabilities`; a PyTree of logarithms (with those of the complements), so
    both tails are accurate.

    Example:
        >>> import fdp_jax as fdp
        >>> f = fdp.tradeoff.TradeOff.of(fdp.tradeoff.Gaussian(1.0))
        >>> low = f.beta(alpha=0.1)
        >>> high = f.beta(alpha=0.1, bound=fdp.Bound.OPTIMISTIC)
        >>> print(f"{low:.4f} {high:.4f}")  # the truth is 0.6109
        0.6108 0.6110

    References:
        Dong, Roth, Su (2022), Propositions 2.4 and 2.12.
    """

    def __call__(self, alpha: Any) -> Float[Array, "..."]:
        """`beta(alpha=)`: a lower bound of f, or f itself if exact."""
        return self.beta(alpha=alpha)

    @classmethod
    def from_error_rates(cls, alpha: Any, beta: Any) -> "TradeOff":
        """The lower convex hull of achieved error rates, with (0, 1) and (1, 0).

        Args:
            alpha: False positive rates, a vector in [0, 1].
            beta: False negative rates, of the same length.

        Returns:
            The exact curve of what was achieved, differentiable in the points.  A
            better attack may exist, so it is an upper bound of the mechanism's
            trade-off function.  Traced points make as many vertices as there are
            points, and three more; those that are none of the hull repeat others.

        Raises:
            ValueError: If the vectors differ in length or are not rates.

        Example:
            >>> import fdp_jax as fdp
            >>> f = fdp.tradeoff.TradeOff.from_error_rates([0.1, 0.4], [0.6, 0.25])
            >>> print(f"{f.beta(alpha=0.2):.4f}")
            0.4833
        """
        return cls(_construct.hull_of_points(alpha, beta))

    @classmethod
    def from_points(cls, alpha: Any, beta: Any) -> "TradeOff":
        """The former name of `from_error_rates`, deprecated.

        `from_points` of the other two views is a guarantee; this is what was achieved.
        """
        warnings.warn(_FORMER, DeprecationWarning, stacklevel=2)
        return cls.from_error_rates(alpha, beta)

    @classmethod
    def from_roc(cls, fpr: Any, tpr: Any) -> "TradeOff":
        """From points of an attack's ROC curve; see `from_error_rates`.

        Args:
            fpr: False positive rates, a vector in [0, 1].
            tpr: True positive rates (power), of the same length.

        Returns:
            The curve of what was achieved.

        Raises:
            ValueError: If the vectors differ in length or are not rates.
        """
        return cls(_construct.hull_of_roc(fpr, tpr))

    @classmethod
    def from_scores(
        cls, member_scores: Any, nonmember_scores: Any, *, confidence: Any = None
    ) -> "TradeOff":
        """From the scores that an attack gave; larger ones speak for membership.

        Without `confidence` this is a plain **estimate** from finitely many scores: it
        bounds nothing, and the hull of noisy points is biased towards a better attack.

        Args:
            member_scores: Scores with the record, a vector.
            nonmember_scores: Scores without it, a vector.
            confidence: In (0, 1).  If given, all points are moved by the widths of the
                Dvoretzky-Kiefer-Wolfowitz bands: with this probability the curve lies
                above the mechanism's trade-off function everywhere at once (an audit:
                the privacy loss is at least this large).

        Returns:
            The lower convex hull over all thresholds.  It has no derivative in the
            scores: their order decides alone.

        Raises:
            ValueError: If a vector is empty or has NaN, or confidence is out of range.

        References:
            Massart (1990) for the constant of the bands.
        """
        points = _construct.rates_of_scores(member_scores, nonmember_scores, confidence)
        return cls.from_error_rates(*points)

    @classmethod
    def from_probabilities(cls, without_record: Any, with_record: Any) -> "TradeOff":
        """The curve of two probability vectors over the same outputs (Neyman, Pearson).

        Args:
            without_record: P, at least 0 with sum 1.
            with_record: Q, the same.

        Returns:
            The exact curve, linear between the breakpoints (randomized tests).

        Raises:
            ValueError: If the vectors differ in length, are negative or do not add
                to 1.

        Example:
            >>> import fdp_jax as fdp
            >>> f = fdp.tradeoff.TradeOff.from_probabilities([0.5, 0.3, 0.2],
            ...                                              [0.2, 0.3, 0.5])
            >>> print(f"{f.beta(alpha=0.1):.4f}")
            0.7500
        """
        return cls(_construct.knots_of_probabilities(without_record, with_record))


class PrivacyProfile(_View):
    """A privacy profile eps -> delta(eps), piecewise linear in e^eps.

    Made by `PrivacyProfile.of(guarantee)` or from a table by `from_points`.

    Example:
        >>> import fdp_jax as fdp
        >>> known = fdp.tradeoff.PrivacyProfile.from_points([0.5, 2.0], [0.1, 1e-5])
        >>> print(f"{known.delta(epsilon=1.0):.4f} {known.beta(alpha=0.05):.4f}")
        0.0814 0.8176

    References:
        Balle, Barthe, Gaboardi (2018); Dong, Roth, Su (2022), Proposition 2.12.
    """

    def __call__(self, epsilon: Any) -> Float[Array, "..."]:
        """`delta(epsilon=)`: an upper bound of delta, or delta itself if exact."""
        return self.delta(epsilon=epsilon)

    @classmethod
    def from_points(
        cls, epsilon: Any, delta: Any, *, symmetric: bool = True
    ) -> "PrivacyProfile":
        """The largest profile with (epsilon, delta)-DP at each of some pairs.

        Args:
            epsilon: Thresholds, a vector of finite numbers, in any order.
            delta: Bounds of delta there, in [0, 1].
            symmetric: Whether they hold for both orders of the pair, as a mechanism's
                (epsilon, delta) does; then f is the maximum of the f_{eps,delta}.

        Returns:
            The exact profile of the worst mechanism with these guarantees,
            differentiable in them; delta is convex in e^eps, so bounds above the hull
            of the others are improved.  Traced pairs make as many nodes as there are
            pairs (twice as many if symmetric), of which some may repeat.

        Raises:
            ValueError: If the vectors differ in length or hold bad values, or delta is
                below 1 - e^epsilon.
        """
        return cls(_construct.knots_of_profile(epsilon, delta, symmetric))


class BayesError(_View):
    """A Bayes error pi -> R(pi), piecewise linear and concave.

    pi is the prior of H0, the record's absence: the weight of alpha.

    Example:
        >>> import fdp_jax as fdp
        >>> error = fdp.tradeoff.BayesError.from_points([0.25, 0.5], [0.2, 0.3])
        >>> print(f"{error.bayes_error(prior=0.4):.4f} {error.beta(alpha=0.1):.4f}")
        0.2600 0.5000

    References:
        Kaissis et al. (2024), equations (2) and (4).
    """

    def __call__(self, prior: Any) -> Float[Array, "..."]:
        """`bayes_error(prior=)`: a lower bound of R, or R itself if exact."""
        return self.bayes_error(prior=prior)

    @property
    def prior_grid(self) -> Float[Array, " n"]:
        """The grid as priors of H0, where R has its kinks."""
        return jax.nn.sigmoid(self.knots.epsilon)

    @classmethod
    def from_points(cls, prior: Any, bayes_error: Any) -> "BayesError":
        """The least concave Bayes error with these values.

        Args:
            prior: Priors of H0, a vector in (0, 1), in any order.
            bayes_error: The Bayes error there, or lower bounds of it.

        Returns:
            The exact Bayes error of the worst pair with these values, differentiable
            in them.

        Raises:
            ValueError: If the vectors differ in length or hold bad values, or an error
                exceeds min(prior, 1 - prior).
        """
        return cls(_construct.knots_of_bayes_error(prior, bayes_error))


@in_float64(cast_out=False)
def _exchanged(knots: Knots) -> Knots:
    return knots.exchanged()


@in_float64
def _atoms(knots: Knots) -> LossAtoms:
    loss, log_p, log_q = knots.masses()
    return LossAtoms(
        loss,
        *(jnp.exp(x) for x in (log_p, log_q, knots.log_tnr[0], knots.log_tpr[-1])),
    )


@in_float64(cast_out=False)
def _pair(knots: Knots) -> tuple[Array, Array]:
    """Probabilities of the losses under P and Q, the infinite ones at either end."""
    _, log_p, log_q = knots.masses()
    p = jnp.exp(jnp.append(jnp.append(knots.log_tnr[0], log_p), -jnp.inf))
    q = jnp.exp(jnp.append(jnp.append(-jnp.inf, log_q), knots.log_tpr[-1]))
    return p / p.sum(), q / q.sum()


@in_float64
def _area(knots: Knots) -> Outward:
    return Outward(knots.area(), knots.area())
