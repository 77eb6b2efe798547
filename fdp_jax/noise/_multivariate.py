"""Canonical noise for vectors, in the forms that are proved."""

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from .. import tradeoff
from .._internal import _checks
from .._internal._calls import explained
from .._internal._record import Record
from ..tradeoff import AbstractTradeOff
from ..tradeoff.closed import closed_form
from ._families import NormalLaw
from ._noise import CanonicalNoise, canonical_noise

NORMS = ("l1", "l2")


class VectorNoise(Record):
    """Independent copies of one canonical noise; made by `vector_noise`."""

    noise: CanonicalNoise
    dimension: int = eqx.field(static=True)
    norm: str = eqx.field(static=True)

    @property
    def tradeoff(self) -> AbstractTradeOff:
        """Guarantee of a release that moves by at most `sensitivity` in `norm`."""
        return self.noise.tradeoff

    def sample(self, key: Any, shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Draws vectors, for simulation; see the warning of `CanonicalNoise`.

        Args:
            key: Of `jax.random`.
            shape: Of the batch.

        Returns:
            An array of this shape with a last axis for the coordinates.
        """
        return self.noise.sample(key, (*shape, self.dimension))


@explained(norm=_checks.one_of(NORMS), dimension=_checks.whole_in(1, 2**31))
def vector_noise(
    f: Any, dimension: int, *, norm: str, sensitivity: Any = 1.0
) -> VectorNoise:
    """Noise for a vector whose movement between neighbors is bounded in a norm.

    Independent copies of the log-concave canonical noise of an infinitely divisible f
    are f-DP for l1, because splitting a move s + t among coordinates is never worse
    than moving one: f_s (x) f_t >= f_{s+t}.  The normal law is f-DP for l2 as well.
    Both are exact for a move along an axis.  For bounds in the maximum norm compose
    one canonical noise per coordinate (`fdp.compose`): the corner is the worst move.

    Args:
        f: `Gaussian`, `Laplace`, `Logistic` or f_{0,delta}, as in `canonical_noise`.
        dimension: Number of coordinates.
        norm: "l1" or "l2".
        sensitivity: In (0, inf), the largest norm of the move.

    Returns:
        `VectorNoise`.

    Guarantee:
        The release is f-DP, with equality for a move along an axis.

    Raises:
        ValueError: If f has no log-concave canonical noise (pure epsilon-DP has no
            canonical noise for vectors at all), or the norm is not covered for it.

    Example:
        >>> import fdp_jax as fdp
        >>> noise = fdp.noise.vector_noise(fdp.tradeoff.Laplace(1.0), 3, norm="l1")
        >>> print(f"{noise.noise.variance():.1f}")
        2.0

    References:
        Awan and Dong (2022).
    """
    noise = canonical_noise(f, sensitivity=sensitivity, log_concave=True)
    if norm == "l2" and not isinstance(noise.law, NormalLaw):
        kind = type(noise.tradeoff).__name__
        raise ValueError(f"norm must be 'l1' for {kind}, got 'l2' (only for Gaussian)")
    return VectorNoise(noise, dimension, norm)


@explained(dimension=_checks.whole_in(1, 2**20))
def maximum_norm_guarantee(f: Any, dimension: int) -> AbstractTradeOff:
    """T of independent canonical noises when every coordinate moves as far as it can.

    Args:
        f: As in `canonical_noise`, with a mechanism in the catalogue.
        dimension: Number of coordinates.

    Returns:
        f composed with itself `dimension` times: exact where that is a family of its
        own, as for `Gaussian`, and otherwise between certified bounds.

    Guarantee:
        The release is this private for moves of maximum norm 1, and exactly so at the
        corners.

    Raises:
        TypeError: If there is no mechanism for f.
    """
    noise = canonical_noise(f)
    released = noise.tradeoff.as_mechanism()
    released = getattr(released, "mechanism", released)
    together = released.repeat(dimension)
    return closed_form(together) or tradeoff.TradeOff.of(together)
