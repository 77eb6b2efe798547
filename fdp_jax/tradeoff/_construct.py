"""Piecewise-linear curves from tables: points, pairs, probabilities, scores."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._internal import _checks
from .._internal._hull import lower_hull
from .._internal._precision import in_float64
from .._internal._special import safe_log
from ._intervals import reflect
from ._knots import Knots, from_atoms, from_profile, from_vertices
from ._validate import check_tradeoff, fault_of_tradeoff

_SUM_ERROR = 1e-8
_SLACK = 1e-9


def _known(name: str, value: Any, check: Any) -> np.ndarray:
    """A concrete vector whose entries pass a check."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} must be concrete, got a traced array")
    return np.asarray(_checks.vector(name, check, value), np.float64)


def knots_of_vertices(alpha: Any, tnr: Any, beta: Any, tpr: Any) -> Knots:
    """From convex vertices with complements, alpha decreasing."""
    every = jnp.arange(alpha.size)
    # Flat parts at zero and jumps at alpha = 0 are infinite losses.
    first = jnp.max(jnp.where(beta <= 0, every, 0))
    last = jnp.min(jnp.where(alpha <= 0, every, alpha.size - 1))
    kept = jnp.clip(every, first, last)
    logs = (safe_log(x[kept]) for x in (alpha, tnr, beta, tpr))
    names = "log_alpha", "log_tnr", "log_beta", "log_tpr"
    return from_vertices(**dict(zip(names, logs, strict=True)))


_vertices = in_float64(cast_out=False)(knots_of_vertices)


def hull_of_points(alpha: Any, beta: Any) -> Knots:
    """The lower convex hull of achieved error rates, (0, 1) and (1, 0)."""
    alpha = _known("alpha", alpha, _checks.probability)
    beta = _known("beta", beta, _checks.probability)
    _checks.same_length("alpha", alpha, "beta", beta)
    x, y = lower_hull(alpha, beta)
    if x[-1] < 1:
        x, y = np.append(x, 1.0), np.append(y, 0.0)
    x, y = x[::-1], y[::-1]
    return _vertices(x, 1 - x, y, 1 - y)


def checked_vertices(alpha: Any, beta: Any) -> tuple[Any, Any]:
    """Vertices of a trade-off function from alpha = 0 to alpha = 1."""
    alpha = _checks.vector("alpha", _checks.probability, alpha)
    beta = _checks.vector("beta", _checks.probability, beta)
    _checks.same_length("alpha", alpha, "beta", beta)
    if alpha.size < 2:
        raise ValueError("alpha must hold at least 0 and 1, got one number")
    if any(isinstance(x, jax.core.Tracer) for x in (alpha, beta)):
        bad = fault_of_tradeoff(alpha, beta, _SLACK) | (alpha[0] > 0) | (alpha[-1] < 1)
        beta = eqx.error_if(
            beta,
            bad,
            "alpha must rise from 0 to 1 and beta be convex, non-increasing and at "
            "most 1 - alpha, with beta = 0 at alpha = 1",
        )
        return alpha, beta
    if alpha[0] > 0 or alpha[-1] < 1:
        raise ValueError(f"alpha must run from 0 to 1, got {alpha[0]} to {alpha[-1]}")
    check_tradeoff(alpha, beta)
    return alpha, beta


def knots_of_probabilities(without_record: Any, with_record: Any) -> Knots:
    """From two probability vectors over the same outputs."""
    pair = []
    named = ("without_record", without_record), ("with_record", with_record)
    for name, value in named:
        value = _checks.vector(name, _checks.probability, value)
        pair.append(_checks.total(name, value, _SUM_ERROR))
    _checks.same_length("without_record", pair[0], "with_record", pair[1])
    return _of_probabilities(*pair)


@in_float64(cast_out=False)
def _of_probabilities(p: Array, q: Array) -> Knots:
    p, q = p / jnp.sum(p), q / jnp.sum(q)
    common = (p > 0) & (q > 0)
    log_p, log_q = (safe_log(jnp.where(common, x, 0.0)) for x in (p, q))
    loss = safe_log(jnp.where(common, q, 1.0)) - safe_log(jnp.where(common, p, 1.0))
    order = jnp.argsort(loss)
    ends = (safe_log(jnp.sum(jnp.where(common, 0.0, x))) for x in (p, q))
    return from_atoms(loss[order], log_p[order], log_q[order], *ends)


def knots_of_profile(epsilon: Any, delta: Any, symmetric: bool) -> Knots:
    """The largest profile with these values."""
    epsilon = _known("epsilon", epsilon, _checks.finite)
    delta = _known("delta", delta, _checks.probability)
    _checks.same_length("epsilon", epsilon, "delta", delta)
    wrong = delta < -np.expm1(epsilon) - _SLACK
    if np.any(wrong):
        i = int(np.argmax(wrong))
        raise ValueError(
            f"delta must be at least 1 - e^epsilon, got {delta[i]} at {epsilon[i]}"
        )
    # One value for each threshold: the smallest is known as well, and those before it.
    nodes, index = np.unique(epsilon, return_inverse=True)
    least = np.full(nodes.shape, np.inf)
    np.minimum.at(least, index, delta)
    least = np.minimum.accumulate(least)
    kept = _informative(nodes, 1 - least)
    knots = _of_profile(nodes[kept], least[kept])
    return with_mirror(knots) if symmetric else knots


