"""The curve from the profile, where there is no other way to it.

f(alpha) is the maximum over eps of 1 - delta(eps) - e^eps alpha, a concave function of
e^eps.  Any eps gives a proved lower bound; values on both sides of the maximum bound it
from above (the chord on one side, extended, lies above the function on the other).
"""

import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.lax import fori_loop, stop_gradient
from jaxtyping import Array, Float, PyTree

from .._internal._implicit import optimum_or_kink
from .._internal._logs import LOG_HALF
from .._internal._special import safe_log
from .._internal._tolerances import LOG_OPERATIONS
from ..engines import Interval, log_complement
from .intervals import Point, Rates, capped, log_add, log_subtract, plus, widened

_REACH = 7.25
"""asinh of the largest |eps| looked at, about 700, where e^eps is still a number."""
_STEPS = 90
_OFFSETS = (0.0, *(s * h for h in (1e-8, 1e-6, 1e-4, 1e-2) for s in (-1.0, 1.0)))
_RATIO = (math.sqrt(5) - 1) / 2


class HasProfile(Protocol):
    """A curve that is known by its profile."""

    def _point(self, epsilon: Float[Array, ""]) -> Point: ...


def optimal_threshold(
    subject: HasProfile, log_alpha: Float[Array, ""], log_tnr: Float[Array, ""]
) -> Float[Array, ""]:
    """The eps at which the maximum is attained: -e^eps is a slope of f."""
    subject, log_alpha, log_tnr = stop_gradient((subject, log_alpha, log_tnr))

    def objective(place: Array) -> Array:
        rates = _line(subject, jnp.sinh(place), log_alpha, log_tnr)
        log_tpr, beta = rates.log_tpr.estimate, _signed(rates)
        # Both halves increase with beta; each has digits where the other has none.
        return jnp.where(log_tpr < LOG_HALF, -log_tpr, beta)

    low = jnp.full_like(log_alpha, -_REACH)
    return stop_gradient(jnp.sinh(_place_of_maximum(objective, low, -low)))


def _place_of_maximum(function: Any, low: Array, high: Array) -> Array:
    """Golden section with one call of the function in the program.

    Compiling it is what takes the time; otherwise as `_search.golden_section`.
    """

    def inner(low: Array, high: Array) -> tuple[Array, Array]:
        step = _RATIO * (high - low)
        return high - step, low + step

    def body(k: Array, state: tuple) -> tuple:
        low, high, at_left, at_right = state
        first, second = k == 0, k == 1
        start, down = first | second, at_left >= at_right
        left, right = inner(low, high)
        low = jnp.where(start | down, low, left)
        high = jnp.where(~start & down, right, high)
        left, right = inner(low, high)
        new = function(jnp.where(first | (~start & down), left, right))
        new_left = jnp.where(first | (~start & down), new, at_left)
        new_left = jnp.where(~start & ~down, at_right, new_left)
        new_right = jnp.where(second | (~start & ~down), new, at_right)
        return low, high, new_left, jnp.where(~start & down, at_left, new_right)

    zero = jnp.zeros_like(low)
    low, high, at_left, at_right = fori_loop(0, _STEPS, body, (low, high, zero, zero))
    left, right = inner(low, high)
    return jnp.where(at_left >= at_right, left, right)


def optimal_rates(
    subject: Any, log_alpha: Float[Array, ""], log_tnr: Float[Array, ""]
) -> Rates:
    """Beta and 1 - beta at an interior type I error."""
    best = optimal_threshold(subject, log_alpha, log_tnr)
    fixed = stop_gradient((subject, log_alpha, log_tnr))
    steps = jnp.asarray(_OFFSETS, best.dtype)
    lines = jax.vmap(lambda h: _line(fixed[0], best + h, *fixed[1:]))(steps)
    args = subject, log_alpha, log_tnr
    beta = jax.tree.map(jnp.exp, lines.log_beta)
    tpr = jax.tree.map(jnp.exp, lines.log_tpr)
    highest = _highest(beta)
    lowest = -_highest(tpr.map_down(jnp.negative))
    at_best = lines.log_beta.estimate[0], lines.log_tpr.estimate[0]
    _, log_beta, log_tpr = optimum_or_kink(_log_rates, _of(*at_best), best, args, ())
    found = Rates(
        Interval(
            jnp.max(lines.log_beta.lower),
            log_beta,
            jnp.minimum(safe_log(highest), log_tnr),
        ),
        Interval(
            jnp.maximum(safe_log(lowest), log_alpha),
            log_tpr,
            jnp.min(lines.log_tpr.upper),
        ),
    )
    wide = lambda x: capped(widened(x, LOG_OPERATIONS))
    return Rates(wide(found.log_beta), wide(found.log_tpr))


def _line(
    subject: HasProfile, epsilon: Array, log_alpha: Array, log_tnr: Array
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


def _signed(rates: Rates) -> Array:
    """The line's beta; where it is not positive, minus how far the power exceeds 1."""
    log_beta, log_tpr = rates.log_beta.estimate, rates.log_tpr.estimate
    return jnp.where(jnp.isfinite(log_beta), jnp.exp(log_beta), -log_tpr)


def _log_rates(epsilon: Array, args: tuple, aux: PyTree) -> Float[Array, " 3"]:
    found = _line(args[0], epsilon, *args[1:])
    return _of(found.log_beta.estimate, found.log_tpr.estimate)


def _of(log_beta: Array, log_tpr: Array) -> Float[Array, " 3"]:
    """Log-odds and both logarithms: kinks show in the odds where either is near 1."""
    return jnp.stack([log_beta - log_tpr, log_beta, log_tpr])


def _highest(values: Interval) -> Float[Array, ""]:
    """Upper bound of a concave function's maximum, from points around it."""
    center_low, center_high = values.lower[0], values.upper[0]
    low = values.lower[1:].reshape(-1, 2)
    high = values.upper[1:].reshape(-1, 2)
    inside = jnp.all(center_low >= high, axis=1)
    # The two steps are equal in eps, so in e^eps they differ by about 1 % at most.
    rise = jnp.max(center_high - low, axis=1)
    return jnp.min(jnp.where(inside, center_high + 1.03 * rise, jnp.inf))
