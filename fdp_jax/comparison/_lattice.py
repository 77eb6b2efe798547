r"""The lattice of guarantees: the least one above two, and the greatest one below.

Join (an adversary may choose which of the two mechanisms runs): delta is the larger of
the two everywhere, R the smaller, f the convex hull of min(f, f~).  Meet: f is the
larger one, R the concave hull of max(R, R~).  (The order is Blackwell's, in which more
informative is larger.)
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._internal._precision import in_float64
from .._internal._text import joined_methods
from ..curves import (
    EPSILON,
    AbstractGuarantee,
    Bounds,
    ProfilePoint,
    Range,
    classify,
    uncrossed,
    with_gradient,
)
from ..curves.logs import complement, point_beside, symmetric_ends
from ..curves.optimum import optimal_rates
from ..curves.pointwise import AbstractPointwise, error_rate_bounds
from ..engines import Interval
from ._meet import meet_epsilon, meet_profile, without_derivative
from .delta import halves_of, sources
from .sources import Pair, Request, comparable, pair


class _OfTwo(AbstractGuarantee):
    """A guarantee made of two others."""

    a: Any
    b: Any

    def __check_init__(self):
        comparable(self.a, self.b)

    @property
    def symmetric(self) -> bool:
        """Whether exchanging P and Q changes nothing."""
        return all(r.symmetric for r in comparable(self.a, self.b))


class Join(_OfTwo):
    """The least informative guarantee that is at least as informative as two others.

    What holds if either of two mechanisms may be the one that runs.  Its trade-off
    function has no derivative here (NaN); all other queries have one.

    Args:
        a: A mechanism, one direction of it, a curve, or any other guarantee.
        b: Another one, under the same neighboring relation.

    Raises:
        ValueError: If the neighboring relations differ.

    Example:
        >>> import fdp_jax as fdp
        >>> join = fdp.comparison.Join(fdp.Gaussian(1.0), fdp.Laplace(1.0))
        >>> print(f"{join.beta(alpha=0.2):.9f}")
        0.437079172

    References:
        Blackwell (1953), Theorem 10; Kaissis et al. (2024), Section 3.
    """

    def _solve(self, delta):
        one, other = (g._bounds_of("epsilon", delta) for g in (self.a, self.b))
        return _pick(one, other, jnp.maximum)

    def _profile(self, epsilon):
        return _join_profile(self.a._profile(epsilon), self.b._profile(epsilon))

    def _error_rate_bounds(self, alpha):
        infinite = self._bounds_of("log_delta", jnp.inf)
        return _join_rates(*pair(self.a, self.b), alpha, infinite)


class Meet(_OfTwo):
    """The most informative guarantee that is at most as informative as two others.

    The pessimistic end of every query is tight; the optimistic one of delta, epsilon
    and the Bayes error less so between the thresholds looked at.  These three have no
    derivative here (NaN).

    Args:
        a: A mechanism, one direction of it, a curve, or any other guarantee.
        b: Another one, under the same neighboring relation.

    Raises:
        ValueError: If the neighboring relations differ.

    Example:
        >>> import fdp_jax as fdp
        >>> meet = fdp.comparison.Meet(fdp.Gaussian(1.0), fdp.Laplace(1.0))
        >>> print(f"{meet.beta(alpha=0.2):.9f}")
        0.459849301

    References:
        Blackwell (1953), Theorem 10; Kaissis et al. (2024), Section 3.
    """

    def _error_rate_bounds(self, alpha):
        one, other = (g._error_rate_bounds(alpha) for g in (self.a, self.b))
        return (
            _pick(one[0], other[0], jnp.maximum),
            _pick(one[1], other[1], jnp.minimum),
        )

    def _solve(self, delta):
        one, other = (g._bounds_of("epsilon", delta) for g in (self.a, self.b))
        least = _pick(one, other, jnp.minimum)
        return _at_most(meet_epsilon(*pair(self.a, self.b), delta), least, EPSILON)

    def _profile(self, epsilon):
        either = self.a._profile(epsilon), self.b._profile(epsilon)
        return meet_profile(*pair(self.a, self.b), either, epsilon)


@in_float64(cast_out=False)
def _join_profile(one: ProfilePoint, other: ProfilePoint) -> ProfilePoint:
    """The larger delta of two."""
    return ProfilePoint(
        jax.tree.map(jnp.maximum, one.log_delta, other.log_delta),
        jax.tree.map(jnp.minimum, one.log_rest, other.log_rest),
        joined_methods(one.method, other.method),
    )


def _pick(one: Bounds, other: Bounds, choose: Callable) -> Bounds:
    """The larger (or smaller) of two certified numbers."""
    lower, upper = choose(one.lower, other.lower), choose(one.upper, other.upper)
    status = jnp.maximum(one.status, other.status)
    estimate = choose(one.estimate, other.estimate)
    methods = joined_methods(one.method, other.method)
    return Bounds(lower, estimate, upper, status, methods)


@in_float64
def _at_most(found: Bounds, least: Bounds, known: Range) -> Bounds:
    """The meet's own, which beyond the priors looked at is at most that of either."""
    upper = jnp.minimum(found.upper, least.upper)
    lower, upper, _ = uncrossed(found.lower, upper, known)
    estimate = jnp.minimum(*stop_gradient((found.estimate, least.estimate)))
    estimate = with_gradient(jnp.maximum(estimate, lower), found.estimate)
    status = classify(lower, upper, upper >= known.most)
    return Bounds(lower, estimate, upper, status, found.method)


# -------------------------------------------------------------- f of a join


class _Joined(AbstractPointwise):
    """The larger profile of two, from sources that are prepared."""

    pair: Pair
    prepared: tuple
    infinite: Interval
    """Log delta(inf)."""
    halves: int = eqx.field(static=True)

    def _point(self, epsilon):
        at = jnp.full((self.halves, 1), jnp.abs(epsilon))
        either = self.pair.log_deltas(self.prepared, at)
        rows = jax.tree.map(jnp.maximum, *either)
        negative = epsilon < 0
        log_delta = rows.map(lambda x: jnp.where(negative, x[-1, 0], x[0, 0]))
        return point_beside(epsilon, negative, log_delta, complement(log_delta))

    def _rates(self, log_alpha, log_tnr):
        return optimal_rates(self, log_alpha, log_tnr)

    def _ends(self):
        # Nothing is asked of the inverse.
        return symmetric_ends(self.infinite, complement(self.infinite))


@in_float64
def _join_rates(
    first: Request, second: Request, alpha: Array, infinite: Bounds
) -> tuple[Bounds, Bounds]:
    chosen = sources(first, second)
    ends = Interval(infinite.lower, infinite.estimate, infinite.upper)
    halves = halves_of(first, second)
    joined = _Joined(chosen, chosen.prepared(), ends, halves)
    found = error_rate_bounds(*stop_gradient((joined, jnp.asarray(alpha))))
    beta, tpr = (without_derivative(x, first, second, alpha) for x in found)
    return beta, tpr
