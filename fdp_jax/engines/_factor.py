"""What a composition on a grid is made of."""

import equinox as eqx
from jaxtyping import Array, Complex, Float, Int

from ._discretize import Discrete


class Single(eqx.Module):
    """One loss on the grid, wherever it stands in the composition."""

    part: Discrete
    mass: Float[Array, ""]
    """Sum of its tilted masses, by which its transform was divided."""
    partial: Complex[Array, " f"] | Float[Array, ""]
    """Derivative of the factor's transform with respect to the loss's."""
    mean_partial: Complex[Array, " f"] | Float[Array, ""]
    """The derivative without the last releases, which are exact on the grid."""
    noise: Float[Array, " f"] | Float[Array, ""]
    """Bound on the rounding of `partial`, in units of that of one transform."""


class Factor(eqx.Module):
    """One term of the composition."""

    transform: Complex[Array, " f"]
    """Transform of the normalized tilted masses, from grid point `offset` on."""
    offset: Int[Array, ""]
    log_mass: Float[Array, ""]
    singles: list[Single]
    noise: Float[Array, " f"] | Float[Array, ""]
    """Bound on the rounding of `transform`, in units of that of one transform."""
    powers: Float[Array, ""]
    """Bound on the relative rounding of masses, in units of that of one."""
    most: Float[Array, ""]
    """Largest number of releases."""
    log_moments: Float[Array, " k"]
    """At the Chernoff shifts, as those bounds have it."""
    log_grown: Float[Array, " k"]
    """Upper bound of the same of the discretized loss."""
    top: Float[Array, ""]
    """Q-mass taken for infinite."""
    besides: Float[Array, ""]
    """Grid points by which it may be off besides what its releases are."""
    moved: Float[Array, ""]
    """Bound on the distance of its losses from where they are taken to be."""
