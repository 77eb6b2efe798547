"""What no test and no guess can do with a private output: f-DP of any kind."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .. import tradeoff
from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import outside_transformations
from .._internal._counts import log_binomial
from .._internal._precision import Outward, in_float64, of_caller
from .._internal._search import zoomed
from .._internal._special import log1mexp, safe_log
from ..curves import (
    AbstractGuarantee,
    Bound,
    with_gradient,
)
from ..engines import Interval
from ..mechanisms import as_float, require_guarantee
from ..tradeoff.knots import Knots, from_profile
from ._groups import group_guarantee, pure_epsilon

_FARTHEST_GROUP = 64
_LOG_GAPS = -1.5, 7.5
"""Middle and half of the range in which the logarithm of a gap is searched."""


@explained(connected=_checks.flag, bound=_checks.member_of(Bound))
def power_bound(
    alpha: Any,
    f: AbstractGuarantee,
    *,
    distance: Any,
    connected: bool,
    bound: Bound | str = Bound.PESSIMISTIC,
) -> Float[Array, "..."]:
    """The largest power of a level-alpha test about a model, from an f-DP output.

    If every data set that the model allows is within k steps of every other one,
    power <= 1 - f^(k)(alpha), and for some f-DP release and some two data sets there is
    a test with this power (noise of `canonical_noise` attains it: Tulap noise for pure
    DP).  Where k is real, traced or above 64, pure epsilon-DP gets the weaker bound
    min(alpha e^{k eps}, 1 - e^{-k eps} (1 - alpha)).  Instead of the largest distance
    the smallest essential one over all couplings of the two models may be given.

    Args:
        alpha: In [0, 1], the level.
        f: A guarantee for every ordered pair of neighbors; `ApproxDP(epsilon=, delta=
            0)` for pure DP.
        distance: k; see `group_guarantee`.
        connected: Whether the data sets of both models together are joined by paths
            of neighbors; if not, the bound is 1.  (Data sets of one model connected to
            those of the other only where an output occurred are not enough.)
        bound: Which end, if f or its group guarantee is known between bounds only.

    Returns:
        An upper bound of the power.

    Guarantee:
        Upper bound.

    Differentiable in:
        alpha, the parameters of f, and the distance where it may be real.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> pure = fdp.tradeoff.ApproxDP(epsilon=1.0, delta=0.0)
        >>> power = fdp.limits.power_bound(0.05, pure, distance=3, connected=True)
        >>> print(f"{power:.6f}")
        0.768035

    References:
        Bailie and Gong (2023), Theorem 8, extended by Jensen's inequality over a
        coupling; its printed condition on the supports is too weak.
    """
    return _far(f, distance, connected).tpr(fpr=alpha, bound=bound)


@explained(alpha=_checks.rate, epsilon=_checks.nonnegative)
def pure_power_bound(alpha: Any, *, epsilon: Any, distance: Any) -> Float[Array, "..."]:
    """The printed form of the theorem, min(1, alpha e^{k eps}).

    `power_bound` is never larger.

    Args:
        alpha: In [0, 1].
        epsilon: In [0, inf).
        distance: k in [0, inf).

    Returns:
        An upper bound of the power, for connected supports.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Bailie and Gong (2023), Theorem 8; Wasserman and Zhou (2010), Theorem 2.4.
    """
    return _pure_power(alpha, epsilon, _checks.nonnegative("distance", distance)).upper


@explained(bound=_checks.member_of(Bound), distance_probs=_checks.probabilities)
def coupled_power_bound(
    alpha: Any,
    f: AbstractGuarantee,
    distance_probs: Any,
    *,
    bound: Bound | str = Bound.PESSIMISTIC,
) -> Float[Array, "..."]:
    """The bound for the average distance: some coupling of the models has P(D = k).

    power <= 1 - f_mix(alpha), where f_mix has the profile sum_k P(D = k) delta_k of the
    group guarantees f^(k).

    Args:
        alpha: In [0, 1].
        f: As in `power_bound`.
        distance_probs: P(D = k) for k = 0, 1, ..., at most 64, a vector; see
            `bit_distances`.
        bound: Which end, if f or its group guarantee is known between bounds only.

    Returns:
        An upper bound of the power.

    Guarantee:
        Upper bound.

    Raises:
        ValueError: If an argument is out of range.
    """
    _checks.require(
        distance_probs.size <= _FARTHEST_GROUP + 1,
        f"distance_probs must have at most {_FARTHEST_GROUP + 1} entries",
        distance_probs.size,
    )
    epsilon = pure_epsilon(f)
    if distance_probs.size > 1 and epsilon is not None:
        mixed = tradeoff.TradeOff(_pure_mixture(epsilon, distance_probs))
    else:
        parts = [
            _as_tradeoff(group_guarantee(f, k)) for k in range(distance_probs.size)
        ]
        mixed = tradeoff.Mixture(parts, probs=distance_probs)
    return mixed.tpr(fpr=alpha, bound=bound)


@explained(
    num_records=_checks.whole_in(1, 64),
    prob_x=_checks.one(_checks.probability),
    prob_y=_checks.one(_checks.probability),
)
def bit_distances(num_records: int, prob_x: Any, prob_y: Any) -> Float[Array, " k"]:
    """P(D = k) for n independent bits with two success probabilities.

    Bits are drawn together so that each differs with probability |theta0 - theta1|.

    Args:
        num_records: n, from 1 to 64.
        prob_x: theta0 in [0, 1].
        prob_y: theta1 in [0, 1].

    Returns:
        Probabilities of 0, ..., n differing bits.

    Raises:
        ValueError: If an argument is out of range.
    """
    return _distances(prob_x, prob_y, _Size(num_records))


@explained(connected=_checks.flag, bound=_checks.member_of(Bound), prob=_checks.rate)
def event_bounds(
    prob: Any,
    f: AbstractGuarantee,
    *,
    distance: Any,
    connected: bool,
    bound: Bound | str = Bound.PESSIMISTIC,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Bounds of P(output in S) under a model, from P_{x*}(output in S) = p at x*.

    Args:
        prob: p in [0, 1].
        f: As in `power_bound`.
        distance: The largest distance of x* from a data set that the model allows.
        connected: Whether those are joined to x* by paths of neighbors.
        bound: Which end, if f or its group guarantee is known between bounds only.

    Returns:
        f^(k)(1 - p) and 1 - f^(k)(p).

    Guarantee:
        Certain.

    Raises:
        ValueError: If an argument is out of range.
    """
    far = _far(f, distance, connected)
    if isinstance(far, tradeoff.AbstractTradeOff):
        return far.beta_at_tnr(tnr=prob, bound=bound), far.tpr(fpr=prob, bound=bound)
    alpha = _complement(prob)
    return far.beta(alpha=alpha, bound=bound), far.tpr(fpr=prob, bound=bound)


