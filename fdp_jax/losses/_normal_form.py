"""The closed form of one release whose laws are two mixtures of normal laws.

In units of the noise P = sum_i p_i N(c_i), Q = sum_i q_i N(c_i).  With r_i = q_i -
e^eps p_i, the loss exceeds eps where sum_i r_i phi(x - c_i) > 0.  The normal kernel is
totally positive, so that in order of x this sum changes its sign no more often than the
r_i do in order of their centers (Karlin 1968).  Where no negative r_i stands right of a
positive one, the loss exceeds eps right of a single output t, and

    delta = sum_+ r_j Phic(t - c_j) - sum_- |r_i| Phic(t - c_i).

Both sums of r phi are the same number at t.  With v_i for the shares of the second one,
which add up to one, delta is a sum of profiles of Gaussian pairs at thresholds of their
own (the advanced joint convexity of Balle, Barthe and Gaboardi 2018 is a case of it):

    delta = sum_+ sum_- r_j v_i delta_gauss(eps_ij; c_j - c_i),
    eps_ij = (c_j - c_i) (t - (c_i + c_j) / 2).

Nothing but positive numbers is added, and so it is for 1 - delta = Q(x <= t) + e^eps
P(x > t).  No r_j phi is larger than any r_i phi left of the least threshold of all the
pairs (i, j) by themselves, each with all of either sum's weight: there t is looked for.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

from .._internal._arithmetic import ULP
from .._internal._implicit import implicit_root
from .._internal._logs import log_add
from .._internal._roots import least_threshold
from .._internal._special import log1mexp, log1p, log_ndtr, log_sum_exp
from ._closed_form import AbstractClosedForm, complements
from ._gaussian import GaussianForm

_FARTHEST = 1e60
"""The largest center and output."""
_LEAST = 1e-200
"""The least threshold that is looked at."""
_LARGE = 500.0
"""Exponents from which on sums are scaled down."""


class _Crossing(eqx.Module):
    """The r_i of a threshold, those above zero first of two, and where they balance."""

    centers: Float[Array, " k"]
    sides: Bool[Array, "2 k"]
    logs: Float[Array, " k"]
    """Log |r_i|."""
    log_shares: Float[Array, "2 k"]
    """The same over the sum of a side."""
    gain: Float[Array, ""]
    """Log of the sum of all |r_i| < 0 over that of all r_i > 0."""

    def excess(self, x: Array) -> Array:
        """Log of the sum of r phi > 0 over that of the others at an output; rises.

        Means over both sides, from the heaviest center on, so that nothing is lost
        where all exponents are next to zero.
        """
        heavy = jnp.argmax(jnp.where(self.sides, self.log_shares, -jnp.inf), axis=1)
        origin = self.centers[heavy[1]]
        powers = (self.centers - origin) * (x - 0.5 * (self.centers + origin))
        base = powers[heavy]
        powers = jnp.where(self.sides, powers - base[:, None], 0.0)
        shares = jnp.exp(jnp.where(self.sides, self.log_shares, -jnp.inf))
        grown = jnp.sum(shares * jnp.expm1(jnp.minimum(powers, _LARGE)), axis=1)
        far = log_sum_exp(self.log_shares + powers, self.sides)
        means = base + jnp.where(jnp.max(powers, axis=1) < _LARGE, log1p(grown), far)
        return means[0] - means[1] - self.gain

    def output(self) -> Array:
        """The t of eps >= 0."""
        floats, sides = eqx.partition(self, eqx.is_inexact_array)
        fixed = stop_gradient(self)
        gaps, middle = self.pairs()
        least = jnp.where(gaps > 0, middle + self.gain / gaps, _FARTHEST)
        least = stop_gradient(jnp.min(least))
        none = jnp.zeros_like(least)
        beyond = lambda u: -fixed.excess(least + u)
        root = least + least_threshold(beyond, none, none + _FARTHEST)
        return implicit_root(_excess, root, floats, sides)

    def pairs(self) -> tuple[Array, Array]:
        """Distances of centers with r_j > 0 from those with r_i < 0, and means.

        Zero for other pairs.
        """
        plus, minus = self.sides
        left, right = self.centers[:, None], self.centers
        used = minus[:, None] & plus & (right > left)
        return jnp.where(used, right - left, 0.0), 0.5 * (left + right)


def _excess(root: Array, floats: _Crossing, sides: _Crossing) -> Array:
    return eqx.combine(floats, sides).excess(root)


class NormalPair(eqx.Module):
    """P and Q in units of the noise.

    No center of P may lie right of one of Q; where only thresholds eps >= 0 are asked
    for, but for those that have at least as much weight in P.
    """

    centers: Float[Array, " k"]
    log_p: Float[Array, " k"]
    log_q: Float[Array, " k"]
    ratios: Float[Array, " k"]
    """Log q_i / p_i; not a number of a center of neither."""
    slip: Float[Array, ""]
    """Units in the last place that they may be off by."""

    @classmethod
    def of(
        cls, noise: Array, locations: Array, log_p: Array, log_q: Array
    ) -> "NormalPair":
        """The pair of laws whose centers are not in units of the noise.

        What the heaviest center in common weighs less in one law is what the others
        weigh more.
        """
        least = jnp.max(jnp.abs(locations)) / _FARTHEST
        common = jnp.minimum(log_p, log_q)
        both, most = common > -jnp.inf, jnp.argmax(common)
        p, q = (jnp.exp(x).at[most].set(0.0) for x in (log_p, log_q))
        others = jnp.sum(p + q)
        near = (jnp.arange(common.size) == most) & both & (others < 0.5)
        change = jnp.sum(p - q) * jnp.exp(-jnp.where(near, log_p, 0.0))
        close = log1p(jnp.where(near, change, 0.0))
        far = jnp.where(both, log_q, 0.0) - jnp.where(both, log_p, 0.0)
        known = jnp.where(near, close, far)
        slip = jnp.minimum(others, 1) * (1 + jnp.max(jnp.abs(known)))
        # Not a number where neither law has the center: it is on no side.
        alone = jnp.where(log_p > log_q, -jnp.inf, jnp.inf)
        alone = jnp.where(log_p == log_q, jnp.nan, alone)
        ratios = jnp.where(both, known, alone)
        return cls(locations / jnp.maximum(noise, least), log_p, log_q, ratios, slip)

    def exchanged(self) -> "NormalPair":
        """(Q, P), with the line turned around."""
        laws = self.log_q, self.log_p, -self.ratios
        return NormalPair(-self.centers, *laws, self.slip)

    def logs(self, epsilon: Array) -> tuple[Array, Array, Array]:
        """Log delta, log P(x > t) and log Q(x <= t) for eps >= 0."""
        inside = jnp.any(self.ratios > epsilon)
        crossing = self._crossing(jnp.where(inside, epsilon, 0.0))
        t, (gaps, middle) = crossing.output(), crossing.pairs()
        # Shares at t of what has a negative r_i.
        shares = crossing.logs + self.centers * (t - 0.5 * self.centers)
        shares = shares - log_sum_exp(shares, crossing.sides[1])
        terms, _ = GaussianForm(gaps).pair(gaps * (t - middle))
        terms = (terms + crossing.logs + shares[:, None]).ravel()
        tails = log_ndtr(jnp.stack([self.centers - t, t - self.centers]))
        tails = tails + jnp.stack([self.log_p, self.log_q])
        log_delta = log_sum_exp(terms, gaps.ravel() > 0)
        log_alpha, log_missed = log_sum_exp(tails, tails > -jnp.inf)
        log_delta, log_alpha = jnp.where(
            inside, jnp.stack([log_delta, log_alpha]), -jnp.inf
        )
        return log_delta, log_alpha, jnp.where(inside, log_missed, 0.0)

    def _crossing(self, epsilon: Array) -> _Crossing:
        gaps = self.ratios - epsilon
        sides, both = jnp.stack([gaps > 0, gaps < 0]), jnp.isfinite(gaps)
        logs = jnp.where(sides[0], self.log_q, epsilon + self.log_p)
        shrunk = log1mexp(jnp.abs(jnp.where(both, gaps, 1.0)))
        logs = logs + jnp.where(both, shrunk, 0.0)
        totals = log_sum_exp(logs, sides)
        # From their difference, 1 - e^eps, where they are almost the same.
        gain = totals[1] - totals[0]
        near = jnp.abs(gain) < 1
        scale = jnp.exp(-jnp.where(near, totals[0], 0.0))
        close = log1p(jnp.expm1(jnp.where(near, epsilon, 0.0)) * scale)
        gain = jnp.where(near, close, gain)
        return _Crossing(self.centers, sides, logs, logs - totals[:, None], gain)

    def loss_error(self, epsilon: Array) -> Array:
        """Bound on the error of the threshold."""
        units = 8 + 2 * self.centers.size
        return units * ULP * (jnp.abs(epsilon) + self.slip)


class NormalForm(AbstractClosedForm):
    """One release, for every eps; see the module."""

    above: NormalPair
    """The pair, for thresholds eps >= 0."""
    below: NormalPair
    """The exchanged one, for thresholds -eps >= 0; as many centers."""

    @classmethod
    def of(cls, above: NormalPair, below: NormalPair, sign: Array) -> "NormalForm":
        """The form in one direction: as given (1), or both exchanged (-1)."""
        chosen = lambda *x: jnp.where(sign > 0, *x)
        pairs = (above, below), (below, above)
        return cls(*(jax.tree.map(chosen, *each) for each in pairs))

    def logs(self, epsilon):
        return jnp.vectorize(self._logs, signature="()->(),(),()")(epsilon)

    def _logs(self, epsilon: Array) -> tuple[Array, Array, Array]:
        positive = epsilon >= 0
        # Slopes at zero are those from above, where no r_i is zero.
        size = jnp.where(positive, epsilon, -epsilon) + _LEAST
        below = jnp.where(positive, 0.0, epsilon)
        pair = jax.tree.map(lambda *x: jnp.where(positive, *x), self.above, self.below)
        log_delta, log_alpha, log_missed = pair.logs(size)
        log_rest = log_add(log_missed, size + log_alpha)
        log_delta, log_rest = complements(log_delta, log_rest)
        # delta(-e) = 1 - e^-e + e^-e delta(e); 1 - delta(-e) = e^-e (1 - delta(e)).
        log_delta = log_add(log1mexp(-below), below + log_delta)
        logs = complements(log_delta, below + log_rest)
        return *logs, jnp.where(positive, log_alpha, log_missed)

    def loss_error(self, epsilon):
        each = [pair.loss_error(epsilon) for pair in (self.above, self.below)]
        return stop_gradient(jnp.maximum(*each))
