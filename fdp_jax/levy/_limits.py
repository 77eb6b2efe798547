r"""What is left of many weak releases: Gaussian, Poisson, and in between.

The sum of n independent losses X_i tends to an infinitely divisible law: jumps of the
measure nu = sum_i P(X_i in .) away from zero, and the variance of what is small as a
Gaussian part.  If no jumps are left, E_P e^X = 1 forces s^2 = 2 k, with k the sum of
KL divergences and s^2 that of variances: the limit is mu-GDP with mu = s.

`fdp.delta_divergence(run, limit)` is the certified distance of a finite composition
from its limit.  The limits themselves bound nothing.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import is_traced
from .._internal._precision import in_float64
from .._internal._record import Record
from ..divergences.log_moment import loss_and_direction, mechanism_of
from ..losses import (
    AbstractLoss,
    ComposedLoss,
    RevealedLoss,
)
from ..losses.log_moment import counted
from ..mechanisms import LevyTriplet

_FINITE = "mechanism must have finite losses only: outputs that tell the record"
_NOWHERE = -700.0
"""Log of a mass beyond the numerical ends of densities, which is not a true one."""


class CentralLimit(Record):
    """Cumulants of a composed loss under P, and whether they look Gaussian."""

    kl: Float[Array, ""]
    """k = -E_P X, the sum of the KL divergences."""
    variance: Float[Array, ""]
    """s^2 = Var_P X."""
    third: Float[Array, ""]
    """The third cumulant."""
    mu: Float[Array, ""]
    """s: the limit is about mu-GDP, if it is Gaussian at all."""
    excess: Float[Array, ""]
    """s^2 / (2 k) - 1: 0 in every Gaussian limit, so a size that is not small says that
    jumps matter (or that the releases are not weak)."""
    skewness: Float[Array, ""]
    """The third cumulant over s^3; 0 in every Gaussian limit."""

    def triplet(self) -> LevyTriplet:
        """The Gaussian limit: the triplet (s^2, no jumps)."""
        return LevyTriplet(self.variance)


@explained
def central_limit(mechanism: Any) -> CentralLimit:
    """The Gaussian limit of a composition, with its diagnostic s^2 = 2 k.

    Args:
        mechanism: A composition, in the direction remove, or its `.remove` or `.add`.

    Returns:
        `CentralLimit`.

    Guarantee:
        None: a limit is no bound.

    Differentiable in:
        All parameters.

    Raises:
        ValueError: If an infinite loss has a probability under P or Q (as an
            `equinox.EquinoxRuntimeError` where numbers are traced): no limit has one.
        TypeError: If it is no mechanism.

    Example:
        >>> import fdp_jax as fdp
        >>> found = fdp.levy.central_limit(fdp.RandomizedResponse(0.05).repeat(400))
        >>> print(f"{found.mu:.4f} {found.excess:.1e}")
        0.9997 -4.2e-04

    References:
        Dong, Roth, Su (2022), Theorem 3.5; Pandey, Maleki, Kulkarni (2025).
    """
    loss, direction = loss_and_direction(mechanism, "central_limit")
    found, infinite = _central(loss, exchanged=direction == "add")
    return _require_finite(found, infinite)


def _require_finite(found: Any, log_mass: Float[Array, ""]) -> Any:
    """The result, if no loss is infinite."""
    return _checks.error_if(
        found,
        lambda _: log_mass > -jnp.inf,
        f"{_FINITE} have no limit",
        lambda _: log_mass,
        kind="some with the log mass",
    )


def _infinite(loss: ComposedLoss) -> Float[Array, ""]:
    """The largest logarithm of a probability of an infinite loss, under P or Q."""
    found = [jnp.full((), -jnp.inf)]
    for term, count in zip(loss.terms, loss.counts, strict=True):
        infinite = jnp.stack(term.log_infinite_masses())
        # Tails that are left out only bound what there is.
        truncated = jnp.stack(term.log_truncated_masses())
        true = infinite > jnp.maximum(truncated + 1e-6, _NOWHERE)
        masses = jnp.append(jnp.where(true, infinite, -jnp.inf), _log_lost(term))
        found.append(jnp.where(count > 0, jnp.max(masses), -jnp.inf))
    return jnp.max(jnp.stack(found))


def _log_lost(term: AbstractLoss) -> Float[Array, ""]:
    """Mass that a revealed mixture leaves out: it counts as infinite."""
    if not isinstance(term, RevealedLoss):
        return jnp.full((), -jnp.inf)
    inner = [_log_lost(t) for group in term.groups for t in group.terms]
    return jnp.max(jnp.stack([jnp.log(term.lost), *inner]))


@in_float64
def _central(
    loss: ComposedLoss, *, exchanged: bool
) -> tuple[CentralLimit, Float[Array, ""]]:
    found = counted(loss, lambda term: term.cumulants(included=exchanged)[:3])
    side = -1.0 if exchanged else 1.0
    kl, variance, third = -side * found[0], found[1], side * found[2]
    some = variance > 0
    deviation = jnp.where(some, jnp.sqrt(jnp.where(some, variance, 1.0)), 0.0)
    excess = jnp.where(some, variance / jnp.where(some, 2 * kl, 1.0) - 1, 0.0)
    skewness = jnp.where(some, third / jnp.where(some, deviation, 1.0) ** 3, 0.0)
    limit = CentralLimit(kl, variance, third, deviation, excess, skewness)
    return limit, _infinite(loss)


@explained(num_points=_checks.whole_in(4, 1 << 12))
def jump_limit(
    mechanism: Any, *, cut: float = 0.05, num_points: int = 64, reach: float = 40.0
) -> LevyTriplet:
    """The general limit: large losses of single releases as jumps, small as a Gaussian.

    Losses of size at least `cut` become jumps, put together in `num_points` bins on
    either side at the mean of their likelihood ratio, with as many jumps as the mean
    number of such releases; of smaller ones the variance is kept, about their mean in
    each release (the sum of the means is drift, which a triplet has of its own).
    Gaussian and Poisson losses are infinitely divisible and stay what they are, and so
    does a triplet.

    Args:
        mechanism: A composition, in the direction remove, or its `.remove` or `.add`.
        cut: In (0, reach).
        num_points: Bins on either side, at least 4.
        reach: Losses beyond are put into the last bins.

    Returns:
        A triplet; `fdp.delta_divergence(mechanism, triplet)` is its distance.

    Guarantee:
        None: a limit is no bound.

    Raises:
        ValueError: If a number is out of range, an infinite loss has a probability
            under P or Q, or the masses of a loss are not known (schedules, revealed
            mixtures, and subordinated Gaussians, whose jumps have no smallest size).
        TypeError: If it is no mechanism.

    References:
        Gnedenko, Kolmogorov (1954), Section 25.
    """
    mechanism = mechanism_of(mechanism)
    loss, direction = loss_and_direction(mechanism, "jump_limit")
    _checks.require(
        0 < cut < reach < np.inf,
        "cut must be in (0, reach)",
        f"{cut} and reach = {reach}",
    )
    sides = np.geomspace(cut, reach, num_points)
    inner = np.linspace(-cut, cut, 65)
    edges = np.concatenate([[-np.inf], -sides[:0:-1], inner, sides[1:], [np.inf]])
    small = np.abs(0.5 * (edges[:-1] + edges[1:])) < cut
    found, infinite = _measure(loss, edges, small)
    _checks.require(
        not is_traced(infinite),
        "mechanism must have known parameters",
        "traced ones",
        TypeError,
    )
    losses, masses, variance, own_jumps, own_rates = map(
        np.asarray, _require_finite(found, infinite)
    )
    second = float(variance)
    jumps = np.concatenate([losses[~small], own_jumps])
    rates = np.concatenate([masses[~small], own_rates])
    kept = rates > 0
    relation = mechanism._subject()[0].relation
    limit = LevyTriplet(second, jumps=jumps[kept], rates=rates[kept], relation=relation)
    return limit.exchanged() if direction == "add" else limit


@in_float64(cast_out=False)
def _measure(
    loss: ComposedLoss, edges: Float[ArrayLike, " n+1"], small: Bool[ArrayLike, " n"]
) -> tuple[tuple[Array, ...], Bool[Array, ""]]:
    """Bins of the releases' losses: log of Q's over P's, and mean numbers under P.

    Then the variance of small losses and Gaussian parts, jumps and rates of the losses
    that are limits themselves; and whether a loss is infinite.
    """
    edges = jnp.asarray(edges)
    without = included = jnp.zeros_like(edges[1:])
    variance, jumps, rates = jnp.zeros_like(edges[0]), [edges[:0]], [edges[:0]]
    for term, count in zip(loss.terms, loss.counts, strict=True):
        own = term.jumps_and_variance()
        if own is not None:
            variance = variance + count * own.variance
            jumps, rates = [*jumps, own.sizes], [*rates, count * own.rates]
            continue
        _checks.require(
            term.has_cells,
            "mechanism must have losses with known masses",
            f"a {type(term).__name__}",
        )
        p, q = _binned(term, edges)
        without, included = without + count * p, included + count * q
        variance = variance + count * _variance(*_losses(p, q), small)
    own = variance, jnp.concatenate(jumps), jnp.concatenate(rates)
    return (*_losses(without, included), *own), _infinite(loss)


def _losses(without: Array, included: Array) -> tuple[Array, Array]:
    """Log ratios of Q's mass to P's, and P's masses, of the bins that have both."""
    some = (without > 0) & (included > 0)
    logs = [jnp.log(jnp.where(some, x, 1.0)) for x in (included, without)]
    return logs[0] - logs[1], jnp.where(some, without, 0.0)


def _variance(losses: Array, masses: Array, small: Bool[ArrayLike, " n"]) -> Array:
    """Variance of one release's loss where it is small, and 0 otherwise."""
    masses = jnp.where(jnp.asarray(small), masses, 0.0)
    mean = masses @ losses
    # Those that are not small are at 0, that far from the mean.
    return masses @ jnp.square(losses - mean) + (1 - jnp.sum(masses)) * mean**2


def _binned(term: AbstractLoss, edges: Array) -> tuple[Array, Array]:
    """Masses of one release's loss under P and Q between the edges."""
    low, high = edges[:-1], edges[1:]
    cells = term.cells(low, high)
    without = jnp.exp(cells.log_mass)
    included = jnp.exp(cells.log_mass + cells.loss)
    atoms = term.atoms()
    if atoms.loss.size:
        place = jnp.clip(jnp.searchsorted(edges, atoms.loss) - 1, 0, low.size - 1)
        without = without.at[place].add(jnp.exp(atoms.log_mass))
        included = included.at[place].add(jnp.exp(atoms.log_mass + atoms.loss))
    return without, included
