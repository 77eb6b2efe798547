"""The inverse of a trade-off function, and what is made of both."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..curves.logs import (
    Point,
    at_most_zero,
    larger,
    smaller,
    symmetric_ends,
)
from ._base import AbstractSymmetric, AbstractTradeOff


class Inverse(AbstractTradeOff):
    """f^-1 = T(Q, P) of any f; made by `inverse()`."""

    original: AbstractTradeOff

    def _point(self, epsilon):
        return exchanged(self.original._point(-epsilon), epsilon)

    def _ends(self):
        return self.original._ends().exchanged()

    def _is_symmetric(self):
        return self.original._is_symmetric()

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


def riskier(one: Point, other: Point) -> Point:
    """The larger of two profiles at a threshold."""
    return Point(
        larger(one.log_delta, other.log_delta),
        larger(one.log_reverse, other.log_reverse),
        smaller(one.log_rest, other.log_rest),
    )


class Symmetrized(AbstractSymmetric):
    """min(f, f^-1)**, the guarantee for both orders; made by `symmetrized()`."""

    original: AbstractTradeOff

    def _point(self, epsilon):
        # In one batch: that is half the program to compile.
        both = jax.vmap(self.original._point)(jnp.stack([epsilon, -epsilon]))
        own, other = (jax.tree.map(lambda x, i=i: x[i], both) for i in range(2))
        return riskier(own, exchanged(other, epsilon))

    def _ends(self):
        ends = self.original._ends()
        return symmetric_ends(
            larger(ends.log_end, ends.log_reverse_end),
            smaller(ends.log_start, ends.log_reverse_start),
        )
