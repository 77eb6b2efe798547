"""What a composition on a grid is made of."""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Complex, Float, Int


class Factor(eqx.Module):
    """One term of the composition."""

    transform: Complex[Array, "2 f"]
    """Transforms of the tilted masses of both laws, from grid point `offset` on, over
    the upper law's sum."""
    offset: Int[Array, ""]
    log_mass: Float[Array, ""]
    noise: Float[Array, "2 f"] | Float[Array, ""]
    """Bound on the rounding of `transform`, in units of that of one transform."""
    powers: Float[Array, ""]
    """Bound on the relative rounding of masses, in units of that of one."""
    log_moments: Float[Array, "2"]
    """Of the upper law, at the grid's `sides`."""
    top: Float[Array, ""]
    """Q-mass taken for infinite."""
    moved: Float[Array, ""]
    """Bound on the distance of its losses from where they are taken to be."""
    sound: Bool[Array, ""]
    """Whether the errors of all masses that matter are known."""


def product_of(terms: list[tuple[Factor, Array]]) -> Complex[Array, "2 f"]:
    """The product of all powers, in polar form: complex logarithms compile longer."""
    logs = turns = jnp.zeros(())
    for term, count in terms:
        real, imaginary = term.transform.real, term.transform.imag
        logs = logs + 0.5 * count * jnp.log(jnp.square(real) + jnp.square(imaginary))
        turns = turns + count * jnp.arctan2(imaginary, real)
    size = jnp.exp(logs)
    return lax.complex(size * jnp.cos(turns), size * jnp.sin(turns))
