"""The curve from the profile, where there is no other way to it.

f(alpha) is the maximum over eps of 1 - delta(eps) - e^eps alpha, a concave function of
e^eps.  Any eps gives a proved lower bound; values on both sides of the maximum bound it
from above, see `_concave`.
"""

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float, PyTree

from .._internal._implicit import optimum_or_kink
from .._internal._logs import LOG_HALF
from .._internal._search import golden_section
from .._internal._special import safe_log
from .._internal._tolerances import LOG_OPERATIONS
from ..engines import Interval, log_complement
from ._concave import highest
from .logs import Rates, capped, log_add, log_subtract, plus
from .pointwise import AbstractPointwise

_REACH = 7.2555
"""asinh of the largest |eps| looked at, 708: e^eps and e^-eps are normal numbers."""
_STEPS = 90
_OFFSETS = (0.0, *(s * h for h in (1e-8, 1e-6, 1e-4, 1e-2) for s in (-1.0, 1.0)))


def optimal_threshold(
    subject: AbstractPointwise,
    log_alpha: Float[Array, ""],
    log_tnr: Float[Array, ""],
    nodes: Float[Array, " n"] | None = None,
) -> Float[Array, ""]:
    """The eps at which the maximum is attained: -e^eps is a slope of f.

    It lies between the first and the last one of some rising nodes, if they are given.
    """
    subject, log_alpha, log_tnr = stop_gradient((subject, log_alpha, log_tnr))

    def objective(place: Array) -> Array:
        return merit(line(subject, jnp.sinh(place), log_alpha, log_tnr))

    high = jnp.full_like(log_alpha, _REACH)
    ends = (-high, high) if nodes is None else jnp.arcsinh(nodes[jnp.asarray([0, -1])])
    return stop_gradient(jnp.sinh(golden_section(objective, *ends, _STEPS)))


def optimal_rates(
    subject: AbstractPointwise,
    log_alpha: Float[Array, ""],
    log_tnr: Float[Array, ""],
    nodes: Float[Array, " n"] | None = None,
) -> Rates:
    """Beta and 1 - beta at an interior type I error.

    Args:
        subject: A curve that is known by its profile, differentiable.
        log_alpha: Log alpha.
        log_tnr: log(1 - alpha).
        nodes: Rising thresholds around the optimum at which most is known, if any.
    """
    best = optimal_threshold(subject, log_alpha, log_tnr, nodes)
    fixed = stop_gradient((subject, log_alpha, log_tnr))
    places = best + jnp.asarray(_OFFSETS, best.dtype)
    if nodes is not None:
        places = jnp.append(places, nodes)
    lines = jax.vmap(lambda e: line(fixed[0], e, *fixed[1:]))(places)
    args = subject, log_alpha, log_tnr
    at_best = lines.log_beta.estimate[0], lines.log_tpr.estimate[0]
    _, log_beta, log_tpr = optimum_or_kink(_log_rates, _of(*at_best), best, args, ())
    beta, tpr = (x.widened(_room) for x in (lines.log_beta, lines.log_tpr))
    most = jnp.minimum(log_highest(places, beta), log_tnr)
    least = jnp.maximum(log_lowest(places, tpr), log_alpha)
    # Each is known from the other too, and where that is near 1 often better.
    most, least = (
        jnp.minimum(most, log_complement(jnp.minimum(least, 0))),
        jnp.maximum(least, log_complement(jnp.minimum(most, 0))),
    )
    ends = Interval(least, log_tpr, most).widened(_room)
    found = (
        Interval(jnp.max(beta.lower), log_beta, ends.upper),
        Interval(ends.lower, log_tpr, jnp.min(tpr.upper)),
    )
    return Rates(*map(capped, found))


def _room(log_value: Array) -> Array:
    """The rounding of a few operations on a logarithm."""
    return LOG_OPERATIONS * (1 + jnp.abs(log_value))


def log_highest(places: Float[Array, " n"], logs: Interval) -> Float[Array, ""]:
    """Upper bound of the maximum of a line's beta, by its logarithm at some places.

    Concave in e^eps, it is 0 at 0 and below e^eps; it has no logarithm, and the lower
    end tells nothing, where it is not positive.
    """
    top = jnp.max(logs.lower)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    lower, upper = jnp.exp(logs.lower - top), jnp.exp(logs.upper - top)
    lower = jnp.where(lower > 0, lower, -jnp.inf)
    found = top + safe_log(highest(places, lower, upper, jnp.zeros_like(top)))
    # Where it is not positive, neither is it further to the right.
    positive = jnp.where(jnp.isneginf(logs.upper), places, jnp.inf)
    return jnp.minimum(found, jnp.min(positive))


def log_lowest(places: Float[Array, " n"], logs: Interval) -> Float[Array, ""]:
    """Lower bound of the minimum of a line's power: convex in e^eps, it is 1 at 0."""
    top = jnp.min(logs.upper)
    lower = -jnp.exp(logs.upper - top)
    upper = -jnp.exp(jnp.minimum(logs.lower - top, 700.0))
    return top + safe_log(-highest(places, lower, upper, -jnp.exp(-top)))


def merit(rates: Rates) -> Array:
    """A number that increases with beta and has digits wherever beta lies."""
    log_beta, log_tpr = rates.log_beta.estimate, rates.log_tpr.estimate
    # Where a line's beta is not positive, minus how far its power exceeds 1.
    beta = jnp.where(jnp.isfinite(log_beta), jnp.exp(log_beta), -log_tpr)
    return jnp.where(log_tpr < LOG_HALF, -log_tpr, beta)


def line(
    subject: AbstractPointwise, epsilon: Array, log_alpha: Array, log_tnr: Array
) -> Rates:
    """The supporting line's 1 - delta - e^eps alpha and its complement."""
    point = subject._point(epsilon)
    log_tpr = point.log_delta.map(lambda x: log_add(x, plus(epsilon, log_alpha)))
    # e^eps (1 - alpha - delta_rev(-eps)) is the same number.
    by_reverse = point.log_reverse.map_down(
        lambda x: plus(epsilon, log_subtract(log_tnr, x))
    )
    by_rest = point.log_rest.map(lambda x: log_subtract(x, plus(epsilon, log_alpha)))
    small = point.log_reverse.estimate < LOG_HALF
    either = jax.tree.map(lambda a, b: jnp.where(small, a, b), by_reverse, by_rest)
    by_tpr = log_tpr.map_down(lambda x: log_complement(jnp.minimum(x, 0)))
    near = log_tpr.estimate < LOG_HALF
    log_beta = jax.tree.map(lambda a, b: jnp.where(near, a, b), by_tpr, either)
    # Where beta is the small one, its complement follows from it.
    exact = log_beta.map_down(lambda x: log_complement(jnp.minimum(x, 0)))
    tiny = log_beta.estimate < LOG_HALF
    log_tpr = jax.tree.map(
        lambda a, b: jnp.where(tiny & jnp.isfinite(a), a, b), exact, log_tpr
    )
    return Rates(log_beta, log_tpr)


def _log_rates(epsilon: Array, args: tuple, aux: PyTree) -> Float[Array, " 3"]:
    found = line(args[0], epsilon, *args[1:])
    return _of(found.log_beta.estimate, found.log_tpr.estimate)


def _of(log_beta: Array, log_tpr: Array) -> Float[Array, " 3"]:
    """Log-odds and both logarithms: kinks show in the odds where either is near 1."""
    return jnp.stack([log_beta - log_tpr, log_beta, log_tpr])
