"""Which exact symmetric trade-off function a guarantee stands for."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import tradeoff
from .._internal import _checks
from .._internal._precision import in_float64
from ..curves import AbstractGuarantee, Bound
from ..mechanisms import as_number
from ..tradeoff import AbstractLocation, AbstractTradeOff, TradeOff
from ..tradeoff.closed import closed_form
from ..tradeoff.knots import Knots
from ..tradeoff.tangents import one_side

_TOLERANCE = 1e-12
_POINTS = 1025
"""Thresholds in either direction: a polygon's distance falls with their square."""
_TABLES = (
    tradeoff.TradeOff
    | tradeoff.PrivacyProfile
    | tradeoff.BayesError
    | tradeoff.PiecewiseLinear
)


def exact_tradeoff(f: Any, bound: Any) -> AbstractTradeOff:
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
    if isinstance(f, _TABLES):
        return _symmetric(_one_end(f.to_tradeoff(), bound))
    return _symmetric(TradeOff(one_side(f, bound, _POINTS)))


def _of_pairs(pairs: Any) -> AbstractTradeOff:
    try:
        table = np.asarray(pairs, np.float64)
    except (TypeError, ValueError):
        table = np.empty((0, 0))
    _checks.require(
        table.ndim == 2 and table.shape[-1] == 2,
        "f must be a guarantee or a list of (epsilon, delta) pairs",
        type(pairs).__name__,
        TypeError,
    )
    return tradeoff.PrivacyProfile.from_points(table[:, 0], table[:, 1])


def _closed_form(f: AbstractGuarantee) -> AbstractTradeOff | None:
    found = closed_form(f)
    if isinstance(found, AbstractLocation):
        return dataclasses.replace(found, mu=_above_zero(found.mu, "mu"))
    if isinstance(found, tradeoff.ApproxDP):
        epsilon = as_number(found.epsilon0)
        delta = _above_zero(found.delta0, "epsilon + delta", epsilon)
        return tradeoff.ApproxDP(epsilon=found.epsilon0, delta=delta)
    return None


_TRIVIAL = "f must be nontrivial: no finite noise gives perfect privacy (f = Id)"


def _above_zero(value: Any, name: str, rest: Any = 0.0) -> Any:
    """The value, if it is positive together with the rest."""
    together = lambda x: x + rest
    wrong = lambda x: ~(x + rest > 0)
    return _checks.error_if(value, wrong, _TRIVIAL, together, kind=f"{name} =")


def _one_end(view: Any, bound: Bound) -> TradeOff:
    """The pessimistic or optimistic curve of a bracket, by itself."""
    if bound is Bound.OPTIMISTIC and view.optimistic is not None:
        return TradeOff(view.optimistic)
    return TradeOff(view.knots)


_CROOKED = "f must be symmetric (f = f^-1): symmetrize it first, f.symmetrized()"


def _symmetric(f: TradeOff) -> TradeOff:
    """The function, checked for f = f^-1 and f != Id."""
    miss, advantage = _gaps(f.knots)
    crooked, trivial = ~(miss <= _TOLERANCE), ~(advantage > 0)
    given = _CROOKED, lambda _: miss
    knots = _checks.error_if(
        f.knots, lambda _: crooked, *given, kind="deltas that differ by"
    )
    given = _TRIVIAL, lambda _: advantage
    return TradeOff(
        _checks.error_if(knots, lambda _: trivial, *given, kind="the advantage")
    )


@in_float64
def _gaps(knots: Knots) -> tuple[Array, Array]:
    """The largest |delta - delta_rev| on the grid, and the advantage delta(0)."""
    other = knots.exchanged()
    reverse = jnp.vectorize(lambda e: other.point(e).log_delta.estimate)(knots.epsilon)
    # Where delta is close to 1 only because eps is negative, the complements count.
    miss = jnp.abs(jnp.exp(reverse) - jnp.exp(knots.log_delta))
    advantage = jnp.exp(knots.point(jnp.zeros(())).log_delta.estimate)
    return jnp.max(miss), advantage
