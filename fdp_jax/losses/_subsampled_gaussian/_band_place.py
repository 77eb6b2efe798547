"""Where a band of `_band.py` lies, and its quadrature."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..._internal._special import log_ndtr, log_ndtr_difference

NODES = 2048
"""Nodes for real orders, from end to end of all that matters."""


class Masses(eqx.Module):
    """Logarithms of integrals, below the lower cut and between both cuts."""

    low: Float[Array, "..."]
    between: Float[Array, "..."]


class Place(eqx.Module):
    """Position of a band."""

    cuts: Float[Array, "2"]
    width: Float[Array, ""]
    ends: Float[Array, "2"]
    """Observations beyond which nothing matters."""

    @property
    def spacing(self) -> Float[Array, ""]:
        return (self.ends[1] - self.ends[0]) / NODES

    def nodes(self) -> Float[Array, " n"]:
        steps = jnp.arange(NODES + 1, dtype=self.ends.dtype)
        return self.ends[0] + self.spacing * steps

    def log_cut(self, x: Array) -> tuple[Array, Array]:
        """Logarithms of the shares that are below the lower cut, and between both."""
        low, high = ((x - cut) / self.width for cut in self.cuts)
        between, _ = log_ndtr_difference(high, low)
        return log_ndtr(-low), between


class OnNodes(eqx.Module):
    """Common part of the integrals of all orders."""

    loss: Float[Array, " n"]
    log_base: Float[Array, " n"]
    log_cuts: Float[Array, "2 n"]
    """See `Place.log_cut`."""


class Located(eqx.Module):
    """The tilted densities at the nodes, up to a common factor."""

    order: Float[Array, ""]
    log_weights: tuple[Float[Array, " n"], Float[Array, " n"]]
    peak: Float[Array, ""]
    lift: Float[Array, ""]
    masses: Masses
    center: Float[Array, ""]
    """Tilted mean of the loss of a step below the lower cut."""


class Plan(eqx.Module):
    """The quadrature on one contour."""

    order: Float[Array, ""]
    center: Float[Array, ""]
    peak: Float[Array, ""]
    lift: Float[Array, ""]
    """See `_lift`."""
    place: Place
    start: Float[Array, ""]
    spacing: Float[Array, ""]
    blocks: Int[Array, ""]
    error: Float[Array, ""]
    """Of the trapezoid rule, relative to each of the two integrals."""
    deviations: Float[Array, "2"]
    """Mean distances of the loss from the center, in both integrals."""
    exponent: Float[Array, ""]
    """Size of the exponents of the weights."""