@explained
def adversary_error(
    prior: Any, f: AbstractGuarantee, *, distance: Any = 1
) -> Float[Array, "..."]:
    """The least error of a Bayesian adversary between data sets k steps apart.

    Args:
        prior: In [0, 1].
        f: As in `power_bound`.
        distance: k.

    Returns:
        R(prior) of the group guarantee, a lower bound of the error.

    Raises:
        ValueError: If an argument is out of range.
    """
    return group_guarantee(f, distance).bayes_error(prior=prior)


@explained(
    bound=_checks.member_of(Bound),
    epsilon=_checks.one(_checks.finite),
    f=require_guarantee,
)
def odds_tail_bound(
    epsilon: Any, f: AbstractGuarantee, *, bound: Bound | str = Bound.PESSIMISTIC
) -> Float[Array, ""]:
    """The probability that an output multiplies someone's odds by more than e^eps.

    No f-DP guarantee with unbounded loss has a posterior band that holds for certain;
    with this probability (under the true data set) it is left:
    inf over e' < eps of delta(e') / (1 - e^{e' - eps}).

    Args:
        epsilon: A finite number.
        f: As in `power_bound`.
        bound: Which end, if f or its group guarantee is known between bounds only.

    Returns:
        An upper bound of P_Q(loss > epsilon), at most 1.

    Guarantee:
        Upper bound: every e' gives one.

    Differentiable in:
        epsilon and the parameters of f (envelope theorem).

    Raises:
        ValueError: If epsilon is not finite.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.limits.odds_tail_bound(3.0, fdp.tradeoff.Gaussian(1.0)):.6f}")
        0.014190
    """
    if not outside_transformations():
        return _traced_odds_tail(f, epsilon, bound).upper
    # The guarantee itself answers: one whose numbers are known knows tighter ways.
    with jax.enable_x64(True):
        found = _odds_tail(f, as_float(epsilon), bound)
    return of_caller(found).upper


def _far(f: AbstractGuarantee, distance: Any, connected: bool) -> AbstractGuarantee:
    """The guarantee at a distance, unless no path leads there."""
    return group_guarantee(f, distance if connected else np.inf)


@eqx.filter_jit
def _best_gap(f: AbstractGuarantee, epsilon: Array, bound: Any) -> Array:
    """Eps - e' where the bound is about least; any gap gives a bound.

    A program that may ask the host, as those of `in_float64` may not.
    """
    arrays, rest = eqx.partition((f, epsilon), eqx.is_inexact_array)
    f, epsilon = eqx.combine(stop_gradient(arrays), rest)
    tail = lambda log_gap: _log_odds_tail(f, epsilon, jnp.exp(log_gap), bound)
    return jnp.exp(zoomed(tail, *_LOG_GAPS, points=33, rounds=9)[0])


