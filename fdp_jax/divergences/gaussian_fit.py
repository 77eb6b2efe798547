"""The smallest mu of Gaussian DP for a privacy loss, between certified bounds."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .. import engines
from .._internal._implicit import implicit_root
from .._internal._roots import root_between
from .._internal._special import log_ndtri, ndtri_from_logs, safe_log
from ..curves import Bounds, Subject, over_signs, profile_by_rows, signs_of
from ..engines import Interval
from ..losses import ComposedLoss, GaussianForm
from ..losses.log_moment import counted, finite_mass, largest_finite, log_unseen

_ROUNDS = 2
_PARTS = 2
"""Compositions on the grid that serve all thresholds of a round."""
_LINES = 16
"""The same of lines."""
_PEAKS = 4
"""Local maxima around which the regret is searched."""
_STRETCH = 3.0
_ROUNDING = 1e-12
_REACH = 1e-15
_LOG_RANGE = (-46.0, 14.0)
"""Range of log mu in which Gaussians through a point of the profile are searched."""


class _Nodes(eqx.Module):
    """The symmetric profile at increasing thresholds, in logarithms."""

    epsilon: Float[Array, " n"]
    lower: Float[Array, " n"]
    upper: Float[Array, " n"]

    def in_order(self) -> "_Nodes":
        """All nodes by threshold; delta decreases, so bounds hold beside them too."""
        epsilon, lower, upper = (
            x.ravel() for x in (self.epsilon, self.lower, self.upper)
        )
        order = jnp.argsort(epsilon)
        lower = jax.lax.cummax(lower[order], reverse=True)
        return _Nodes(epsilon[order], lower, jax.lax.cummin(upper[order]))


def profile(loss: ComposedLoss, epsilon: Array) -> Interval | Bounds:
    """Log delta of the worst direction at one threshold, or at rising ones.

    A composition on the grid takes long, and serves those around it; so does a line, of
    a loss that need not be split.
    """
    engine = engines.engine_of(loss)
    serves = engine.coarse or (engine.anchored and not loss.method.split)
    if not (epsilon.ndim and serves):
        return Subject(loss)._bounds_of("log_delta", epsilon)
    rows = epsilon.reshape(_PARTS if engine.coarse else _LINES, -1)
    at = lambda sign: profile_by_rows(loss, sign, rows).log_delta
    return over_signs(at, signs_of(loss, "both")).map(lambda x: jnp.max(x, axis=0))


def fitted_mu(loss: ComposedLoss, delta: Float[Array, ""], *, plain: bool) -> Interval:
    """The smallest mu between certified bounds, inside a float64 program.

    Args:
        loss: The privacy loss.
        delta: Probability set aside.
        plain: Whether no derivative is wanted.
    """
    return fitted(loss, delta, 0, plain=plain)[0]


def fitted(
    loss: ComposedLoss, delta: Array, regret_rounds: int, *, plain: bool
) -> tuple[Interval, Array]:
    """The smallest mu and the regret of its upper bound."""
    fixed = stop_gradient(delta)
    nodes, covered, regret = _searched(loss, fixed, regret_rounds)
    at_nodes = jax.vmap(_mu_through, in_axes=(0, 0, None))
    lower = at_nodes(nodes.epsilon, nodes.lower, fixed)
    best = jnp.argmax(lower)

    between, root = _between(nodes, covered, fixed), closed_mu(loss)
    closed = stop_gradient(root)
    upper = _least_mu(between, closed)
    estimate = upper
    if not plain:
        at_best = profile(loss, nodes.epsilon[best]).estimate
        fitted = _attached(lower[best], nodes.epsilon[best], at_best, delta)
        estimate = jnp.where(closed <= between, root, fitted)
    # The closed form is the smallest mu of Gaussians, sampled or not.
    exact = all(term.gaussian_precision_adds for term in loss.terms)
    tight = stop_gradient(exact & (delta == 0))
    mu_lower = jnp.where(tight, closed * (1 - _ROUNDING), lower[best])
    mu_lower = jnp.minimum(stop_gradient(mu_lower), upper)
    return Interval(mu_lower, estimate, upper), regret


def _between(nodes: "_Nodes", covered: Array, delta: Array) -> Array:
    """The mu that certifies all cells of nodes in order."""
    most = jnp.where(covered, jnp.max(_chord_mu(nodes, delta)), 0.0)
    return jnp.where(covered, most, jnp.inf)


def _least_mu(between: Array, closed: Array) -> Array:
    return stop_gradient(jnp.minimum(between, closed)) * (1 + _ROUNDING)


def closed_mu(loss: ComposedLoss) -> Float[Array, ""]:
    """An upper bound of mu from Gaussian noise, differentiable; or infinite."""
    closed = counted(loss, lambda term: term.gaussian_precision())
    released = jnp.isfinite(closed) & (closed > 0)
    root = jnp.sqrt(jnp.where(released, closed, 1.0))
    return jnp.where(released, root, jnp.where(closed > 0, jnp.inf, 0.0))


class _Effort(NamedTuple):
    """The number of thresholds looked at; the grid engine takes long for each."""

    nodes: int
    regret_rounds: int


def effort(loss: ComposedLoss) -> _Effort:
    """The number of thresholds looked at for a loss, by its engine."""
    return _Effort(48, 3) if engines.engine_of(loss).coarse else _Effort(192, 4)


def _range(
    loss: ComposedLoss, reach: Array, delta: Array
) -> tuple[Array, Array, Array]:
    """The last threshold, if delta(eps) <= delta beyond it, and the largest loss."""
    mass = jnp.minimum(
        finite_mass(loss, 1.0).included, finite_mass(loss, -1.0).included
    )
    most = jnp.maximum(largest_finite(loss, 1.0), largest_finite(loss, -1.0))
    # An artificial end of the loss is not the last threshold there is.
    unseen = jnp.maximum(log_unseen(loss, 1.0), log_unseen(loss, -1.0))
    bounded = jnp.isfinite(most) & (mass == 0) & jnp.isneginf(unseen)
    most = jnp.where(bounded, most, jnp.inf)
    last = jnp.where(delta > 0, jnp.minimum(reach, most), most)
    covered = jnp.isfinite(last)
    last = jnp.where(covered, last, jnp.where(jnp.isfinite(reach), reach, 50.0))
    return jnp.maximum(last, 1e-9), covered, most


def _searched(
    loss: ComposedLoss, delta: Array, regret_rounds: int
) -> tuple[_Nodes, Array, Array]:
    """Nodes of [0, E], crowded where mu is largest, whether E is far enough; regret.

    All rounds are one loop: the program of a profile takes long to compile.
    """
    loss = stop_gradient(loss).with_ends()
    least = jnp.log(jnp.where(delta > 0, delta, _REACH))
    reach = engines.largest_epsilon(loss, jnp.asarray([1.0, -1.0]), least)
    last, covered, most = _range(loss, reach, delta)
    closed = stop_gradient(closed_mu(loss))
    share = jnp.linspace(0.0, 1.0, effort(loss).nodes)
    crowded = jnp.sinh(_STRETCH * share) / jnp.sinh(_STRETCH)
    at_nodes = jax.vmap(_mu_through, in_axes=(0, 0, None))

    def zoom(state: tuple, number: Array) -> tuple[tuple, Array]:
        epsilon, nodes = state
        fitting = number < _ROUNDS
        found = profile(loss, epsilon)
        # No loss lies beyond the largest one.
        upper = jnp.where(epsilon >= most, -jnp.inf, found.upper)
        new = _Nodes(epsilon, found.lower, upper)
        put = lambda every, x: every.at[number].set(x, mode="drop")
        nodes = jax.tree.map(put, nodes, new)
        mu = _least_mu(_between(nodes.in_order(), covered, delta), closed)
        lost = regret_at(mu, epsilon, found.estimate)
        low, high = _beside(epsilon, jnp.argmax(at_nodes(epsilon, new.lower, delta)))
        inside = low + (high - low) * share
        nearer = jnp.where(fitting, inside, closer(epsilon, lost))
        whole = regret_end(mu) * share
        epsilon = jnp.where(number == _ROUNDS - 1, whole, nearer)
        return (epsilon, nodes), jnp.where(fitting, 0.0, jnp.max(lost))

    # Nothing is known of the rounds to come.
    none = jnp.zeros((_ROUNDS, share.size))
    start = last * crowded, _Nodes(none, none - jnp.inf, none)
    numbers = jnp.arange(_ROUNDS + regret_rounds)
    (_, nodes), regrets = jax.lax.scan(zoom, start, numbers)
    return nodes.in_order(), covered, jnp.max(regrets)


def _beside(grid: Array, best: Array) -> tuple[Array, Array]:
    """The neighbors of places on a grid."""
    left, right = jnp.maximum(best - 1, 0), jnp.minimum(best + 1, grid.size - 1)
    return grid[left], grid[right]


def closer(grid: Array, values: Array) -> Array:
    """As large a grid around the largest local maxima, of which kinks make several."""
    left = jnp.append(-jnp.inf, values[:-1])
    right = jnp.append(values[1:], -jnp.inf)
    peaks = jnp.where((values >= left) & (values >= right), values, -jnp.inf)
    low, high = _beside(grid, jax.lax.top_k(peaks, _PEAKS)[1])
    between = jnp.linspace(low, high, grid.size // _PEAKS)
    return jnp.sort(between.ravel())


def _chord_mu(nodes: _Nodes, delta: Array) -> Float[Array, " m"]:
    """The mu that certifies each cell, for upper bounds joined by chords in e^eps."""
    value = jnp.exp(nodes.upper)
    fall = jnp.maximum(value[:-1] - value[1:], 0.0)
    width = nodes.epsilon[1:] - nodes.epsilon[:-1]
    void = width <= 0
    growth = jnp.expm1(jnp.where(void, 1.0, width))
    log_alpha = safe_log(fall) - jnp.log(growth) - nodes.epsilon[:-1]
    power = value[:-1] + fall / growth - delta
    outside = (power >= 1) | jnp.isneginf(log_alpha)
    inside = jnp.where((power > 0) & ~outside, power, 0.5)
    z = ndtri_from_logs(jnp.log(inside), jnp.log1p(-inside))
    needed = z - log_ndtri(jnp.where(outside, -1.0, log_alpha))
    return jnp.where(void | (power <= 0), 0.0, jnp.where(outside, jnp.inf, needed))


def _mu_through(epsilon: Array, log_delta: Array, delta: Array) -> Array:
    """The mu whose profile passes through (epsilon, e^log_delta - delta), or 0."""
    value = -jnp.expm1(jnp.minimum(safe_log(delta) - log_delta, 0.0))
    found = (value > 0) & jnp.isfinite(log_delta)
    target = log_delta + jnp.log(jnp.where(value > 0, value, 1.0))
    target = stop_gradient(jnp.where(found, target, -1.0))
    low, high = (jnp.asarray(x, epsilon.dtype) for x in _LOG_RANGE)
    miss = lambda t: GaussianForm(jnp.exp(t)).log_delta(epsilon) - target
    return jnp.where(found, jnp.exp(root_between(miss, low, high)[0]), 0.0)


def _attached(mu: Array, epsilon: Array, log_delta: Array, delta: Array) -> Array:
    """The given mu with its derivative (that in epsilon vanishes at the maximum)."""
    inside = mu > 0
    args = jnp.where(inside, log_delta, -1.0), jnp.where(inside, delta, 0.0)
    safe = jnp.where(inside, mu, 1.0)
    found = implicit_root(_mu_miss, safe, args, stop_gradient(epsilon))
    return jnp.where(inside, found, 0.0)


def _mu_miss(mu: Array, args: tuple[Array, Array], epsilon: Array) -> Array:
    log_delta, delta = args
    own = jnp.exp(GaussianForm(mu).log_delta(epsilon) - stop_gradient(log_delta))
    value = jnp.exp(log_delta - stop_gradient(log_delta))
    return own - value + delta * jnp.exp(-stop_gradient(log_delta))


def regret_at(mu: Array, epsilon: Array, log_delta: Array) -> Array:
    """The difference of the Bayes errors of a loss and of G_mu at thresholds."""
    own = jnp.exp(GaussianForm(mu).log_delta(epsilon))
    return (own - jnp.exp(log_delta)) * jax.nn.sigmoid(-epsilon)


def regret_end(mu: Array) -> Array:
    """Beyond it delta_mu is below 1e-17, or 1 / (1 + e^eps) is."""
    finite = jnp.where(jnp.isfinite(mu), mu, 10.0)
    return jnp.minimum(0.5 * finite * finite + 9 * finite, 40.0)
