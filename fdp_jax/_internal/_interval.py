"""A number between certified bounds, and arithmetic that rounds outward."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from ._arithmetic import ULP
from ._special import log1mexp
from ._tolerances import CANCELLED, ELEMENTARY


class Interval(eqx.Module):
    """A number with certified bounds; only the estimate has a derivative.

    `map` and `map_down` take functions whose values are exact (minima, selections,
    signs).  All others have methods of their own here, which round outward.
    """

    lower: Float[Array, "..."]
    estimate: Float[Array, "..."]
    upper: Float[Array, "..."]

    def map(self, increasing: Callable[[Array], Array]) -> "Interval":
        """Applies an increasing function that does not round."""
        return Interval(
            increasing(self.lower), increasing(self.estimate), increasing(self.upper)
        )

    def map_down(self, decreasing: Callable[[Array], Array]) -> "Interval":
        """Applies a decreasing function that does not round."""
        return Interval(
            decreasing(self.upper), decreasing(self.estimate), decreasing(self.lower)
        )

    def widened(self, error: Callable[[Array], Array]) -> "Interval":
        """The interval with both ends moved outward.

        Args:
            error: Bound on the absolute error of an end, a function of its value.
                Infinite ends are exact.
        """

        def room(x: Array) -> Array:
            finite = jnp.isfinite(x)
            return jnp.where(finite, error(jnp.where(finite, x, 0)), 0)

        lower, upper = stop_gradient((self.lower, self.upper))
        return Interval(lower - room(lower), self.estimate, upper + room(upper))

    def shifted(self, amount: Array) -> "Interval":
        """The sum with a number that is exact."""
        return self.map(lambda x: x + amount).widened(lambda x: ULP * jnp.abs(x))

    def exponential(self) -> "Interval":
        """The probability of which this is the logarithm, from 0 to 1.

        Only the exact zero has the upper end 0: others do not underflow to it.
        """
        ends = self.widened(lambda x: ELEMENTARY * ULP * (1 + jnp.abs(x)))
        upper = jnp.minimum(jnp.exp(ends.upper), 1)
        least = jnp.finfo(upper.dtype).tiny
        none = jnp.isneginf(self.upper)
        upper = jnp.where(none, 0, jnp.maximum(upper, least))
        lower = jnp.where(self.lower >= 0, 1, jnp.exp(ends.lower))
        return Interval(lower, jnp.exp(self.estimate), upper)

    def reflected(self, distance: Float[Array, "..."]) -> "Interval":
        """Log delta(-distance), from log delta(distance) of the exchanged pair.

        delta(-e) = (1 - e^-e) + e^-e delta_rev(e) for e >= 0, without cancellation.
        """
        idle = -jnp.expm1(-distance)
        ends = stop_gradient((self.lower, self.upper))
        rows = jnp.stack([ends[0], self.estimate, ends[1]])
        none = jnp.isneginf(rows)
        exponent = jnp.where(none, 0, rows) - distance
        added = jnp.where(none, 0, jnp.exp(exponent))
        total = idle + added
        some = total > 0
        total = jnp.where(some, total, 1)
        logs = jnp.log(total)
        # The rounding of an exponent is a relative error of its power.
        relative = 1 + jnp.abs(exponent) * added / total
        error = jnp.where(some, ELEMENTARY * ULP * (relative + jnp.abs(logs)), 0)
        lower, value, upper = jnp.where(some, logs, -jnp.inf)
        ends = stop_gradient((lower - error[0], jnp.minimum(upper + error[2], 0)))
        return Interval(ends[0], value, ends[1])


def sound(bounds: Interval, least: float, most: float) -> Interval:
    """The trivial bounds where a bound is not a number: never a silent claim."""
    return Interval(
        jnp.where(jnp.isnan(bounds.lower), least, bounds.lower),
        bounds.estimate,
        jnp.where(jnp.isnan(bounds.upper), most, bounds.upper),
    )


def log_complement(log_value: Array) -> Array:
    """log(1 - e^x) for x <= 0, and -inf at x = 0."""
    return log1mexp(-jnp.minimum(log_value, 0))


@jax.jit
def without(logs: Array, truncated: Array) -> Array:
    """A lower bound of log(e^logs - e^truncated), -inf if that is nothing.

    It has no derivative.
    """
    logs, truncated = stop_gradient((logs, truncated))
    # The addend: nothing may be left of what is rounding alone.
    share = truncated - logs + CANCELLED
    some = share < -1e-9
    left = logs + log1mexp(jnp.where(some, -share, 1.0))
    left = jnp.where(some, left, -jnp.inf)
    return jnp.where(jnp.isneginf(truncated), logs, left)


def exactly(value: Array, relative: Array | float) -> Interval:
    """A closed form's value of a logarithm with a bound on its absolute error."""
    error = stop_gradient(relative * (1 + jnp.abs(value)))
    error = jnp.where(jnp.isfinite(value), error, 0)
    return Interval(stop_gradient(value) - error, value, stop_gradient(value) + error)
