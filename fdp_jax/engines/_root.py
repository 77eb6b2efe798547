"""The epsilon of a log delta, certified on the way.

Newton's method in a bracket, on three thresholds at once: the root, and those where
the certificate's ends have reached what the root's ends ask for.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.lax import while_loop
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._internal._arithmetic import ULP
from .._internal._interval import Interval
from ..losses import where

_LEAST, _MOST = 3, 24
"""Steps, of which the first ones tell how far apart the three thresholds are."""
_NEAR = 1.0
"""Distance of log delta from its target from which on they are told apart."""


def with_rounding(target: Array, slack: Array) -> Array:
    """Errors of a target to allow for, with that of taking its logarithm."""
    return slack + 4 * ULP * (1 + jnp.abs(target))


def step_within(center: Array, newton: Array, low: Array, high: Array) -> Array:
    """The step of Newton's method if it is in a bracket, else another one."""
    # Far out the logarithm of delta is straighter in that of the threshold.
    bent = center * jnp.exp((newton - center) / center)
    fits = (bent > low) & (bent < high) & (center > 0)
    inside = (newton >= low) & (newton <= high)
    return where(inside, newton, where(fits, bent, 0.5 * (low + high)))


class Near(NamedTuple):
    """Log delta at three thresholds, with the slope."""

    log_value: Float[Array, " 3"]
    log_lower: Float[Array, " 3"]
    log_upper: Float[Array, " 3"]
    slope: Float[Array, " 3"]


class Search(eqx.Module):
    """The search for the epsilon of a log delta, so far.

    Of three numbers the first is of the lower end, and the last of the upper one.
    """

    targets: Float[Array, " 3"]
    turn: Int[Array, ""]
    following: Float[Array, " 3"]
    """The thresholds to be looked at next."""
    points: Float[Array, " 3"]
    """Those looked at last; infinite before the first step."""
    low: Float[Array, ""]
    high: Float[Array, ""]
    last: Near

    @classmethod
    def begun(
        cls,
        target: Float[Array, ""],
        slack: Float[Array, "2"],
        first: Float[Array, ""],
        low: ArrayLike = -np.inf,
        high: ArrayLike = np.inf,
    ) -> "Search":
        """The search before its first step.

        Args:
            target: Log delta.
            slack: Errors of the target to allow for, at the lower and the upper end.
            first: The first threshold to be looked at.
            low: A number below the root.
            high: A number above it.
        """
        slack = with_rounding(target, slack)
        targets = target + jnp.stack([slack[0], 0 * target, -slack[1]])
        none, turn = jnp.zeros_like(targets), jnp.zeros((), jnp.int32)
        low, high = (jnp.asarray(x, target.dtype) for x in (low, high))
        last = Near(none, none, none, none)
        return cls(targets, turn, none + first, none + np.inf, low, high, last)

    @property
    def center(self) -> Float[Array, ""]:
        """The root, about: to be looked at next."""
        return self.following[1]

    def _least(self) -> Float[Array, ""]:
        """A distance of thresholds that says nothing."""
        steepness = jnp.maximum(jnp.abs(self.last.slope[1]), 1e-300)
        rounded = 1e-14 * (1 + jnp.abs(self.targets[1]))
        # Values that are not known so well are not so smooth either.
        width = self.last.log_upper[1] - self.last.log_lower[1]
        rounded = rounded + where(width < 1e-3, 1e-3 * width, 0.0)
        return 1e-13 * jnp.abs(self.points[1]) + rounded / steepness

    def unfinished(self) -> Bool[Array, ""]:
        """Whether there is another step to be made."""
        close = jnp.abs(self.following - self.points) <= self._least()
        done = jnp.all(close) & (self.turn >= _LEAST)
        return (self.turn < _MOST) & ~done

    def after(self, at: Callable[[Array], Near], stride: ArrayLike) -> "Search":
        """The search after a step of at most `stride`."""
        points = self.following
        here, center = at(points), points[1]
        ends = [here.log_lower[0], here.log_value[1], here.log_upper[2]]
        miss = jnp.stack(ends) - self.targets
        newton = points - miss / here.slope
        low = where(miss[1] > 0, jnp.maximum(self.low, center), self.low)
        high = where(miss[1] < 0, jnp.minimum(self.high, center), self.high)
        before = jnp.maximum(low, center - stride)
        beyond = jnp.minimum(high, center + stride)
        root = newton[1]
        # Far from the root both ends go along with it.
        made = Search(self.targets, self.turn + 1, points, points, low, high, here)
        apart = newton - root + made._least() * np.asarray([-1.0, 0.0, 1.0])
        known = jnp.isfinite(apart) & (jnp.abs(miss[1]) < _NEAR)
        root = where(jnp.isfinite(here.slope[1]), root, np.nan)
        root = step_within(center, root, before, beyond)
        following = root + where(known, apart, 0.0)
        return dataclasses.replace(made, following=following)

    def solved(self, at: Callable[[Array], Near], stride: ArrayLike) -> "Search":
        """The search after its last step."""
        step = lambda search: search.after(at, stride)
        return while_loop(Search.unfinished, step, self)

    def found(self, least: ArrayLike, most: ArrayLike) -> Interval:
        """The root, as far as it is certified, between two numbers."""
        lower, root, upper = self.points
        below = self.last.log_lower[0] >= self.targets[0]
        above = self.last.log_upper[2] <= self.targets[2]
        lower = jnp.maximum(where(below, lower, -np.inf), least)
        upper = jnp.minimum(where(above, upper, np.inf), most)
        return Interval(lower, jnp.clip(root, lower, upper), upper)
