"""Area under an attacker's ROC curve."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._calls import explained
from .._internal._precision import in_float64
from ..curves import (
    Bound,
    Bounds,
    Range,
    Subject,
    bounds_of,
    one_end,
    with_gradient,
)
from ..engines import Interval
from ..losses import AUTO, ComposedLoss
from .log_moment import resolved

_REACH, _COUNT = 3.2, 41
_SIDE = 1e-9


@explained
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
        advantage: AUC = (1 + TV of two runs) / 2.  With Poisson sampling it is closed
        by convexity between 82 points of f, which costs about 1e-3; the estimate is
        accurate to about 1e-7.

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
    bound = one_end(bound)
    subject = resolved(mechanism, "auc").whole
    return _auc(subject).pick(bound, upper_is_pessimistic=True)


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
def _auc(subject: Subject) -> Bounds:
    loss = subject.composed
    if loss.symmetric:
        zero = jnp.zeros_like(loss.counts[0])
        total = Subject(_twice(loss), "remove")._bounds_of("delta", zero)
        half = lambda x: 0.5 * (1 + x)
        estimate = _differentiable(loss, total.estimate)
        area = Interval(half(total.lower), half(estimate), half(total.upper))
    else:
        area = _area(subject)
    return bounds_of(area, area.upper >= 1, Range(0.5, 1.0, 1.0))


def _area(subject: Subject) -> Interval:
    """1 minus the area under f, which is smooth but for a straight middle piece."""
    near, far = _joints(stop_gradient(subject))
    nodes, weights = _double_exponential()
    alpha = jnp.concatenate([near * nodes, far + (1 - far) * nodes])
    weights = jnp.concatenate([near * weights, (1 - far) * weights])
    at = jnp.concatenate([alpha, jnp.stack([near, far])])
    beta, _ = subject._error_rate_bounds(stop_gradient(at))

    smooth, ends = beta.estimate[:-2], beta.estimate[-2:]
    middle = 0.5 * (far - near) * (ends[0] + ends[1])
    estimate = 1 - stop_gradient(weights) @ smooth - middle

    order = jnp.argsort(at)
    lower, upper = stop_gradient((beta.lower[order], beta.upper[order]))
    zero, one = jnp.zeros(1, at.dtype), jnp.ones(1, at.dtype)
    first = jnp.maximum(upper[:1], 1.0)
    under, over = _convex_area(
        jnp.concatenate([zero, at[order], one]),
        jnp.concatenate([lower[:1], lower, zero]),
        jnp.concatenate([first, upper, zero]),
    )
    least, most = jnp.maximum(1 - over, 0.5), jnp.minimum(1 - under, 1.0)
    return Interval(least, jnp.clip(estimate, least, most), most)


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


def _convex_area(
    alpha: Float[Array, " n"], lower: Float[Array, " n"], upper: Float[Array, " n"]
) -> tuple[Array, Array]:
    """Bounds of the integral of a convex, decreasing function from its values.

    Chords lie above it; extended beyond their ends they lie below.
    """
    width = alpha[1:] - alpha[:-1]
    safe = jnp.where(width > 0, width, 1.0)
    over = jnp.sum(0.5 * width * (upper[1:] + upper[:-1]))
    # Lines through a cell's ends, as steep (as flat) as the chord beside it may be.
    steep = (lower[1:] - upper[:-1]) / safe
    flat = jnp.minimum((upper[1:] - lower[:-1]) / safe, 0.0)
    valid = width > 0
    steep = jnp.where(valid, steep, -jnp.inf)
    flat = jnp.where(valid, flat, 0.0)
    from_left = jnp.concatenate([jnp.full(1, -jnp.inf), steep[:-1]])
    from_right = jnp.concatenate([flat[1:], jnp.zeros(1)])
    left = jnp.stack([lower[:-1], lower[:-1] + from_left * width])
    left = jnp.where(jnp.isnan(left) | jnp.isneginf(left), -1e3, left)
    left = jnp.where(jnp.isneginf(from_left), -1e3, left)
    right = jnp.stack([lower[1:] - from_right * width, lower[1:]])
    gap = left - right
    total = 0.5 * (right[0] + right[1]) * width
    both = jnp.all(gap >= 0, axis=0)
    crossing = (gap[0] >= 0) != (gap[1] >= 0)
    slope = jnp.where(crossing, jnp.abs(gap[0] - gap[1]), 1.0)
    wedge = 0.5 * jnp.square(jnp.max(gap, axis=0)) / slope
    extra = jnp.where(both, 0.5 * (gap[0] + gap[1]), jnp.where(crossing, wedge, 0.0))
    return jnp.sum(total + extra * width), over
