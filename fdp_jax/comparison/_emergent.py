r"""Emergent dominance: the order that appears after many releases.

By Berry and Esseen the trade-off function of N equal releases of a symmetric
mechanism lies within (Levy distance) g = C v3 / (variance^(3/2) sqrt(N)) of Gaussian
DP with mu = 2 sqrt(N) eta.  Gaussians are ordered by mu, so by the triangle inequality

    Delta(M^N || M~^N~) <= g + g~     if     N / N~ >= eta~^2 / eta^2

(Kaissis et al. 2024, Theorem 3, with C = 0.56).
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import known
from .._internal._precision import in_float64
from .._internal._record import Record
from .._internal._search import least_whole
from ..losses import LossMoments
from ..mechanisms import require_mechanism
from ._arrays import BERRY_ESSEEN, ArrayMoments, long_runs, moments
from ._moments import loss_moments
from .delta import delta_divergence
from .sources import comparable, is_symmetric, request


class EmergentBound(Record):
    """A bound of Delta(a^N || b^N~) from three moments, if its premise holds."""

    _bound: Float[Array, "..."]
    premise_ok: Bool[Array, "..."]
    """Whether both are symmetric, have third moments and N / N~ is large enough."""
    berry_esseen_sum: Float[Array, "..."]
    """The formula's value, whether or not the premise holds."""
    ratio: Float[Array, "..."]
    """N / N~."""
    ratio_needed: Float[Array, "..."]
    """eta~^2 / eta^2, which the ratio must reach."""
    moments_a: LossMoments | ArrayMoments
    moments_b: LossMoments | ArrayMoments

    @property
    def bound(self) -> Float[Array, "..."]:
        """The bound, at most 1/2.

        Where the premise fails the theorem says nothing: a known result is refused, and
        one inside of a transformation is 1/2.

        Raises:
            ValueError: If the premise is known to fail.
        """
        fine = known(self.premise_ok)
        if fine is not None and not np.all(fine):
            needed = np.max(np.asarray(self.ratio_needed))
            ratio = np.min(np.asarray(self.ratio))
            raise ValueError(
                "a and b must meet the theorem's premise: symmetric, third moments, "
                f"and a ratio of steps of at least {needed}, "
                f"got {ratio}; see berry_esseen_bound for others"
            )
        return self._bound


@explained
def emergent_bound(
    a: Any,
    b: Any,
    *,
    num_steps_a: Any = 1.0,
    num_steps_b: Any | None = None,
    constant: float = BERRY_ESSEEN,
) -> EmergentBound:
    """Bound of the Delta-divergence of two long compositions, by Berry and Esseen.

    Args:
        a: A mechanism, or one direction of it: a release, or a composition of different
            releases (a row of a triangular array).
        b: Another one.
        num_steps_a: How often a is run, at least 1.
        num_steps_b: How often b is run; as often by default.
        constant: Of the Berry-Esseen theorem, at least .4097, and for releases that
            differ at least the default.

    Returns:
        `EmergentBound`, whose `bound` is refused where the premise fails.

    Guarantee:
        Upper bound (up to rounding), where `premise_ok`.  It is not for asymmetric
        mechanisms such as a step of DP-SGD, for which `premise_ok` is false; see
        `berry_esseen_bound`.

    Raises:
        ValueError: If a number of steps is below 1, the constant is too small, a loss
            is of a kind without moments, or the neighboring relations differ.
        TypeError: If an argument is no mechanism.

    Example:
        >>> import fdp_jax as fdp
        >>> found = fdp.comparison.emergent_bound(
        ...     fdp.PureDP(1.0), fdp.Laplace(1.0), num_steps_a=100
        ... )
        >>> print(bool(found.premise_ok), f"{found.bound:.9f}")
        True 0.150108744

    References:
        Kaissis et al. (2024), Theorem 3, and Lemma 6 for compositions; Shevtsova
        (2010).
    """
    runs = long_runs(a, b, num_steps_a, num_steps_b, constant)
    symmetric = all(is_symmetric(request("a", x).subject) for x in (a, b))
    return _bound(moments(a), moments(b), *runs, symmetric)


