"""Closed forms of mixtures whose components are told apart by the output.

Their supports are disjoint, so profiles add, and 1 - delta and P(X > eps) as well:

    delta(eps) = sum_k w_k delta_k(eps - s_k),

where s_k = log of w_k over the component's probability under the other law: zero if
both choose it alike.
"""

from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._special import log_weighted_sum, safe_log
from .._internal._tolerances import CLOSED_FORM
from ._closed_form import AbstractClosedForm, complements, settled


class Components(eqx.Module):
    """Components of one kind, stacked."""

    form: AbstractClosedForm
    weight: Float[Array, " n"]
    shift: Float[Array, " n"]


def stacked(parts: Iterable[Components]) -> tuple[Components, ...]:
    """Components of equal kinds as one stack, so that programs hold each kind once."""
    kinds: dict[Any, list[Components]] = {}
    for part in parts:
        leaves, structure = jax.tree.flatten(part)
        kinds.setdefault((structure, *(x.shape[1:] for x in leaves)), []).append(part)
    joined = lambda *x: jnp.concatenate(x)
    return tuple(jax.tree.map(joined, *same) for same in kinds.values())


class MixedForm(AbstractClosedForm):
    """A mean of profiles, each with thresholds of its own; see the module."""

    parts: tuple[Components, ...]
    nothing: Float[Array, ""]
    """Weight of an outcome that tells nothing."""
    told: Float[Array, ""]
    """Weight of what counts as telling everything, and may tell less."""
    excess: Float[Array, ""]
    """By how much the sum of all weights exceeds 1."""
    slip: Float[Array, ""]
    """Possible error of a threshold, besides rounding and that of the components."""

    def logs(self, epsilon):
        found = self._means(epsilon, lambda form, place: form.logs(place))
        return *complements(*found[:2]), jnp.minimum(found[2], 0)

    def pair(self, epsilon):
        return complements(*self._means(epsilon, lambda form, e: form.pair(e)))

    def _means(
        self,
        epsilon: Array,
        value: Callable[[AbstractClosedForm, Array], tuple[Array, ...]],
    ) -> list[Array]:
        """Logs of delta, of 1 - delta and, if asked for, of P(X > eps)."""

        def one(part: Components) -> list[Array]:
            found, scales = value(part.form, epsilon - part.shift), (0, 0, -part.shift)
            return [x + scale for x, scale in zip(found, scales, strict=False)]

        none = jnp.zeros_like(epsilon)
        idle = settled(none > 0, (none, none, none), epsilon, epsilon < 0)
        told = none, none - jnp.inf, none - jnp.inf
        weights = jnp.append(self._weights(), jnp.stack([self.nothing, self.told]))
        columns = zip(zip(*self._each(one), strict=True), idle, told, strict=False)
        return [
            log_weighted_sum(weights, jnp.concatenate([*rows, jnp.stack(ends)]))
            for rows, *ends in columns
        ]

    def _each(self, value: Callable[[Components], Any]) -> list[Any]:
        """Values of all components, stacked for every kind."""
        return [jax.vmap(value)(part) for part in self.parts]

    def _weights(self) -> Float[Array, " n"]:
        return jnp.concatenate([part.weight for part in self.parts])

    def log_truncated(self):
        def one(part: Components) -> Array:
            found = part.form.log_truncated()
            return jnp.full_like(part.weight, -jnp.inf) if found is None else found

        logs = jnp.append(jnp.concatenate(self._each(one)), 0.0)
        weights = jnp.append(self._weights(), self.told)
        return stop_gradient(log_weighted_sum(weights, logs))

    def log_excess(self):
        return stop_gradient(safe_log(self.excess))

    def lost(self):
        return max(part.form.lost() for part in self.parts)

    def mass_error(self):
        dtype = self.told.dtype
        each = self._each(lambda part: jnp.asarray(part.form.mass_error(), dtype))
        rounding = jnp.finfo(dtype).eps * (8 * self._weights().size + self._size())
        # Errors of logarithms are relative to their size, which may be larger than that
        # of the sum's, by 1/e in the mean.  Beyond 1/2 the logarithm of delta moves
        # twice as much as 1 - delta.
        error = CLOSED_FORM + rounding + 2 * self.excess
        return stop_gradient(error + jnp.max(jnp.concatenate(each)))

    def loss_error(self, epsilon):
        def one(part: Components) -> Array:
            found = part.form.loss_error(epsilon - part.shift)
            found = jnp.zeros_like(epsilon) if found is None else found
            return jnp.where(part.weight > 0, found, 0)

        size, unit = self._size(), 8 * jnp.finfo(epsilon.dtype).eps
        moved = self.slip + unit * jnp.where(size > 0, 1 + jnp.abs(epsilon) + size, 0)
        own = jnp.max(jnp.concatenate(self._each(one)), axis=0)
        return stop_gradient(moved + own)

    def _size(self) -> Array:
        """The largest shift."""
        each = self._each(lambda x: jnp.where(x.weight > 0, jnp.abs(x.shift), 0))
        return jnp.max(jnp.concatenate(each))
