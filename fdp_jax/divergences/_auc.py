"""Area under an attacker's ROC curve."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._precision import in_float64
from ..curves import (
    Bound,
    Bounds,
    Range,
    Subject,
    bounds_of,
    with_gradient,
)
from ..engines import Interval
from ..losses import AUTO, ComposedLoss
from ..mechanisms import AbstractMechanism, View
from ..tradeoff import TradeOff
from .log_moment import mechanism_of, resolved

_REACH, _COUNT = 3.2, 41
_SIDE = 1e-9
_RANGE = Range(0.5, 1.0, 1.0)


@explained(bound=_checks.member_of(Bound))
def auc(mechanism: Any, *, bound: Bound | str = Bound.PESSIMISTIC) -> Float[Array, ""]:
    """Area under the ROC curve of the best attack, 1 - integral of f.

    The probability that the best score ranks an output with the record above one
    without (ties count half).

    Args:
        mechanism: A mechanism (the symmetric f of both directions), or a view.
        bound: Which end of the certified interval.

    Returns:
        The area, in [1/2, 1].

    Guarantee:
        Upper bound by default.  Tight for symmetric mechanisms, whose area is that of
        advantage: AUC = (1 + TV of two runs) / 2.  With Poisson sampling f lies between
        the polygons of `tradeoff.TradeOff.of`, whose areas are about 1e-4 apart; the
        estimate is accurate to about 1e-7.

    Differentiable in:
        All parameters (once); to about 1e-5 for repeated runs with point masses.

    Raises:
        TypeError: If `mechanism` is not a mechanism or view.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.divergences.auc(fdp.Gaussian(1.0)):.9f}")
        0.760249939

    References:
        Dong, Roth, Su (2022), Section 2 (f bounds every ROC curve).
    """
    subject = resolved(mechanism, "auc").whole
    symmetric, mechanism = subject.composed.symmetric, mechanism_of(mechanism)
    found = _of_two_runs(subject) if symmetric else _by_polygons(subject, mechanism)
    return found.pick(bound, upper_is_pessimistic=True)


def _twice(loss: ComposedLoss) -> ComposedLoss:
    """Two independent runs: the pair (P x P, Q x Q), or (P x Q, Q x P) alike."""
    counts = tuple(2 * count for count in loss.counts)
    method = AUTO if loss.method.name == "closed_form" else loss.method
    return ComposedLoss(loss.terms, counts, method=method)


def _differentiable(loss: ComposedLoss, estimate: Array) -> Array:
    """The total variation of two runs, with the derivative of a closed form.

    Two runs may meet in a point mass at 0, where contour integrals have derivatives
    of about five digits only.
    """
    known = loss.terms[0].twice_total_variation()
    single = loss.single and len(loss.terms) == 1
    return with_gradient(estimate, known) if single and known is not None else estimate


@in_float64
def _of_two_runs(subject: Subject) -> Bounds:
    """The area of a symmetric pair, by the total variation of two runs."""
    loss = subject.composed
    zero = jnp.zeros_like(loss.counts[0])
    total = Subject(_twice(loss), "remove")._bounds_of("delta", zero)
    half = lambda x: 0.5 * (1 + x)
    estimate = _differentiable(loss, total.estimate)
    area = Interval(half(total.lower), half(estimate), half(total.upper))
    return bounds_of(area, area.upper >= 1, _RANGE)


def _by_polygons(subject: Subject, mechanism: AbstractMechanism | View) -> Bounds:
    """The area of any pair: between those of two polygons, and by quadrature."""
    view = TradeOff.of(mechanism)
    ends = (view.auc(bound=x) for x in (Bound.OPTIMISTIC, Bound.PESSIMISTIC))
    return _area(subject, *ends)


@in_float64
def _area(subject: Subject, low: Array, high: Array) -> Bounds:
    """1 minus the area under f, which is smooth but for a straight middle piece."""
    near, far = _joints(stop_gradient(subject))
    nodes, weights = _double_exponential()
    alpha = jnp.concatenate([near * nodes, far + (1 - far) * nodes])
    weights = jnp.concatenate([near * weights, (1 - far) * weights])
    at = jnp.concatenate([alpha, jnp.stack([near, far])])
    beta = subject._error_rate_bounds(stop_gradient(at))[0].estimate
    middle = 0.5 * (far - near) * (beta[-2] + beta[-1])
    estimate = 1 - stop_gradient(weights) @ beta[:-2] - middle
    area = Interval(jnp.maximum(low, 0.5), estimate, high)
    return bounds_of(area, area.upper >= 1, _RANGE)


def _joints(subject: Subject) -> tuple[Array, Array]:
    """P(X > 0) and P(X >= 0) of the worse directions: where f has slope -1."""

    def value(epsilon: Array) -> Array:
        return subject._bounds_of("delta", epsilon).estimate

    sides = jnp.asarray([_SIDE, -_SIDE])
    near, far = jnp.clip(-jax.vmap(jax.grad(value))(sides), 1e-3, 1 - 1e-3)
    return near, jnp.maximum(near, far)


def _double_exponential() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1], crowded at both ends (Takahasi and Mori 1974)."""
    t, step = np.linspace(-_REACH, _REACH, _COUNT, retstep=True)
    x = 1 / (1 + np.exp(-np.pi * np.sinh(t)))
    return x, step * np.pi * np.cosh(t) * x * (1 - x)
