r"""Divergences weighted by a density of the prior, and selection on average.

    Delta^Psi(M || M~) = max over pi of (R(pi) - R~(pi)) Psi(pi)

weighs the attackers one expects: Psi = 1 counts all priors alike, Jeffreys' prior the
well-informed ones more, and UQuadratic ignores the attacker who knows nothing (so that
its divergence is no metric: it does not see a difference at pi = 1/2 alone).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._precision import in_float64
from .._internal._quadrature import between
from .._internal._record import Record
from ..curves import (
    Bounds,
)
from .delta import (
    attached,
    certified,
    engines_of,
    extremum,
    prior_of,
    search,
)
from .sources import QuerySource, Request, pair, share

_EDGES = (0.0, 1e-3, 1e-2, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 40.0)
_BEYOND = (60.0, 90.0, 130.0)
"""Priors with a share of the density, but none of the errors."""
_POINTS = 12


class HyperPrior(Record):
    """A density on the prior of H0.

    Args:
        density: Function of pi in (0, 1), elementwise in JAX; at least 0 and finite,
            with pi (1 - pi) density(pi) bounded.
        convex: Whether it is convex on (0, 1/2] and on [1/2, 1), and
            min(pi, 1 - pi) density(pi) is monotone there: what certified upper bounds
            need (the density is not asked).

        symmetric: Whether density(1 - pi) = density(pi), which is checked: it is then
            not asked next to 1, where it may be infinite.

    Raises:
        ValueError: If the density is negative or not finite at some prior in (0, 1), or
            is not symmetric as stated, or is infinite at 1 and not symmetric.

    Example:
        >>> import fdp_jax as fdp
        >>> uniform = fdp.comparison.HyperPrior(lambda pi: 1.0 + 0.0 * pi, convex=True)
        >>> found = fdp.comparison.weighted_divergence(
        ...     fdp.Gaussian(1.0), fdp.Laplace(1.0), hyper_prior=uniform
        ... )
        >>> print(f"{found.value.estimate:.9f}")
        0.005272209
    """

    density: Callable = eqx.field(static=True)
    convex: bool = eqx.field(static=True, default=False, kw_only=True)
    symmetric: bool = eqx.field(static=True, default=False, kw_only=True)

    def __check_init__(self):
        _checks.flag("convex", self.convex)
        _checks.flag("symmetric", self.symmetric)
        tail = np.geomspace(1e-12, 0.5, 64)
        places = np.concatenate([tail, 1 - tail])
        # In float32 the last places are 1.
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            values = np.asarray(self.density(jnp.asarray(places)), np.float64)
            last = np.asarray(self.density(jnp.ones(1)), np.float64)
        weight = values * places * (1 - places)
        bad = ~np.isfinite(values) | (values < 0) | (weight > 1e6)
        if values.shape != places.shape or np.any(bad):
            where = places[bad][0] if np.any(bad) else places[0]
            raise ValueError(
                "density must be finite and at least 0 on (0, 1), with pi (1 - pi) "
                f"density(pi) bounded; it is not at prior {where:g}"
            )
        halves = np.split(values, 2)
        _checks.require(
            not self.symmetric or np.allclose(*halves, rtol=1e-3),
            "density must be symmetric about 1/2 if symmetric=True",
        )
        # Priors next to 1 are rounded to it.
        _checks.require(
            self.symmetric or np.isfinite(last[0]),
            "density must be finite at prior 1, unless symmetric=True",
            last[0],
        )


def _jeffreys(prior: Array) -> Array:
    return 1 / (jnp.pi * jnp.sqrt(prior * (1 - prior)))


def _uquadratic(prior: Array) -> Array:
    return 12 * jnp.square(prior - 0.5)


@explained
def jeffreys() -> HyperPrior:
    """Beta(1/2, 1/2), the Jeffreys prior: 1 / (Pi sqrt(pi (1 - pi)))."""
    return HyperPrior(_jeffreys, convex=True, symmetric=True)


@explained
def uquadratic() -> HyperPrior:
    """The U-quadratic density 12 (pi - 1/2)^2."""
    return HyperPrior(_uquadratic, convex=True, symmetric=True)


class WeightedDivergence(Record):
    """The largest weighted difference of Bayes errors."""

    value: Bounds
    """Its upper end is inf where the density is not declared convex."""
    prior: Float[Array, ""]
    """Where it is attained."""


@explained
def weighted_divergence(
    a: Any, b: Any, *, hyper_prior: HyperPrior
) -> WeightedDivergence:
    """The maximum over pi of (R_a(pi) - R_b(pi)) Psi(pi).

    Args:
        a: The guarantee taken as the reference.
        b: The one compared with it, under the same neighboring relation.
        hyper_prior: Psi: `jeffreys()`, `uquadratic()` or a `HyperPrior`.

    Returns:
        `WeightedDivergence` with `value` and `prior`.

    Guarantee:
        Both ends are proved; the upper one only for densities declared convex, and it
        is inf for others.

    Differentiable in:
        The parameters of both (as `delta_divergence`).

    Raises:
        ValueError: If the neighboring relations differ.
        TypeError: If an argument is not of the right kind.

    Example:
        >>> import fdp_jax as fdp
        >>> found = fdp.comparison.weighted_divergence(
        ...     fdp.Laplace(1.0),
        ...     fdp.Gaussian(1.0),
        ...     hyper_prior=fdp.comparison.jeffreys(),
        ... )
        >>> print(f"{found.value.estimate:.9f}")
        0.024507004

    References:
        Kaissis et al. (2024), Section 5.
    """
    _require_hyper_prior(hyper_prior)
    first, second = pair(a, b)
    return _weighted(first, second, hyper_prior)


def _require_hyper_prior(value: Any) -> None:
    wanted = "jeffreys(), uquadratic() or a HyperPrior"
    _checks.instance("hyper_prior", value, HyperPrior, wanted)


def _near_zero(hyper_prior: HyperPrior) -> Callable[[Array, Array], Array]:
    """The weight where 1 - q has lost q: from the other side, if it is the same.

    `half` is 1 where the prior is q, else it is 1 - q.
    """
    density = hyper_prior.density
    if hyper_prior.symmetric:
        return lambda q, half: density(q)
    return lambda q, half: density(jnp.where(half == 1, q, 1 - q))


@in_float64
def _weighted(
    first: Request, second: Request, hyper_prior: HyperPrior
) -> WeightedDivergence:
    first, second = (_both_halves(r, hyper_prior.symmetric) for r in (first, second))
    weigh = _near_zero(hyper_prior)
    found = search(first, second, weigh)
    at = extremum(found.nodes, weigh)
    # At a fixed prior, or at a kink.
    estimate = attached((first, second), found.prepared, at, weigh=weigh)
    upper = at.upper if hyper_prior.convex else jnp.full_like(at.upper, jnp.inf)
    lower, upper = at.lower * (1 - 1e-14), upper * (1 + 1e-14)
    name = engines_of(first, second)
    value = certified(lower, estimate, upper, name, most=np.inf)
    return WeightedDivergence(value, prior_of(at))


def _both_halves(request: Request, symmetric: bool) -> Request:
    """A guarantee's own symmetry is of no use if the density has none."""
    if symmetric or not request.symmetric:
        return request
    return dataclasses.replace(request, symmetric=False)


