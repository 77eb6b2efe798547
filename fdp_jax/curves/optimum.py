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
from .._internal._logs import LOG_HALF, log_add
from .._internal._search import golden_section
from .._internal._special import safe_log
from ..engines import Interval, log_complement
from ._concave import highest
from .logs import (
    Point,
    Rates,
    capped,
    complement,
    log_room,
    log_subtract,
    plus,
    product,
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
    most, least = _log_extremes(places, beta, tpr)
    most, least = jnp.minimum(most, log_tnr), jnp.maximum(least, log_alpha)
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


def _log_extremes(
    places: Float[Array, " n"], beta: Interval, tpr: Interval
) -> tuple[Array, Array]:
    """Upper bound of a line's largest beta and lower bound of its least power.

    By their logarithms at some places.  Beta is concave in e^eps, 0 at 0 and below
    e^eps; it has no logarithm, and the lower end tells nothing, where it is not
    positive.  The power is convex and 1 at 0.
    """
    high, low = jnp.max(beta.lower), jnp.min(tpr.upper)
    high = jnp.where(jnp.isfinite(high), high, 0.0)
    lower, upper = jnp.exp(beta.lower - high), jnp.exp(beta.upper - high)
    lower = jnp.where(lower > 0, lower, -jnp.inf)
    most, least = jax.vmap(highest, (None, 0, 0, 0))(
        places,
        jnp.stack([lower, -jnp.exp(tpr.upper - low)]),
        jnp.stack([upper, -jnp.exp(jnp.minimum(tpr.lower - low, 700.0))]),
        jnp.stack([jnp.zeros_like(low), -jnp.exp(-low)]),
    )
    # Where beta is not positive, neither is it further to the right.
    positive = jnp.where(jnp.isneginf(beta.upper), places, jnp.inf)
    most = jnp.minimum(high + safe_log(most), jnp.min(positive))
    return most, low + safe_log(-least)


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
    """The supporting line that a point of the profile is, at a type I error.

    Of its lower end, estimate and upper end as rows of arrays, in the order in which
    delta and the power rise, and 1 - delta and beta fall.
    """
    rise = lambda x: jnp.stack([x.lower, x.estimate, x.upper])
    fall = lambda x: jnp.stack([x.upper, x.estimate, x.lower])
    used = rise(product(epsilon, log_alpha))
    log_tpr = log_add(rise(point.log_delta), used)
    # e^eps (1 - alpha - delta_rev(-eps)) is the same number.
    reverse, rest = rise(point.log_reverse), fall(point.log_rest)
    others = log_subtract(fall(product(jnp.zeros_like(epsilon), log_tnr)), reverse)
    by_reverse, by_rest = plus(epsilon, others), log_subtract(rest, used)
    either = jnp.where(reverse[1] < LOG_HALF, by_reverse, by_rest)
    by_tpr = log_complement(log_tpr)
    log_beta = jnp.where(log_tpr[1] < LOG_HALF, by_tpr, either)
    # Where beta is the small one, its complement follows from it.
    tiny = (log_beta[1] < LOG_HALF) & jnp.isfinite(log_beta[2])
    log_tpr = jnp.where(tiny, log_complement(log_beta), log_tpr)
    return Rates(Interval(*log_beta[::-1]), Interval(*log_tpr))


@of_several
def _log_rates(epsilon: Array, args: tuple, aux: PyTree) -> Float[Array, " 3"]:
    found = line(args[0], epsilon, *args[1:])
    return _of(found.log_beta.estimate, found.log_tpr.estimate)


def _of(log_beta: Array, log_tpr: Array) -> Float[Array, " 3"]:
    """Log-odds and both logarithms: kinks show in the odds where either is near 1."""
    return jnp.stack([log_beta - log_tpr, log_beta, log_tpr])
