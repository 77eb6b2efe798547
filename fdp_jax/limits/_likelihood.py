"""What can be inferred from an epsilon-DP output about the parameters of a model."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._precision import Outward, in_float64
from .._internal._special import safe_log
from ..mechanisms import (
    as_float,
)

Pair = tuple[Float[Array, "..."], Float[Array, "..."]]


@explained(
    connected=_checks.flag,
    log_density=_checks.below_infinity,
    epsilon=_checks.nonnegative,
    distance=_checks.nonnegative_or_inf,
    mass=_checks.probability,
)
def marginal_bounds(
    log_density: Any,
    *,
    epsilon: Any,
    distance: Any,
    connected: bool,
    mass: Any = 1.0,
) -> Pair:
    """Bounds of the log marginal likelihood log p(t | theta), or prior predictive.

    From the density p_{x*}(t) of the output at one data set x*, for every model whose
    data sets are at most d* steps from x*:  w e^{-eps d*} p_{x*}(t) <= p(t | theta)
    <= e^{eps d*} p_{x*}(t).

    Args:
        log_density: log p_{x*}(t), for any number of outputs t.
        epsilon: In [0, inf), per step between neighbors.
        distance: d*, the largest distance of x* from a data set that the model allows
            and that can produce t; in [0, inf].
        connected: Whether those data sets are joined by paths of neighbors.  If not,
            the output may reveal everything, and the bounds are -inf and inf.
        mass: w in [0, 1], the model's probability of data sets that can produce t: 1
            if the whole support of the model is connected.

    Returns:
        Lower and upper bound, logarithms.

    Guarantee:
        Certain for every epsilon-DP mechanism; attained by Laplace noise on counts
        with models that are point masses.

    Differentiable in:
        All numbers.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> import numpy as np
        >>> import fdp_jax as fdp
        >>> low, high = fdp.limits.marginal_bounds(
        ...     np.log(0.3), epsilon=1.0, distance=2, connected=True, mass=0.25)
        >>> print(f"{np.exp(low):.6f}")
        0.010150

    References:
        Bailie and Gong (2023), Theorems 6 and 10.  Their lower bound lacks the factor
        w; without it it fails for a model with data sets of another component.
    """
    return _marginal(log_density, epsilon, distance, mass, connected)


@explained(
    statistic=_checks.finite,
    epsilon=_checks.finite_positive,
    num_records=_checks.nonnegative,
)
def laplace_sum_bounds(statistic: Any, *, epsilon: Any, num_records: Any) -> Pair:
    """The best such bounds for n bits and Laplace noise on their sum.

    Args:
        statistic: t, the noisy sum.
        epsilon: In (0, inf); the noise has scale 1 / epsilon.
        num_records: n.

    Returns:
        Log of the largest lower bound and of the smallest upper bound over x*: valid
        for p(t | theta) whatever the model of the bits.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Bailie and Gong (2023), Example 3 (with the sign of the exponent mended).
    """
    return _laplace_sum(
        statistic, epsilon, _checks.whole_number("num_records", num_records)
    )


@explained(epsilon=_checks.nonnegative, num_records=_checks.nonnegative)
def local_bounds(*, epsilon: Any, num_records: Any) -> Pair:
    """The bounds for n bits by randomized response.

    Args:
        epsilon: In [0, inf), of one bit.
        num_records: n.

    Returns:
        Log of (e^eps + 1)^-n and of e^{n eps} (e^eps + 1)^-n.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Bailie and Gong (2023), Example 4.
    """
    return _local(epsilon, _checks.whole_number("num_records", num_records))


@explained(
    connected=_checks.flag,
    prior=_checks.probability,
    epsilon=_checks.nonnegative,
    distance=_checks.nonnegative_or_inf,
)
def posterior_bounds(
    prior: Any, *, epsilon: Any, distance: Any, connected: bool
) -> Pair:
    """Bounds of the posterior probability of a hypothesis with a given prior.

    The Bayes factor lies in e^{+-k eps}, so logit posterior is within k eps of logit
    prior: never wider than the printed prior e^{+-k eps}, and inside [0, 1].

    Args:
        prior: In [0, 1].
        epsilon: In [0, inf), per step between neighbors.
        distance: k, the largest distance between data sets that the model allows under
            any parameter (and that can produce the output); in [0, inf].
        connected: Whether all of these are joined by paths of neighbors; if not, the
            bounds are 0 and 1.

    Returns:
        Lower and upper bound; 0 and 1 stay where they are.

    Guarantee:
        Certain for every epsilon-DP mechanism and every output.

    Differentiable in:
        All numbers, for priors inside (0, 1).

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> low, high = fdp.limits.posterior_bounds(
        ...     0.1, epsilon=1.0, distance=1, connected=True)
        >>> print(f"{low:.6f} {high:.6f}")
        0.039270 0.231969

    References:
        Bailie and Gong (2023), Theorem 11, sharpened.
    """
    return _posterior(prior, epsilon, distance, connected)


@explained
def posterior_density_bounds(
    log_prior_density: Any, *, epsilon: Any, distance: Any, connected: bool
) -> Pair:
    """Bounds of the log posterior density: log prior density +- k eps.

    Args:
        log_prior_density: Of a proper prior, at any number of parameters.
        epsilon: As in `posterior_bounds`.
        distance: As in `posterior_bounds`.
        connected: As in `posterior_bounds`; if not, the bounds are -inf and inf.

    Returns:
        Lower and upper bound, logarithms.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Bailie and Gong (2023), Theorem 11.
    """
    return marginal_bounds(
        log_prior_density, epsilon=epsilon, distance=distance, connected=connected
    )


# ----------------------------------------------------------------- inside float64


def _loss(epsilon: Array, distance: Array, connected: bool) -> Array:
    """Eps k, 0 for eps = 0 at finite distance, inf at infinite distance."""
    far = jnp.isinf(distance) | (not connected)
    return jnp.where(far, jnp.inf, epsilon * jnp.where(far, 0.0, distance))


@in_float64
def _marginal(log_density, epsilon, distance, mass, connected: bool) -> Pair:
    log_p, loss = as_float(log_density), _loss(epsilon, distance, connected)
    far = jnp.isinf(loss)
    finite = jnp.where(far, 0.0, loss)
    # Far away a density of 0 at x* bounds nothing.
    lower = jnp.where(far, -jnp.inf, log_p - finite + safe_log(as_float(mass)))
    upper = jnp.where(far, jnp.inf, log_p + finite)
    return Outward(*jnp.broadcast_arrays(lower, upper))


@in_float64
def _laplace_sum(t, epsilon, n) -> Pair:
    scale = jnp.log(0.5 * epsilon)
    inside = jnp.clip(jnp.round(t), 0.0, n)
    nearest = jnp.where(t <= 0, -t, jnp.where(t >= n, t - n, jnp.abs(t - inside)))
    farthest = 0.5 * n + jnp.abs(t - 0.5 * n)
    lower = scale - epsilon * (n + nearest)
    return Outward(lower, scale + epsilon * (n - farthest))


@in_float64
def _local(epsilon, n) -> Pair:
    return Outward(-n * jax.nn.softplus(epsilon), -n * jax.nn.softplus(-epsilon))


@in_float64
def _posterior(prior, epsilon, distance, connected: bool) -> Pair:
    p, loss = as_float(prior), _loss(epsilon, distance, connected)
    sure = (p <= 0) | (p >= 1)
    safe = jnp.where(sure, 0.5, p)
    small = jnp.exp(-loss)
    lower = safe * small / (safe * small + (1 - safe))
    upper = safe / (safe + (1 - safe) * small)
    return Outward(jnp.where(sure, p, lower), jnp.where(sure, p, upper))
