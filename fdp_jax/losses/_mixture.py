"""Revealed mixtures: which of several mechanisms ran is part of the output."""

import functools

import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from .._internal._special import log1mexp, log_sum_exp, safe_log
from ._base import AbstractLoss
from ._cells import Atoms, Cells


class MixtureLoss(AbstractLoss):
    """Loss i with probability `weights[i]`, the same under P and Q, and i is told.

    The supports are disjoint, so delta = sum_i weights[i] delta_i.
    """

    losses: tuple[AbstractLoss, ...]
    weights: Float[Array, " n"]

    @property
    def symmetric(self) -> bool:
        return all(loss.symmetric for loss in self.losses)

    def moments(self, order):
        logs, means, squares = (
            jnp.stack(x)
            for x in zip(*(loss.moments(order) for loss in self.losses), strict=True)
        )
        logs = logs + self._logs()[:, None]
        value = logsumexp(logs, axis=0)
        share = jnp.exp(logs - value)
        mean = jnp.sum(share * means, axis=0)
        square = jnp.sum(share * (squares + jnp.square(means - mean)), axis=0)
        return value, mean, square

    def cells(self, low, high):
        parts = [loss.cells(low, high) for loss in self.losses]
        logs = jnp.stack([part.log_mass for part in parts]) + self._logs()[:, None]
        others = logs + jnp.stack([part.loss for part in parts])
        empty = jnp.all(jnp.isneginf(logs), axis=0)
        log_p, log_q = (
            functools.reduce(jnp.logaddexp, jnp.where(jnp.isneginf(x), -1e5, x))
            for x in (logs, others)
        )
        inside = jnp.where(empty, parts[0].loss, log_q - log_p)
        error = functools.reduce(jnp.maximum, [part.error for part in parts])
        return Cells(jnp.where(empty, -jnp.inf, log_p), inside, error)

    def atoms(self):
        parts = [loss.atoms() for loss in self.losses]
        weighted = [
            Atoms(x.loss, x.log_mass + w, x.error)
            for x, w in zip(parts, self._logs(), strict=True)
        ]
        return Atoms.joined(*weighted)

    def lattice(self):
        return None

    def range_error(self):
        errors = [loss.range_error() for loss in self.losses]
        return jnp.max(jnp.stack(errors))

    def loss_range(self):
        ranges = [loss.loss_range() for loss in self.losses]
        lows, highs = map(jnp.stack, zip(*ranges, strict=True))
        return jnp.min(lows), jnp.max(highs)

    def log_finite_masses(self):
        upper, lower = self.log_infinite_masses()
        return log1mexp(-jnp.minimum(upper, 0)), log1mexp(-jnp.minimum(lower, 0))

    def log_infinite_masses(self):
        masses = [loss.log_infinite_masses() for loss in self.losses]
        upper, lower = zip(*masses, strict=True)
        return self._mean_log(upper), self._mean_log(lower)

    def log_truncated_masses(self):
        masses = [loss.log_truncated_masses() for loss in self.losses]
        upper, lower = zip(*masses, strict=True)
        return self._mean_log(upper), self._mean_log(lower)

    def tabulated(self):
        return MixtureLoss(tuple(x.tabulated() for x in self.losses), self.weights)

    def _logs(self) -> Array:
        return safe_log(self.weights)

    def _mean_log(self, logs: tuple[Array, ...]) -> Array:
        stacked = jnp.stack(logs) + self._logs()
        # As low as e^-800: not to be rounded to none.
        return log_sum_exp(stacked, self.weights > 0)
