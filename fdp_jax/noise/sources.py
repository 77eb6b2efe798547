"""Which exact symmetric trade-off function a guarantee stands for."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import mechanisms, tradeoff
from .._internal import _checks
from .._internal._concrete import known, outside_transformations
from .._internal._precision import in_float64
from ..curves import AbstractGuarantee, Bound
from ..mechanisms import (
    Composition,
    as_number,
)
from ..tradeoff import AbstractTradeOff, TradeOff
from ..tradeoff.knots import Knots

_TOLERANCE = 1e-12
_LOCATION = tradeoff.Gaussian | tradeoff.Laplace | tradeoff.Logistic
"""Families of a moved law, in which groups of records add to the parameter."""


def exact_tradeoff(f: Any, bound: Bound) -> AbstractTradeOff:
    """A closed form, or one end of a certified bracket, taken for exact.

    Args:
        f: A trade-off function, mechanism or curve, or a list of (epsilon, delta).
        bound: Which end, if the function is known between bounds only.
    """
    if not isinstance(f, AbstractGuarantee):
        f = _of_pairs(f)
    found = _closed_form(f)
    if found is not None:
        return found
    ends = Bound.PESSIMISTIC, Bound.OPTIMISTIC
    bound = _checks.member("bound", Bound, bound, ends)
    view = f.to_tradeoff() if isinstance(f, AbstractTradeOff) else TradeOff.of(f)
    return _symmetric(_one_end(view, bound))


def _of_pairs(pairs: Any) -> AbstractTradeOff:
    try:
        table = np.asarray(pairs, np.float64)
    except (TypeError, ValueError):
        table = np.empty((0, 0))
    if table.ndim != 2 or table.shape[-1] != 2:
        raise TypeError(
            "f must be a guarantee or a list of (epsilon, delta) pairs, "
            f"got {type(pairs).__name__}"
        )
    return tradeoff.PrivacyProfile.from_points(table[:, 0], table[:, 1])


def _closed_form(f: AbstractGuarantee) -> AbstractTradeOff | None:
    if isinstance(f, tradeoff.Identity | mechanisms.PerfectPrivacy):
        raise ValueError(_TRIVIAL)
    if isinstance(f, tradeoff.BlatantNonPrivacy | mechanisms.BlatantNonPrivacy):
        return tradeoff.ApproxDP(epsilon=0.0, delta=1.0)
    if isinstance(f, mechanisms.Gaussian):
        f = tradeoff.Gaussian(1 / as_number(f.noise_multiplier))
    elif isinstance(f, mechanisms.Laplace):
        f = tradeoff.Laplace(1 / as_number(f.noise_multiplier))
    elif isinstance(f, mechanisms.Logistic):
        f = tradeoff.Logistic(1 / as_number(f.noise_multiplier))
    elif isinstance(f, mechanisms.ApproxDP | mechanisms.Tulap):
        f = tradeoff.ApproxDP(epsilon=f.epsilon0, delta=f.delta0)
    elif isinstance(f, mechanisms.PureDP | mechanisms.RandomizedResponse):
        f = tradeoff.ApproxDP(epsilon=f.epsilon0, delta=0.0)
    elif isinstance(f, tradeoff.Group):
        inner = f.tradeoff
        if isinstance(inner, _LOCATION):
            f = type(inner)(f.size * as_number(inner.mu))
    elif isinstance(f, Composition):
        f.require_complete()
        f = _all_gaussian(f) or f
    if isinstance(f, _LOCATION):
        return dataclasses.replace(f, mu=_above_zero(f.mu, f.mu))
    if isinstance(f, tradeoff.ApproxDP):
        delta = _above_zero(f.delta0, as_number(f.epsilon0) + f.delta0)
        return tradeoff.ApproxDP(epsilon=f.epsilon0, delta=delta)
    return None


def _all_gaussian(composition: Composition) -> tradeoff.Gaussian | None:
    """Gaussian mechanisms together are one."""
    parts = getattr(composition.simplified(), "parts", ())
    gaussian = [isinstance(part, mechanisms.Gaussian) for part in parts]
    if not (gaussian and all(gaussian)):
        return None
    return tradeoff.Gaussian(_total_mu(composition))


@in_float64
def _total_mu(composition: Composition) -> Array:
    loss = composition.loss()
    pairs = zip(loss.terms, loss.counts, strict=True)
    squares = [count * term.moments(jnp.zeros(()))[2] for term, count in pairs]
    total = sum(squares, start=jnp.zeros(()))
    some = total > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, total, 1.0)), 0.0)


_TRIVIAL = "f must be nontrivial: no finite noise gives perfect privacy (f = Id)"


def _above_zero(value: Any, size: Any) -> Any:
    """The value, if a size is positive."""
    number = known(size)
    if number is None:
        return eqx.error_if(value, ~(size > 0), _TRIVIAL)
    if not number > 0:
        raise ValueError(_TRIVIAL)
    return value


def _one_end(view: Any, bound: Bound) -> TradeOff:
    """The pessimistic or optimistic curve of a bracket, by itself."""
    if bound is Bound.OPTIMISTIC and view.optimistic is not None:
        return TradeOff(view.optimistic)
    return TradeOff(view.knots)


_CROOKED = "f must be symmetric (f = f^-1): symmetrize it first, f.symmetrized()"


def _symmetric(f: TradeOff) -> TradeOff:
    """The function, checked for f = f^-1 and f != Id."""
    if not outside_transformations():
        return TradeOff(_checked(f.knots))
    miss, advantage = _asymmetry(f.knots)
    if not miss <= _TOLERANCE:
        raise ValueError(_CROOKED)
    if not advantage > 0:
        raise ValueError(_TRIVIAL)
    return f


@in_float64(cast_out=False)
def _checked(knots: Knots) -> Knots:
    miss, advantage = _gaps(knots)
    knots = eqx.error_if(knots, ~(miss <= _TOLERANCE), _CROOKED)
    return eqx.error_if(knots, ~(advantage > 0), _TRIVIAL)


@in_float64
def _asymmetry(knots: Knots) -> tuple[Array, Array]:
    return _gaps(knots)


def _gaps(knots: Knots) -> tuple[Array, Array]:
    """The largest |delta - delta_rev| on the grid, and the advantage delta(0)."""
    other = knots.exchanged()
    reverse = jnp.vectorize(lambda e: other.point(e).log_delta.estimate)(knots.epsilon)
    # Where delta is close to 1 only because eps is negative, the complements count.
    miss = jnp.abs(jnp.exp(reverse) - jnp.exp(knots.log_delta))
    advantage = jnp.exp(knots.point(jnp.zeros(())).log_delta.estimate)
    return jnp.max(miss), advantage
