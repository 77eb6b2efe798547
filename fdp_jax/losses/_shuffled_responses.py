"""Privacy losses of shuffled responses of k >= 3 categories, one round.

With the least chance u = 1 / (e^eps0 + k - 1) of a report, each of the other n - 1 is
with probability k u one of the k categories at random ("blanket"), whatever its record
holds.  Tell the others, and which they are.  Of the blanket and one's own report let
M - 1 besides one's own be of the two values in question, and R of the others.  With
respect to the law of the blanket the two laws have the densities

    M (e^eps0 + 1) / (2 n) (1 +- tau X + h R / M),    h = 2 / (e^eps0 + 1),

in the notation of `_shuffled.py`.  The factor M makes one report a coin in any case,
the other n - 1 are coins with the probability 2 u, and of the n - M that are none R are
drawn with the probability r = (k - 2) / (e^eps0 + k - 3).  So at most

    delta(eps) = (e^eps0 - 1) u (1 + e^eps) E (X - x (1 + h R / M))_+.

Where the records of all others are of a third category, count the reports of the two
values and all others together (three categories have no finer counts).  Then exactly R
is replaced by its mean, (n - M) r: as R varies little the two are close.

Of numbers of coins between two nodes each leaks at most what the signs of the lower
one do at the place of the upper one, and at least the contrary: E (X - x)_+ falls with
M, and so does the place.  R is rounded down, of the fewest reports that are no coins.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._logs import LOG_HALF
from .._internal._special import log1mexp, safe_log
from ._shuffled import (
    NODES,
    Coins,
    Means,
    ShuffledForm,
    ShuffledOnce,
    one_less_tau,
    rounded_down,
)

_BLANKET_NODES = 160
_PLACES = np.asarray(
    [-8, -6, -4.5, -3.5, -2.75, -2.1, -1.6, -1.2, -0.8, -0.4, 0, 0.4, 0.8, 1.3, 2, 3]
)
"""Nodes of R but for 0, in standard deviations from its mean."""
_SLACK = 1e-12
"""Relative error of delta."""


class ResponsesForm(ShuffledForm):
    """One round of responses, by numbers of coins and by what hides among others."""

    signs: Float[Array, " nodes"]
    """Of which X is the mean."""
    more: Float[Array, " nodes"]
    """h R / M."""
    log_gain: Float[Array, ""]
    """Of (e^eps0 - 1) u over tau, with what is added or left for rounding."""

    def logs(self, epsilon):
        below = self._below(jnp.abs(epsilon))[..., None]
        means = Means.of(self.signs, below - (1 - below) * self.more)
        log_delta = self._log_delta(epsilon, means, -jnp.inf, self.log_gain)
        lost = one_less_tau(self.epsilon0)
        parts = (1 - lost) * means.rest() + (lost + self.more) * means.tail()
        alpha = jnp.exp(self.log_gain) * jnp.sum(
            jnp.exp(self.coins.log_masses) * parts, axis=-1
        )
        return log_delta, log1mexp(-log_delta), safe_log(alpha)


class BlanketForm(ShuffledForm):
    """The better of clones and of the blanket."""

    blanket: ResponsesForm

    def logs(self, epsilon):
        found, other = super().logs(epsilon), self.blanket.logs(epsilon)
        # One minus it has no digits where delta is not small.
        better = (other[0] < jnp.minimum(found[0], LOG_HALF)) & ~self._is_huge(
            jnp.abs(epsilon)
        )
        return jax.tree.map(lambda x, y: jnp.where(better, x, y), other, found)


class ResponsesOnce(ShuffledOnce):
    """A single round of responses of k >= 3 categories."""

    num_categories: Float[Array, ""]

    @classmethod
    def closed_form(cls, terms, counts, sign) -> ShuffledForm:
        (term,) = terms
        clones, share, gain = super().closed_form(terms, counts, sign), *_parts(term)
        n, k, epsilon0 = term.num_records, term.num_categories, term.epsilon0
        coins = Coins.of(n, 2 * share * gain, _BLANKET_NODES, 1)
        most = _most(coins, n)
        # The probability that a report that is no coin is of the blanket.
        prob = (k - 2) * share / (1 + (k - 4) * share)
        others = jnp.maximum(n - most, 0.0)
        mean = (others * prob)[:, None]
        nodes = mean + jnp.sqrt(mean * (1 - prob)) * _PLACES
        nodes = jnp.floor(jnp.clip(nodes, 0.0, others[:, None]))
        nodes = stop_gradient(jnp.pad(nodes, ((0, 0), (1, 0))))
        masses = jax.vmap(lambda x, m: rounded_down(x, m, prob))(nodes, others)
        joint = Coins(
            jnp.repeat(coins.sizes, nodes.shape[1]),
            (coins.log_masses[:, None] + masses).ravel(),
        )
        more = (2 * share * nodes / most[:, None]).ravel()
        log_gain = jnp.log(gain) + _SLACK
        return BlanketForm(
            epsilon0,
            clones.coins,
            ResponsesForm(epsilon0, joint, joint.sizes, more, log_gain),
        )


class AttainedOnce(ResponsesOnce):
    """A lower bound of a single round of responses of k >= 3 categories."""

    @classmethod
    def closed_form(cls, terms, counts, sign) -> ShuffledForm:
        (term,) = terms
        n, k, (share, gain) = term.num_records, term.num_categories, _parts(term)
        coins = Coins.of(n, 2 * share * gain, NODES, -1)
        ratio = 2 * (k - 2) * jnp.square(share) / (1 + (k - 4) * share)
        more = ratio * jnp.maximum(n - coins.sizes, 0.0) / coins.sizes
        log_gain = jnp.log(gain) - _SLACK
        return ResponsesForm(term.epsilon0, coins, _most(coins, n), more, log_gain)


def _most(coins: Coins, num_records: Array) -> Array:
    """The largest numbers of coins up to the next nodes."""
    return jnp.maximum(jnp.append(coins.sizes[1:] - 1, num_records), coins.sizes)


def _parts(term: ResponsesOnce) -> tuple[Array, Array]:
    """1 / (e^eps0 + 1), and u over that."""
    share = 0.5 * one_less_tau(term.epsilon0)
    return share, 1 / (1 + (term.num_categories - 2) * share)
