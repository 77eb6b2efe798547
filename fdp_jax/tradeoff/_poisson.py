"""Two Poisson counts: the trade-off function by all of its knots."""

import jax
import jax.core
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float, Real

from .. import mechanisms
from .._internal import _checks
from .._internal._concrete import is_traced
from .._internal._precision import in_float64
from .._internal._special import log1mexp, safe_log
from ..curves.logs import Ends, Point, Rates, exact
from ..engines import Interval, without
from ..losses import PoissonLoss
from ..mechanisms import (
    as_float,
    as_number,
)
from ._base import AbstractPolygon
from ._views import TradeOff
from .knots import Knots, from_atoms

_LIKELY = 128
"""Counts whose kinks are of interest where smooth functions are integrated."""
_NEGLIGIBLE = -100.0
"""Log of a probability that is far below rounding."""


class Poisson(AbstractPolygon):
    """T(Poisson(rate_without), Poisson(rate_with)), of two counts.

    For rate_with = l2 > l1 = rate_without > 0 its vertices are alpha_k = P(N_1 > k),
    beta_k = P(N_2 <= k), and the slope between alpha_k and alpha_{k-1} is
    -e^{l1 - l2} (l2 / l1)^k; for l2 < l1 it is the inverse of that function.  It is
    symmetric only for l1 = l2, where it is Id.  With l1 = 0 < l2 a count tells the
    record (f(0) = e^{-l2}); with l2 = 0 < l1 no count tells its absence.

    The sum of independent counts is sufficient, so composing functions with one
    quotient l2 / l1 adds their rates.

    Args:
        rate_without: Mean count without the record, in [0, inf).
        rate_with: The same with it.  Up to means of about 3e4 everything is exact to
            rounding; beyond, counts that are left out make it a lower bound.

    Raises:
        ValueError: If a rate is negative or not finite.

    Example:
        >>> import fdp_jax as fdp
        >>> f = fdp.tradeoff.Poisson(1.0, 2.0)
        >>> print(f"{f.beta(alpha=0.1):.6f} {f.symmetrized().beta(alpha=0.05):.6f}")
        0.647690 0.765855

    References:
        Pandey, Maleki, Kulkarni (2025).
    """

    rate_without: Real[ArrayLike, ""] = _checks.field(
        "rate_without", _checks.nonnegative
    )
    rate_with: Real[ArrayLike, ""] = _checks.field("rate_with", _checks.nonnegative)

    def _rates_pair(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return as_float(self.rate_without), as_float(self.rate_with)

    def _knots(self) -> Knots:
        one, other = self._rates_pair()
        rises = other >= one
        low, high = jnp.where(rises, one, other), jnp.where(rises, other, one)
        knots = _rising(low, high)
        exchanged = knots.exchanged()
        return jax.tree.map(lambda a, b: jnp.where(rises, a, b), knots, exchanged)

    def _log_missing(self) -> Float[Array, ""]:
        """Log of a bound on the mass of counts that are left out."""
        one, other = self._rates_pair()
        some = (one > 0) & (other > 0)
        term = PoissonLoss(jnp.where(some, one, 1.0), jnp.where(some, other, 1.0))
        missing = jnp.maximum(*term.log_truncated_masses())
        return stop_gradient(jnp.where(some, missing, -jnp.inf))

    def _point(self, epsilon):
        missing = self._log_missing()
        found = super()._point(epsilon)
        return Point(
            _with_less(found.log_delta, missing),
            _with_less(found.log_reverse, missing),
            _with_more(found.log_rest, missing),
        )

    def _rates(self, log_alpha, log_tnr):
        missing = self._log_missing()
        found = super()._rates(log_alpha, log_tnr)
        return Rates(
            _with_more(found.log_beta, missing), _with_less(found.log_tpr, missing)
        )

    def _ends(self):
        one, other = self._rates_pair()
        lone = lambda rate, count: jnp.where((rate == 0) & (count > 0), -count, 0.0)
        start, reverse = lone(one, other), lone(other, one)
        end = lambda x: jnp.where(x < 0, log1mexp(jnp.where(x < 0, -x, 1.0)), -jnp.inf)
        return Ends(*(exact(x) for x in (end(start), start, end(reverse), reverse)))

    def _kinks(self):
        loss, log_without, log_with = self._knots().masses()
        _, likely = lax.top_k(jnp.maximum(log_without, log_with), _LIKELY)
        return loss[likely]

    def symmetric_maximum(self):
        """max(f, f^-1): what holds if f bounds *every ordered* pair of neighbors.

        Returns:
            A symmetric trade-off function: exact for known means up to about 3e4.
        """
        if is_traced((self.rate_without, self.rate_with)):
            return super().symmetric_maximum()
        knots, missing = _knots_of(self)
        if missing > _NEGLIGIBLE:
            return super().symmetric_maximum()
        return TradeOff(knots).symmetric_maximum()

    def inverse(self) -> "Poisson":
        """The pair in the other order, a Poisson pair too."""
        return Poisson(self.rate_with, self.rate_without)

    def as_mechanism(self):
        """A direction of `fdp.PoissonMechanism`, for two different positive rates."""
        rates = self.rate_without, self.rate_with
        _checks.require(
            not is_traced(rates),
            "rate_without and rate_with must be known",
            "traced ones",
            TypeError,
        )
        one, other = (float(as_number(x)) for x in rates)
        if min(one, other) <= 0 or one == other:
            return super().as_mechanism()
        made = mechanisms.PoissonMechanism(min(one, other), abs(other - one))
        return made.remove if other > one else made.add


@in_float64(cast_out=False)
def _knots_of(tradeoff: Poisson) -> tuple[Knots, Float[Array, ""]]:
    return tradeoff._knots(), tradeoff._log_missing()


def _with_less(logs: Interval, missing: Array) -> Interval:
    return Interval(without(logs.lower, missing), logs.estimate, logs.upper)


def _with_more(logs: Interval, missing: Array) -> Interval:
    more = jnp.minimum(jnp.logaddexp(stop_gradient(logs.upper), missing), 0)
    return Interval(logs.lower, logs.estimate, more)


def _rising(low: Float[ArrayLike, ""], high: Float[ArrayLike, ""]) -> Knots:
    """The knots of T(Poisson(low), Poisson(high)), low <= high."""
    low, high = jnp.asarray(low), jnp.asarray(high)
    point = low <= 0
    nothing = high <= 0
    # Rates of zero: only the count 0 is common, and what else happens is infinite.
    term = PoissonLoss(jnp.where(point, 1.0, low), jnp.where(point, 2.0, high))
    atoms = term.atomic()
    upper, lower = atoms.log_infinite_masses()
    first = jnp.arange(atoms.log_p.size) == 0
    log_p = jnp.where(point, jnp.where(first, 0.0, -jnp.inf), atoms.log_p)
    log_q = jnp.where(point, jnp.where(first, -high, -jnp.inf), atoms.log_q)
    # Not the difference of logarithms, which has no digits where the rates are close.
    loss = jnp.where(point, -high, term.losses())
    alone = jnp.where(nothing, 0.0, safe_log(-jnp.expm1(-high)))
    alone = jnp.where(nothing, -jnp.inf, alone)
    infinite = jnp.where(point, -jnp.inf, lower), jnp.where(point, alone, upper)
    return from_atoms(loss, log_p, log_q, *infinite)
