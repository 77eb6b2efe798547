"""Moments of |X| of one release, and sums over nodes that find them."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._internal._divided import exp_divided
from .._internal._quadrature import between
from .._internal._record import Record

_PANELS, _POINTS = 24, 16


class LossMoments(Record):
    """The functionals of f behind the central limit theorem, for one release."""

    v1: Float[Array, ""]
    """-E X."""
    v2: Float[Array, ""]
    """E X^2."""
    v3: Float[Array, ""]
    """E|X - E X|^3."""
    v4: Float[Array, ""]
    """E|X|^3; inf if some outputs are impossible under one of the two laws."""
    variance: Float[Array, ""]
    """v2 - v1^2, computed as such."""

    @property
    def eta(self) -> Float[Array, ""]:
        """v1 / sqrt(variance); N releases are about 2 sqrt(N) eta-GDP."""
        none = self.variance <= 0
        safe = jnp.where(none, 1.0, self.variance)
        return jnp.where(none, 0.0, self.v1 / jnp.sqrt(safe))

    @property
    def berry_esseen(self) -> Float[Array, ""]:
        """eta^3 v3 / v1^3 = v3 / variance^(3/2) >= 1; inf if there is no loss."""
        none = self.variance <= 0
        safe = jnp.where(none, 1.0, self.variance)
        return jnp.where(none, jnp.inf, self.v3 / safe**1.5)


def moments_of(values: Array, masses: Array, v1: Array) -> LossMoments:
    """The moments of a law with finitely many values; `v1` is minus their mean."""
    centered = values + v1
    return LossMoments(
        v1=v1,
        v2=masses @ jnp.square(values),
        v3=masses @ jnp.abs(centered) ** 3,
        v4=masses @ jnp.abs(values) ** 3,
        variance=masses @ jnp.square(centered),
    )


def panels(cuts: Float[Array, " c"]) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights between cuts, many panels each."""
    return between(cuts, _POINTS, _PANELS)


def excess(x: Array) -> Array:
    """e^x - 1 - x without cancellation."""
    small = jnp.abs(x) < 1
    near = jnp.square(x) * exp_divided(jnp.where(small, x, 0.0), 0.0)
    return jnp.where(small, near, jnp.expm1(x) - x)
