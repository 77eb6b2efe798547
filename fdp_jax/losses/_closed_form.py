"""What the closed form of a composition answers, whichever loss it belongs to.

A closed form is written for thresholds eps >= 0 of one direction; a negative threshold
of a direction is a positive one of the other (see `engines`).
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient, while_loop
from jaxtyping import Array, Bool, Float

from .._internal._implicit import implicit_root
from .._internal._interval import Interval

_FARTHEST = 2.0**60
"""The largest threshold that a search looks at."""
_MOST_STEPS = 80
"""Of a search, once its root is bracketed."""


class AbstractClosedForm(eqx.Module):
    """A privacy profile in closed form, all infinite losses included."""

    @abc.abstractmethod
    def log_delta(self, epsilon: Array) -> Array:
        """Log delta(eps)."""

    @abc.abstractmethod
    def log_rest(self, epsilon: Array) -> Array:
        """log(1 - delta(eps))."""

    @abc.abstractmethod
    def log_alpha(self, epsilon: Array) -> Array:
        """Log P(X > eps)."""

    @abc.abstractmethod
    def epsilon(self, log_delta: Array) -> Array:
        """The least real eps with delta(eps) at most the given one."""

    def log_unsure(self) -> Array | None:
        """Log of what of the infinite losses is only a bound."""

    def error_rates(self, other: Any, alpha: Array) -> tuple[Interval, Interval] | None:
        """f(alpha) and 1 - f(alpha) where all the kinks of f are known, else None.

        Args:
            other: The closed form of the other direction, if the worst of both counts,
                else None.
            alpha: In (0, 1).
        """
        del other, alpha

    def lost(self) -> float:
        """By how much 1 - delta may be larger, besides the error of its logarithm."""
        return 0.0

    def mass_error(self) -> Array | float:
        """Relative error of sums of masses, besides that of every closed form."""
        return 0.0

    def loss_error(self, epsilon: Array) -> Array | None:
        """How far a threshold may be off, besides the error of the logarithms."""
        del epsilon

    def logs(self, epsilon: Array) -> tuple[Array, Array, Array]:
        """`log_delta`, `log_rest` and `log_alpha`."""
        return self.log_delta(epsilon), self.log_rest(epsilon), self.log_alpha(epsilon)

    def log_delta_within(
        self, epsilon: Array, error: Array, value: Array
    ) -> tuple[Array, Array]:
        """Log delta(eps - error) and log delta(eps + error), or bounds of them.

        `value` is that in the middle.
        """
        del value
        left, right = stop_gradient((epsilon - error, epsilon + error))
        return self.log_delta(left), self.log_delta(right)

    def _rounding(self, epsilon: Array, end: Array) -> Array:
        """A few units in the last place, near a finite end of the losses."""
        unit = 4 * jnp.finfo(epsilon.dtype).eps
        return stop_gradient(unit * jnp.maximum(jnp.abs(epsilon), jnp.abs(end)))


def epsilon_by_search(form: AbstractClosedForm, log_delta: Array) -> Array:
    constant, target = stop_gradient((form, log_delta))
    # 1 - e^eps <= delta(eps), so the root lies at or above log(1 - delta).
    least = jnp.log1p(-jnp.exp(target))
    tail = lambda e: constant.log_delta(least + e)
    root = least + least_threshold(tail, target, jnp.full_like(target, jnp.inf))
    return implicit_root(_log_delta_residual, root, (form, log_delta), ())


def _log_delta_residual(
    epsilon: Array, args: tuple[AbstractClosedForm, Array], aux: tuple[()]
) -> Array:
    del aux
    form, log_delta = args
    return form.log_delta(epsilon) - log_delta


class _Bracket(eqx.Module):
    """Where a decreasing function passes its target, so far."""

    low: Float[Array, ""]
    high: Float[Array, ""]
    above: Float[Array, ""]
    """The function less its target at `low`; not a number if it was not looked at."""
    below: Float[Array, ""]
    growing: Bool[Array, ""]
    """Whether no end was found yet where the function is below the target."""
    first: Float[Array, ""]
    """The width when one was found."""
    steps: Float[Array, ""]
    """How many have been made since then."""

    def next_place(self) -> Array:
        """An end to be tried, or a point inside (Oliveira & Takahashi 2020, ITP)."""
        width, middle = self.high - self.low, 0.5 * (self.low + self.high)
        fall = self.above - self.below
        secant = self.low + width * (self.above / jnp.where(fall > 0, fall, jnp.inf))
        usable = (fall > 0) & (fall < jnp.inf)
        secant = jnp.where(usable, secant, middle)
        # Interpolate, truncate towards the middle, and project, so that bisection
        # would need no fewer steps but one.
        side = jnp.sign(middle - secant)
        truncated = 0.2 * jnp.square(width) / jnp.where(self.first > 0, self.first, 1)
        truncated = jnp.minimum(truncated, jnp.abs(middle - secant))
        needed = jnp.ceil(jnp.log2(jnp.maximum(self.first / self._tolerance(), 1)))
        spare = 0.5 * self._tolerance() * jnp.exp2(needed + 1 - self.steps)
        reach = jnp.maximum(spare - 0.5 * width, 0)
        near = jnp.clip(secant + side * truncated, middle - reach, middle + reach)
        inside = (near > self.low) & (near < self.high)
        return jnp.where(self.growing, self.high, jnp.where(inside, near, middle))

    def _tolerance(self) -> Array:
        return jnp.finfo(self.high.dtype).eps * self.high

    def unfinished(self) -> Array:
        wide = self.high - self.low > self._tolerance()
        return self.growing | (wide & (self.steps < _MOST_STEPS))

    def after(self, place: Array, value: Array, most: Array) -> "_Bracket":
        """With the value at the next place."""
        # Not ">": what is not a number is not below the target.
        below = value <= 0
        ended = below | (self.high >= most) | (self.high > _FARTHEST)
        wider = jnp.where(ended, self.high, jnp.minimum(2 * self.high, most))
        low = jnp.where(below, self.low, place)
        high = jnp.where(self.growing, wider, jnp.where(below, place, self.high))
        return _Bracket(
            low=low,
            high=high,
            above=jnp.where(below, self.above, value),
            below=jnp.where(below, value, self.below),
            growing=self.growing & ~ended,
            first=jnp.where(self.growing, high - low, self.first),
            steps=jnp.where(self.growing, 0, self.steps + 1),
        )


def least_threshold(
    log_tail: Callable[[Array], Array], target: Array, most: Array
) -> Array:
    """The eps in [0, most] at which a decreasing function passes `target`.

    At a jump (a point mass) it is the place of the jump, which is the kink of the
    profile.
    """

    def body(bracket: _Bracket) -> _Bracket:
        place = bracket.next_place()
        return bracket.after(place, log_tail(place) - target, most)

    zero, unknown = jnp.zeros_like(target), jnp.full_like(target, jnp.nan)
    first = jnp.minimum(most, jnp.ones_like(target))
    growing = jnp.ones((), bool)
    start = _Bracket(zero, first, unknown, unknown, growing, first, zero)
    # One loop for both phases, since `log_tail` takes long to compile.
    return while_loop(_Bracket.unfinished, body, start).high
