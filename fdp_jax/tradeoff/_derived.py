"""Trade-off functions made of others: subsampled, mixed, of groups."""

import functools
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Real

from .. import mechanisms
from .._internal import _checks
from .._internal._logs import LOG_HALF
from .._internal._roots import bisect
from .._internal._special import log1mexp, log_weighted_sum
from .._internal._tolerances import LOG_OPERATIONS
from ..curves.logs import (
    Ends,
    Point,
    Rates,
    add,
    capped,
    exact,
    log_add,
    log_subtract,
    plus,
    times,
    widened,
)
from ..curves.pointwise import both_logs, point_at, rates_at
from ..engines import Interval, log_complement, select
from ..mechanisms import (
    as_float,
)
from ._base import AbstractTradeOff
from ._families import Identity
from ._symmetric import Inverse

_T = TypeVar("_T")


def _require(name: str, value: Any) -> AbstractTradeOff:
    return _checks.instance(name, value, AbstractTradeOff, "a trade-off function")


class Subsampled(AbstractTradeOff):
    """Poisson subsampling in the remove direction: f_p = p f + (1 - p) Id.

    The record takes part with probability p.  The add direction is `inverse()`, and
    the guarantee under add-or-remove-one `symmetrized()`.

    Args:
        tradeoff: f, without sampling.
        sampling_prob: p, in [0, 1].

    Raises:
        ValueError: If sampling_prob is outside [0, 1].
        TypeError: If tradeoff is not a trade-off function.

    Example:
        >>> import fdp_jax as fdp
        >>> f = fdp.tradeoff.Subsampled(fdp.tradeoff.Gaussian(1.0), 0.1)
        >>> print(f"{f.beta(alpha=0.4):.6f} {f.symmetrized().beta(alpha=0.4):.6f}")
        0.562764 0.561708

    References:
        Dong, Roth, Su (2022), Section 4; Balle, Barthe, Gaboardi (2018), Theorem 2.
    """

    tradeoff: AbstractTradeOff
    sampling_prob: Real[ArrayLike, ""] = _checks.field(
        "sampling_prob", _checks.probability
    )

    def __check_init__(self):
        _require("tradeoff", self.tradeoff)

    def _logs(self) -> tuple[Array, Array]:
        return both_logs(as_float(self.sampling_prob))

    def _point(self, epsilon):
        log_share, log_rest = self._logs()
        # Below log(1 - p) the loss is never.
        below = (epsilon <= log_rest) | jnp.isneginf(log_share)
        share = jnp.where(jnp.isneginf(log_share), 1.0, as_float(self.sampling_prob))
        at = jnp.where(below, 1.0, epsilon)
        inner = self._inner(at, share, log_rest)
        log_weight = log_subtract(0.0, jnp.where(below, -1.0, log_rest - at))
        found = Point(
            times(inner.log_delta, log_share),
            times(inner.log_reverse, log_weight),
            add(times(inner.log_rest, log_share), exact(log_rest)),
        )
        outside = Identity()._point(epsilon)
        pick = lambda a, b: widened(select(below, a, b), LOG_OPERATIONS)
        return Point(
            pick(outside.log_delta, found.log_delta),
            pick(outside.log_reverse, found.log_reverse),
            pick(outside.log_rest, capped(found.log_rest)),
        )

    def _inner(self, at: Array, share: Array, log_rest: Array) -> Point:
        """The profile without sampling at log((e^eps - (1 - p)) / p)."""
        always = jnp.isneginf(log_rest)
        edge = jnp.where(always, 0.0, log_rest)
        gap = jnp.where(always, 1.0, at - edge)
        lost = jnp.where(always, 0.0, log1mexp(gap))
        far = at - jnp.log(share) + lost
        rise = jnp.expm1(jnp.minimum(at, 1.0)) / share
        small = (at < 1) & (rise > -0.5)
        place = jnp.where(small, jnp.log1p(jnp.where(small, rise, 0.0)), far)
        # Next to log(1 - p) the place has few digits, and bounds room for the others.
        size = jnp.abs(at) + jnp.abs(edge)
        slip = LOG_OPERATIONS * (1 + jnp.abs(jnp.log(share)) + size / gap)
        slip = stop_gradient(jnp.minimum(slip, 1e3))
        places = jnp.stack([place - slip, place, place + slip])
        found = jax.vmap(lambda x: point_at(self.tradeoff, x))(places)
        left, middle, right = (
            jax.tree.map(lambda x, i=i: x[i], found) for i in range(3)
        )
        falling = lambda a, b, c: Interval(c.lower, b.estimate, a.upper)
        return Point(
            falling(left.log_delta, middle.log_delta, right.log_delta),
            falling(right.log_reverse, middle.log_reverse, left.log_reverse),
            falling(right.log_rest, middle.log_rest, left.log_rest),
        )

    def _rates(self, log_alpha, log_tnr):
        log_share, log_rest = self._logs()
        inner = self.tradeoff._rates(log_alpha, log_tnr)
        sides = (inner.log_beta, log_tnr), (inner.log_tpr, log_alpha)
        beta, tpr = (
            capped(
                widened(
                    add(times(a, log_share), exact(plus(log_rest, b))), LOG_OPERATIONS
                )
            )
            for a, b in sides
        )
        return Rates(beta, tpr)

    def _ends(self):
        log_share, log_rest = self._logs()
        ends = self.tradeoff._ends()
        alone = jnp.isneginf(log_rest)
        start = add(times(ends.log_start, log_share), exact(log_rest))
        return Ends(
            times(ends.log_end, log_share),
            capped(widened(start, LOG_OPERATIONS)),
            select(alone, ends.log_reverse_end, exact(log_rest - jnp.inf)),
            select(alone, ends.log_reverse_start, exact(jnp.zeros_like(log_rest))),
        )

    def _log_slope(self, log_alpha, log_tnr):
        log_share, log_rest = self._logs()
        inner = self.tradeoff._log_slope(log_alpha, log_tnr)
        return log_add(plus(log_share, inner), log_rest)

    def inverse(self) -> AbstractTradeOff:
        """The add direction."""
        return Inverse(self)

    def as_mechanism(self):
        """The remove direction of `fdp.PoissonSubsampled`."""
        inner = self.tradeoff.as_mechanism()
        return mechanisms.PoissonSubsampled(inner, self.sampling_prob).remove