@in_float64
def _bound(
    one: LossMoments | ArrayMoments,
    other: LossMoments | ArrayMoments,
    steps: Array,
    other_steps: Array,
    constant: ArrayLike,
    symmetric: bool,
) -> EmergentBound:
    distances = [
        constant * moments.berry_esseen / jnp.sqrt(count)
        for moments, count in ((one, steps), (other, other_steps))
    ]
    total = distances[0] + distances[1]
    ratio = steps / other_steps
    needed = jnp.square(other.eta / jnp.where(one.eta > 0, one.eta, 1.0))
    needed = jnp.where(one.eta > 0, needed, jnp.inf)
    thirds = jnp.isfinite(one.v4) & jnp.isfinite(other.v4)
    fine = thirds & (ratio >= needed) & (other.eta > 0) & jnp.isfinite(total)
    fine = fine & jnp.asarray(symmetric)
    total = jnp.asarray(total)
    bound = jnp.where(fine, jnp.minimum(total, 0.5), 0.5)
    return EmergentBound(bound, fine, total, ratio, needed, one, other)


class EmergentOrder(Record):
    """From how many releases on one mechanism was found to dominate another."""

    num_steps: int | None = eqx.field(static=True)
    """The smallest number found, or None."""
    divergence: Float[Array, ""]
    """Certified upper bound of Delta(a^N || b^N) there."""
    divergence_before: Float[Array, ""]
    """Certified lower bound at N - 1 (nan for N = 1); above the tolerance it proves
    that a^(N-1) does not dominate."""
    tried: tuple[tuple[int, float, float], ...] = eqx.field(static=True)
    """All (N, lower, upper) that were computed."""
    expected: bool = eqx.field(static=True)
    """Whether eta_a > eta_b, so that in the end a^N dominates b^N."""


@explained(max_num_steps=_checks.whole_in(1, 10**9))
def first_dominating_num_steps(
    a: Any, b: Any, *, tolerance: float = 1e-9, max_num_steps: int = 4096
) -> EmergentOrder:
    """The smallest N for which N runs of `a` dominate N runs of `b`.

    Dominating means Delta(a^N || b^N) <= tolerance: to an attacker b^N is nowhere more
    informative.  N is found by doubling and bisection.

    Args:
        a: A mechanism; the more informative one in the long run.
        b: Another one, under the same neighboring relation.
        tolerance: Of the divergence, in (0, 1/2].
        max_num_steps: Largest N that is tried.

    Returns:
        `EmergentOrder`.

    Guarantee:
        Proved: the order at `num_steps` and at every N of `tried` whose upper bound is
        within the tolerance; that there is none at num_steps - 1 where
        `divergence_before` exceeds the tolerance.  Not proved:
        what holds between the numbers tried, or beyond them (`expected` says what the
        central limit theorem does).

    Raises:
        ValueError: If the relations differ or a number is out of range.
        TypeError: If an argument is no mechanism.

    Example:
        >>> import fdp_jax as fdp
        >>> found = fdp.comparison.first_dominating_num_steps(
        ...     fdp.Gaussian(1.0), fdp.Gaussian(1.5)
        ... )
        >>> found.num_steps
        1
    """
    _checks.require(0 < tolerance <= 0.5, "tolerance must be in (0, 1/2]", tolerance)
    comparable(a, b)
    for name, value in (("a", a), ("b", b)):
        require_mechanism(name, value)
    one, other = loss_moments(a), loss_moments(b)
    seen: dict[int, tuple[float, float]] = {}

    def dominates(count: int) -> bool:
        value = delta_divergence(a.repeat(count), b.repeat(count)).value
        seen[count] = float(value.lower), float(value.upper)
        return seen[count][1] <= tolerance

    first = least_whole(dominates, max_num_steps)
    high = min(first, max_num_steps)
    found = high if first == high else None
    before = seen.get(high - 1, (float("nan"), 0.0))[0]
    return EmergentOrder(
        num_steps=found,
        divergence=jnp.asarray(seen[high][1], float),
        divergence_before=jnp.asarray(before, float),
        tried=tuple((n, *ends) for n, ends in sorted(seen.items())),
        expected=bool(one.eta > other.eta),
    )
