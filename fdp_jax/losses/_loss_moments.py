"""Moments of |X| of one release, and sums over nodes that find them."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._internal._quadrature import between
from .._internal._record import Record

_PANELS, _POINTS = 24, 16
_SERIES = 0.05


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
    small = jnp.abs(x) < _SERIES
    safe = jnp.where(small, x, 0.0)
    series = jnp.zeros_like(safe)
    for k in range(11, 1, -1):
        series = (series + 1) * safe / k
    # x^2/2 (1 + x/3 (1 + x/4 (...))): the last step multiplied by x/2, once more by x.
    series = series * safe
    far = jnp.where(small, 1.0, x)
    return jnp.where(small, series, jnp.expm1(far) - far)


def log1p_excess(w: Array) -> Array:
    """The difference w - log(1 + w) without cancellation, for w > -1."""
    small = jnp.abs(w) < _SERIES
    safe = jnp.where(small, w, 0.0)
    ratio = safe / (2 + safe)
    # log(1 + w) = 2 artanh(r), r = w / (2 + w); w - 2 r = w r.
    tail = jnp.zeros_like(safe)
    for k in range(15, 1, -2):
        tail = jnp.square(ratio) * (1 / k + tail)
    near = safe * ratio - 2 * ratio * tail
    far = jnp.where(small, 1.0, w)
    return jnp.where(small, near, far - jnp.log1p(far))
