"""The inverse of a trade-off function, and what is made of both."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..engines import Interval
from ._base import AbstractSymmetric, AbstractTradeOff
from ._intervals import Point, Rates, capped, larger, reflect, smaller, symmetric_ends
from ._optimum import optimal_point, optimal_rates, optimal_threshold


class Inverse(AbstractTradeOff):
    """f^-1 = T(Q, P) of any f; made by `inverse()`."""

    original: AbstractTradeOff

    def _point(self, epsilon):
        return exchanged(self.original._point(-epsilon), epsilon)

    def _rates(self, log_alpha, log_tnr):
        return optimal_rates(self, log_alpha, log_tnr)

    def _ends(self):
        return self.original._ends().exchanged()

    def _log_slope(self, log_alpha, log_tnr):
        return optimal_threshold(self, log_alpha, log_tnr)

    def inverse(self) -> AbstractTradeOff:
        """The original function."""
        return self.original

    def as_mechanism(self):
        """The other direction of the original's mechanism."""
        found = self.original.as_mechanism()
        return getattr(found, "mechanism", found).add


def exchanged(point: Point, epsilon: Array) -> Point:
    """The inverse's profile at eps, from the profile at -eps."""
    return Point(
        point.log_reverse,
        point.log_delta,
        point.log_rest.map(lambda x: at_most_zero(x + epsilon)),
    )


class Symmetrized(AbstractSymmetric):
    """min(f, f^-1)**, the guarantee for both orders; made by `symmetrized()`."""

    original: AbstractTradeOff

    def _point(self, epsilon):
        own = self.original._point(epsilon)
        other = exchanged(self.original._point(-epsilon), epsilon)
        return Point(
            larger(own.log_delta, other.log_delta),
            larger(own.log_reverse, other.log_reverse),
            smaller(own.log_rest, other.log_rest),
        )

    def _rates(self, log_alpha, log_tnr):
        return optimal_rates(self, log_alpha, log_tnr)

    def _ends(self):
        ends = self.original._ends()
        return symmetric_ends(
            larger(ends.log_end, ends.log_reverse_end),
            smaller(ends.log_start, ends.log_reverse_start),
        )

    def _log_slope(self, log_alpha, log_tnr):
        return optimal_threshold(self, log_alpha, log_tnr)


class SymmetricMaximum(AbstractSymmetric):
    """max(f, f^-1), for f that bounds every order; made by `symmetric_maximum()`."""

    original: AbstractTradeOff

    def _rates(self, log_alpha, log_tnr):
        own = self.original._rates(log_alpha, log_tnr)
        other = self.original.inverse()._rates(log_alpha, log_tnr)
        return Rates(
            larger(own.log_beta, other.log_beta), smaller(own.log_tpr, other.log_tpr)
        )

    def _point(self, epsilon):
        size = jnp.abs(epsilon)
        own = self.original._point(size)
        other = exchanged(self.original._point(-size), size)
        cap = Point(
            smaller(own.log_delta, other.log_delta),
            smaller(own.log_reverse, other.log_reverse),
            larger(own.log_rest, other.log_rest),
        )
        found = optimal_point(self, size, cap)
        return _mirrored(found.log_delta, found.log_rest, epsilon)

    def _ends(self):
        ends = self.original._ends()
        return symmetric_ends(
            smaller(ends.log_end, ends.log_reverse_end),
            larger(ends.log_start, ends.log_reverse_start),
        )

    def _log_slope(self, log_alpha, log_tnr):
        inverse = self.original.inverse()
        own = self.original._rates(log_alpha, log_tnr).log_beta.estimate
        other = inverse._rates(log_alpha, log_tnr).log_beta.estimate
        return jnp.where(
            own >= other,
            self.original._log_slope(log_alpha, log_tnr),
            inverse._log_slope(log_alpha, log_tnr),
        )


def _mirrored(log_delta: Interval, log_rest: Interval, epsilon: Array) -> Point:
    """A symmetric profile at eps from that at |eps|."""
    negative, size = epsilon < 0, jnp.abs(epsilon)
    other = capped(log_delta.map(lambda x: reflect(x, size)))
    pick = lambda a, b: jax.tree.map(lambda x, y: jnp.where(negative, x, y), a, b)
    low = jnp.minimum(epsilon, 0)
    return Point(
        pick(other, log_delta),
        pick(log_delta, other),
        log_rest.map(lambda x: x + low),
    )
