r"""The smallest mu of Gaussian differential privacy, and what is lost by using it.

A mechanism is mu-GDP if its profile lies below that of G_mu = T(N(0, 1), N(mu, 1)) at
every eps >= 0.  Between two thresholds the profile lies below its chord in e^eps; the
chord of slope -s and intercept c lies below the convex delta_mu everywhere if and only
if G_mu(s) <= 1 - c, that is mu >= Phi^-1(c) - Phi^-1(s).  The largest of these numbers
certifies the whole range.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import known, outside_transformations
from .._internal._implicit import kink_near, of_several, optimum_or_kink, parted
from .._internal._precision import Outward, in_float64
from .._internal._record import Record
from ..curves import (
    with_gradient,
)
from ..engines import can_split
from ..losses import AUTO, ComposedLoss, Method
from ..mechanisms import Resolved, by_contour
from .gaussian_fit import closer, effort, fitted, profile, regret_at, regret_end
from .log_moment import resolved

_LISTED_ASIDE = 1e-12
"""The least delta for which counts are listed."""


class GDPSummary(Record):
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

    def _in_single(self) -> "GDPSummary":
        """The summary with both ends rounded outward."""
        ends = Outward(self.mu_lower, self.mu)._in_single()
        return dataclasses.replace(self, mu_lower=ends.lower, mu=ends.upper)


@explained(delta=_checks.one(_checks.below_one))
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
    found, aside = resolved(mechanism, "gdp"), known(delta)
    # What lists leave out would matter for less.
    listed = aside is not None and aside >= _LISTED_ASIDE
    loss = _on_lines(found, found.first.composed if listed else found.whole.composed)
    # A plain call has no derivative, so it need not pay for one.
    return _gdp(loss, delta, plain=outside_transformations())


@explained(mu=_checks.one(_checks.nonnegative_or_inf))
def gdp_regret(mechanism: Any, *, mu: Any) -> Float[Array, ""]:
    """The regret of summarizing a mechanism by G_mu.

    The smallest D with f(x + D) - D <= G_mu(x) for all x; equal to the largest
    difference R_f(prior) - R_mu(prior) of Bayes errors (f the symmetric guarantee).

    Args:
        mechanism: A mechanism or view; both directions count.
        mu: In [0, inf].

    Returns:
        D in [0, 1/2], an estimate; 0 if f <= G_mu.

    Differentiable in:
        mu and all parameters (envelope theorem: the prior stays where it is, or at the
        kink it belongs to); the derivative is zero where the regret is.

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
    found = resolved(mechanism, "gdp_regret")
    loss = _on_lines(found, found.whole.composed)
    # A plain call has no derivative, so it need not pay for one.
    return _regret(loss, mu, plain=outside_transformations())


def _on_lines(found: Resolved, loss: ComposedLoss) -> ComposedLoss:
    """The loss, not to be split if it is known that lines serve it as it is."""
    split = can_split(loss) and None in found.known_steps
    if split or loss.method != AUTO or not by_contour(found.known_steps, loss):
        return loss
    return dataclasses.replace(loss, method=Method("contour", split=False))


@in_float64
def _gdp(loss: ComposedLoss, delta: Array, *, plain: bool) -> GDPSummary:
    rounds = effort(loss).regret_rounds
    found, regret = fitted(loss, jnp.asarray(delta), rounds, plain=plain)
    mu = with_gradient(found.upper, found.estimate)
    return GDPSummary(mu, found.lower, regret, delta)


@in_float64
def _regret(loss: ComposedLoss, mu: Array, *, plain: bool) -> Array:
    """Largest (delta_mu - delta_f) / (1 + e^eps) over eps >= 0."""
    mu = jnp.asarray(mu, float)
    fixed, at = stop_gradient((loss, mu))
    count, rounds = effort(fixed)

    def zoom(grid: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        values = regret_at(at, grid, profile(fixed, grid).estimate)
        best = jnp.argmax(values)
        return closer(grid, values), (values[best], grid[best])

    start = regret_end(at) * jnp.linspace(0.0, 1.0, count)
    _, (values, places) = jax.lax.scan(zoom, start, length=rounds)
    best = jnp.argmax(values)
    value = jnp.maximum(values[best], 0.0)
    if plain:
        return value
    some = (value > 0) & jnp.isfinite(at)
    objective, *given = parted(_regret_at, (loss, mu), some)
    return optimum_or_kink(objective, kink_near, value[None], places[best], *given)[0]


@of_several
def _regret_at(epsilon: Array, args: tuple, some: Array) -> Float[Array, " 1"]:
    """The regret at one threshold, as an objective."""
    loss, mu = args
    safe = jnp.where(some, mu, 1.0)
    found = regret_at(safe, epsilon, profile(loss, epsilon).estimate)
    return jnp.where(some, found, 0.0)[None]