class Mixture(AbstractTradeOff):
    """One of several, chosen at random and told: delta = sum_i probs[i] delta_i.

    If the choice stays hidden the curve is at least this one.

    Args:
        tradeoffs: Trade-off functions, all of the same order of pair.
        probs: Their probabilities, with sum 1.

    Raises:
        ValueError: If the probabilities are none or differ in number.
        TypeError: If a part is not a trade-off function.

    Example:
        >>> import fdp_jax as fdp
        >>> parts = [fdp.tradeoff.Gaussian(2.0), fdp.tradeoff.Laplace(1.0)]
        >>> f = fdp.tradeoff.Mixture(parts, probs=[0.3, 0.7])
        >>> print(f"{f.delta(epsilon=0.5):.6f}")
        0.334595
    """

    tradeoffs: tuple[AbstractTradeOff, ...]
    probs: Real[Array, " k"]

    def __init__(self, tradeoffs: Any, *, probs: Any):
        self.tradeoffs = tuple(_require("tradeoffs", f) for f in tradeoffs)
        self.probs = _checks.probabilities("probs", probs)
        _checks.require(
            len(self.tradeoffs) == self.probs.shape[0],
            "tradeoffs and probs must have one length",
            f"{len(self.tradeoffs)} and {self.probs.shape[0]}",
        )

    def _mean(self, parts: list[_T]) -> _T:
        """Points or ends of the functions, averaged number by number."""
        probs = as_float(self.probs)
        mean = lambda *x: log_weighted_sum(probs / jnp.sum(probs), jnp.stack(x))
        total = jax.tree.map(mean, *parts)
        rounded = lambda x: capped(widened(x, LOG_OPERATIONS))
        is_one = lambda x: isinstance(x, Interval)
        return jax.tree.map(rounded, total, is_leaf=is_one)

    def _point(self, epsilon):
        return self._mean([f._point(epsilon) for f in self.tradeoffs])

    def _ends(self):
        return self._mean([f._ends() for f in self.tradeoffs])

    def _is_symmetric(self):
        return all(f._is_symmetric() for f in self.tradeoffs)

    def inverse(self) -> "Mixture":
        """The mixture of the inverses."""
        if self._is_symmetric():
            return self
        return Mixture([f.inverse() for f in self.tradeoffs], probs=self.probs)


