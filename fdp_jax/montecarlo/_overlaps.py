"""Likelihoods where columns of one pattern overlap: sums over pairs in a window.

log sum_x w_x exp(field . x - q sum_{i > j} K_ij x_i x_j), exact, by a recursion over
what the last steps were.
"""

import abc
import functools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array

from .._internal import _checks
from ._laws import Renewal

MOST_STATES = 1 << 12


class AbstractOverlaps(eqx.Module):
    """The sum over patterns, with what overlapping columns subtract."""

    @abc.abstractmethod
    def log_sum(self, field: Array, factor: Array) -> Array:
        """The logarithm of the sum, for fields of shape (N, samples) and a factor q."""


class Windows(AbstractOverlaps):
    """Patterns with a least separation b, by what a window of steps holds."""

    law: Renewal
    among: Array
    """Products of step i with the ones that a state has in its window, (N, states)."""
    words: tuple[int, ...] = eqx.field(static=True)
    """States: bit d - 1 is set if the record took part d steps ago."""
    length: int = eqx.field(static=True)

    def log_sum(self, field: Array, factor: Array) -> Array:
        b = self.law.separation
        tables = [_next(self.words, self.length, b, bit) for bit in (0, 1)]
        log_in, log_out = self.law.logs
        # Integers of Python: words may be longer than those of NumPy.
        free = np.asarray([[w & ((1 << (b - 1)) - 1) == 0] for w in self.words])
        skip = jnp.where(free, log_out, 0.0)
        enter = jnp.where(free, log_in, -jnp.inf)

        def step(later: Array, now: tuple) -> tuple:
            tilt, among = now
            own = enter + tilt - factor * among[:, None] + later[tables[1]]
            return jnp.logaddexp(skip + later[tables[0]], own), None

        start = jnp.zeros((len(self.words), field.shape[-1]), field.dtype)
        first, _ = lax.scan(step, start, (field, self.among), reverse=True)
        return logsumexp(self._starts()[:, None] + first, axis=0)

    def _starts(self) -> Array:
        """Waiting j steps at first is having taken part b - j steps ago."""
        logs = self.law.starts()
        index = [0] + [1 << (self.law.separation - j - 1) for j in range(1, logs.size)]
        place = np.asarray([self.words.index(word) for word in index])
        return jnp.full(len(self.words), -jnp.inf).at[place].set(logs)


def windows(law: Renewal, products: Array) -> Windows:
    """The recursion for products K[d, i] of steps i and i - d.

    Raises:
        ValueError: If there are too many states.
    """
    length = max(products.shape[0], law.separation) - 1
    found = words(length, law.separation)
    have = products[1:]
    bits = np.asarray(found)[:, None] >> np.arange(have.shape[0]) & 1
    return Windows(law, (jnp.asarray(bits, have.dtype) @ have).T, found, length)


@functools.cache
def words(length: int, separation: int) -> tuple[int, ...]:
    """Possible contents of a window of steps: bits with a least distance.

    Raises:
        ValueError: If there are too many.
    """
    found = [0]
    for place in range(length):
        kept = (1 << max(place - separation + 1, 0)) - 1
        fits = [w | 1 << place for w in found if w & ~kept == 0]
        found = sorted({*found, *fits})
        _checks.require(
            len(found) <= MOST_STATES,
            "strategy must have fewer bands for Monte Carlo accounting",
            f"{length + 1} of C^T C for participations at least {separation} steps "
            f"apart: a window has more than {MOST_STATES} states",
        )
    return tuple(found)


def _next(words: tuple[int, ...], length: int, b: int, bit: int) -> np.ndarray:
    place = {word: i for i, word in enumerate(words)}
    mask = (1 << length) - 1
    after = [(w << 1 | bit) & mask for w in words]
    # A state that has to wait never takes part; its entry is not used.
    return np.asarray([place.get(word, 0) for word in after])


class Chained(AbstractOverlaps):
    """One place in every epoch, where only neighboring epochs overlap."""

    between: Array
    """Products of the places of an epoch (second axis) with the ones of the next."""

    def log_sum(self, field: Array, factor: Array) -> Array:
        places = self.between.shape[1]
        by_epoch = field.reshape(-1, places, field.shape[-1]) - jnp.log(places)

        def step(sums: Array, now: tuple) -> tuple:
            tilt, between = now
            pairs = sums[:, None] - factor * between[:, :, None]
            return tilt + logsumexp(pairs, axis=0), None

        last, _ = lax.scan(step, by_epoch[0], (by_epoch[1:], self.between))
        return logsumexp(last, axis=0)
