"""Roots of functions of one number inside a bracket.

`bisect` takes a fixed number of steps and is for functions that cost little: no step is
lost to `vmap`. The others interpolate, so that a smooth function is evaluated about ten
times, and never need more than one step beyond bisection.

Everything works elementwise on arrays. No bracket can be wrong: each end is a place
where the function was found on that end's side (or the end that was given). What is not
a number counts as not past the root. The result has no derivative; see `_implicit` for
that.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax.lax import fori_loop, stop_gradient, while_loop
from jaxtyping import Array, ArrayLike, Bool, Float

_FARTHEST = 2.0**100
"""The largest threshold that a search looks at."""
_MOST_STEPS = 80
"""The most steps of a search, once its root is bracketed."""
_NEARER = 2.0**-8
"""By what a threshold is multiplied until it is below the root."""


def bisect(
    function: Callable[[Array], Array],
    low: Float[Array, "..."],
    high: Float[Array, "..."],
    steps: int = 80,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Two points around the sign change of a function that increases from low to high.

    The function is at most zero at the first one (or that is `low`), and positive at
    the second (or that is `high`). With `low` above `high` the function decreases.
    """

    def body(_: Array, state: tuple) -> tuple:
        low, high = state
        middle = 0.5 * (low + high)
        above = function(middle) > 0
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    return stop_gradient(fori_loop(0, steps, body, stop_gradient((low, high))))


def root_between(
    function: Callable[[Array], Array],
    low: Float[Array, "..."],
    high: Float[Array, "..."],
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Two neighbors around the sign change of an increasing function that costs much.

    As `bisect` does, for low <= high, with the least number of evaluations; the two
    points differ by a unit in the last place of the larger one.
    """
    low, high = stop_gradient(jnp.broadcast_arrays(low, high))
    unknown, never = jnp.full_like(low, jnp.nan), jnp.zeros_like(low, bool)

    def body(bracket: _Bracket) -> _Bracket:
        place = bracket.next_place()
        value = stop_gradient(function(place))
        return bracket.after(place, -value, value > 0, high)

    none = jnp.zeros_like(low)
    start = _Bracket(low, high, unknown, unknown, never, high - low, none, none)
    end = while_loop(_Bracket.unfinished, body, start)
    return end.low, end.high


def least_threshold(
    log_tail: Callable[[Array], Array], target: Array, most: Array
) -> Array:
    """The eps in [0, most] at which a decreasing function passes `target`.

    At a jump (a point mass) it is the place of the jump, which is the kink of the
    profile.  It is `most` where no place passes it as far as the search goes.
    """
    return threshold_between(log_tail, target, most)[1]


def threshold_between(
    log_tail: Callable[[Array], Array], target: Array, most: Array, scale: ArrayLike = 0
) -> tuple[Array, Array]:
    """The `least_threshold`, and before it a place that does not pass the target.

    They differ by a unit in the last place, or in that of the `scale`.
    """

    def body(bracket: _Bracket) -> _Bracket:
        place = bracket.next_place()
        value = log_tail(place) - target
        return bracket.after(place, value, value <= 0, most)

    zero, unknown = jnp.zeros_like(target), jnp.full_like(target, jnp.nan)
    growing = jnp.ones_like(target, bool)
    # Zero is looked at first: a search that comes close to it would take long.
    start = _Bracket(
        zero, zero, unknown, unknown, growing, zero, zero, zero + jnp.asarray(scale)
    )
    # One loop for both phases, since `log_tail` takes long to compile.
    end = while_loop(_Bracket.unfinished, body, start)
    return end.low, jnp.where(jnp.isnan(end.below), most, end.high)


class _Bracket(eqx.Module):
    """The bracket of the zero of a decreasing function, so far."""

    low: Float[Array, "..."]
    high: Float[Array, "..."]
    above: Float[Array, "..."]
    """The function at `low`; not a number if it was not looked at."""
    below: Float[Array, "..."]
    growing: Bool[Array, "..."]
    """Whether no end was found yet where the function is below zero."""
    first: Float[Array, "..."]
    """The width when both ends were known; zero while one of them is looked for."""
    steps: Float[Array, "..."]
    """How many have been made since then."""
    scale: Float[Array, "..."]
    """The least size whose unit in the last place matters."""

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
        # At least a unit: else the end on the far side would only be halved.
        truncated = jnp.maximum(truncated, self._tolerance())
        truncated = jnp.minimum(truncated, jnp.abs(middle - secant))
        needed = jnp.ceil(jnp.log2(jnp.maximum(self.first / self._tolerance(), 1)))
        spare = 0.5 * self._tolerance() * jnp.exp2(needed + 1 - self.steps)
        reach = jnp.maximum(spare - 0.5 * width, 0)
        near = jnp.clip(secant + side * truncated, middle - reach, middle + reach)
        inside = (near > self.low) & (near < self.high)
        # Halves of [0, 1] would not reach a root of 1e-30 in `_MOST_STEPS`.
        nearer = jnp.where(self.first > 0, middle, _NEARER * self.high)
        between = jnp.where(inside & (self.first > 0), near, nearer)
        return jnp.where(self.growing, self.high, between)

    def _tolerance(self) -> Array:
        size = jnp.maximum(jnp.abs(self.low), jnp.abs(self.high))
        return jnp.finfo(self.high.dtype).eps * jnp.maximum(size, self.scale)

    def unfinished(self) -> Array:
        wide = self.high - self.low > self._tolerance()
        return jnp.any(self.growing | (wide & (self.steps < _MOST_STEPS)))

    def after(
        self, place: Array, value: Array, below: Array, most: Array
    ) -> "_Bracket":
        """With the value at the next place, and whether it is past the root."""
        ended = below | (self.high >= most) | (self.high > _FARTHEST)
        wider = jnp.minimum(jnp.maximum(2 * self.high, 1), most)
        wider = jnp.where(ended, self.high, wider)
        low = jnp.where(below, self.low, place)
        high = jnp.where(self.growing, wider, jnp.where(below, place, self.high))
        known, growing = self.first > 0, self.growing & ~ended
        # Below the least normal number there is nothing nearer to zero to look at.
        first = jnp.where(growing | ((low <= 0) & (place > 0)), 0, high - low)
        return _Bracket(
            low=low,
            high=high,
            above=jnp.where(below, self.above, value),
            below=jnp.where(below, value, self.below),
            growing=growing,
            first=jnp.where(known, self.first, first),
            steps=jnp.where(known, self.steps + 1, 0),
            scale=self.scale,
        )
