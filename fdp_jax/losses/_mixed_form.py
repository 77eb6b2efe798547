"""Closed forms of mixtures whose components are told apart by the output.

Their supports are disjoint, so profiles add, and 1 - delta and P(X > eps) as well:

    delta(eps) = sum_k w_k delta_k(eps - s_k),

where s_k = log of w_k over the component's probability under the other law: zero if
both choose it alike.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._special import safe_log
from .._internal._tolerances import CLOSED_FORM
from ._closed_form import AbstractClosedForm, complements, settled

_LARGEST = 709.0
"""About the logarithm of the largest number."""


class Components(eqx.Module):
    """Components of one kind."""

    forms: AbstractClosedForm
    """Their closed forms, stacked."""
    weights: Float[Array, " n"]
    shifts: Float[Array, " n"]


def stacked(parts: Iterable[Components]) -> tuple[Components, ...]:
    """Components of equal kinds as one stack, so that programs hold each kind once."""
    kinds: dict[Any, list[Components]] = {}
    for part in parts:
        leaves, structure = jax.tree.flatten(part)
        shapes = tuple((x.shape[1:], x.dtype) for x in leaves)
        kinds.setdefault((structure, shapes), []).append(part)
    joined = lambda same: jax.tree.map(lambda *x: jnp.concatenate(x), *same)
    return tuple(map(joined, kinds.values()))


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

        def one(form: AbstractClosedForm, shift: Array) -> list[Array]:
            found, scales = value(form, epsilon - shift), (0.0, 0.0, -shift)
            return [x + scale for x, scale in zip(found, scales, strict=False)]

        rows = [jax.vmap(one)(part.forms, part.shifts) for part in self.parts]
        none = jnp.zeros_like(epsilon)
        idle = settled(none > 0, (none, none, none), epsilon, epsilon < 0)
        sure = none, none - jnp.inf, none - jnp.inf
        columns = zip(*rows, strict=True)
        weights = [*(part.weights for part in self.parts), self.nothing, self.told]
        weights = jnp.concatenate([jnp.atleast_1d(x) for x in weights])
        return [
            _log_sum(weights, jnp.concatenate([*column, jnp.stack(ends)]))
            for column, ends in zip(columns, zip(idle, sure, strict=True), strict=False)
        ]

    def log_truncated(self):
        logs = [jnp.zeros(1, self.told.dtype)]
        weights = [self.told[None]]
        for part in self.parts:
            found = jax.vmap(lambda form: form.log_truncated())(part.forms)
            if found is not None:
                logs.append(found)
                weights.append(part.weights)
        return stop_gradient(_log_sum(jnp.concatenate(weights), jnp.concatenate(logs)))

    def log_excess(self):
        return stop_gradient(safe_log(self.excess))

    def lost(self):
        return max(part.forms.lost() for part in self.parts)

    def mass_error(self):
        # Errors of logarithms are relative to their size, which may be larger than that
        # of the sum's; by 1/e in the mean.
        count = sum(part.weights.size for part in self.parts)
        unit = jnp.finfo(self.told.dtype).eps
        one = lambda form: jnp.asarray(form.mass_error(), self.told.dtype)
        own = [jnp.max(jax.vmap(one)(part.forms)) for part in self.parts]
        rounding = unit * (8 * count + self._size())
        # Beyond 1/2 the logarithm of delta moves twice as much as 1 - delta.
        rounding = rounding + 2 * self.excess
        return stop_gradient(CLOSED_FORM + rounding + jnp.max(jnp.stack(own)))

    def loss_error(self, epsilon):
        size, unit = self._size(), 8 * jnp.finfo(epsilon.dtype).eps
        moved = jnp.where(size > 0, 1 + jnp.abs(epsilon) + size, 0)
        found = [self.slip + unit * moved]
        for part in self.parts:
            one = lambda form, shift: form.loss_error(epsilon - shift)
            own = jax.vmap(one)(part.forms, part.shifts)
            if own is not None:
                used = jnp.expand_dims(part.weights > 0, range(1, own.ndim))
                found.append(found[0] + jnp.max(jnp.where(used, own, 0), axis=0))
        return stop_gradient(functools.reduce(jnp.maximum, found))

    def _size(self) -> Array:
        """The largest shift."""
        sizes = [
            jnp.max(jnp.where(part.weights > 0, jnp.abs(part.shifts), 0))
            for part in self.parts
        ]
        return jnp.max(jnp.stack(sizes))


def _log_sum(weights: Float[Array, " n"], logs: Float[Array, "n ..."]) -> Array:
    """Log of a sum of weights times powers, with derivatives in weights of zero."""
    weights = jnp.expand_dims(weights, range(1, logs.ndim))
    peak = jnp.max(jnp.where(weights > 0, logs, -jnp.inf), axis=0)
    peak = stop_gradient(jnp.where(jnp.isfinite(peak), peak, 0))
    scaled = jnp.exp(jnp.minimum(logs - peak, _LARGEST))
    return safe_log(jnp.sum(weights * scaled, axis=0)) + peak
