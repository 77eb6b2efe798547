"""The curve from the profile, where there is no other way to it.

f(alpha) is the maximum over eps of 1 - delta(eps) - e^eps alpha, a concave function of
e^eps.  Any eps gives a proved lower bound; values on both sides of the maximum bound it
from above, see `_concave`.
"""

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float, PyTree

from .._internal._implicit import kink_near, of_several, optimum_or_kink
from .._internal._logs import LOG_HALF
from .._internal._search import golden_section
from .._internal._special import safe_log
from ..engines import Interval, log_complement, select
from ._concave import highest
from .logs import (
    Point,
    Rates,
    add,
    capped,
    complement,
    log_room,
    plus,
    product,
    subtract,
)
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
    ends = -high, high
    if nodes is not None:
        ends = jnp.arcsinh(nodes[0]), jnp.arcsinh(nodes[-1])
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
    fixed = stop_gradient(subject)
    level = stop_gradient((log_alpha, log_tnr))
    places = best + jnp.asarray(_OFFSETS, best.dtype)
    if nodes is not None:
        places = jnp.append(places, nodes)
    lines = jax.vmap(lambda e: line(fixed, e, *level))(places)
    args = subject, log_alpha, log_tnr
    at_best = lines.log_beta.estimate[0], lines.log_tpr.estimate[0]
    _, log_beta, log_tpr = optimum_or_kink(
        _log_rates, kink_near, _of(*at_best), best, args, ()
    )
    found = best_of(places, lines, *level)
    return Rates(
        capped(Interval(found.log_beta.lower, log_beta, found.log_beta.upper)),
        capped(Interval(found.log_tpr.lower, log_tpr, found.log_tpr.upper)),
    )


@jax.jit
def best_of(
    places: Float[Array, " n"], lines: Rates, log_alpha: Array, log_tnr: Array
) -> Rates:
    """Bounds of f and its complement from supporting lines at some thresholds.

    Estimates are those of the best line.
    """
    beta, tpr = (x.widened(log_room) for x in (lines.log_beta, lines.log_tpr))
    most = jnp.minimum(_log_highest(places, beta), log_tnr)
    least = jnp.maximum(_log_lowest(places, tpr), log_alpha)
    # Each is known from the other too, and where that is near 1 often better.
    outer = Interval(least, least, most).widened(log_room)
    inner = Interval(jnp.max(beta.lower), most, jnp.min(tpr.upper))
    by_outer, by_inner = complement(outer), complement(inner)
    return Rates(
        Interval(
            jnp.maximum(inner.lower, by_inner.lower),
            jnp.max(beta.estimate),
            jnp.minimum(outer.upper, by_outer.upper),
        ),
        Interval(
            jnp.maximum(outer.lower, by_outer.lower),
            jnp.min(tpr.estimate),
            jnp.minimum(inner.upper, by_inner.upper),
        ),
    )


def _log_highest(places: Float[Array, " n"], logs: Interval) -> Float[Array, ""]:
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


def _log_lowest(places: Float[Array, " n"], logs: Interval) -> Float[Array, ""]:
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
    return line_of(subject._point(epsilon), epsilon, log_alpha, log_tnr)


@jax.jit
def line_of(point: Point, epsilon: Array, log_alpha: Array, log_tnr: Array) -> Rates:
    """The supporting line that a point of the profile is, at a type I error."""
    used = product(epsilon, log_alpha)
    log_tpr = add(point.log_delta, used)
    # e^eps (1 - alpha - delta_rev(-eps)) is the same number.
    others = subtract(product(0.0, log_tnr), point.log_reverse)
    by_reverse = others.map(lambda x: plus(epsilon, x))
    by_rest = subtract(point.log_rest, used)
    either = select(point.log_reverse.estimate < LOG_HALF, by_reverse, by_rest)
    by_tpr = log_tpr.map_down(lambda x: log_complement(jnp.minimum(x, 0)))
    log_beta = select(log_tpr.estimate < LOG_HALF, by_tpr, either)
    # Where beta is the small one, its complement follows from it.
    exact = log_beta.map_down(lambda x: log_complement(jnp.minimum(x, 0)))
    tiny = (log_beta.estimate < LOG_HALF) & jnp.isfinite(log_beta.lower)
    return Rates(log_beta, select(tiny, exact, log_tpr))


@of_several
def _log_rates(epsilon: Array, args: tuple, aux: PyTree) -> Float[Array, " 3"]:
    found = line(args[0], epsilon, *args[1:])
    return _of(found.log_beta.estimate, found.log_tpr.estimate)


def _of(log_beta: Array, log_tpr: Array) -> Float[Array, " 3"]:
    """Log-odds and both logarithms: kinks show in the odds where either is near 1."""
    return jnp.stack([log_beta - log_tpr, log_beta, log_tpr])
