"""What the closed form of a composition answers, whichever loss it belongs to.

A closed form is written for thresholds eps >= 0 of one direction; a negative threshold
of a direction is a positive one of the other (see `engines`).
"""

from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._internal._implicit import implicit_root
from .._internal._interval import Interval, exactly
from .._internal._logs import LOG_HALF
from .._internal._roots import least_threshold
from .._internal._special import log1mexp, log1p
from .._internal._tolerances import CLOSED_FORM


class AbstractClosedForm(eqx.Module):
    """A privacy profile in closed form, all infinite losses included.

    A form gives `logs`, or `pair` and `log_alpha`.
    """

    def logs(self, epsilon: Array) -> tuple[Array, Array, Array]:
        """`log_delta`, `log_rest` and `log_alpha`."""
        return *self.pair(epsilon), self.log_alpha(epsilon)

    def pair(self, epsilon: Array) -> tuple[Array, Array]:
        """`log_delta` and `log_rest`."""
        return self.logs(epsilon)[:2]

    def log_delta(self, epsilon: Array) -> Array:
        """Log delta(eps)."""
        return self.pair(epsilon)[0]

    def log_rest(self, epsilon: Array) -> Array:
        """log(1 - delta(eps))."""
        return self.pair(epsilon)[1]

    def log_alpha(self, epsilon: Array) -> Array:
        """Log P(X > eps)."""
        return self.logs(epsilon)[2]

    def epsilon(self, log_delta: Array) -> Array:
        """The least real eps with delta(eps) at most the given one, by search.

        For delta = 0 it is inf, and for delta = 1 it is -inf.
        """
        inside = (log_delta > -jnp.inf) & (log_delta < 0)
        args = self, jnp.where(inside, log_delta, -1.0)
        constant, target = stop_gradient(args)
        # 1 - e^eps <= delta(eps), so the root lies at or above log(1 - delta).
        place = constant.places(log1mexp(-target))
        excess = lambda u: _residual(place(u), (constant, target), ())
        most = jnp.full_like(target, jnp.inf)
        root = place(least_threshold(excess, jnp.zeros_like(target), most))
        found = self.threshold_at(implicit_root(_residual, root, args, ()))
        return jnp.where(inside, found, jnp.where(log_delta < 0, jnp.inf, -jnp.inf))

    def log_truncated(self) -> Array | None:
        """Log of what of the infinite losses is only a bound."""

    def places(self, least: Array) -> Callable[[Array], Array]:
        """Places from the threshold `least` on, by numbers >= 0 for a search."""
        return lambda u: least + u

    def threshold_at(self, place: Array) -> Array:
        """The threshold at a place of the search."""
        return place

    def pair_at(self, place: Array) -> tuple[Array, Array]:
        """`pair` there."""
        return self.pair(place)

    def log_rates(self, log_alpha: Array, log_tnr: Array) -> tuple[Array, Array] | None:
        """Log f(alpha) and log(1 - f(alpha)) of a symmetric pair, if they are known.

        Args:
            log_alpha: Log alpha.
            log_tnr: log(1 - alpha), which has the digits where alpha is close to 1.
        """

    def error_rates(
        self, other: Any, log_alpha: Array, log_tnr: Array
    ) -> tuple[Interval, Interval] | None:
        """Logs of f and 1 - f at a type I error where all kinks of f are known.

        Otherwise None.

        Args:
            other: The closed form of the other direction, if the worst of both counts,
                else None.
            log_alpha: Log alpha, for alpha in (0, 1).
            log_tnr: log(1 - alpha).
        """
        found = self.log_rates(log_alpha, log_tnr)
        if found is None:
            return None
        beta, power = (exactly(x, CLOSED_FORM) for x in found)
        return beta, power

    def lost(self) -> float:
        """Possible excess of 1 - delta, besides the error of its logarithm."""
        return 0.0

    def log_excess(self) -> Array | None:
        """Log of by how much 1 - delta may be too large; see `mass_error`."""

    def mass_error(self) -> Array | float:
        """Relative error of sums of masses, besides that of every closed form."""
        return 0.0

    def loss_error(self, epsilon: Array) -> Array | None:
        """Possible error of a threshold, besides the error of the logarithms."""

    def _rounding(self, epsilon: Array, end: Array) -> Array:
        """A few units in the last place, near a finite end of the losses."""
        unit = 4 * jnp.finfo(epsilon.dtype).eps
        return stop_gradient(unit * jnp.maximum(jnp.abs(epsilon), jnp.abs(end)))


def settled(
    inside: Array, found: Iterable[Array], epsilon: Array, below: Array
) -> tuple[Any, ...]:
    """`logs`, or the first two of them, also where eps is not among the losses.

    Args:
        inside: Whether the numbers found are to be used.
        found: The numbers, for the others something finite.
        epsilon: The threshold.
        below: Whether all losses exceed it, elsewhere; else none does.
    """
    log_rest = jnp.where(below, epsilon, 0.0)
    edges = log1mexp(-log_rest), log_rest, jnp.where(below, 0.0, -jnp.inf)
    pairs = zip(found, edges, strict=False)
    return tuple(jnp.where(inside, value, edge) for value, edge in pairs)


def complements(log_delta: Array, log_rest: Array) -> tuple[Array, Array]:
    """Log delta and log(1 - delta), each from the other where that has the digits."""
    small = log_delta < LOG_HALF
    delta = jnp.exp(jnp.where(small, log_delta, LOG_HALF))
    rest = jnp.exp(jnp.where(small, LOG_HALF, jnp.minimum(log_rest, LOG_HALF)))
    return (
        jnp.where(small, log_delta, log1p(-rest)),
        jnp.where(small, log1p(-delta), jnp.minimum(log_rest, 0.0)),
    )


def _residual(
    place: Array, args: tuple[AbstractClosedForm, Array], aux: tuple[()]
) -> Array:
    """Decreasing in eps, zero where delta(eps) is the given one."""
    form, log_delta = args
    value, rest = form.pair_at(place)
    small = log_delta < LOG_HALF
    target = log1mexp(-jnp.where(small, -1.0, log_delta))
    return jnp.where(small, value - log_delta, target - rest)
