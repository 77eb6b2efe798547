r"""The smallest mu of Gaussian differential privacy, and what is lost by using it.

A mechanism is mu-GDP if its profile lies below that of G_mu = T(N(0, 1), N(mu, 1)) at
every eps >= 0.  Between two thresholds the profile lies below its chord in e^eps; the
chord of slope -s and intercept c lies below the convex delta_mu everywhere if and only
if G_mu(s) <= 1 - c, that is mu >= Phi^-1(c) - Phi^-1(s).  The largest of these numbers
certifies the whole range.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .. import engines
from .._internal import _checks
from .._internal._implicit import implicit_root
from .._internal._precision import in_float64, narrow, outside_transformations
from .._internal._roots import root_between
from .._internal._special import log_ndtri, ndtri_from_logs, safe_log
from ..curves import Bounds, Subject
from ..curves._bounds import with_gradient
from ..curves._queries import round_down_to_single
from ..engines import Interval
from ..engines._gaussian import log_delta as gaussian_log_delta
from ..losses import ComposedLoss, GaussianLoss, SubsampledGaussianLoss
from ._log_moment import (
    counted,
    finite_mass,
    gaussian_precision,
    largest_finite,
    log_unseen,
    resolved,
)

_ROUNDS = 2
_PEAKS = 4
"""Local maxima around which the regret is searched."""
_STRETCH = 3.0
_ROUNDING = 1e-12
_REACH = 1e-15
_LISTED_ASIDE = 1e-12
"""The least delta for which counts are listed."""
_LOG_RANGE = (-46.0, 14.0)
"""Of mu, in which Gaussians through a point of the profile are searched."""


class GDPSummary(eqx.Module):
    """A mechanism summarized by one number; made by `gdp`."""

    mu: Float[Array, ""]
    """Certified: the mechanism is mu-GDP, but for `delta`.  inf if there is no mu."""
    mu_lower: Float[Array, ""]
    """No smaller mu will do (certified too)."""
    regret: Float[Array, ""]
    """How much G_mu gives away: the smallest D with f(x + D) - D <= G_mu(x) for all x,
    which is the largest difference of the two Bayes errors.  An estimate."""
    delta: Float[Array, ""]
    """The probability set aside."""


def gdp(mechanism: Any, *, delta: Any = 0.0) -> GDPSummary:
    """The smallest mu for which a mechanism is mu-GDP, and the regret of using it.

        f >= G_mu - delta,   that is   delta_f(eps) <= delta_mu(eps) + delta

    at every eps >= 0 and in both directions (G_mu is symmetric).  With delta = 0 this
    is mu-GDP itself.  Poisson sampling does not improve it: near alpha = 0 the
    trade-off function of DP-SGD is as steep as without sampling, so that
    mu = sqrt(num_steps) / noise_multiplier.  A delta far below the one of interest,
    like 1e-10, sets that corner aside and gives the useful number.

    Args:
        mechanism: A mechanism or view; both directions count.
        delta: Probability set aside, in [0, 1).

    Returns:
        `GDPSummary` with `mu`, `mu_lower`, `regret` and `delta`.

    Guarantee:
        mu is an upper bound; exact up to rounding at delta = 0 for Gaussians, with or
        without sampling, and for one Laplace or randomized response.

    Differentiable in:
        All parameters (once), through `mu`.

    Raises:
        ValueError: If delta is outside [0, 1).
        TypeError: If `mechanism` is not a mechanism or view.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.divergences.gdp(fdp.RandomizedResponse(1.0)).mu:.9f}")
        1.232035385

    References:
        Dong, Roth, Su (2022), Definition 2.6 and Proposition 2.12 (duality); Gomez et
        al. (2025) for the summary and its regret.
    """
    delta = _checks.scalar("delta", _checks.below_one("delta", delta))
    found, aside = resolved(mechanism, "gdp"), _checks.known(delta)
    # What lists leave out would matter for less.
    listed = aside is not None and aside >= _LISTED_ASIDE
    loss = found.first.composed if listed else found.whole.composed
    # A plain call has no derivative, so it need not pay for one.
    return _gdp(loss, delta, narrow=narrow(), plain=outside_transformations())


def gdp_regret(mechanism: Any, *, mu: Any) -> Float[Array, ""]:
    """The regret of summarizing a mechanism by G_mu.

    The smallest D with f(x + D) - D <= G_mu(x) for all x; equal to the largest
    difference R_f(prior) - R_mu(prior) of Bayes errors (f the symmetric guarantee).

    Args:
        mechanism: A mechanism or view; both directions count.
        mu: In [0, inf].

    Returns:
        D in [0, 1/2], an estimate; 0 if f <= G_mu.

    Raises:
        ValueError: If mu is negative or NaN.
        TypeError: If `mechanism` is not a mechanism or view.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.divergences.gdp_regret(fdp.Laplace(1.0), mu=1.2):.6f}")
        0.054187

    References:
        Kaissis et al. (2024) for the Delta-divergence; Gomez et al. (2025).
    """
    mu = _checks.scalar("mu", _checks.nonnegative_or_inf("mu", mu))
    return _regret(resolved(mechanism, "gdp_regret").whole.composed, mu)


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


def _profile(loss: ComposedLoss, epsilon: Array) -> Bounds:
    return Subject(loss)._log_delta_bounds(epsilon)


@in_float64
def _gdp(loss: ComposedLoss, delta: Array, *, narrow: bool, plain: bool) -> GDPSummary:
    rounds = _effort(loss).regret_rounds
    found, regret = _fitted(loss, jnp.asarray(delta), rounds, plain=plain)
    upper, mu_lower = found.upper, found.lower
    if narrow:
        upper = -round_down_to_single(-upper)
        mu_lower = round_down_to_single(mu_lower)
    return GDPSummary(with_gradient(upper, found.estimate), mu_lower, regret, delta)


def fitted_mu(loss: ComposedLoss, delta: Float[Array, ""], *, plain: bool) -> Interval:
    """The smallest mu between certified bounds, inside a float64 program.

    Args:
        loss: The privacy loss.
        delta: Probability set aside.
        plain: Whether no derivative is wanted.
    """
    return _fitted(loss, delta, 0, plain=plain)[0]


def _fitted(
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
        at_best = _profile(loss, nodes.epsilon[best]).estimate
        fitted = _attached(lower[best], nodes.epsilon[best], at_best, delta)
        estimate = jnp.where(closed <= between, root, fitted)
    tight = stop_gradient(_exact_kinds(loss) & (delta == 0))
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
    closed = counted(loss, gaussian_precision)
    released = jnp.isfinite(closed) & (closed > 0)
    root = jnp.sqrt(jnp.where(released, closed, 1.0))
    return jnp.where(released, root, jnp.where(closed > 0, jnp.inf, 0.0))


class _Effort(NamedTuple):
    """How many thresholds are looked at; the grid engine takes long for each."""

    nodes: int
    regret_rounds: int


def _effort(loss: ComposedLoss) -> _Effort:
    slow = engines.route(loss) == "grid"
    return _Effort(48, 3) if slow else _Effort(192, 4)


def _exact_kinds(loss: ComposedLoss) -> Array:
    """Whether the closed form is the smallest mu: Gaussians, sampled or not."""
    kinds = GaussianLoss, SubsampledGaussianLoss
    return jnp.asarray(all(isinstance(term, kinds) for term in loss.terms))


def _range(
    loss: ComposedLoss, reach: Array, delta: Array
) -> tuple[Array, Array, Array]:
    """Where to end, whether delta(eps) <= delta beyond, and the largest loss."""
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
    loss = stop_gradient(loss)
    least = jnp.log(jnp.where(delta > 0, delta, _REACH))
    reach = engines.largest_epsilon(loss, jnp.asarray([1.0, -1.0]), least)
    last, covered, most = _range(loss, reach, delta)
    closed = stop_gradient(closed_mu(loss))
    share = jnp.linspace(0.0, 1.0, _effort(loss).nodes)
    crowded = jnp.sinh(_STRETCH * share) / jnp.sinh(_STRETCH)
    at_nodes = jax.vmap(_mu_through, in_axes=(0, 0, None))

    def zoom(state: tuple, number: Array) -> tuple[tuple, Array]:
        epsilon, nodes = state
        fitting = number < _ROUNDS
        found = _profile(loss, epsilon)
        # No loss lies beyond the largest one.
        upper = jnp.where(epsilon >= most, -jnp.inf, found.upper)
        new = _Nodes(epsilon, found.lower, upper)
        put = lambda every, x: every.at[number].set(x, mode="drop")
        nodes = jax.tree.map(put, nodes, new)
        mu = _least_mu(_between(nodes.in_order(), covered, delta), closed)
        lost = _regret_at(mu, epsilon, found.estimate)
        low, high = _beside(epsilon, jnp.argmax(at_nodes(epsilon, new.lower, delta)))
        closer = jnp.where(fitting, low + (high - low) * share, _closer(epsilon, lost))
        whole = _regret_end(mu) * share
        epsilon = jnp.where(number == _ROUNDS - 1, whole, closer)
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


def _closer(grid: Array, values: Array) -> Array:
    """As many places around the largest local maxima: next to kinks there are many."""
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
    miss = lambda t: gaussian_log_delta(jnp.exp(t), epsilon) - target
    return jnp.where(found, jnp.exp(root_between(miss, low, high)[0]), 0.0)


def _attached(mu: Array, epsilon: Array, log_delta: Array, delta: Array) -> Array:
    """The same mu with its derivative (that in epsilon vanishes at the maximum)."""
    inside = mu > 0
    args = jnp.where(inside, log_delta, -1.0), jnp.where(inside, delta, 0.0)
    safe = jnp.where(inside, mu, 1.0)
    found = implicit_root(_mu_miss, safe, args, stop_gradient(epsilon))
    return jnp.where(inside, found, 0.0)


def _mu_miss(mu: Array, args: tuple[Array, Array], epsilon: Array) -> Array:
    log_delta, delta = args
    own = jnp.exp(gaussian_log_delta(mu, epsilon) - stop_gradient(log_delta))
    value = jnp.exp(log_delta - stop_gradient(log_delta))
    return own - value + delta * jnp.exp(-stop_gradient(log_delta))


# --------------------------------------------------------------------------- regret


@in_float64
def _regret(loss: ComposedLoss, mu: Array) -> Array:
    """Largest (delta_mu - delta_f) / (1 + e^eps) over eps >= 0."""
    fixed, mu = stop_gradient((loss, jnp.asarray(mu)))
    count, rounds = _effort(fixed)

    def zoom(grid: Array, _: None) -> tuple[Array, Array]:
        values = _regret_at(mu, grid, _profile(fixed, grid).estimate)
        return _closer(grid, values), jnp.max(values)

    start = _regret_end(mu) * jnp.linspace(0.0, 1.0, count)
    _, values = jax.lax.scan(zoom, start, length=rounds)
    return jnp.maximum(jnp.max(values), 0.0)


def _regret_at(mu: Array, epsilon: Array, log_delta: Array) -> Array:
    own = jnp.exp(gaussian_log_delta(mu, epsilon))
    return (own - jnp.exp(log_delta)) * jax.nn.sigmoid(-epsilon)


def _regret_end(mu: Array) -> Array:
    """Beyond it delta_mu is below 1e-17, or 1 / (1 + e^eps) is."""
    finite = jnp.where(jnp.isfinite(mu), mu, 10.0)
    return jnp.minimum(0.5 * finite * finite + 9 * finite, 40.0)