def _informative(epsilon: np.ndarray, rest: np.ndarray) -> slice:
    """The first and last node that say more than the others do.

    1 - delta is concave in e^eps, from 0: what lies below a line from there to a later
    node, or as high as an earlier one, is implied.
    """
    with np.errstate(divide="ignore"):
        slopes = np.log(rest) - epsilon
    first = len(slopes) - 1 - int(np.argmax(slopes[::-1]))
    last = int(np.argmax(rest))
    return slice(first, max(first, last) + 1)


@in_float64(cast_out=False)
def _of_profile(epsilon: Any, delta: Any) -> Knots:
    return from_profile(epsilon, *_sides(epsilon, delta))


def _sides(epsilon: Array, delta: Array) -> tuple[Array, Array, Array]:
    """Log delta, log delta_rev(-eps) and log(1 - delta)."""
    size = jnp.abs(epsilon)
    # delta_rev(-eps) = 1 - (1 - delta) e^-eps for eps < 0.
    excess = jnp.maximum(-jnp.expm1(safe_log(1 - delta) + size), 0.0)
    negative = epsilon < 0
    log_delta = safe_log(delta)
    mirrored = reflect(log_delta, jnp.where(negative, 0.0, size))
    log_reverse = jnp.where(negative, safe_log(excess), mirrored)
    return log_delta, jnp.minimum(log_reverse, 0), jnp.minimum(safe_log(1 - delta), 0)


@in_float64(cast_out=False)
def with_mirror(knots: Knots) -> Knots:
    """max(f, f^-1): the largest profile below one and that of its inverse."""
    other = knots.exchanged()
    nodes = jnp.sort(jnp.concatenate([knots.epsilon, other.epsilon]))
    # At each node the smaller delta: both hold.
    least = lambda a, b: jnp.where(a < b, a, b)

    def at(x: Array) -> tuple[Array, Array, Array]:
        one, two = knots.point(x), other.point(x)
        return (
            least(one.log_delta.estimate, two.log_delta.estimate),
            least(one.log_reverse.estimate, two.log_reverse.estimate),
            jnp.maximum(one.log_rest.estimate, two.log_rest.estimate),
        )

    values = jax.vmap(at)(nodes)
    return dataclasses.replace(from_profile(nodes, *values), sampled=knots.sampled)


def knots_of_bayes_error(prior: Any, bayes_error: Any) -> Knots:
    """The least concave Bayes error with these values."""
    prior = _known("prior", prior, _checks.probability)
    error = _known("bayes_error", bayes_error, _checks.probability)
    _checks.same_length("prior", prior, "bayes_error", error)
    if np.any((prior <= 0) | (prior >= 1)):
        raise ValueError("prior must be in (0, 1): the error at 0 and 1 is 0")
    wrong = error > np.minimum(prior, 1 - prior) + _SLACK
    if np.any(wrong):
        i = int(np.argmax(wrong))
        raise ValueError(
            "bayes_error must be at most min(prior, 1 - prior), "
            f"got {error[i]} at {prior[i]}"
        )
    nodes, index = np.unique(prior, return_inverse=True)
    most = np.zeros(nodes.shape)
    np.maximum.at(most, index, error)
    with np.errstate(divide="ignore"):
        places = np.log(nodes) - np.log1p(-nodes)
    kept = _informative(places, np.maximum.accumulate(most / (1 - nodes)))
    return _of_bayes_error(nodes[kept], most[kept])


@in_float64(cast_out=False)
def _of_bayes_error(prior: Any, error: Any) -> Knots:
    other = 1 - prior
    return from_profile(
        jnp.log(prior) - jnp.log1p(-prior),
        safe_log(jnp.maximum(other - error, 0) / other),
        safe_log(jnp.maximum(prior - error, 0) / prior),
        jnp.minimum(safe_log(error / other), 0),
    )


def rates_of_scores(
    member_scores: Any, nonmember_scores: Any, confidence: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Error rates of all thresholds: a score at or above one speaks for membership."""
    with_record = np.sort(_known("member_scores", member_scores, _checks.real))
    without = np.sort(_known("nonmember_scores", nonmember_scores, _checks.real))
    cuts = np.unique(np.concatenate([with_record, without]))
    alpha = 1 - np.searchsorted(without, cuts, side="left") / without.size
    beta = np.searchsorted(with_record, cuts, side="left") / with_record.size
    if confidence is None:
        return alpha, beta
    confidence = float(_checks.checked_scalar("confidence", _checks.share, confidence))
    if confidence >= 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}")
    width = lambda n: math.sqrt(math.log(2 / (1 - confidence)) / (2 * n))
    return (
        np.minimum(alpha + width(without.size), 1.0),
        np.minimum(beta + width(with_record.size), 1.0),
    )
