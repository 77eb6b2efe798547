r"""Triangular arrays: compositions of different releases, and their Gaussian limit.

The functionals of f (`loss_moments`) of independent releases add.  If along a sequence
of compositions sum v1 -> K, max v1 -> 0, sum v2 -> s^2 and sum v4 -> 0, the trade-off
function tends to that of G_mu with mu = 2 K / s, and Gaussians are ordered by mu: of
two such sequences the one with the larger K / s dominates in the end (Kaissis et al.
2024, Lemma 6).  For one composition Berry and Esseen bound how far it is from its
Gaussian.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import known
from .._internal._precision import in_float64
from .._internal._record import Record
from ..divergences.log_moment import loss_and_direction
from ..losses import AbstractLoss, ComposedLoss, LossMoments, ScheduleLoss
from ..mechanisms import resolve
from ._moments import loss_moments, of_releases
from .sources import comparable, is_symmetric, request

BERRY_ESSEEN = 0.56
"""Shevtsova (2010), for sums of independent terms; 0.4748 holds for equal ones."""


class ArrayMoments(LossMoments):
    """Sums of the functionals of f over the releases of a composition.

    Gaussian losses are infinitely divisible and count as ever more and smaller ones:
    they add to v1, v2 and the variance only.  In a row of the lemma v4 tends to 0;
    `eta` and `berry_esseen` are made of the sums.
    """

    largest: Float[Array, ""]
    """The largest v1 of a release (Gaussian ones apart), which tends to 0 too."""

    @property
    def mu(self) -> Float[Array, ""]:
        """Mu of the lemma's limit, 2 K / s with K = v1 and s^2 = v2."""
        some = self.v2 > 0
        scale = jnp.sqrt(jnp.where(some, self.v2, 1.0))
        return jnp.where(some, 2 * self.v1 / scale, 0.0)


class ArrayLimit(Record):
    """The Gaussian next to a composition, and how far from it that can be."""

    mu: Float[Array, ""]
    """2 sum v1 / sqrt(sum of variances): the composition is about mu-GDP."""
    distance: Float[Array, ""]
    """Certified: g with G_mu(x + g) - g <= f(x) <= G_mu(x - g) + g, at most 1/2."""
    moments: ArrayMoments
    """The sums that the lemma is about."""


@explained
def array_moments(mechanism: Any) -> ArrayMoments:
    """Sums of the moments of the privacy loss over a composition's releases.

    Args:
        mechanism: A release or a composition of releases that `loss_moments` knows
            (direction "remove"), or its `.remove` or `.add`.

    Returns:
        `ArrayMoments`, with `mu` = 2 K / s of the limit in Lemma 6.

    Guarantee:
        None: closed forms and quadrature.

    Differentiable in:
        All parameters.

    Raises:
        ValueError: If the loss of a release is of another kind.
        TypeError: If it is no mechanism.

    Example:
        >>> import fdp_jax as fdp
        >>> row = fdp.compose(fdp.PureDP(0.1).repeat(50), fdp.Laplace(20.0).repeat(50))
        >>> found = fdp.comparison.array_moments(row)
        >>> print(f"{found.mu:.5f} {found.largest:.5f}")
        0.78872 0.00500

    References:
        Kaissis et al. (2024), Lemma 6; Dong, Roth, Su (2022), Theorem 3.5.
    """
    loss, direction = loss_and_direction(mechanism, "array_moments")
    return _summed(loss, direction=direction)


@explained
def array_limit(mechanism: Any, *, constant: Any = BERRY_ESSEEN) -> ArrayLimit:
    """The Gaussian that a symmetric composition is close to, and how close it is.

    Args:
        mechanism: As in `array_moments`, of symmetric releases.
        constant: Of the Berry-Esseen theorem, at least .4097, and for releases that
            differ at least the default.

    Returns:
        `ArrayLimit` with `mu` and `distance`.  For two compositions with
        a.mu >= b.mu, Delta(a || b) <= a.distance + b.distance; `emergent_bound` says
        so itself.

    Guarantee:
        `distance` is an upper bound (up to rounding) of the Levy distance, which is the
        largest difference of Bayes errors.

    Differentiable in:
        All parameters.

    Raises:
        ValueError: If a release is not symmetric or of another kind, or the constant is
            too small.
        TypeError: If it is no mechanism.

    Example:
        >>> import fdp_jax as fdp
        >>> row = fdp.compose(fdp.PureDP(0.1).repeat(50), fdp.Laplace(20.0).repeat(50))
        >>> found = fdp.comparison.array_limit(row)
        >>> print(f"{found.mu:.5f} {found.distance:.5f}")
        0.78956 0.06414

    References:
        Dong, Roth, Su (2022), Theorem 3.4; Kaissis et al. (2024), Lemma 6; Shevtsova
        (2010).
    """
    constant = _checks.checked_scalar("constant", checked_constant, constant)
    found = array_moments(mechanism)
    _checks.require(
        is_symmetric(request("mechanism", mechanism).subject),
        "mechanism must be symmetric (f = f^-1)",
        "one that is not: its limit need not be Gaussian, see berry_esseen_bound",
    )
    constant = constant_for(constant, mechanism)
    distance = jnp.minimum(constant * found.berry_esseen, 0.5)
    distance = jnp.where(jnp.isfinite(found.v4), distance, 0.5)
    return ArrayLimit(2 * found.eta, distance, found)


