"""Privacy losses of shuffled reports, by the reduction to clones.

Of n reports that are shuffled, n - 1 are clones, each with a probability q that no data
decide: fair coins, among which the record's own coin hides, of odds e^eps0 to either
side.  With M coins and X the mean of their signs, the two laws of all coins have the
densities 1 - tau X and 1 + tau X with respect to fair ones, tau = tanh(eps0 / 2): the
own coin is any of them.  So

    delta(eps) = tau (1 + e^eps) E (X - x)_+,    x = tanh(eps / 2) / tau,

where M - 1 is binomial.  More coins hide better: X is a reverse martingale in M (the
mean of M signs given that of M + 1 is the latter), so E (X - x)_+ falls with M, and M
may be rounded down to any nodes for a pair that dominates.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._binomial import log_binomial_tail, log_tail_error
from .._internal._counts import log_binomial
from .._internal._logs import log_add
from .._internal._special import log1mexp, log_sum_exp, safe_log
from .._internal._tolerances import SIGN_TAIL
from ._atomic import AtomicLoss
from ._base import AbstractLoss
from ._closed_form import AbstractClosedForm, complements

NODES = 832
"""Numbers of coins that a single release looks at."""
_FEW_NODES = 512
"""The same of a list of losses."""
_OUTER = 48
"""Those of them that are far below the mean."""
_REACH = 6.5
"""Largest distance of the others from the mean, in standard deviations."""
_PLACES = 256
"""Positive losses of a list."""
_DEPTH = 30.0
"""An integral ends where its integrand is e^-30 of the largest value."""
_RULE = 22
_LEAST = 1e-300
_HUGE = 600.0


class Coins(eqx.Module):
    """A law of the number of coins, rounded down to nodes."""

    sizes: Float[Array, " nodes"]
    log_masses: Float[Array, " nodes"]

    @classmethod
    def of(
        cls,
        num_records: Float[Array, ""],
        prob: Float[Array, ""],
        nodes: int,
        side: int = 0,
    ) -> "Coins":
        """The law for n - 1 reports that are clones with a probability.

        Args:
            num_records: n.
            prob: The probability.
            nodes: How many numbers are looked at.
            side: 1 if every mass is to be at least the true one, and -1 if at most,
                with none from the last node on; else it is a law that is no larger.
        """
        others = num_records - 1
        sizes = stop_gradient(_sizes(others, prob, nodes))
        return cls(sizes + 1, rounded_down(sizes, others, prob, side))


def rounded_down(sizes: Array, others: Array, prob: Array, side: int = 0) -> Array:
    """Log masses of a binomial number on nodes, the first of which is 0.

    Args:
        sizes: The nodes, ascending.
        others: The number of trials.
        prob: The probability.
        side: As for `Coins.of`.
    """
    # P(C < size), rounded to either side.
    up, down = (_log_below(sizes[1:], others, prob, sign) for sign in (1, -1))
    below = jnp.append(up if side >= 0 else down, 0.0 if side >= 0 else -jnp.inf)
    before = jnp.append(-jnp.inf, down if side > 0 else up)
    first = jnp.isneginf(before)
    gap = jnp.where(first, 1.0, below) - jnp.where(first, 0.0, before)
    share = jnp.where(first, 0.0, log1mexp(jnp.maximum(gap, 0)))
    return below + share


def _log_below(sizes: Array, others: Array, prob: Array, sign: int) -> Array:
    """Log P(C < size), rounded up (1) or down (-1)."""
    # That is P(others - C > others - size), of those that are no clones.
    rest = jnp.clip(1 - prob + sign * 4e-16, 0.0, 1.0)
    k = others - sizes + 1
    some = (k >= 1) & (rest < 1)
    k, p = jnp.where(some, k, 1.0), jnp.where(some, rest, 0.5)
    total = jnp.maximum(others, 1.0)
    below = log_binomial_tail(k, total, p)
    never = jnp.isneginf(below)
    error = log_tail_error(jnp.where(never, 0, below), k, total, p)
    return jnp.where(some, jnp.minimum(below + sign * error, 0), 0.0)


def _sizes(others: Array, prob: Array, nodes: int) -> Array:
    """Numbers of clones, ascending: all near the mean, if there are so many nodes."""
    # The root of the number has about the same deviation, whatever its mean.
    root, reach = jnp.sqrt(others * prob), 0.5 * _REACH * jnp.sqrt(1 - prob)
    low = jnp.floor(jnp.square(jnp.maximum(root - reach, 0)))
    high = jnp.minimum(jnp.square(root + reach), others + 1)
    step = jnp.maximum((high - low) / (nodes - _OUTER), 1.0)
    inner = low + jnp.floor(step * np.arange(nodes - _OUTER))
    outer = jnp.floor(low * np.square(np.arange(_OUTER) / _OUTER))
    return jnp.concatenate([outer, inner])


class Means(eqx.Module):
    """The mean X of M signs, where it exceeds a place x >= 0."""

    log_least: Float[Array, "..."]
    """Log P(X = the least value above x)."""
    least: Float[Array, "..."]
    """That value's number of positive signs, over M."""
    ratio: Float[Array, "..."]
    """P(X > x) over the probability of that value, less 1."""
    below: Float[Array, "..."]
    """1 - x."""
    negatives: Float[Array, "..."]
    """The number of its negative signs, over M."""
    one: Float[Array, "..."]
    """1 if that is one positive sign, else 0."""

    @classmethod
    def of(cls, size: Array, below: Array) -> "Means":
        """The mean of `size` signs, at places x = 1 - below."""
        fixed = stop_gradient(below)
        negatives = jnp.ceil(0.5 * size * fixed) - 1
        some = negatives >= 0
        negatives = jnp.maximum(negatives, 0)
        k = size - negatives
        log_mass = log_binomial(k, jnp.broadcast_to(size, k.shape), jnp.asarray(0.5))
        next_mass = negatives / (k + 1)
        ratio = next_mass * _tail_ratio(k + 1, jnp.maximum(negatives - 1, 0))
        return cls(
            jnp.where(some, log_mass, -jnp.inf),
            k / size,
            ratio,
            below,
            negatives / size,
            jnp.where(k <= 1, 1.0, 0.0),
        )

    def log_excess(self) -> Array:
        """Log E (X - x)_+."""
        # k / M - x (1 + ratio), which is the sum by parts, without cancellation at 1.
        inner = self.below - self.negatives - (1 - self.below) * self.ratio
        return self.log_least + safe_log(inner)

    def tail(self) -> Array:
        """P(X > x)."""
        return jnp.exp(self.log_least) * (1 + self.ratio)

    def first(self) -> Array:
        """E X 1(X > x)."""
        return jnp.exp(self.log_least) * self.least

    def rest(self) -> Array:
        """E (1 - X) 1(X > x)."""
        return jnp.exp(self.log_least) * (self.ratio + self.negatives)

    def other(self) -> Array:
        """E (1 + X) 1(X <= x): nothing if one positive sign is too much."""
        inner = 1 - self.tail() - self.first()
        never = jnp.isneginf(self.log_least)
        return jnp.where((self.one > 0) & ~never, 0.0, jnp.maximum(inner, 0))


