"""What samples are drawn from, and how large what is averaged can be at most.

R = dP/dQ, k = e^epsilon.  Whatever is averaged has delta(epsilon) as its mean, and a
bound that is proved for every sample, so that it is a bound of delta, too.

Remove, delta = E_Q (R - k)_+.  An order a >= 1: draw x_1 from the law of patterns, x_j
from the one that <A x_j, A (x_1 + ... + x_{j-1})> tilts, with normalizers Z_j, then
y = A (x_1 + ... + x_a) + Z.  As R^a is the sum over all a-tuples of patterns of their
weights times exp(sum_{i<j} <A x_i, A x_j>) N(y; A (x_1 + ...)) / N(y; 0), the mean of

    Z_2 ... Z_a R^(1-a) (1 - k / R)_+

is delta.  (R - k)_+ R^-a is at most (a - 1)^(a-1) a^-a k^(1-a), and log Z_j, which is
convex in the sum of the earlier patterns, at most that of j - 1 times the worst one.
a = 1 is P itself, and the bound 1.

Add, delta = E_Q (1 - k R)_+.  A shift s >= 0: draw x from the law that (s^2 + s) / 2
times g . x tilts, with normalizer Z, then y = -s A x + Z.  The ratio of that law G to
Q is at least R^-s / Z, for |A x|^2 <= g . x and Jensen's inequality, so that

    (1 - k R)_+ dQ/dG <= Z s^s (1 + s)^-(1+s) k^-s.

Or y = -s A E x + Z: by Jensen's inequality log R >= <y, A E x> - E |A x|^2 / 2, and
(1 - k R)_+ dQ/dG <= exp(s g . E x / 2 + s^2 |A E x|^2 / 2) s^s (1 + s)^-(1+s) k^-s.
s = 0 is Q.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import xlogy
from jaxtyping import Array

from ._model import Model, least_bounds

ROUNDING = 1e-9
"""More than the rounding of logarithms of bounds, relative to 1 and to them."""
ORDERS = 40
SHIFTS = np.concatenate([[0.0], 2.0 ** np.linspace(-2, 12, 57)])


class Proposals(eqx.Module):
    """The parts of the bounds that do not depend on epsilon."""

    most: Array
    """Bounds of log Z_{j+1}, summed over j below the order, for orders 1, 2, ..."""
    tilted: Array
    """log Z of every shift."""
    mean: Array
    """E x."""
    half: Array
    """g . E x / 2."""
    square: Array
    """|A E x|^2."""

    def order_bounds(self, epsilon: Array) -> Array:
        """Logarithms of the bounds of all orders, for "remove"."""
        a = jnp.arange(1, ORDERS + 1, dtype=self.most.dtype)
        found = self.most + xlogy(a - 1, a - 1) - xlogy(a, a) - (a - 1) * epsilon
        return found.at[0].set(0.0)

    def shift_bounds(self, epsilon: Array) -> Array:
        """Logarithms of the bounds of all shifts of both kinds, for "add"."""
        s = jnp.asarray(SHIFTS, self.tilted.dtype)
        logs = jnp.stack([self.tilted, s * self.half + 0.5 * s**2 * self.square])
        found = logs + xlogy(s, s) - xlogy(1 + s, 1 + s) - s * epsilon
        return found.at[:, 0].set(0.0).reshape(-1)

    def proved(self, delta: Array) -> tuple[Array, Array]:
        """Epsilons at which a bound is delta, of both directions; inf if none is."""
        a = jnp.arange(2, ORDERS + 1, dtype=self.most.dtype)
        at_zero = self.order_bounds(jnp.zeros_like(delta))[1:]
        s = jnp.asarray(SHIFTS[1:], self.tilted.dtype)
        shifted = self.shift_bounds(jnp.zeros_like(delta)).reshape(2, -1)[:, 1:]
        rest = -jnp.log(delta)
        remove = jnp.min(_known(at_zero + rest) / (a - 1))
        add = jnp.min(_known(shifted + rest) / s)
        up = lambda x: x + ROUNDING * (1 + jnp.abs(x))
        return up(remove), up(add)


def _known(bounds: Array) -> Array:
    """Bounds, where those that overflow and are no number bound nothing."""
    return jnp.where(jnp.isnan(bounds), jnp.inf, bounds)


def proposals(model: Model) -> Proposals:
    """The bounds of a model."""
    most, tilted = least_bounds(model, ORDERS, SHIFTS)
    most = jnp.concatenate([jnp.zeros(1, most.dtype), jnp.cumsum(most)])
    mean = model.law.mean(model.norms.size, model.norms.dtype)
    moved = model.columns.moved(mean[:, None])
    half = 0.5 * jnp.sum(model.most * mean)
    return Proposals(most, tilted, mean, half, jnp.sum(jnp.square(moved)))


class Choice(eqx.Module):
    """One proposal of a direction."""

    number: Array
    """An order, or a shift's place in the list."""
    log_bound: Array
    """Of what is averaged, as far as it does not depend on epsilon."""
    slope: Array
    """What epsilon times this takes off that."""


