"""Piecewise-linear curves from tables: points, pairs, probabilities, scores."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._internal import _checks
from .._internal._concrete import is_traced, known
from .._internal._hull import lower_hull
from .._internal._precision import in_float64
from .._internal._special import safe_log
from ..curves.logs import reflect
from ..mechanisms import (
    as_float,
)
from ._validate import check_tradeoff, faults_of_tradeoff
from .knots import Knots, from_atoms, from_profile, from_vertices

_SLACK = 1e-9


def _pair(
    name: str, check: Any, value: Any, other_name: str, other: Any
) -> tuple[Any, Any]:
    """A vector whose entries pass a check and as many probabilities."""
    value = _checks.vector(name, check, value)
    other = _checks.vector(other_name, _checks.probability, other)
    _checks.same_length(name, value, other_name, other)
    if not is_traced(value, other):
        return np.asarray(value, np.float64), np.asarray(other, np.float64)
    return value, other


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


def hull_of_points(alpha: Any, beta: Any) -> Knots:
    """The lower convex hull of achieved error rates, (0, 1) and (1, 0)."""
    return _of_hull(*_pair("alpha", _checks.probability, alpha, "beta", beta))


def hull_of_roc(fpr: Any, tpr: Any) -> Knots:
    """The hull of points given by their power instead of beta."""
    fpr, tpr = _pair("fpr", _checks.probability, fpr, "tpr", tpr)
    return _of_hull(fpr, _complement(tpr) if is_traced(tpr) else 1 - tpr)


@in_float64(cast_out=False)
def _complement(value: Array) -> Array:
    return 1 - value


def _of_hull(alpha: Any, beta: Any) -> Knots:
    x, y = lower_hull(alpha, beta)
    number = known(x)
    return _of_vertices(x, y, closed=number is not None and bool(number[-1] == 1))


@in_float64(cast_out=False)
def _of_vertices(x: Array, y: Array, *, closed: bool) -> Knots:
    """From vertices with alpha increasing, of which (1, 0) may be missing."""
    if not closed:
        x, y = jnp.append(x, 1.0), jnp.append(y, 0.0)
    x, y = x[::-1], y[::-1]
    return knots_of_vertices(x, 1 - x, y, 1 - y)


def checked_vertices(alpha: Any, beta: Any) -> tuple[Any, Any]:
    """Vertices of a trade-off function from alpha = 0 to alpha = 1."""
    alpha = _checks.vector("alpha", _checks.probability, alpha)
    beta = _checks.vector("beta", _checks.probability, beta)
    _checks.same_length("alpha", alpha, "beta", beta)
    _checks.require(alpha.size > 1, "alpha must hold at least 0 and 1", "one number")
    if is_traced(alpha, beta):
        beta = _checks.error_if(
            jnp.asarray(beta),
            lambda x: faults_of_tradeoff(alpha, x, _SLACK),
            "alpha must rise from 0 to 1 and beta be convex, non-increasing and at "
            "most 1 - alpha, with beta = 0 at alpha = 1",
            kind="a wrong point with beta =",
        )
        return alpha, beta
    _checks.require(
        alpha[0] <= 0 and alpha[-1] >= 1,
        "alpha must run from 0 to 1",
        f"{alpha[0]} to {alpha[-1]}",
    )
    check_tradeoff(alpha, beta)
    return alpha, beta


def knots_of_probabilities(without_record: Any, with_record: Any) -> Knots:
    """From two probability vectors over the same outputs."""
    p = _checks.probabilities("without_record", without_record)
    q = _checks.probabilities("with_record", with_record)
    _checks.same_length("without_record", p, "with_record", q)
    return _of_probabilities(p, q)


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
    knots = _of_table(
        _pair("epsilon", _checks.finite, epsilon, "delta", delta),
        lambda delta, epsilon, xp: -xp.expm1(epsilon) - delta,
        "delta must be at least 1 - e^epsilon",
        _profile_nodes,
        _of_profile,
    )
    return with_mirror(knots) if symmetric else knots


def _profile_nodes(epsilon: Any, delta: Any, xp: Any) -> tuple[Any, Any, Any]:
    """Thresholds in order, the least delta known there, and which of them to take."""
    order = xp.lexsort((delta, epsilon))
    nodes, least = epsilon[order], xp.minimum.accumulate(delta[order])
    return nodes, least, _informative(nodes, nodes, 1 - least, xp.argmin(least), xp)


def _informative(nodes: Any, epsilon: Any, rest: Any, most: Any, xp: Any) -> Any:
    """For each node the nearest one that says more than the others do.

    1 - delta is concave in e^eps, from 0: what lies below a line from there to a later
    node, or as high as an earlier one (of which `most` is the first of the highest), is
    implied.  Of equal nodes it is the first.
    """
    with np.errstate(divide="ignore"):
        slopes = xp.log(rest) - epsilon
    first = slopes.size - 1 - xp.argmax(slopes[::-1])
    last = xp.maximum(first, most)
    index = xp.clip(xp.arange(slopes.size), first, last)
    return xp.searchsorted(nodes, nodes[index])


def _of_table(
    table: tuple[Any, Any],
    excess: Callable,
    rule: str,
    nodes_of: Callable,
    knots_of: Callable,
) -> Knots:
    """Knots of the nodes of a table that say something, if its values keep a rule."""
    places, values = table
    slack = max(_checks.rounding(x, _SLACK) for x in table)
    fails = lambda *given: excess(*given) > slack
    values = _checks.beside(values, places, fails, rule)
    if is_traced(places, values):
        return _of_traced(places, values, nodes_of=nodes_of, knots_of=knots_of)
    nodes, values, index = nodes_of(places, values, np)
    kept = np.unique(index)
    return knots_of(nodes[kept], values[kept])


@in_float64(cast_out=False)
def _of_traced(
    places: Any, values: Any, *, nodes_of: Callable, knots_of: Callable
) -> Knots:
    """Knots of traced values, where a node that says nothing repeats another one."""
    nodes, values, index = nodes_of(as_float(places), as_float(values), jnp)
    return knots_of(nodes[index], values[index])


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
    return _of_table(
        _pair("prior", _checks.open_share, prior, "bayes_error", bayes_error),
        lambda error, prior, xp: error - xp.minimum(prior, 1 - prior),
        "bayes_error must be at most min(prior, 1 - prior)",
        _error_nodes,
        _of_bayes_error,
    )


def _error_nodes(prior: Any, error: Any, xp: Any) -> tuple[Any, Any, Any]:
    """Priors in order, the largest error known there, and which of them to take."""
    order = xp.lexsort((-error, prior))
    nodes, most = prior[order], error[order]
    places = xp.log(nodes) - xp.log1p(-nodes)
    rest = xp.maximum.accumulate(most / (1 - nodes))
    return nodes, most, _informative(nodes, places, rest, xp.argmax(rest), xp)


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
) -> tuple[Any, Any]:
    """Error rates of all thresholds: a score at or above one speaks for membership."""
    scores = [
        _checks.vector(name, _checks.real, value)
        for name, value in (
            ("member_scores", member_scores),
            ("nonmember_scores", nonmember_scores),
        )
    ]
    if confidence is not None:
        check = _checks.open_share
        confidence = _checks.checked_scalar("confidence", check, confidence)
    given = scores if confidence is None else [*scores, confidence]
    if not is_traced(*given):
        return _rates(*[np.asarray(x, np.float64) for x in given], xp=np)
    return _traced_rates(*given)


def _rates(with_record: Any, without: Any, confidence: Any = None, *, xp: Any) -> Any:
    with_record, without = xp.sort(with_record), xp.sort(without)
    cuts = xp.sort(xp.concatenate([with_record, without]))
    alpha = 1 - xp.searchsorted(without, cuts) / float(without.size)
    beta = xp.searchsorted(with_record, cuts) / float(with_record.size)
    if confidence is None:
        return alpha, beta
    width = lambda x: xp.sqrt(xp.log(2 / (1 - confidence)) / (2 * x.size))
    return (
        xp.minimum(alpha + width(without), 1.0),
        xp.minimum(beta + width(with_record), 1.0),
    )


@in_float64(cast_out=False)
def _traced_rates(*given: Any) -> tuple[Array, Array]:
    return _rates(*map(as_float, given), xp=jnp)