def _tail_ratio(k: Array, rest: Array) -> Array:
    """P(A >= k) over P(A = k) for A of k + rest fair coins, k > rest.

    It is k times the integral over t > 0 of e^{-k t} (2 - e^{-t})^rest, whose exponent,
    -(k - rest) t + rest log(1 - (1 - e^{-t})^2), is concave.
    """
    slope = k - rest
    exponent = lambda t: (
        rest[..., None] * jnp.log1p(-jnp.square(jnp.expm1(-t))) - slope[..., None] * t
    )
    # From where a parabola below the exponent is `_DEPTH` deep, a step of Newton's.
    t = 2 * _DEPTH / (slope + jnp.sqrt(jnp.square(slope) + 4 * rest * _DEPTH))
    left = _DEPTH + exponent(t[..., None])[..., 0]
    end = t + left / (k - rest * jnp.exp(-t) / (1 - jnp.expm1(-t)))
    nodes, weights = np.polynomial.legendre.leggauss(_RULE)
    inner = exponent(end[..., None] * (0.5 * (nodes + 1)))
    return k * end * (jnp.exp(inner) @ jnp.asarray(0.5 * weights))


def one_less_tau(epsilon0: Array) -> Array:
    """1 - tau."""
    return 2 * jax.nn.sigmoid(-epsilon0)


