r"""The Delta-divergence of two guarantees (Kaissis et al. 2024).

    Delta(M || M~) = inf{k >= 0 : f(alpha + k) - k <= f~(alpha) for all alpha}
                   = max over pi of R(pi) - R~(pi)
                   = max over real eps of (delta~(eps) - delta(eps)) / (1 + e^eps)

is the regret of choosing M~ where M was thought to be as good: zero if and only if M~
is nowhere worse.  The upper bound holds for every prior: see `cells`.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.special import ndtr
from jaxtyping import Array, Bool, Float

from .._internal import _checks
from .._internal._batching import one_by_one
from .._internal._calls import explained
from .._internal._concrete import outside_transformations
from .._internal._implicit import (
    First,
    kink_near,
    of_several,
    optimal_value,
    optimum_or_kink,
    parted,
)
from .._internal._precision import (
    in_float64,
)
from .._internal._record import Record
from .._internal._show import LOWER, MIDDLE, UPPER
from .._internal._text import joined_methods
from ..curves import (
    Bound,
    Bounds,
    Range,
    Status,
    classify,
    uncrossed,
)
from .explore import Nodes, explore, weights_of
from .sources import Pair, Request, comparable, share


class DeltaDivergence(Record):
    """The distance of a guarantee `a` from being nowhere better than `b`."""

    value: Bounds
    """Delta(a || b) in [0, 1/2]; the ends are proved."""
    epsilon: Float[Array, ""]
    """The threshold of the attack that tells them apart best, logit(prior)."""
    prior: Float[Array, ""]
    """The prior of H0 (record absent) at which the Bayes errors differ most."""
    symmetrized: Bounds
    """max(Delta(a || b), Delta(b || a)), a metric."""
    attained_by: Float[Array, ""]
    """1 if Delta(a || b) is the larger of the two, -1 if Delta(b || a) is, else 0."""

    def __float__(self) -> float:
        return float(self.value.estimate)


@explained
def delta_divergence(a: Any, b: Any) -> DeltaDivergence:
    """The Delta-divergence: how much less private `b` is than `a`, at the worst prior.

    The largest difference R_a(pi) - R_b(pi) of the least error probabilities of an
    attacker, over all priors: by so much choosing `b` in place of `a` can make an
    attack better.  Zero means that `b` is nowhere less private than `a`.

    Args:
        a: The guarantee taken as the reference: a mechanism (both directions), one
            direction of it, a curve, or any other guarantee.
        b: The guarantee compared with it, under the same neighboring relation.

    Returns:
        `DeltaDivergence` with `value`, `epsilon`, `prior` and `symmetrized`.

    Guarantee:
        `value.lower` is attained at `prior`; `value.upper` holds for all priors (by
        convexity between the ones looked at).  Two different guarantees that coincide
        on a whole interval of priors get an upper bound of about 1e-5, not 0.

    Differentiable in:
        All parameters of both, through all ends of `value` and `symmetrized` (envelope
        theorem: the prior stays where it is, or at the kink it belongs to; if several
        are worst, one of them counts).  The derivative is zero where Delta is.

    Raises:
        ValueError: If the neighboring relations differ.
        TypeError: If an argument is not a guarantee.

    Example:
        >>> import fdp_jax as fdp
        >>> found = fdp.delta_divergence(fdp.Gaussian(1.0), fdp.Laplace(1.0))
        >>> print(f"{found.value.estimate:.12f} at prior {found.prior:.2f}")
        0.005272208870 at prior 0.50

    References:
        Kaissis et al. (2024), Definition 1, Theorem 2 and Corollaries 1 and 2.
    """
    requests = comparable(a, b)
    plain = outside_transformations()
    found = _divergence(*(r.resolved() for r in requests), plain=plain)
    if _may_be_closer(found):
        again = tuple(r.again() for r in requests)
        if all(x is y for x, y in zip(again, requests, strict=True)):
            return found
        other = _divergence(*(r.resolved() for r in again), plain=plain)
        if float(_width(other.value)) < float(_width(found.value)):
            found = other
    return found


@explained(bound=_checks.member_of(Bound))
def symmetrized_divergence(
    a: Any, b: Any, *, bound: Bound | str = Bound.PESSIMISTIC
) -> Float[Array, ""]:
    """The larger of Delta(a || b) and Delta(b || a), a metric on guarantees.

    The largest |R_a - R_b|; also the Levy distance of the distribution functions
    x -> f(1 - x): f_a(x + D) - D <= f_b(x) <= f_a(x - D) + D for all x.

    Args:
        a: A guarantee.
        b: Another one, under the same neighboring relation.
        bound: Which end of the certified interval.

    Returns:
        The distance, in [0, 1/2].

    Guarantee:
        Upper bound by default.

    Raises:
        ValueError: If the neighboring relations differ.
        TypeError: If an argument is not a guarantee.

    Example:
        >>> import fdp_jax as fdp
        >>> metric = fdp.comparison.symmetrized_divergence
        >>> print(f"{metric(fdp.Gaussian(1.0), fdp.Laplace(1.0)):.9f}")
        0.034138547

    References:
        Kaissis et al. (2024), Definition 3, Lemma 1, Corollary 2 and Lemma B.1.
    """
    return delta_divergence(a, b).symmetrized.pick(bound, upper_is_pessimistic=True)


# ----------------------------------------------------------------- inside the program


class Extremum(Record):
    """The largest gap T~ - T between two guarantees."""

    lower: Float[Array, ""] = eqx.field(metadata=LOWER)
    estimate: Float[Array, ""] = eqx.field(metadata=MIDDLE)
    upper: Float[Array, ""] = eqx.field(metadata=UPPER)
    epsilon: Float[Array, ""]
    """|logit(prior)|."""
    left: Bool[Array, ""]
    """Whether the prior is below 1/2."""


def extremum(nodes: Nodes, weigh=None, identical: Array | bool = False) -> Extremum:
    """The largest weighted gap among nodes, and a bound of all others.

    Args:
        nodes: What was looked at.
        weigh: The weight, if any.
        identical: Whether the two are known to be the same thing.
    """
    weight = weights_of(nodes, weigh)
    gap = nodes.gap
    scale = 1.0 if weight is None else weight
    bounds = nodes.bounds(weight)
    # Where the weight has a pole at 0, T~ w <= (T~ / q) (q w) helps in the last cell.
    if weight is not None:
        bounds = jnp.where(nodes.q[:, :-1] > 0, bounds, _last_cells(nodes, weigh))
    value = gap.estimate * scale
    index = jnp.argmax(value)
    # Among equals the uninformed attacker (rounding aside).
    tie = value[0, -1] >= jnp.max(value) - 4 * jnp.finfo(value.dtype).eps
    index = jnp.where(tie, gap.estimate.shape[1] - 1, index)
    pick = lambda x: jnp.broadcast_to(x, gap.estimate.shape).ravel()[index]
    estimate = jnp.maximum(pick(gap.estimate * scale), 0)
    lower = jnp.maximum(jnp.max(gap.lower * scale), 0)
    upper = jnp.maximum(jnp.maximum(jnp.max(bounds), jnp.max(gap.upper * scale)), 0)
    lower, estimate, upper = (
        jnp.where(identical, 0.0, x) for x in (lower, estimate, upper)
    )
    half = index // gap.estimate.shape[1]
    epsilon = pick(nodes.epsilon)
    lower, upper, _ = uncrossed(lower, upper, Range(0.0, jnp.inf, 1.0))
    estimate = jnp.clip(estimate, lower, upper)
    return Extremum(lower, estimate, upper, epsilon, half == 1)


def _last_cells(nodes: Nodes, weigh) -> Float[Array, "h n-1"]:
    """Bounds of the cells that begin at q = 0, where q w is increasing."""
    q, upper = nodes.q[:, 1:], nodes.other.upper[:, 1:]
    safe = jnp.where(q > 0, q, 0.5)
    halves = jnp.arange(len(q))[:, None]
    return jnp.where(q > 0, upper * weigh(safe, halves) * (1 + 1e-14), 0.0)


class Found(eqx.Module):
    """The findings of a search, and what derivatives can be taken from."""

    nodes: Nodes
    prepared: tuple
    identical: Bool[Array, ""]
    """Whether both have the same structure and the same numbers."""

    def ends(self) -> tuple[Extremum, Extremum]:
        """The largest gaps in either direction."""
        one = lambda nodes: extremum(nodes, identical=self.identical)
        found = jax.vmap(one)(self.nodes.both_ways())
        forward, backward = (jax.tree.map(lambda x, i=i: x[i], found) for i in (0, 1))
        return forward, backward


_MU_ROUNDING = 1e-12
"""Of a mu from a sum of up to thousands of precisions, and of the distribution."""


def _not_above(first: Request, second: Request, at: Extremum) -> Extremum:
    """With the largest gap of Gaussian noise, in closed form, for the upper end.

    R(pi) of G_mu is the least over t of pi Phi(-t) + (1 - pi) Phi(t - mu).  At the best
    t, pi phi(t) = (1 - pi) phi(t - mu), so that -dR/dmu is the root of their product,
    which is largest at pi = 1/2 whatever mu is: so is the gap.
    """
    one, other = first.source().gaussian_mu(), second.source().gaussian_mu()
    if one is None or other is None:
        return at
    one, other = (ndtr(0.5 * stop_gradient(mu)) for mu in (one, other))
    most = jnp.maximum(other - one, 0.0) + _MU_ROUNDING
    upper = jnp.maximum(jnp.minimum(at.upper, most), at.lower)
    estimate = jnp.clip(at.estimate, at.lower, upper)
    return dataclasses.replace(at, estimate=estimate, upper=upper)


def sources(first: Request, second: Request) -> Pair:
    """Both sources; to be called inside the float64 program."""
    return Pair(first.source(), second.source())


def halves_of(first: Request, second: Request) -> int:
    """Half-axes to look at."""
    return 1 if first.symmetric and second.symmetric else 2


def search(first: Request, second: Request, weigh=None) -> Found:
    """All nodes for a pair, without derivative; one after the other under `vmap`."""
    arrays, static = eqx.partition((first, second), eqx.is_array)

    @one_by_one
    def run(arrays):
        requests = eqx.combine(arrays, static)
        pair = sources(*requests)
        prepared = pair.prepared()
        nodes = explore(pair, prepared, halves_of(*requests), weigh)
        return Found(nodes, prepared, _identical(*requests))

    return run(stop_gradient(arrays))


def _identical(first: Request, second: Request) -> Bool[Array, ""]:
    leaves, structures = zip(*map(jax.tree.flatten, (first, second)), strict=True)
    if structures[0] != structures[1]:
        return jnp.zeros((), bool)
    same = [jnp.array_equal(x, y) for x, y in zip(*leaves, strict=True)]
    return jnp.all(jnp.stack(same)) if same else jnp.ones((), bool)


@in_float64
def _divergence(first: Request, second: Request, *, plain: bool) -> DeltaDivergence:
    found = search(first, second)
    forward, backward = found.ends()
    forward = _not_above(first, second, forward)
    backward = _not_above(second, first, backward)
    value, reverse = forward.estimate, backward.estimate
    if not plain:
        ends = jax.tree.map(lambda x, y: jnp.stack([x, y]), forward, backward)
        one = lambda at, sign: attached((first, second), found.prepared, at, sign)
        value, reverse = jax.vmap(one)(ends, jnp.asarray([1.0, -1.0]))
    larger = forward.estimate >= backward.estimate
    name = engines_of(first, second)
    direct = as_bounds(forward, value, name)
    other = as_bounds(backward, reverse, name)
    estimate = jnp.where(larger, direct.estimate, other.estimate)
    lower = stop_gradient(jnp.maximum(direct.lower, other.lower))
    upper = stop_gradient(jnp.maximum(direct.upper, other.upper))
    sign = jnp.where(larger, 1.0, -1.0)
    return DeltaDivergence(
        value=direct,
        epsilon=jnp.where(forward.left, -forward.epsilon, forward.epsilon),
        prior=prior_of(forward),
        symmetrized=certified(lower, estimate, upper, name),
        attained_by=jnp.where(estimate > 0, sign, 0.0),
    )


def engines_of(*requests: Request) -> str:
    """Names of the engines that answer."""
    return joined_methods(*(r.source().engine for r in requests))


def prior_of(at: Extremum) -> Float[Array, ""]:
    """The prior of H0 at an extremum."""
    return jax.nn.sigmoid(jnp.where(at.left, -at.epsilon, at.epsilon))


NEGLIGIBLE = 1e-10
"""A width that needs no mention, whatever the value."""


def certified(
    lower: Array, estimate: Array, upper: Array, method: str, *, most: float = 0.5
) -> Bounds:
    """Bounds of a difference, whose ends have the derivative of the estimate.

    They are tight also where they are close for a difference of probabilities, and say
    nothing where the upper one is `most`.
    """
    status = classify(lower, upper, (upper >= most) & (lower < most))
    narrow = (lower <= upper) & (upper - lower <= NEGLIGIBLE)
    status = jnp.where(narrow, Status.TIGHT, status)
    return Bounds(lower, estimate, upper, status, method)._differentiable()


def as_bounds(at: Extremum, estimate: Array, method: str) -> Bounds:
    """The certified interval of a divergence."""
    lower, upper = jnp.minimum(at.lower, 0.5), jnp.minimum(at.upper, 0.5)
    return certified(lower, estimate, upper, method)


def attached(
    requests: tuple[Request, Request],
    prepared: tuple,
    at: Extremum,
    sign: Array | float = 1.0,
    weigh=None,
) -> Float[Array, ""]:
    """T~ - T at a place (T - T~ for sign -1), weighted, with its derivatives.

    Zero where there is no gap.
    """
    inside = jnp.isfinite(at.epsilon)
    place = stop_gradient(jnp.where(inside, at.epsilon, 1.0))
    sign = jnp.where(inside & (at.estimate > 0), sign, 0.0)
    gap, *given = parted(_gap_at, (requests, weigh), (prepared, at.left, sign))
    if sources(*requests).knows_kinks:
        return optimal_value(First(gap), at.estimate, place, *given)
    return optimum_or_kink(gap, kink_near, at.estimate[None], place, *given)[0]


@of_several
def _gap_at(epsilon: Array, args: tuple, aux: tuple) -> Float[Array, " 1"]:
    """The gap at one threshold, as an objective."""
    (requests, weigh), (prepared, left, sign) = args, aux
    one, other = sources(*requests).estimates(prepared, epsilon, left)
    gap = other - one
    if weigh is not None:
        weight = weigh(share(epsilon), left.astype(int))
        some = (weight > 0) & jnp.isfinite(weight)
        gap = gap * jnp.where(some, weight, 0.0)
    return jnp.where(sign != 0, sign * gap, 0.0)[None]


# ------------------------------------------------------------- outside of the program


def _width(bounds: Bounds) -> Array:
    return bounds.upper - bounds.lower


def _may_be_closer(found: DeltaDivergence) -> bool:
    """Whether another engine may improve an answer, known now."""
    if not outside_transformations() or found.value.upper.ndim:
        return False
    wide = float(_width(found.value)) > 1e-8
    return wide and int(found.value.status) != Status.TIGHT