def _odds_tail(f: AbstractGuarantee, epsilon: Array, bound: Any) -> Outward:
    gap = _best_gap(f, epsilon, bound)
    log_tail = jnp.minimum(_log_odds_tail(f, epsilon, gap, bound), 0.0)
    tail = Interval(log_tail, log_tail, log_tail).exponential()
    found = with_gradient(tail.upper, tail.estimate)
    return Outward(found, found)


_traced_odds_tail = in_float64(_odds_tail)


def _log_odds_tail(
    f: AbstractGuarantee, epsilon: Array, gaps: Array, bound: Any
) -> Array:
    # The gap that is left after rounding, which may not be none.
    below = jnp.nextafter(stop_gradient(epsilon), -jnp.inf)
    lower = jnp.minimum(epsilon - gaps, below)
    return f.log_delta(epsilon=lower, bound=bound) - log1mexp(epsilon - lower)


@in_float64
def _pure_power(alpha: Array, epsilon: Array, distance: Array) -> Outward:
    alpha, loss = as_float(alpha), as_float(epsilon) * as_float(distance)
    below = safe_log(alpha) + loss < 0
    # Half of the factor on each side: alpha e^loss < 1 has no overflow on the way.
    half = jnp.exp(0.5 * jnp.where(below, loss, 0.0))
    power = jnp.where(below, alpha * half * half, 1.0)
    return Outward(power, power)


@in_float64(cast_out=False)
def _complement(prob: Array) -> Array:
    """1 - p in float64, rounded up, so that f of it is rounded down."""
    rest = 1 - as_float(prob)
    above = jnp.nextafter(stop_gradient(rest), jnp.asarray(2.0))
    return with_gradient(jnp.minimum(above, 1.0), rest)


class _Size(eqx.Module):
    size: int = eqx.field(static=True)


@in_float64
def _distances(prob_x: Array, prob_y: Array, records: _Size) -> Array:
    gap = jnp.abs(as_float(prob_x) - as_float(prob_y))
    n = jnp.full_like(gap, records.size)
    return jnp.exp(log_binomial(jnp.arange(records.size + 1, dtype=gap.dtype), n, gap))


@in_float64(cast_out=False)
def _pure_mixture(epsilon: Array, probs: Array) -> Knots:
    """The mixture of f^(k), k = 0, 1, ..., of f = f_{eps,0}.

    Tulap noise moved by k has a piecewise linear trade-off function, with the slopes
    e^{j eps}, j = -k, -k + 2, ..., k, so that profiles are linear in e^eps between
    whole multiples of eps.  There 1 - delta_k(j eps) is e^{(j - k) eps / 2}, and for
    odd k - j that over cosh(eps / 2).
    """
    epsilon, probs = as_float(epsilon), as_float(probs)
    most = probs.size - 1
    steps, sizes = np.arange(-most, most + 1), np.arange(most + 1)
    between = (sizes - steps[:, None]) / 2
    odd = np.mod(between, 1) > 0
    inside = np.abs(steps)[:, None] < sizes
    # e^x - 1 and e^x at minus the halves of the differences.
    lost = -jnp.expm1(-epsilon * np.maximum(between, 0))
    kept = jnp.exp(-epsilon * np.maximum(between, 0))
    # log cosh(eps / 2), with full relative accuracy.
    short = jnp.log1p(2 * jnp.square(jnp.sinh(0.25 * jnp.minimum(epsilon, 1200.0))))
    rest = jnp.where(odd, kept * jnp.exp(-short), kept)
    delta = jnp.where(odd, lost - kept * jnp.expm1(-short), lost)
    # Left of -k eps there is 1 - e^eps, right of k eps nothing.
    nodes = epsilon * steps
    before = -jnp.expm1(jnp.minimum(nodes, 0))[:, None]
    after = jnp.exp(jnp.minimum(nodes, 0))[:, None]
    delta, rest = jnp.where(inside, delta, before), jnp.where(inside, rest, after)
    weights = probs / jnp.sum(probs)
    log_delta, log_rest = safe_log(delta @ weights), safe_log(rest @ weights)
    return from_profile(nodes, log_delta, log_delta[::-1], log_rest)


def _as_tradeoff(f: AbstractGuarantee) -> tradeoff.AbstractTradeOff:
    return f if isinstance(f, tradeoff.AbstractTradeOff) else tradeoff.TradeOff.of(f)