class ShuffledForm(AbstractClosedForm):
    """One round of shuffled reports: the same in both directions."""

    epsilon0: Float[Array, ""]
    coins: Coins

    def logs(self, epsilon):
        size = jnp.abs(epsilon)
        means, huge = self._means(epsilon), self._is_huge(size)
        gap = jnp.where(huge, self.epsilon0 - size, 1.0)
        alone = jax.nn.softplus(self.epsilon0)
        log_delta = self._log_delta(
            epsilon, means, log1mexp(gap) + self.epsilon0 - alone
        )
        masses = jnp.exp(self.coins.log_masses)
        first, rest, other = (
            jnp.sum(masses * x, axis=-1)
            for x in (means.first(), means.rest(), means.other())
        )
        lost = one_less_tau(self.epsilon0)
        log_alpha = safe_log(rest + lost * first)
        # E min(1 + tau X, e^eps (1 - tau X)), all of whose parts are positive.
        log_rest = log_add(safe_log(other + lost * first), size + log_alpha)
        log_alpha = jnp.where(huge, -alone, log_alpha)
        log_rest = jnp.where(huge, jax.nn.softplus(size) - alone, log_rest)
        log_rest = jnp.where(epsilon < 0, log_rest - size, log_rest)
        return *complements(log_delta, log_rest), log_alpha

    def _log_delta(
        self,
        epsilon: Array,
        means: Means,
        log_alone: Array | float,
        log_gain: Array | float = 0.0,
    ) -> Array:
        logs = self.coins.log_masses + means.log_excess()
        log_excess = log_sum_exp(logs, ~jnp.isneginf(logs))
        size = jnp.abs(epsilon)
        scale = (
            safe_log(1 - one_less_tau(self.epsilon0)) + jax.nn.softplus(size) + log_gain
        )
        found = jnp.minimum(scale + log_excess, 0)
        found = jnp.where(self._is_huge(size), log_alone, found)
        # delta(-eps) = 1 - e^-eps + e^-eps delta(eps) of a symmetric pair.
        below = epsilon < 0
        certain = log1mexp(jnp.where(below, size, 1.0))
        return jnp.where(below, jnp.logaddexp(certain, found - size), found)

    def _is_huge(self, size: Array) -> Array:
        """Whether 1 - x would underflow: then no clone is counted on."""
        return (self.epsilon0 > _HUGE) & (size < self.epsilon0)

    def places(self, least):
        size = jnp.exp(self.coins.log_masses) @ self.coins.sizes
        return lambda u: least + u / jnp.sqrt(size)

    def _means(self, epsilon: Array) -> Means:
        return Means.of(self.coins.sizes, self._below(jnp.abs(epsilon))[..., None])

    def _below(self, epsilon: Array) -> Array:
        """1 - tanh(epsilon / 2) / tanh(epsilon0 / 2)."""
        gap = jnp.maximum(self.epsilon0 - epsilon, 0)
        tau = jnp.tanh(0.5 * self.epsilon0)
        tau = jnp.where(tau > 0, tau, 1.0)
        odds = jax.nn.sigmoid(self.epsilon0)
        found = -2 * jnp.expm1(-gap) * jax.nn.sigmoid(-epsilon) * odds / tau
        return jnp.minimum(found, 1.0)

    def mass_error(self):
        return jnp.asarray(SIGN_TAIL, self.epsilon0.dtype)

    def loss_error(self, epsilon):
        # From the largest loss on there is nothing to be wrong about.
        rounding = self._rounding(epsilon, 1 + epsilon)
        return jnp.where(epsilon >= self.epsilon0, 0, rounding)