class AverageErrors(Record):
    """The average errors of attackers with random priors, for several mechanisms."""

    bayes_error: Float[Array, " m"]
    """The mean of R(pi) under the density: estimates."""
    best: Any
    """Index of the most private one on average (the largest error)."""


@explained
def best_on_average(guarantees: Any, *, hyper_prior: HyperPrior) -> AverageErrors:
    """Which of several guarantees is best on average over attackers' priors.

    Args:
        guarantees: A sequence of them, under one neighboring relation.
        hyper_prior: The density of the prior; it is normalized.

    Returns:
        `AverageErrors`, with `best` the index of the largest mean Bayes error.

    Guarantee:
        None: quadrature, to about 1e-10 for guarantees whose losses are of order one
        and whose kinks are known: up to 16 of single releases, trade-off functions that
        are piecewise linear, `Laplace` and `ApproxDP`.  A kink that is not known costs
        up to about 1e-5 of its change of slope.

    Differentiable in:
        All parameters, through `bayes_error`.

    Raises:
        ValueError: If there are none or their relations differ.
        TypeError: If an argument is not of the right kind.

    Example:
        >>> import fdp_jax as fdp
        >>> found = fdp.comparison.best_on_average(
        ...     [fdp.Gaussian(1.0), fdp.Laplace(1.0)],
        ...     hyper_prior=fdp.comparison.jeffreys(),
        ... )
        >>> int(found.best)
        1

    References:
        Kaissis et al. (2024), Section 5.
    """
    _require_hyper_prior(hyper_prior)
    _checks.require(len(guarantees), "guarantees must hold at least one", "none")
    requests = [pair(guarantees[0], g)[1] for g in guarantees]
    errors = jnp.stack([_mean_error(r, hyper_prior) for r in requests])
    return AverageErrors(errors, jnp.argmax(errors))


@in_float64
def _mean_error(request: Request, hyper_prior: HyperPrior) -> Float[Array, ""]:
    source = request.source()
    few = not isinstance(source, QuerySource)
    kinks = source.kinks() if few else source.all_kinks()
    kinks = jnp.clip(stop_gradient(kinks), 0.0, _EDGES[-1])
    cuts = jnp.sort(jnp.concatenate([jnp.asarray(_EDGES), kinks]))
    epsilon, weights = between(cuts, _POINTS)
    q = share(epsilon)
    prepared = source.prepared()
    halves = jnp.asarray([False, True])

    def deficits(left: Array) -> Array:
        return jax.vmap(lambda e: source.estimate(prepared, e, left))(epsilon)

    right = deficits(halves[0])
    left = right if request.symmetric else deficits(halves[1])
    density = _logit_density(hyper_prior)
    error = jnp.sum(density(epsilon, 0) * weights * (q - right))
    error = error + jnp.sum(density(epsilon, 1) * weights * (q - left))
    everywhere = between(np.asarray((*_EDGES, *_BEYOND)), _POINTS)
    at, weights = map(jnp.asarray, everywhere)
    total = jnp.sum((density(at, 0) + density(at, 1)) * weights)
    return error / total


def _logit_density(hyper_prior: HyperPrior) -> Callable[[Array, int], Array]:
    """The density of |logit pi| on either half: d pi = q (1 - q) d eps."""
    weigh = _near_zero(hyper_prior)

    def density(epsilon: Array, half: int) -> Array:
        q = share(epsilon)
        return weigh(q, jnp.asarray(half)) * q * (1 - q)

    return density
