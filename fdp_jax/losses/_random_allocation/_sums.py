"""One epoch: calls and puts of S by sums over the lattice.

delta_remove(eps) = E(S/t - e^eps)_+ and delta_add(eps) = E(1 - e^eps S/t)_+, both
without the record.  Sums over the lattice are made once for all thresholds: between two
points a call of S' is a straight line.  The test that knows S' alone has less than that
by t h^2 E u (1 - u) of the cell at the threshold.
"""

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ..._internal._special import log_ndtr, safe_log
from ..._internal._tolerances import LATTICE_SUM, LOG_OPERATIONS
from ._law import Law


class LawSums(eqx.Module):
    """A law of S, prepared for one direction and one side."""

    law: Law
    sign: Float[Array, ""]
    side: Float[Array, ""]
    """1 for an upper bound, 0 for the estimate, -1 for a lower bound."""
    masses: Float[Array, " n"]
    total: Float[Array, " n"]
    """Mass right of each lattice point, or (sign -1) up to each."""
    worth: Float[Array, " n"]
    """Sum of mass times distance, of the same masses."""
    gap: Float[Array, " n"]
    """The difference of both ends."""
    far: Float[Array, " k"]
    far_masses: Float[Array, " k"]

    @classmethod
    def of(cls, law: Law, sign: Float[Array, ""], side: Float[Array, ""]) -> "LawSums":
        """The sums for direction "remove" (sign 1) or "add" (-1)."""
        up = sign > 0
        p = jnp.maximum(law.masses + side * law.off, 0)
        each = jnp.where(up, p[::-1], p)
        total = jnp.cumsum(each)
        # Of call: without the point's own mass.
        strict = total - each
        worth = law.spacing * jnp.cumsum(strict)
        gap = law.gap + jnp.where(side < 0, law.off_gap, 0)
        far, far_masses = (jnp.where(side > 0, *v) for v in (law.far, law.far_masses))
        return cls(
            law,
            sign,
            side,
            p,
            jnp.where(up, strict[::-1], total),
            jnp.where(up, worth[::-1], worth),
            law.batches * law.spacing * gap,
            # The places of those below may be off.
            far * (1 - LATTICE_SUM * jnp.where(side < 0, sign, 0)),
            far_masses,
        )

    def log_delta(self, epsilon: Float[Array, " e"]) -> Float[Array, " e"]:
        """Log delta at real thresholds without what the law has left out."""
        law = self.law
        strike = law.batches * jnp.exp(self.sign * epsilon)
        value = self._payoff(strike)
        distance = self.sign * (self.far - strike[..., None])
        far = jnp.maximum(distance, 0) @ self.far_masses
        # Sums are at least as large as a big component.
        value = value + jnp.where((self.sign < 0) & (strike <= law.cut), 0, far)
        unknown = (self.side > 0) & (strike > law.strike)
        value = jnp.where(unknown, jnp.inf, value)
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

    def _payoff(self, strike: Array) -> Array:
        """E(S - K)_+, or E(K - S)_+, over the lattice."""
        law, up = self.law, self.sign > 0
        place, cell = self._locate(strike)
        part = place - cell
        line = self.worth[cell] - self.sign * self.total[cell] * part * law.spacing
        # Of the true law t - 1 of t such steps, and what a chord is above it.
        share = ((law.batches - 1) / 2 + 3 * part * (1 - part)) / law.batches
        share = jnp.where(self.side < 0, 1.0, jnp.where(self.side > 0, 0.0, share))
        # The gap at the strike itself.
        after, prior = (
            self.gap[jnp.clip(cell + i, 0, self.gap.size - 1)] for i in (1, -1)
        )
        moved = jnp.where(self.side == 0, 0.5 * (part - 0.5) * (after - prior), 0)
        gap = self.gap[cell] + moved
        before, last = (stop_gradient(place) < v for v in (0, self.masses.size - 1))
        whole = line - part * law.spacing * self.masses[0]
        near = line - jnp.where(last, share * gap, 0)
        value = jnp.where(
            before, jnp.where(up, whole, 0.0), jnp.where(up & ~last, 0.0, near)
        )
        return jnp.maximum(value, 0)

    def _locate(self, strike: Array) -> tuple[Array, Array]:
        place = strike / self.law.spacing - self.law.start
        cell = jnp.clip(jnp.floor(stop_gradient(place)), 0, self.masses.size - 1)
        return place, cell.astype(int)

    def log_alpha(self, epsilon: Float[Array, " e"]) -> Array:
        """Log of the type I error of the test at a threshold; an estimate."""
        law, up = self.law, self.sign > 0
        strike = law.batches * jnp.exp(self.sign * epsilon)
        place, cell = self._locate(strike)
        share = jnp.clip(place - cell, 0, 1)
        p, after = (
            self.masses[jnp.clip(cell + i, 0, self.masses.size - 1)] for i in (0, 1)
        )
        moved = 0.5 * ((1 - share) * p - share * after)
        mass = self.total[cell] + jnp.where(up, moved, -moved)
        beyond = self.sign * (self.far - strike[..., None]) > 0
        # Of sums right of the point the mass, left of it the mass with the record.
        included = (mass * strike - self._payoff(strike)) / law.batches
        far = jnp.where(beyond, self.far_masses, 0)
        far = jnp.where(up, jnp.sum(far, axis=-1), far @ (self.far / law.batches))
        return safe_log(jnp.where(up, mass, included) + far)