class ShuffledLoss(AtomicLoss):
    """The losses of one round on nodes, as a pair that dominates it."""

    @classmethod
    def of(
        cls,
        epsilon0: Float[Array, ""],
        num_records: Float[Array, ""],
        clone_prob: Float[Array, ""],
    ) -> "ShuffledLoss":
        """The pair of n reports with a pure epsilon, each of which may be a clone."""
        coins = Coins.of(num_records, clone_prob, _FEW_NODES)
        places = _places(num_records * clone_prob)
        masses = _spread(coins, places)
        lost = one_less_tau(epsilon0)
        x = (1 - lost) * places
        log_q, log_p = jnp.log1p(x), safe_log(lost + (1 - lost) * (1 - places))
        some = log_p > -jnp.inf
        under = jnp.where(some, jnp.exp(jnp.where(some, log_p, 0)), 1.0)
        loss = jnp.where(some, jnp.log1p(2 * x / under), 0.0)
        logs, centre = safe_log(masses), 1 - 2 * jnp.sum(masses[1:])
        logs = logs.at[0].set(safe_log(centre))
        both = lambda one, other: jnp.concatenate([other[:0:-1], one])
        return cls(
            both(logs + log_p, logs + log_q),
            both(logs + log_q, logs + log_p),
            loss=both(loss, -loss),
            symmetric=True,
        )


def _places(mean: Array) -> Array:
    """Values of X from 0 to 1, in steps that grow."""
    width = 4 / jnp.sqrt(1 + mean)
    share = np.arange(_PLACES + 1) / _PLACES
    found = width * jnp.sinh(share * jnp.arcsinh(1 / width))
    return jnp.minimum(found, 1.0).at[-1].set(1.0)


def _spread(coins: Coins, places: Array) -> Array:
    """Masses at places >= 0 that have at least the tails of X above each of them.

    What is between two places is moved to both, which keeps its mean: the excess
    above any x >= 0 only grows.
    """
    means = Means.of(coins.sizes, 1 - places[:, None])
    masses = (1 + SIGN_TAIL) * jnp.exp(coins.log_masses)
    tail, excess = means.tail() @ masses, jnp.exp(means.log_excess()) @ masses
    tail = jnp.maximum(jax.lax.cummax(tail, reverse=True), _LEAST).at[-1].set(0.0)
    width, inside = jnp.diff(places), tail[:-1] - tail[1:]
    above = excess[:-1] - excess[1:] - width * tail[1:]
    above = above + 4 * SIGN_TAIL * excess[:-1] + _LEAST
    above = jnp.clip(above / width, 0, inside)
    none = jnp.zeros(1, places.dtype)
    return jnp.append(inside - above, none) + jnp.append(none, above)


class ShuffledOnce(AbstractLoss):
    """The losses of a single round, in closed form."""

    epsilon0: Float[Array, ""]
    num_records: Float[Array, ""]
    clone_prob: Float[Array, ""]

    symmetric: ClassVar[bool] = True

    def moments(self, order):
        listed = ShuffledLoss.of(self.epsilon0, self.num_records, self.clone_prob)
        return listed.moments(order)

    def loss_range(self):
        return -self.epsilon0, self.epsilon0

    in_closed_form: ClassVar[str] = "one release"

    @classmethod
    def closed_form(cls, terms, counts, sign) -> ShuffledForm:
        (term,) = terms
        n, prob = term.num_records, term.clone_prob
        return ShuffledForm(term.epsilon0, Coins.of(n, prob, NODES))
