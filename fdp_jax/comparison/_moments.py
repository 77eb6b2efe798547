r"""Moments of the privacy loss of one release (Kaissis et al. 2024, (8) to (12)).

    v1 = -int log|f'| = -E X = KL(P || Q),     v2 = int log^2 |f'| = E X^2,
    v3 = int |log|f'| + v1|^3 = E|X - E X|^3,  v4 = int |log|f'||^3 = E|X|^3,

X = log dQ/dP under P.  Nothing is differenced: v1 = E[e^X - 1 - X], whose integrand is
at least 0, and the variance v2 - v1^2 is an integral of its own.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._internal import _checks
from .._internal._calls import explained
from .._internal._precision import in_float64
from ..divergences.log_moment import loss_and_direction
from ..losses import AbstractLoss, ComposedLoss, LossMoments, ScheduleLoss


@explained
def loss_moments(mechanism: Any) -> LossMoments:
    """Moments of the privacy loss of a single release.

    Args:
        mechanism: A mechanism that releases once (direction "remove"), or its
            `.remove` or `.add`: Gaussian, Laplace, (epsilon, 0)-DP, discrete ones, and
            DP-SGD with one step.

    Returns:
        `LossMoments`, relative accuracy about 1e-13, also for tiny losses.

    Guarantee:
        None: closed forms and quadrature.

    Differentiable in:
        All parameters.

    Raises:
        ValueError: If it is a composition or its loss is of another kind.
        TypeError: If it is no mechanism.

    Example:
        >>> import fdp_jax as fdp
        >>> found = fdp.comparison.loss_moments(fdp.Laplace(1.0))
        >>> print(f"{found.v1:.9f} {found.eta:.9f}")
        0.367879441 0.453726985

    References:
        Kaissis et al. (2024), equations (8) to (12).
    """
    loss, direction = loss_and_direction(mechanism, "loss_moments")
    _checks.require(
        len(loss.terms) == 1 and loss.single,
        "mechanism must release once (give the number of releases separately)",
        type(mechanism).__name__,
    )
    return _moments(loss, direction=direction)


def of_releases(term: AbstractLoss, sign: int) -> tuple[LossMoments, Array]:
    """Moments of every release of a loss, and how many there are of each."""
    stacked = isinstance(term, ScheduleLoss)
    found = term.each_loss_moments(sign) if stacked else term.loss_moments(sign)
    if found is None:
        raise ValueError(
            "mechanism must have a Gaussian, subsampled Gaussian, Laplace, two-point "
            f"or discrete loss, got {type(term).__name__}"
        )
    return found, term.counts if stacked else jnp.ones(())


@in_float64
def _moments(loss: ComposedLoss, *, direction: str) -> LossMoments:
    found, _ = of_releases(loss.terms[0], -1 if direction == "add" else 1)
    # Nothing is released where the noise is infinite or nobody takes part.
    nothing = loss.counts[0] == 0
    return jax.tree.map(lambda x: jnp.where(nothing, 0.0, x), found)
