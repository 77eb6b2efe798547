"""Many releases of one kind, each with its own parameters."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

from .._internal._special import log1mexp, log_weighted_sum
from ._analytic import (
    FREQUENCY_BLOCK,
    AnalyticLoss,
    CharacteristicBlock,
    relative,
)
from ._base import outward

_TOGETHER = 128
"""Steps evaluated side by side: more would leave the caches, and at last the memory."""


class ScheduleLoss(AnalyticLoss):
    """The sum of independent losses, `counts[i]` times the i-th of a stack."""

    by_steps: ClassVar[bool] = True

    steps: AnalyticLoss
    """A loss whose leaves have a leading axis."""
    counts: Float[Array, " n"]

    @classmethod
    def of(cls, steps: AnalyticLoss, counts: Float[Array, " n"]) -> "ScheduleLoss":
        """The schedule, with steps that take alike long side by side.

        Those evaluated together wait for the longest.
        """
        effort = jax.vmap(lambda step: step.effort())(steps)
        if effort is not None and counts.size > _TOGETHER:
            order = jnp.argsort(stop_gradient(effort))
            steps, counts = jax.tree.map(lambda x: x[order], (steps, counts))
        return cls(steps, counts)

    @property
    def symmetric(self) -> bool:
        return self.steps.symmetric

    @property
    def decays(self) -> bool:
        return self.steps.decays

    @property
    def on_grid(self) -> bool:
        return self.steps.on_grid

    @property
    def whole(self) -> Bool[Array, ""]:
        """Whether all counts are whole numbers, if steps are taken one by one."""
        near = jnp.abs(self.counts - jnp.round(self.counts))
        return jnp.all(near <= 1e-9 * (1 + self.counts)) | (not self.by_steps)

    def lattice(self):
        return self._each(lambda step: step.lattice())

    def _each(self, method: Callable[..., Any], *args: Any, axes: tuple = ()) -> Any:
        """A method of every step; of the arguments, those with axis 0 differ."""
        axes = axes or (None,) * len(args)
        together = jax.vmap(method, (0, *axes))
        size = self.counts.size
        if size <= _TOGETHER:
            return together(self.steps, *args)
        shared = [None if axis == 0 else x for x, axis in zip(args, axes, strict=True)]
        own = [x if axis == 0 else None for x, axis in zip(args, axes, strict=True)]

        def row(part: tuple[AnalyticLoss, list]) -> Any:
            steps, mine = part
            every = [x if y is None else y for x, y in zip(shared, mine, strict=True)]
            return together(steps, *every)

        rows = jax.tree.map(_in_rows, (self.steps, own))
        found = jax.lax.map(row, rows)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:size], found)

    def _added(self, method: Callable[..., Any], *args: Any, axes: tuple = ()) -> Any:
        """The sums of all arrays that a method gives, over the steps."""
        return jax.tree.map(self._sum, self._each(method, *args, axes=axes))

    def _sum(self, values: Array) -> Array:
        # What does not happen adds nothing, be its own value infinite.
        idle = (self.counts == 0).reshape(-1, *[1] * (values.ndim - 1))
        values = jnp.where(idle & ~jnp.isfinite(values), 0, values)
        return jnp.tensordot(self.counts, values, axes=1)

    @property
    def pairs(self) -> bool:
        return self.steps.pairs

    def normal_mixtures(self):
        each = lambda step: step.normal_mixtures()
        pairs, counts = jax.vmap(each)(self.steps)
        joined = lambda x: x.reshape(-1, *x.shape[2:])
        return jax.tree.map(joined, (pairs, counts * self.counts[:, None]))

    def each_loss_moments(self, sign: int) -> Any:
        """Moments of |X| of every step, or None."""
        return self._each(lambda step: step.loss_moments(sign))

    def moments(self, order):
        return self._added(lambda step, w: step.moments(w), order)

    def rough_moments(self, order):
        return self._added(lambda step, w: step.rough_moments(w), order)

    def locate(self, order):
        return self._each(lambda step, w: step.locate(w), order)

    def prepare(self, located, frequency, log_tolerance):
        # Where n steps end to matter the angle of each is about 9 / sqrt(n), and so is
        # its rounding: errors that are smaller by sqrt(n) are next to nothing in all.
        log_tolerance = log_tolerance - 0.5 * jnp.log1p(jnp.sum(self.counts))
        return self._each(
            lambda step, *args: step.prepare(*args),
            located,
            frequency,
            log_tolerance,
            axes=(0, None, None),
        )

    def log_mgf(self, plan):
        return self._added(lambda step, p: step.log_mgf(p), plan, axes=(0,))

    def log_characteristic(self, plan, start, step, count=FREQUENCY_BLOCK):
        parts = self._each(
            lambda one, *args: one.log_characteristic(*args, count),
            plan,
            start,
            step,
            axes=(0, None, None),
        )
        lost = jnp.reshape(parts.turned, (self.counts.size, -1))
        unusable = (parts.error > 0.5) & (self.counts > 0)[:, None]
        lost = lost | self._turned(plan, start, step, count) | unusable
        # Of the logarithm; parts of a step move its power by it, not by the error.
        grown = jnp.where(unusable, jnp.log(3 + 2 * parts.error), 1.4 * parts.error)
        return CharacteristicBlock(
            self._sum(parts.real),
            self._sum(parts.imag),
            relative(self._sum(grown)),
            jnp.any(lost, axis=0),
        )

    def _turned(self, plan: Any, start: Array, step: Array, count: int) -> Array:
        """Flags of angles that may be off the principal branch, by step and frequency.

        A fractional power needs the continuous one.  As long as the characteristic
        function stays nearer to 1 than 0 is, both are the same.
        """
        fastest = self._each(lambda one, p: one.fastest_turn(p), plan, axes=(0,))
        if fastest is None:
            return jnp.zeros((1, count), bool)
        tau = start + step * jnp.arange(count, dtype=start.dtype)
        fractional = self.counts != jnp.round(self.counts)
        return fractional[:, None] & (tau * fastest[:, None] >= 1)

    def center(self, plan):
        return self._added(lambda step, p: step.center(p), plan, axes=(0,))

    def log_envelope(self, located, frequency):
        envelope = lambda step, *args: step.log_envelope(*args)
        return self._added(envelope, located, frequency, axes=(0, None))

    def loss_range(self):
        low, high = self._each(lambda step: step.loss_range())
        # A sum of numbers of one sign.
        units = 2 + 0.5 * self.counts.size
        return outward(self._total(low), self._total(high), units)

    def log_finite_masses(self):
        upper, lower = self._each(lambda step: step.log_finite_masses())
        return self._total(upper), self._total(lower)

    def log_infinite_masses(self):
        infinite = log1mexp(-jnp.stack(self.log_finite_masses()))
        return tuple(jnp.logaddexp(infinite, jnp.stack(self.log_truncated_masses())))

    def log_truncated_masses(self):
        if not self.by_steps:
            return super().log_truncated_masses()
        # The union bound, as of a composition.
        each = self._each(lambda step: jnp.stack(step.log_truncated_masses()))
        return tuple(jnp.minimum(log_weighted_sum(self.counts, each), 0))

    def uncut(self):
        return dataclasses.replace(self, steps=self.steps.uncut())

    def _total(self, values: Array) -> Array:
        """A sum that allows infinite values, with 0 inf = 0."""
        finite = jnp.isfinite(values)
        total = self._sum(jnp.where(finite, values, 0))
        infinite = jnp.where(finite | (self.counts == 0), 0, values)
        return total + jnp.sum(infinite)


def _in_rows(x: Array) -> Array:
    """Rows of equal length, the last one filled up with the last entry."""
    rows = -(-x.shape[0] // _TOGETHER)
    rest = jnp.broadcast_to(x[-1:], (-x.shape[0] % rows, *x.shape[1:]))
    return jnp.concatenate([x, rest]).reshape(rows, -1, *x.shape[1:])
