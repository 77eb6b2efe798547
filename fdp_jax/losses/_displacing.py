"""Privacy loss of a record that may displace another, where it is known which one."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ._cells import together
from ._gaussian_mixture import GaussianMixtureLoss
from ._mass import MassLoss


class NormalBranch(GaussianMixtureLoss):
    """Two mixtures of normal laws, as far as they lie right of a point.

    There the likelihood ratio must increase.
    """

    start: Float[Array, ""] = eqx.field(kw_only=True)

    pairs: ClassVar[bool] = False
    decays: ClassVar[bool] = False

    def outputs(self):
        nodes = super().outputs()
        return jnp.maximum(nodes, jnp.minimum(self.start, nodes[-1]))


class DisplacingLoss(MassLoss):
    """P = (1 - q) N(0, s^2) + q N(1, s^2), Q = (1 - q) N(0, s^2) + q N(2, s^2).

    With u = (x - 3/2) / s^2 the loss is zero at -inf, falls until g e^(2u) + 2 e^u = 1,
    where g = e^(1/s^2) q / (1 - q), rises from there on, and is positive for u > 0.
    """

    noise_multiplier: Float[Array, ""]
    log_prob: Float[Array, ""]
    log_rest: Float[Array, ""]

    def falling(self) -> NormalBranch:
        """The part where the loss falls, mirrored."""
        return self._branch(-1.0, -self._turn())

    def rising(self) -> NormalBranch:
        """The part where it rises."""
        return self._branch(1.0, self._turn())

    def positive(self) -> NormalBranch:
        """The part where it is positive."""
        return self._branch(1.0, jnp.full_like(self.noise_multiplier, 1.5))

    def _turn(self) -> Array:
        square = jnp.square(self.noise_multiplier)
        gain = self.log_prob - self.log_rest + 1 / square
        return 1.5 - square * jnp.logaddexp(0, 0.5 * jnp.logaddexp(0, gain))

    def _branch(self, sign: float, start: Array) -> NormalBranch:
        out, one = self.log_rest, self.log_prob
        none = jnp.full_like(one, -jnp.inf)
        places = sign * jnp.arange(3, dtype=self.noise_multiplier.dtype)
        without, with_record = jnp.stack([out, one, none]), jnp.stack([out, none, one])
        start = stop_gradient(start)
        return NormalBranch(
            self.noise_multiplier, places, without, with_record, start=start
        )

    @property
    def symmetric(self) -> bool:
        return False

    def cells(self, low, high):
        branches = self.rising(), self.falling()
        return together(*(branch.cells(low, high) for branch in branches))

    def edges(self):
        return self.rising().edges()

    def loss_range(self):
        low, high = self.rising().loss_range()
        return low, jnp.maximum(high, 0)

    def log_infinite_masses(self):
        return self.rising().log_infinite_masses()

    def log_truncated_masses(self):
        return self.rising().log_truncated_masses()