def choose(found: Proposals, direction: str, epsilon: Array) -> Choice:
    """The proposal with the least bound at an epsilon."""
    zero = jnp.zeros_like(epsilon)
    if direction == "remove":
        place = jnp.argmin(_known(found.order_bounds(epsilon)))
        base = found.order_bounds(zero)[place]
        return Choice(place + 1, base, place.astype(base.dtype))
    bounds = found.shift_bounds(epsilon)
    place = jnp.argmin(_known(bounds))
    shifts = jnp.asarray(np.tile(SHIFTS, 2), bounds.dtype)
    return Choice(place, found.shift_bounds(zero)[place], shifts[place])


def draw_remove(
    model: Model, choice: Choice, key: Array, samples: int
) -> tuple[Array, Array]:
    """Logs of R of samples, and of what (1 - k / R)_+ is multiplied by."""
    dtype, count = model.norms.dtype, model.norms.size
    noise_key, key = jax.random.split(key)

    def more(j: Array, state: tuple) -> tuple:
        total, logs = state
        field = model.columns.inner(model.columns.moved(total))
        # The normalizer of the first pattern is 1 but for rounding.
        logs = logs + jnp.where(j > 0, model.law.log_sum(field), 0.0)
        return total + model.law.draw(jax.random.fold_in(key, j), field), logs

    start = jnp.zeros((count, samples), dtype), jnp.zeros(samples, dtype)
    total, logs = lax.fori_loop(0, choice.number, more, start)
    noise = jax.random.normal(noise_key, (model.columns.shape[0], samples), dtype)
    inner = model.columns.inner(model.columns.moved(total) + noise)
    log_ratio = model.log_ratio(inner)
    return log_ratio, logs - (choice.number - 1) * log_ratio


def draw_add(
    model: Model, found: Proposals, choice: Choice, key: Array, samples: int
) -> tuple[Array, Array]:
    """Logs of 1 / R of samples, and of what (1 - k R)_+ is multiplied by."""
    dtype, count = model.norms.dtype, model.norms.size
    pattern_key, noise_key = jax.random.split(key)
    s = choice.slope
    fixed = choice.number >= SHIFTS.size
    tilt = 0.5 * (s**2 + s) * model.most[:, None]
    pattern = model.law.draw(pattern_key, jnp.broadcast_to(tilt, (count, samples)))
    pattern = jnp.where(fixed, found.mean[:, None], pattern)
    noise = jax.random.normal(noise_key, (model.columns.shape[0], samples), dtype)
    release = noise - s * model.columns.moved(pattern)
    inner = model.columns.inner(release)
    along = jnp.sum(found.mean[:, None] * inner, axis=0)
    log_fixed = -s * along - 0.5 * s**2 * found.square
    log_mass = model.law.log_sum(tilt)[0]
    log_drawn = model.log_sum(tilt - s * inner, s**2) - log_mass
    return -model.log_ratio(inner), -jnp.where(fixed, log_fixed, log_drawn)
