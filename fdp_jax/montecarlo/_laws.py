"""Laws of patterns: their sums of exponentials, and draws from tilted ones.

A law w of patterns x in {0, 1}^N comes with Z(field) = sum_x w_x exp(field . x), and
with draws from w_x exp(field . x) / Z.  Arrays of a batch have the samples last.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array


class AbstractLaw(eqx.Module):
    """A law of patterns, drawn without looking at the data."""

    @abc.abstractmethod
    def log_sum(self, field: Array) -> Array:
        """The logarithm of Z of every sample, from a field of shape (N, samples)."""

    @abc.abstractmethod
    def draw(self, key: Array, field: Array) -> Array:
        """Patterns of shape (N, samples), drawn from the law that the field tilts."""

    def mean(self, count: int, dtype: jnp.dtype) -> Array:
        """Probability that the record takes part, for each step."""
        total = lambda field: self.log_sum(field[:, None])[0]
        return jax.grad(total)(jnp.zeros(count, dtype))


class OneOf(AbstractLaw):
    """In each of some epochs one of as many places, uniformly."""

    places: int = eqx.field(static=True)
    epochs: int = eqx.field(static=True, default=1)

    def _by_epoch(self, field: Array) -> Array:
        return field.reshape(self.epochs, self.places, field.shape[-1])

    def log_sum(self, field: Array) -> Array:
        each = logsumexp(self._by_epoch(field), axis=1) - jnp.log(self.places)
        return jnp.sum(each, axis=0)

    def draw(self, key: Array, field: Array) -> Array:
        shaped = self._by_epoch(field)
        noisy = shaped + jax.random.gumbel(key, shaped.shape, field.dtype)
        chosen = jnp.argmax(noisy, axis=1)[:, None]
        place = jnp.arange(self.places)[:, None]
        return (place == chosen).astype(field.dtype).reshape(field.shape)


class Renewal(AbstractLaw):
    """Waits, then takes part with probability p in every step; see `MinSeparation`."""

    prob: Array
    separation: int = eqx.field(static=True)
    warm: bool = eqx.field(static=True)

    @property
    def logs(self) -> tuple[Array, Array]:
        """Log probabilities of taking part and not, in a step that is free to enter."""
        return jnp.log(self.prob), jnp.log1p(-self.prob)

    def starts(self) -> Array:
        """Logarithms of the probabilities to be free from the first b steps on."""
        b = self.separation
        if not self.warm or b == 1:
            return jnp.where(jnp.arange(b) == 0, 0.0, -jnp.inf)
        logs = jnp.full(b, jnp.log(self.prob)).at[0].set(0.0)
        return logs - jnp.log1p((b - 1) * self.prob)

    def log_rest(self, field: Array) -> tuple[Array, Array]:
        """The logarithms of f[i] = E exp(sum of the fields from i on | free in step i).

        f[i] = (1 - p) f[i + 1] + p e^field[i] f[i + b], and 1 beyond the last step.

        Returns:
            log f of shape (N, samples), and of the first b steps, (b, samples).
        """
        log_in, log_out = self.logs
        b = self.separation
        none = jnp.zeros((b, field.shape[-1]), field.dtype)

        def step(carry: tuple, now: tuple) -> tuple:
            later, ring = carry  # ring[i % b] has log f[i + b]
            place, tilt = now
            own = log_in + tilt + ring[place]
            later = jnp.logaddexp(log_out + later, own)
            return (later, ring.at[place].set(later)), later

        index = jnp.arange(field.shape[0]) % b
        start = none[0], none
        (_, ring), every = lax.scan(step, start, (index, field), reverse=True)
        return every, ring

    def log_sum(self, field: Array) -> Array:
        _, ring = self.log_rest(field)
        return logsumexp(self.starts()[:, None] + ring, axis=0)

    def draw(self, key: Array, field: Array) -> Array:
        first, later = jax.random.split(key)
        every, ring = self.log_rest(field)
        b, (steps, samples) = self.separation, field.shape
        begin = self.starts()[:, None] + ring
        begin = begin + jax.random.gumbel(first, begin.shape, field.dtype)
        wait = jnp.argmax(begin, axis=0)
        beyond = jnp.zeros((b, samples), field.dtype)
        after = jnp.concatenate([every, beyond])[b:]
        enters = jnp.exp(self.logs[0] + field + after - every)
        chance = jax.random.uniform(later, (steps, samples), field.dtype)

        def step(wait: Array, now: tuple) -> tuple:
            prob, uniform = now
            takes_part = (wait == 0) & (uniform < prob)
            wait = jnp.where(takes_part, b - 1, jnp.maximum(wait - 1, 0))
            return wait, takes_part.astype(field.dtype)

        _, patterns = lax.scan(step, wait, (enters, chance))
        return patterns
