"""A guarantee between two piecewise-linear curves, both proved."""

import contextlib
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.lax import cummax, cummin
from jaxtyping import Array

from .._internal import _checks
from .._internal._hull import last_kept, tradeoff_chain
from .._internal._precision import in_float64, outside_transformations
from .._internal._special import safe_log
from ..curves import AbstractGuarantee, Curve
from ..engines import log_complement
from ..mechanisms import AbstractMechanism, View
from ._base import AbstractTradeOff
from ._construct import knots_of_vertices
from ._intervals import reflect
from ._knots import Knots, from_profile

_POINTS = 65
_STRETCH = 3.0
_LEAST = 1e-15
_FARTHEST = 600.0
_HALF = -0.6931471805599453
_ROUNDING = 1e-14


def bracket(guarantee: AbstractGuarantee, epsilons: Any) -> tuple[Knots, Knots]:
    """Tangents from upper bounds of delta, chords from upper bounds of beta."""
    if not isinstance(guarantee, AbstractGuarantee):
        raise TypeError(f"guarantee must be a guarantee, got {guarantee!r}")
    reverse = _reversed(guarantee)
    double = jax.enable_x64(True) if outside_transformations() else _as_it_is()
    with double:
        right, left = _halves(guarantee, reverse, epsilons)
        own = _side(guarantee, right)
        other = _mirror(guarantee, left) if reverse is None else _side(reverse, left)
        lower = _tangents(right, left, own, other)
        alpha, beta = jnp.exp(lower.log_alpha), jnp.exp(lower.log_beta)
        middle = left.size
        rows = [_points(guarantee, alpha[middle + 1 :])]
        if reverse is None:
            rows.insert(0, _points(guarantee, alpha[: middle + 1]))
        else:
            # The other axis: its type I errors are our type II errors.
            found = _points(reverse, beta[: middle + 1])
            rows.insert(0, jnp.roll(found, 2, axis=0))
        upper = _chords(jnp.concatenate(rows, axis=1))
    return lower, upper


@contextlib.contextmanager
def _as_it_is():
    yield


def _reversed(guarantee: AbstractGuarantee) -> AbstractGuarantee | None:
    """The same guarantee for the pair in the other order, if it is known."""
    if isinstance(guarantee, AbstractTradeOff):
        return guarantee.inverse()
    if isinstance(guarantee, AbstractMechanism | Curve):
        return guarantee  # of both directions
    if isinstance(guarantee, View):
        exchange = {"remove": "add", "add": "remove", "both": "both"}
        name = exchange[guarantee.direction]
        return View(guarantee.mechanism, name, guarantee.method)
    return None


def _halves(
    guarantee: AbstractGuarantee, reverse: AbstractGuarantee | None, epsilons: Any
) -> tuple[Array, Array]:
    """Thresholds >= 0, and > 0 for the exchanged pair, both increasing."""
    if epsilons is not None:
        if isinstance(epsilons, jax.core.Tracer):
            raise TypeError("epsilons must be concrete, got a traced array")
        given = np.asarray(_checks.vector("epsilons", _checks.finite, epsilons))
        given = np.unique(np.append(given, 0.0))
        right, left = given[given >= 0], -given[given < 0][::-1]
        return jnp.asarray(right), jnp.asarray(left)
    shape = np.sinh(_STRETCH * np.linspace(0, 1, _POINTS)) / np.sinh(_STRETCH)
    return _reach(guarantee) * shape, _reach(reverse or guarantee) * shape[1:]


def _reach(guarantee: AbstractGuarantee) -> Array:
    found = guarantee._epsilon_bounds(np.float64(_LEAST)).estimate
    found = jnp.where(jnp.isnan(found), _FARTHEST, found)
    return jax.lax.stop_gradient(jnp.clip(found, 1e-3, _FARTHEST))


def _side(guarantee: AbstractGuarantee, epsilon: Array) -> tuple[Array, Array]:
    """Upper bounds of log delta and lower ones of log(1 - delta), at eps >= 0."""
    if epsilon.size == 0:
        return epsilon, epsilon
    log_delta = jnp.minimum(guarantee._log_delta_bounds(epsilon).upper, 0)
    rest = _rest(guarantee, epsilon)
    small = log_delta < _HALF
    by_delta = log_complement(jnp.where(small, log_delta, -1.0))
    return log_delta, jnp.where(small, by_delta, rest)


def _mirror(guarantee: AbstractGuarantee, epsilon: Array) -> tuple[Array, Array]:
    """The same of the exchanged pair, from the pair's own 1 - delta(-eps)."""
    if epsilon.size == 0:
        return epsilon, epsilon
    rest = jnp.minimum(_rest(guarantee, -epsilon) + epsilon, 0)
    return log_complement(rest), rest


def _rest(guarantee: AbstractGuarantee, epsilon: Array) -> Array:
    """Lower bounds of log(1 - delta), from those of the Bayes error."""
    prior = jax.nn.sigmoid(epsilon)
    error = guarantee._bayes_error_bounds(prior).lower
    # 1 - prior = 1 / (1 + e^eps); room for the rounding of the prior.
    rest = safe_log(error) + jnp.logaddexp(0.0, epsilon)
    return jnp.minimum(rest - _ROUNDING * (1 + jnp.abs(epsilon)), 0)


@in_float64(cast_out=False)
def _tangents(right: Array, left: Array, own: tuple, other: tuple) -> Knots:
    """The pessimistic curve: largest profile with these values."""
    glue = lambda a, b: jnp.concatenate([a[::-1], b])
    return from_profile(
        glue(-left, right),
        glue(reflect(other[0], left), own[0]),
        glue(other[0], reflect(own[0], right)),
        glue(other[1] - left, own[1]),
    )


def _points(guarantee: AbstractGuarantee, alpha: Array) -> Array:
    """Points above the curve: alpha, 1 - alpha, beta and 1 - beta."""
    beta, tpr = guarantee._error_rate_bounds(alpha)
    high, low = jnp.clip(beta.upper, 0, 1), jnp.clip(tpr.lower, 0, 1)
    small = low < 0.5
    high, low = jnp.where(small, 1 - low, high), jnp.where(small, low, 1 - high)
    return jnp.stack([alpha, 1 - alpha, high, low])


@in_float64(cast_out=False)
def _chords(rows: Array) -> Knots:
    """The optimistic curve: the lower hull of points above the true one."""
    alpha, tnr, beta, tpr = rows
    # Moving a point up or to the right leaves it above the curve.
    alpha, tnr = cummax(alpha, reverse=True), cummin(tnr, reverse=True)
    beta, tpr = cummax(beta), cummin(tpr)
    kept = last_kept(tradeoff_chain(alpha, tnr, beta, tpr))
    return knots_of_vertices(*(x[kept] for x in (alpha, tnr, beta, tpr)))