def checked_constant(name: str, value: Any) -> Any:
    # Esseen (1956): no smaller one is valid.
    allowed = "at least 0.4097"
    return _checks.checked(
        name, value, allowed, lambda x: (x >= 0.4097) & (x < jnp.inf)
    )


def constant_for(constant: Any, *mechanisms: Any) -> Any:
    """The constant, refused if it holds for equal releases alone and some differ."""
    losses = [resolve(mechanism).whole.composed for mechanism in mechanisms]
    if all(len(x.terms) == 1 for x in losses) and not any(
        isinstance(term, ScheduleLoss) for x in losses for term in x.terms
    ):
        return constant
    allowed = f"at least {BERRY_ESSEEN} where releases differ"
    return _checks.checked("constant", constant, allowed, lambda x: x >= BERRY_ESSEEN)


def long_runs(
    a: Any, b: Any, num_steps_a: Any, num_steps_b: Any | None, constant: Any
) -> tuple[Any, Any, Any]:
    """Both numbers of steps and the constant of Berry and Esseen, checked."""
    comparable(a, b)
    constant = _checks.checked_scalar("constant", checked_constant, constant)
    steps = at_least_one("num_steps_a", num_steps_a)
    others = steps
    if num_steps_b is not None:
        others = at_least_one("num_steps_b", num_steps_b)
    return steps, others, constant_for(constant, a, b)


def at_least_one(name: str, value: Any) -> Any:
    """A number of steps."""
    value = _checks.finite_positive(name, value)
    number = known(value)
    if number is not None and np.any(number < 1):
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def moments(mechanism: Any) -> LossMoments | ArrayMoments:
    """The moments of a single release, or their sums in a composition."""
    loss, _ = loss_and_direction(mechanism, "moments")
    single = len(loss.terms) == 1 and loss.single
    return loss_moments(mechanism) if single else array_moments(mechanism)


@in_float64
def _summed(loss: ComposedLoss, *, direction: str) -> ArrayMoments:
    sign = -1 if direction == "add" else 1
    sums, largest = [], [jnp.zeros(())]
    for term, count in zip(loss.terms, loss.counts, strict=True):
        found, inner = of_releases(term, sign)
        if _is_gaussian(term):
            found = _divided(found)
        else:
            largest.append(jnp.max(jnp.where(count * inner > 0, found.v1, 0.0)))
        sums.append(jax.tree.map(lambda x, n=count * inner: _sum(x, n), found))
    v = jax.tree.map(lambda *parts: sum(parts), *sums)
    most = jnp.max(jnp.stack(largest))
    return ArrayMoments(v.v1, v.v2, v.v3, v.v4, v.variance, most)


def _sum(values: Array, counts: Array) -> Array:
    # What does not happen adds nothing, be its own value infinite.
    happens = counts > 0
    return jnp.sum(jnp.where(happens, counts * jnp.where(happens, values, 0.0), 0.0))


def _is_gaussian(term: AbstractLoss) -> bool:
    """Whether a loss is infinitely divisible and has no jumps."""
    own = term.jumps_and_variance()
    return own is not None and own.sizes.size == 0


def _divided(found: LossMoments) -> LossMoments:
    """A Gaussian loss, infinitely divisible, as the sum of ever more and smaller ones.

    The sums of higher powers tend to 0, so that it is as far from its limit as it is.
    """
    none = jnp.zeros_like(found.v3)
    return LossMoments(found.v1, found.variance, none, none, found.variance)
