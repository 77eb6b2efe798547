"""Piecewise-linear trade-off functions: the three views as one set of numbers.

Where f is linear between vertices (alpha_j, beta_j), delta is linear in e^eps between
nodes eps_j and R is linear in pi between the priors sigmoid(eps_j): a segment of f with
slope -e^eps is a node, and a segment between nodes is a vertex,

    delta(eps) = tpr_j - e^eps alpha_j,   R(pi) = pi alpha_j + (1 - pi) beta_j.

All numbers are kept as logarithms together with their complements, and only positive
terms are added, so both tails have full relative accuracy.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._hull import chain, gap, last_kept, next_kept
from .._internal._logs import LOG_HALF
from .._internal._special import log1mexp, safe_log
from ..curves.logs import (
    Ends,
    Point,
    Rates,
    at_most_zero,
    log_add,
    log_cumsum,
    log_subtract,
    plus,
    reflect,
    widened,
)
from ..engines import Interval, log_complement

_LEAST = -700.0
"""Logarithm of the least number whose inverse is finite."""
_CLOSE = 1e-7
"""Distance of nodes that count as one in a profile given by values."""


class Knots(eqx.Module):
    """n nodes, in increasing order, and n + 1 vertices, with alpha decreasing.

    Node j is the segment of f between the vertices j and j + 1.
    """

    epsilon: Float[Array, " n"]
    log_delta: Float[Array, " n"]
    log_reverse: Float[Array, " n"]
    """log delta_rev(-eps)."""
    log_rest: Float[Array, " n"]
    """log(1 - delta)."""
    log_alpha: Float[Array, " n+1"]
    log_tnr: Float[Array, " n+1"]
    log_beta: Float[Array, " n+1"]
    log_tpr: Float[Array, " n+1"]
    sampled: bool = eqx.field(static=True, default=False)
    """Tangents or chords of a smooth curve, whose derivatives are interpolated.

    Those of a polygon jump from segment to segment: a value's error is of second order
    in the distance of nodes, its derivative's would be of first order.
    """

    @property
    def rounding(self) -> Float[Array, ""]:
        """Relative error of sums over all knots, and of powers of their nodes."""
        farthest = jnp.max(jnp.abs(stop_gradient(self.epsilon)))
        return (
            4 * jnp.finfo(self.epsilon.dtype).eps * (self.epsilon.size + 8 + farthest)
        )

    def point(self, epsilon: Float[Array, ""]) -> Point:
        """The profile at a finite threshold."""
        nodes = self.epsilon
        inner = jnp.where(epsilon < nodes[0], nodes[0], epsilon)
        inner = jnp.where(inner > nodes[-1], nodes[-1], inner)
        i = jnp.clip(jnp.searchsorted(nodes, inner, side="right") - 1, 0)
        k = jnp.minimum(i + 1, nodes.size - 1)
        rest = _chord(nodes, self.log_rest, i, k, inner)
        delta = _chord(nodes, self.log_delta, i, k, inner)
        other = _chord(-nodes, self.log_reverse, k, i, -inner)
        # Left of the nodes delta falls on with slope -(1 - delta), right of them not;
        # for the inverse it is the other way around.
        left, right = nodes[0] - epsilon, epsilon - nodes[-1]
        delta = _with_more_rest(delta, rest, left)
        other = _with_more_rest(other, self._other_rest()[-1], right)
        rest = rest - jnp.where(left > 0, left, 0.0)
        negative = epsilon < 0
        size = jnp.abs(epsilon)
        mirrored = reflect(jnp.where(negative, other, delta), size)
        log_delta = jnp.where(negative, mirrored, delta)
        log_reverse = jnp.where(negative, other, mirrored)
        # Nodes are rounded, and so a profile next to the node where it ends.
        unit = jnp.log(4 * jnp.finfo(epsilon.dtype).eps * (1 + jnp.abs(inner)))
        fall, rise = inner + self.log_alpha[k], self.log_beta[k] - inner
        found = (self._sure(x) for x in (log_delta, log_reverse, rest))
        log_delta, log_reverse, rest = found
        log_delta = _moved_by(log_delta, unit + fall)
        return Point(log_delta, _moved_by(log_reverse, unit + rise), rest)

    def rates(self, log_alpha: Float[Array, ""], log_tnr: Float[Array, ""]) -> Rates:
        """Beta and 1 - beta at an interior type I error."""
        j = self.segment(log_alpha, log_tnr)
        weight, rest, _ = self._place(j, log_alpha, log_tnr)
        weight, rest = jnp.clip(weight, 0, 1), jnp.clip(rest, 0, 1)
        log_beta = safe_log(_mean(self.log_beta, j, weight, rest))
        log_tpr = safe_log(_mean(self.log_tpr, j, weight, rest))
        if self.sampled:
            beta, tpr = self._smooth(j, log_alpha, log_tnr)
            log_beta, log_tpr = _moving(log_beta, beta), _moving(log_tpr, tpr)
        # Right of the first vertex f is zero.
        beyond = log_tnr - log_alpha < self.log_tnr[0] - self.log_alpha[0]
        log_beta = jnp.where(beyond, -jnp.inf, log_beta)
        beta, tpr = self._sure(log_beta), self._sure(jnp.where(beyond, 0.0, log_tpr))
        # A logarithm's rounding moves alpha, or 1 - alpha, whichever is told better.
        logs = stop_gradient(jnp.stack([log_alpha, log_tnr]))
        unit, least = 2 * jnp.finfo(logs.dtype).eps, 8 * jnp.finfo(logs.dtype).tiny
        slips = jnp.logaddexp(logs + jnp.log(unit * (4 - logs)), jnp.log(least))
        log_slip = jnp.min(slips) + self.epsilon[j]
        return Rates(_moved_by(beta, log_slip), _moved_by(tpr, log_slip))

    def _place(
        self, k: Array, log_alpha: Array, log_tnr: Array
    ) -> tuple[Array, Array, Array]:
        """A type I error on the line through the vertices k and k + 1.

        Their weights, which add to 1, and whether they are apart; if not, k has all.
        """
        alpha = jnp.exp(
            jnp.stack([self.log_alpha[k], log_alpha, self.log_alpha[k + 1]])
        )
        tnr = jnp.exp(jnp.stack([self.log_tnr[k], log_tnr, self.log_tnr[k + 1]]))
        left, right = gap(alpha, tnr, 1, 2), gap(alpha, tnr, 0, 1)
        total = left + right
        apart = total > 0
        safe = jnp.where(apart, total, 1.0)
        weight = jnp.where(apart, left / safe, 1.0)
        return weight, jnp.where(apart, right / safe, 0.0), apart

    def _smooth(self, j: Array, log_alpha: Array, log_tnr: Array) -> list[Array]:
        """Beta and 1 - beta, with the derivatives of a smooth curve at segment j.

        In a segment's middle those of its own line, at a vertex the mean of the lines
        that meet there.
        """

        def line(k: Array) -> tuple[Array, Array, Array, Array]:
            weight, rest, apart = self._place(k, log_alpha, log_tnr)
            beta = _mean(self.log_beta, k, weight, rest)
            return weight, apart, beta, _mean(self.log_tpr, k, weight, rest)

        last = self.epsilon.size - 1
        weight, _, *own = line(j)
        _, any_before, *before = line(jnp.maximum(j - 1, 0))
        _, any_after, *after = line(jnp.minimum(j + 1, last))
        to_before = jnp.where(any_before & (j > 0), jnp.clip(weight - 0.5, 0, 0.5), 0.0)
        to_after = jnp.where(any_after & (j < last), jnp.clip(0.5 - weight, 0, 0.5), 0)
        to_before, to_after = stop_gradient((to_before, to_after))
        return [
            x + to_before * (a - x) + to_after * (b - x)
            for x, a, b in zip(own, before, after, strict=True)
        ]

    def segment(self, log_alpha: Array, log_tnr: Array) -> Array:
        """The node whose segment holds a type I error (the one to its left)."""
        places = self.log_tnr - self.log_alpha  # increasing
        j = jnp.searchsorted(places, log_tnr - log_alpha, side="right") - 1
        return stop_gradient(jnp.clip(j, 0, self.epsilon.size - 1))

    def ends(self) -> Ends:
        """Infinite losses."""
        logs = (
            *(self.log_tpr[-1], self.log_beta[-1]),
            *(self.log_tnr[0], self.log_alpha[0]),
        )
        return Ends(*(self._sure(x) for x in logs))

    def exchanged(self) -> "Knots":
        """The knots of the inverse."""
        return Knots(
            epsilon=-self.epsilon[::-1],
            log_delta=self.log_reverse[::-1],
            log_reverse=self.log_delta[::-1],
            log_rest=self._other_rest()[::-1],
            log_alpha=self.log_beta[::-1],
            log_tnr=self.log_tpr[::-1],
            log_beta=self.log_alpha[::-1],
            log_tpr=self.log_tnr[::-1],
            sampled=self.sampled,
        )

    def _other_rest(self) -> Float[Array, " n"]:
        """log(1 - delta_rev(-eps))."""
        small = self.log_reverse < LOG_HALF
        direct = log_complement(jnp.where(small, self.log_reverse, -1.0))
        return jnp.where(small, direct, at_most_zero(self.log_rest - self.epsilon))

    def masses(self) -> tuple[Array, Array, Array]:
        """Losses with their log-probabilities under P and Q."""
        first, last = slice(None, -1), slice(1, None)
        p = _log_difference(self.log_alpha, self.log_tnr, first, last)
        q = _log_difference(self.log_beta, self.log_tpr, last, first)
        return self.epsilon, p, q

    def log_slope(self, log_alpha: Array, log_tnr: Array) -> Array:
        """The logarithm of the slope to the left of a type I error."""
        beyond = log_tnr - log_alpha < self.log_tnr[0] - self.log_alpha[0]
        slope = self.epsilon[self.segment(log_alpha, log_tnr)]
        return jnp.where(beyond, -jnp.inf, slope)

    def area(self) -> Float[Array, ""]:
        """The area under the ROC curve."""
        alpha, tpr = jnp.exp(self.log_alpha), jnp.exp(self.log_tpr)
        pieces = (alpha[:-1] - alpha[1:]) * 0.5 * (tpr[:-1] + tpr[1:])
        return jnp.sum(pieces) + jnp.exp(self.log_tnr[0])

    def _sure(self, value: Array) -> Interval:
        fixed = stop_gradient(value)
        return widened(Interval(fixed, value, fixed), self.rounding)


def _moved_by(log_value: Interval, log_slip: Array) -> Interval:
    """Bounds of a probability that is wrong by so much, absolutely."""
    log_slip = stop_gradient(log_slip)
    upper = jnp.minimum(log_add(log_value.upper, log_slip), 0)
    return Interval(log_subtract(log_value.lower, log_slip), log_value.estimate, upper)


def _chord(nodes: Array, logs: Array, i: Array, k: Array, x: Array) -> Array:
    """Log of the interpolant, linear in e^node, between nodes i and k, at x."""
    width = nodes[k] - nodes[i]
    empty = width <= 0
    size = -jnp.expm1(-jnp.where(empty, 1.0, width))
    offset = x - nodes[i]
    weight = -jnp.expm1(-offset) * jnp.exp(x - nodes[k]) / size
    rest = -jnp.expm1(x - nodes[k]) / size
    weight, rest = jnp.where(empty, 0.0, weight), jnp.where(empty, 1.0, rest)
    high = stop_gradient(jnp.maximum(logs[i], logs[k]))
    high = jnp.where(jnp.isfinite(high), high, 0.0)
    value = rest * jnp.exp(logs[i] - high) + weight * jnp.exp(logs[k] - high)
    return safe_log(value) + high


def _with_more_rest(log_value: Array, log_rest: Array, distance: Array) -> Array:
    """A profile further to the left, from it and its complement at its first node."""
    outside = distance > 0
    lost = plus(log_rest, log1mexp(jnp.where(outside, distance, 1.0)))
    return jnp.where(outside, log_add(log_value, lost), log_value)


def _mean(logs: Array, k: Array, weight: Array, rest: Array) -> Array:
    """The mean of the vertices k and k + 1."""
    return weight * jnp.exp(logs[k]) + rest * jnp.exp(logs[k + 1])


def _moving(log_value: Array, like: Array) -> Array:
    """A logarithm whose value moves as another does, if it is not too small."""
    known = log_value > _LEAST
    scale = jnp.exp(stop_gradient(-jnp.where(known, log_value, 0.0)))
    moved = stop_gradient(log_value) + (like - stop_gradient(like)) * scale
    return jnp.where(known, moved, log_value)


def _log_difference(log_value: Array, log_complement: Array, i, j) -> Array:
    """Log of the same."""
    direct = log_subtract(log_value[i], log_value[j])
    other = log_subtract(log_complement[j], log_complement[i])
    return jnp.where(log_value[i] < log_complement[i], direct, other)


# ------------------------------------------------------------------- from vertices


def from_atoms(
    epsilon: Array, log_p: Array, log_q: Array, log_p_inf: Array, log_q_inf: Array
) -> Knots:
    """From the distribution of the loss: atoms in increasing order, and infinite ones.

    `log_p_inf` is log P(X = -inf), `log_q_inf` is log Q(Y = inf).
    """
    none = jnp.full((1,), -jnp.inf, epsilon.dtype)
    down = lambda logs: log_cumsum(logs[::-1])[::-1]
    vertices = {
        "log_alpha": down(jnp.concatenate([log_p, none])),
        "log_tnr": log_cumsum(jnp.concatenate([log_p_inf[None], log_p])),
        "log_beta": log_cumsum(jnp.concatenate([none, log_q])),
        "log_tpr": down(jnp.concatenate([log_q, log_q_inf[None]])),
    }
    return with_nodes(
        epsilon, **{name: at_most_zero(x) for name, x in vertices.items()}
    )


def with_nodes(
    epsilon: Array, *, log_alpha: Array, log_tnr: Array, log_beta: Array, log_tpr: Array
) -> Knots:
    """From vertices and the slopes between them: the profile by adding up areas."""
    log_width = log1mexp(jnp.maximum(jnp.diff(epsilon), 0))
    right = plus(epsilon[1:] + log_width, log_alpha[1:-1])
    left = plus(-epsilon[:-1] + log_width, log_beta[1:-1])
    falling = jnp.concatenate([right, log_tpr[-1:]])
    log_delta = log_cumsum(falling[::-1])[::-1]
    log_reverse = log_cumsum(jnp.concatenate([log_tnr[:1], left]))
    log_rest = log_add(log_beta[:-1], plus(epsilon, log_alpha[:-1]))
    return Knots(
        epsilon=epsilon,
        log_delta=at_most_zero(log_delta),
        log_reverse=at_most_zero(log_reverse),
        log_rest=at_most_zero(log_rest),
        log_alpha=log_alpha,
        log_tnr=log_tnr,
        log_beta=log_beta,
        log_tpr=log_tpr,
    )


def from_vertices(
    *, log_alpha: Array, log_tnr: Array, log_beta: Array, log_tpr: Array
) -> Knots:
    """From vertices of a convex function, alpha decreasing; repeated ones are allowed.

    The first has beta = 0 and the last alpha = 0.
    """
    first, last = slice(None, -1), slice(1, None)
    log_p = _log_difference(log_alpha, log_tnr, first, last)
    log_q = _log_difference(log_beta, log_tpr, last, first)
    known = jnp.isfinite(log_p) & jnp.isfinite(log_q)
    safe = jnp.where(known, log_q, 0.0) - jnp.where(known, log_p, 0.0)
    # A repeated vertex has no slope of its own: take its neighbor's.
    before, after = last_kept(known), next_kept(known)
    index = jnp.where(known[before], before, after)
    epsilon = jax.lax.cummax(safe[index])
    return with_nodes(
        epsilon,
        log_alpha=log_alpha,
        log_tnr=log_tnr,
        log_beta=log_beta,
        log_tpr=log_tpr,
    )


# ---------------------------------------------------------------------- from nodes


def from_profile(
    epsilon: Array, log_delta: Array, log_reverse: Array, log_rest: Array
) -> Knots:
    """From the profile at increasing nodes; its lower convex hull in e^eps.

    Left of the nodes 1 - delta is proportional to e^eps and right of them delta is
    constant: the largest profile with these values.
    """
    given = (log_delta, log_reverse, log_rest)
    mask, moved = _convex(epsilon, *given)
    log_delta, log_reverse, log_rest = moved
    # Slopes of the hull: between its vertices, not between points on one line.
    low, high = last_kept(mask)[:-1], next_kept(mask)[1:]
    width = epsilon[high] - epsilon[low]
    empty = width <= 0
    log_width = log1mexp(jnp.where(empty, 1.0, width))
    # alpha is the slope of -delta in e^eps, beta that of -delta_rev in e^-eps.
    alpha = _log_difference(log_delta, log_rest, low, high)
    alpha = alpha - (epsilon[high] + log_width)
    other = log_rest - epsilon
    beta = _log_difference(log_reverse, other, high, low)
    beta = beta - (log_width - epsilon[low])
    # A flat line meets the axis at its height, whatever rounding makes of its slope.
    flat, steep = empty | jnp.isneginf(alpha), jnp.isneginf(beta)
    alpha, beta = (
        jnp.where(flat, -jnp.inf, jnp.where(steep, other[low], alpha)),
        jnp.where(flat, log_rest[high], beta),
    )
    tpr = log_add(log_delta[high], plus(epsilon[high], alpha))
    tnr = log_add(log_reverse[low], plus(-epsilon[low], beta))
    alpha, tnr = _paired(alpha, jnp.where(empty, 0.0, tnr))
    beta, tpr = _paired(beta, tpr)
    zero, none = jnp.zeros(1, epsilon.dtype), jnp.full(1, -jnp.inf, epsilon.dtype)
    return Knots(
        epsilon=epsilon,
        log_delta=log_delta,
        log_reverse=log_reverse,
        log_rest=log_rest,
        log_alpha=jnp.concatenate([at_most_zero(other[:1]), alpha, none]),
        log_tnr=jnp.concatenate([log_reverse[:1], tnr, zero]),
        log_beta=jnp.concatenate([none, beta, log_rest[-1:]]),
        log_tpr=jnp.concatenate([zero, tpr, log_delta[-1:]]),
    )


def _paired(log_value: Array, log_other: Array) -> tuple[Array, Array]:
    """A number and its complement: the smaller one decides."""
    log_value, log_other = at_most_zero(log_value), at_most_zero(log_other)
    first = log_value < log_other
    value = jnp.where(first, log_value, log_complement(log_other))
    return value, jnp.where(first, log_complement(log_value), log_other)


def _convex(epsilon: Array, *values: Array) -> tuple[Array, list[Array]]:
    """Vertices of the lower convex hull, and all values moved onto it.

    Bounds of each value need not be quite convex, and slopes between nodes that almost
    coincide would be rounding errors: one of them gives way.
    """
    log_delta, log_reverse, log_rest = values

    def on_chord(i: Array, j: Array, k: Array) -> tuple[Array, Array, Array]:
        x = epsilon[j]
        return (
            _chord(epsilon, log_delta, i, k, x),
            _chord(-epsilon, log_reverse, k, i, -x),
            _chord(epsilon, log_rest, i, k, x),
        )

    def above(i: Array, j: Array, k: Array) -> Array:
        delta, reverse, rest = on_chord(i, j, k)
        side = jnp.where(
            epsilon[j] < 0, log_reverse[j] >= reverse, log_delta[j] >= delta
        )
        middle = (log_delta[j] > LOG_HALF) & (log_reverse[j] > LOG_HALF)
        found = jnp.where(middle, log_rest[j] <= rest, side)
        return (
            found
            | (epsilon[j] - epsilon[i] < _CLOSE)
            | (epsilon[k] - epsilon[j] < _CLOSE)
        )

    mask = stop_gradient(chain(epsilon.size, above))
    every = jnp.arange(epsilon.size)
    moved = jax.vmap(on_chord)(last_kept(mask), every, next_kept(mask))
    return mask, [
        jnp.where(mask, old, new) for old, new in zip(values, moved, strict=True)
    ]
