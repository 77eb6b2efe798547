r"""What is left of many weak releases: Gaussian, Poisson, and in between.

The sum of n independent losses X_i tends to an infinitely divisible law: jumps of the
measure nu = sum_i P(X_i in .) away from zero, and the variance of what is small as a
Gaussian part.  If no jumps are left, E_P e^X = 1 forces s^2 = 2 k, with k the sum of
KL divergences and s^2 that of variances: the limit is mu-GDP with mu = s.

`fdp.delta_divergence(run, limit)` is the certified distance of a finite composition
from its limit.  The limits themselves bound nothing.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._internal import _checks
from .._internal._precision import in_float64
from ..divergences._log_moment import counted, cumulants, subject_of
from ..losses import ComposedLoss, RevealedLoss, ScheduleLoss
from ..mechanisms import AbstractMechanism
from ._triplet import LevyTriplet


class CentralLimit(eqx.Module):
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
        TypeError: If it is no mechanism.

    Example:
        >>> import fdp_jax as fdp
        >>> found = fdp.levy.central_limit(fdp.RandomizedResponse(0.05).repeat(400))
        >>> print(f"{found.mu:.4f} {found.excess:.1e}")
        0.9997 -4.2e-04

    References:
        Dong, Roth, Su (2022), Theorem 3.5; Pandey, Maleki, Kulkarni (2025).
    """
    subject, direction, _ = subject_of(mechanism, "central_limit")
    return _central(subject, exchanged=direction == "add")


@in_float64
def _central(subject: AbstractMechanism, *, exchanged: bool) -> CentralLimit:
    loss = subject.loss()
    found = counted(loss, lambda term: cumulants(term, included=exchanged)[:3])
    side = -1.0 if exchanged else 1.0
    kl, variance, third = -side * found[0], found[1], side * found[2]
    some = variance > 0
    deviation = jnp.where(some, jnp.sqrt(jnp.where(some, variance, 1.0)), 0.0)
    excess = jnp.where(some, variance / jnp.where(some, 2 * kl, 1.0) - 1, 0.0)
    skewness = jnp.where(some, third / jnp.where(some, deviation, 1.0) ** 3, 0.0)
    return CentralLimit(kl, variance, third, deviation, excess, skewness)


def jump_limit(
    mechanism: Any, *, cut: float = 0.05, num_points: int = 64, reach: float = 40.0
) -> LevyTriplet:
    """The general limit: large losses of single releases as jumps, small as a Gaussian.

    Losses of size at least `cut` become jumps, put together in `num_points` bins on
    either side at the mean of their likelihood ratio, with as many jumps as the mean
    number of such releases; of smaller ones the variance is kept.

    Args:
        mechanism: A composition, in the direction remove.
        cut: In (0, reach).
        num_points: Bins on either side, at least 4.
        reach: Losses beyond are put into the last bins.

    Returns:
        A triplet; `fdp.delta_divergence(mechanism, triplet)` is its distance.

    Guarantee:
        None: a limit is no bound.

    Raises:
        ValueError: If a number is out of range, or the masses of a loss are not known
            (schedules and revealed mixtures).
        TypeError: If it is no mechanism.

    References:
        Gnedenko, Kolmogorov (1954), Section 25.
    """
    subject, _, _ = subject_of(mechanism, "jump_limit")
    if not 0 < cut < reach < np.inf:
        raise ValueError(f"cut must be in (0, reach), got {cut} and reach = {reach}")
    count = _checks.whole("num_points", num_points, 4, 1 << 12)
    sides = np.geomspace(cut, reach, count)
    inner = np.linspace(-cut, cut, 65)
    edges = np.concatenate([[-np.inf], -sides[:0:-1], inner, sides[1:], [np.inf]])
    losses, masses = _measure(subject, edges)
    kept = np.asarray(masses) > 0
    small = np.abs(0.5 * (edges[:-1] + edges[1:])) < cut
    jumps, rates = np.asarray(losses)[kept & ~small], np.asarray(masses)[kept & ~small]
    second = float(np.sum((masses * np.square(losses))[kept & small]))
    return LevyTriplet(second, jumps=jumps, rates=rates, relation=subject.relation)


@in_float64(cast_out=False)
def _measure(
    subject: AbstractMechanism, edges: Float[ArrayLike, " n+1"]
) -> tuple[Array, Array]:
    """Bins of the releases' losses: mean numbers under P, and log of Q's over P's."""
    loss: ComposedLoss = subject.loss()
    edges = jnp.asarray(edges)
    low, high = edges[:-1], edges[1:]
    without = included = jnp.zeros_like(low)
    for term, count in zip(loss.terms, loss.counts, strict=True):
        if isinstance(term, RevealedLoss | ScheduleLoss):
            raise ValueError(
                "mechanism must have losses with known masses, got a "
                f"{type(term).__name__}"
            )
        cells = term.cells(low, high)
        without = without + count * jnp.exp(cells.log_mass)
        included = included + count * jnp.exp(cells.log_mass + cells.loss)
        atoms = term.atoms()
        if atoms.loss.size:
            place = jnp.clip(jnp.searchsorted(edges, atoms.loss) - 1, 0, low.size - 1)
            without = without.at[place].add(count * jnp.exp(atoms.log_mass))
            mass = jnp.exp(atoms.log_mass + atoms.loss)
            included = included.at[place].add(count * mass)
    some = (without > 0) & (included > 0)
    ratio = jnp.log(jnp.where(some, included, 1.0)) - jnp.log(
        jnp.where(some, without, 1.0)
    )
    return ratio, jnp.where(some, without, 0.0)