class Group(AbstractTradeOff):
    """Privacy of `size` records at once: 1 - (1 - f)^(size), size times composed.

    The profile follows by the chain of supporting lines: for any eps_1 + ... + eps_k =
    eps, delta_group(eps) <= sum_i e^{eps_{i+1} + ... + eps_k} delta(eps_i), with
    equality at the slopes along the way.

    Args:
        tradeoff: f, for one record.
        size: Number of records, 1 to 64.

    Raises:
        ValueError: If size is not a whole number from 1 to 64.
        TypeError: If tradeoff is not a trade-off function.

    Example:
        >>> import fdp_jax as fdp
        >>> f = fdp.tradeoff.Group(fdp.tradeoff.Gaussian(0.5), 3)
        >>> print(f"{f.beta(alpha=0.1):.6f}")  # that of Gaussian(1.5)
        0.413540

    References:
        Dong, Roth, Su (2022), Theorem 2.14.
    """

    tradeoff: AbstractTradeOff
    size: int = eqx.field(static=True)

    def __init__(self, tradeoff: AbstractTradeOff, size: int):
        self.tradeoff = _require("tradeoff", tradeoff)
        self.size = _checks.whole("size", size, 1, 64)

    def _rates(self, log_alpha, log_tnr):
        start = Rates(exact(log_tnr), exact(log_alpha))
        return self._passed(self.tradeoff, start, self.size)

    def _passed(self, tradeoff: AbstractTradeOff, start: Rates, times: int) -> Rates:
        """The power of one record is the type I error of the next."""

        def once(state: Rates) -> Rates:
            # A larger alpha means a larger power: the ends go in by themselves.
            inputs = state.log_tpr, state.log_beta.map_down(lambda x: x)
            alpha, tnr = (jnp.stack([x.lower, x.estimate, x.upper]) for x in inputs)
            found = jax.vmap(lambda a, b: rates_at(tradeoff, a, b))(alpha, tnr)
            beta, tpr = found.log_beta, found.log_tpr
            return Rates(
                Interval(beta.lower[2], beta.estimate[1], beta.upper[0]),
                Interval(tpr.lower[0], tpr.estimate[1], tpr.upper[2]),
            )

        # A scan: it is compiled once.
        step = lambda state, _: (once(state), None)
        return jax.lax.scan(step, start, None, length=times)[0]

    def _slopes(self, place: Array) -> Array:
        """Log-slopes at the stages, from logit alpha; estimates."""

        def stage(state: tuple[Array, Array], _: None) -> tuple[tuple, Array]:
            slope = self.tradeoff._log_slope(*state)
            found = rates_at(self.tradeoff, *state)
            return (found.log_tpr.estimate, found.log_beta.estimate), slope

        start = -jnp.logaddexp(0.0, -place), -jnp.logaddexp(0.0, place)
        slopes = jax.lax.scan(stage, start, None, length=self.size)[1]
        # Numbers for the slopes of flat and of vertical parts.
        return jnp.clip(slopes, -1e4, 1e4)

    def _split(self, epsilon: Array) -> tuple[Array, Array]:
        """Losses of the stages that add up to eps, and logit alpha; no derivative."""
        fixed, epsilon = stop_gradient((self, epsilon))

        def excess(place: Array) -> Array:
            return epsilon - jnp.sum(fixed._slopes(place))

        start = jnp.full_like(epsilon, -_PLACES)
        low, high = bisect(excess, start, -start)
        left, right = jax.vmap(fixed._slopes)(jnp.stack([low, high]))
        # At a kink the slope jumps: the supporting line is one in between.
        jump = jnp.sum(left) - jnp.sum(right)
        safe = jnp.where(jump > 0, jump, 1.0)
        weight = jnp.where(jump > 0, (jnp.sum(left) - epsilon) / safe, 0.0)
        found = left + jnp.clip(weight, 0, 1) * (right - left)
        missing = epsilon - jnp.sum(found)
        # Beyond the steepest slope the first stage, at alpha = 0, is vertical; beyond
        # the flattest one the last is flat.
        found = found.at[0].add(jnp.maximum(missing, 0))
        return stop_gradient(found.at[-1].add(jnp.minimum(missing, 0))), low

    def _point(self, epsilon):
        split, place = self._split(epsilon)
        # The last stage takes up what the derivative in eps moves.
        split = split.at[-1].add(epsilon - stop_gradient(epsilon))
        points = jax.vmap(self.tradeoff._point)(split)
        before = jnp.cumsum(split) - split
        after = jnp.sum(split) - before - split
        delta = _total(points.log_delta.map(lambda x: plus(x, after)))
        reverse = _total(points.log_reverse.map(lambda x: plus(x, -before)))
        loosen = lambda x: capped(widened(x, LOG_OPERATIONS * self.size))
        return self._bracket(epsilon, place, loosen(delta), loosen(reverse))

    def _bracket(
        self, epsilon: Array, place: Array, delta: Interval, reverse: Interval
    ) -> Point:
        """The split bounds delta from above, the test at one alpha from below."""
        log_alpha, log_tnr = -jnp.logaddexp(0.0, -place), -jnp.logaddexp(0.0, place)
        rates = self._rates(log_alpha, log_tnr)
        used = plus(epsilon, log_alpha)
        missed = plus(-epsilon, rates.log_beta.upper)
        low = log_subtract(rates.log_tpr.lower, used + LOG_OPERATIONS)
        back = log_subtract(log_tnr, missed + LOG_OPERATIONS)
        rest = rates.log_beta.map(lambda x: log_add(x, used))
        by_delta = delta.map_down(log_complement)
        by_reverse = reverse.map_down(log_complement).map(lambda x: x + epsilon)
        small = delta.estimate < LOG_HALF
        rest = Interval(
            jnp.maximum(by_delta.lower, by_reverse.lower),
            jnp.where(small, by_delta.estimate, rest.estimate),
            rest.upper,
        )
        below = lambda x, lower: Interval(
            stop_gradient(jnp.minimum(lower, x.estimate)), x.estimate, x.upper
        )
        return Point(
            below(delta, low),
            below(reverse, back),
            capped(widened(rest, LOG_OPERATIONS)),
        )

    def _ends(self):
        one, other = self._end(self.tradeoff), self._end(self.tradeoff.inverse())
        return Ends(*one, *other)

    def _end(self, tradeoff: AbstractTradeOff) -> tuple[Interval, Interval]:
        """log(1 - f(0)) and log f(0) of the group."""
        ends = tradeoff._ends()
        start = Rates(ends.log_start, ends.log_end)
        found = self._passed(tradeoff, start, self.size - 1)
        return found.log_tpr, found.log_beta

    def _log_slope(self, log_alpha, log_tnr):
        return jnp.sum(self._slopes(log_alpha - log_tnr))

    def _is_symmetric(self):
        return self.tradeoff._is_symmetric()

    def inverse(self) -> "Group":
        """The group of the inverse."""
        if self._is_symmetric():
            return self
        return Group(self.tradeoff.inverse(), self.size)


_PLACES = 700.0


def _total(parts: Interval) -> Interval:
    """Log of the sum of a vector of positive numbers."""
    return parts.map(lambda x: functools.reduce(log_add, list(x)))
