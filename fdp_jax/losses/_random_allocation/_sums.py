"""One epoch: calls and puts of S by sums over its law.

delta_remove(eps) = E(S/t - e^eps)_+ and delta_add(eps) = E(1 - e^eps S/t)_+, both
without the record.  Sums over the lattice are made once for all thresholds: between two
points a call is a straight line.
"""

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ..._internal._special import log_ndtr, safe_log
from ..._internal._tolerances import LOG_OPERATIONS
from ._largest import log_least
from ._law import Law


class LawSums(eqx.Module):
    """A law of S, prepared for one direction."""

    law: Law
    sign: Float[Array, ""]
    total: Float[Array, " n"]
    """Mass right of each lattice point, or (sign -1) up to each."""
    gap: Float[Array, " n"]
    """Sum of mass times distance, of the same masses."""

    @classmethod
    def of(cls, law: Law, sign: Float[Array, ""]) -> "LawSums":
        """The sums for direction "remove" (sign 1) or "add" (-1)."""
        up, p = sign > 0, law.masses
        each = jnp.where(up, p[::-1], p)
        total = jnp.cumsum(each)
        # Of call: without the point's own mass.
        strict = total - each
        gap = law.spacing * (jnp.cumsum(strict))
        return cls(
            law,
            sign,
            jnp.where(up, strict[::-1], total),
            jnp.where(up, gap[::-1], gap),
        )

    def log_delta(
        self, epsilon: Float[Array, " e"], bend: Array | float = 0.0
    ) -> Float[Array, " e"]:
        """Log delta without what the law has left out.

        Args:
            epsilon: Thresholds, real.
            bend: 1 for the cubic of a law spread once between its points, 0 for the
                chord.
        """
        law = self.law
        ratio = jnp.exp(self.sign * epsilon)
        strike = law.batches * ratio
        value = self._payoff(strike, bend)
        distance = self.sign * (law.far - strike[..., None])
        value = value + jnp.maximum(distance, 0) @ law.far_masses
        # E(1 - e^eps S / t)_+ = e^eps / t times the put.
        scale = jnp.where(self.sign > 0, 1.0, jnp.exp(epsilon)) / law.batches
        return safe_log(scale * value)

    def log_most(self, epsilon: Float[Array, " e"]) -> Array:
        """A bound of log delta without any lattice; 0 but for "add".

        (1 - S / K)_+ is at most 1, and nothing unless every component is below K.
        """
        law = self.law
        z = law.noise * (jnp.log(law.batches) - epsilon) + 0.5 / law.noise
        most = law.batches * log_ndtr(z)
        most = most * (1 - LOG_OPERATIONS) + LOG_OPERATIONS * (1 + jnp.square(z))
        return jnp.where(self.sign < 0, jnp.minimum(most, 0), 0)

    def log_least(self, epsilon: Float[Array, " e"]) -> Array:
        """A bound of log delta from below without any lattice."""
        return log_least(self.law.noise, self.law.batches, self.sign, epsilon)

    def _payoff(self, strike: Array, bend: Array | float) -> Array:
        """E(S - K)_+, or E(K - S)_+, over the lattice."""
        law, up = self.law, self.sign > 0
        place, cell, share = self._locate(strike)
        past = (place - cell) * law.spacing
        line = self.gap[cell] - self.sign * self.total[cell] * past
        line = line - bend * law.spacing * self._below_chord(cell, share)
        before = stop_gradient(place) < 0
        whole = line - past * jnp.where(up, law.masses[0], 0)
        outside = jnp.where(up, whole, 0.0)
        last = stop_gradient(place) >= self._last
        value = jnp.where(before, outside, jnp.where(up & last, 0.0, line))
        return jnp.maximum(value, 0)

    def _below_chord(self, cell: Array, share: Array) -> Array:
        """Distance of a call below its chord, over h: its curvature is the density.

        That is the cubic through four points; masses of a law spread once are h times
        the density and a twelfth of its second difference.
        """
        u, last = share, self._last
        near = [self.law.masses[jnp.clip(cell + i, 0, last)] for i in (-1, 0, 1, 2)]
        bent = near[0] - 2 * near[1] + near[2], near[1] - 2 * near[2] + near[3]
        left, right = near[1] - bent[0] / 12, near[2] - bent[1] / 12
        straight = u * (1 - u) / 6 * ((2 - u) * left + (1 + u) * right)
        return straight - (u**4 - 2 * u**3 + u) / 48 * (bent[0] + bent[1])

    @property
    def _last(self) -> int:
        return self.law.masses.size - 1

    def _locate(self, strike: Array) -> tuple[Array, Array, Array]:
        law = self.law
        place = strike / law.spacing - law.start
        cell = jnp.clip(jnp.floor(stop_gradient(place)), 0, self._last)
        return place, cell.astype(int), jnp.clip(place - cell, 0, 1)

    def log_alpha(self, epsilon: Float[Array, " e"]) -> Array:
        """Log of the type I error of the test at a threshold; an estimate."""
        law, up = self.law, self.sign > 0
        strike = law.batches * jnp.exp(self.sign * epsilon)
        _, cell, share = self._locate(strike)
        p, after = law.masses[cell], law.masses[jnp.minimum(cell + 1, self._last)]
        moved = 0.5 * ((1 - share) * p - share * after)
        mass = self.total[cell] + jnp.where(up, moved, -moved)
        beyond = self.sign * (law.far - strike[..., None]) > 0
        # Of sums right of the point the mass, left of it the mass with the record.
        included = (mass * strike - self._payoff(strike, 0.0)) / law.batches
        far = jnp.where(beyond, law.far_masses, 0)
        far = jnp.where(up, jnp.sum(far, axis=-1), far @ (law.far / law.batches))
        return safe_log(jnp.where(up, mass, included) + far)

    def ends(self) -> tuple[Array, Array]:
        """Thresholds between which all of delta's kinks are, about."""
        law = self.law
        least = jnp.maximum(law.start, 1.0) * law.spacing / law.batches
        most = jnp.maximum(
            jnp.max(law.far), (law.start + law.masses.size) * law.spacing
        )
        low, high = jnp.log(least) - 1, jnp.log(most / law.batches) + 1
        return jnp.where(self.sign > 0, low, -high), jnp.where(
            self.sign > 0, high, -low
        )
