"""Privacy loss of two mixtures of normal laws on a line."""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from .._internal._special import log_ndtr_difference
from ._cells import Cells
from ._monotone import MonotoneLoss
from ._normal_form import NormalForm, NormalPair
from ._normal_log_moment import normalized_log_moment
from ._normal_mixtures import NormalMixtures, densities

_REACH = 40.0
"""Standard deviations to either side; the mass beyond is below 1e-349."""
_LOG_BEYOND = -800.0
_NODES = 4097


class GaussianMixtureLoss(MonotoneLoss):
    """P = sum_i p_i N(t_i, s^2), Q = sum_i q_i N(t_i, s^2).

    The likelihood ratio must increase with x: no t_i with p_i > 0 may lie to the right
    of one with q_i > 0.  (A part that both have in common must lie between what is left
    of either: see `DisplacingLoss` for what happens else.)
    """

    noise_multiplier: Float[Array, ""]
    locations: Float[Array, " n"]
    log_p: Float[Array, " n"]
    log_q: Float[Array, " n"]
    symmetric: bool = eqx.field(static=True, default=False)

    pairs: ClassVar[bool] = True
    decays: ClassVar[bool] = True

    def largest_gap(self) -> Float[Array, ""]:
        """Between a component of P and one of Q."""
        t = self.locations
        both = ~jnp.isneginf(self.log_p)[:, None] & ~jnp.isneginf(self.log_q)
        return jnp.max(jnp.where(both, jnp.abs(t[:, None] - t), 0.0))

    def normal_mixtures(self):
        logs = jnp.stack([self.log_p, self.log_q])
        # Weights that underflow are left out like all below 1e-200, and counted.
        weights = jnp.where(logs > -jnp.inf, jnp.maximum(jnp.exp(logs), 1e-300), 0.0)
        return NormalMixtures.alone(self.noise_multiplier, self.locations, weights)

    def normal_pair(self) -> NormalPair:
        """The laws, for the closed form of one release."""
        return NormalPair.of(
            self.noise_multiplier, self.locations, self.log_p, self.log_q
        )

    in_closed_form: ClassVar[str] = "one release"

    @classmethod
    def closed_form(cls, terms, counts, sign):
        pair = terms[0].normal_pair()
        return NormalForm.of(pair, pair.exchanged(), sign)

    def at(self, t: Array) -> tuple[Array, Array, Array, Array, Array]:
        """See `NormalTransformLoss.at`."""
        pairs, _ = self.normal_mixtures()
        frame = jax.tree.map(lambda x: x[0], pairs).frame()
        found, half = densities(frame, t), 0.5 * t * t
        (log_p, log_q), (slip, other) = found.logs, found.slips
        means = jnp.einsum("lkn,k->ln", found.shares, pairs.centers[0])
        return (
            log_q - log_p,
            means[1] - means[0],
            slip + other,
            log_p - half,
            slip + 4 * half,
        )

    def normalized_log_moment(self, order):
        return normalized_log_moment(self, order)

    def outputs(self):
        s = self.noise_multiplier
        left = jnp.min(self.locations) - _REACH * s
        right = jnp.max(self.locations) + _REACH * s
        # Three quarters of the nodes where nearly all the mass is.
        t = jnp.linspace(-1.0, 1.0, _NODES, dtype=s.dtype)
        stretched = jnp.sinh(4 * t) / math.sinh(4)
        return 0.5 * (left + right) + 0.5 * (right - left) * stretched

    def _log_density_ratio(self, logs: Array, x: Array) -> Array:
        """Log of a mixture's density over that of N(0, s^2)."""
        t = self.locations
        exponent = (t * x[..., None] - 0.5 * jnp.square(t)) / jnp.square(
            self.noise_multiplier
        )
        return logsumexp(logs + exponent, axis=-1)

    def loss_at(self, x):
        with_record = self._log_density_ratio(self.log_q, x)
        return with_record - self._log_density_ratio(self.log_p, x)

    def masses(self, low, high):
        ends = [
            (x[:, None] - self.locations) / self.noise_multiplier for x in (low, high)
        ]
        parts, errors = log_ndtr_difference(*ends)
        empty = low >= high
        log_p, log_q = (
            logsumexp(jnp.where(empty[:, None], 0, parts) + logs, axis=-1)
            for logs in (self.log_p, self.log_q)
        )
        inside = jnp.where(empty, 0, log_q - log_p)
        log_mass = jnp.where(empty, -jnp.inf, log_p)
        return Cells(log_mass, inside, stop_gradient(jnp.max(errors, axis=-1)))

    def log_infinite_masses(self):
        beyond = jnp.full_like(self.noise_multiplier, _LOG_BEYOND)
        return beyond, beyond

    def log_truncated_masses(self):
        return self.log_infinite_masses()

    def log_moment_ceiling(self, sign):
        # Quasi-convexity: no further than the most distant components.
        return 0.5 * jnp.square(self.largest_gap() / self.noise_multiplier)
