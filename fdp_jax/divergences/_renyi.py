"""Rényi divergences and what follows from them: values, not bounds."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import outside_transformations
from .._internal._implicit import optimal_value
from .._internal._precision import float_dtype, in_float64
from .._internal._search import golden_section
from ..curves import (
    AbstractGuarantee,
    Bound,
    at_any_length,
    elementwise,
    over_signs,
    signs_of,
)
from ..losses import ComposedLoss
from ..losses.log_moment import (
    bounding,
    divergence,
    divergence_error,
    finite_mass,
    normalized,
)
from ..mechanisms import RenyiDP
from .log_moment import loss_and_direction, shared_by

_ORDERS = (
    *(1 + tenths / 10 for tenths in range(1, 100)),
    *range(11, 65),
    *(96, 128, 256, 512, 1024),
)
"""The orders of dp-accounting 0.6 and a few more."""
_SINGLE_ROUNDING = 2.5e-7


@explained(order=_checks.positive)
def renyi(mechanism: Any, *, order: Any) -> Float[Array, "..."]:
    """Rényi divergence of the output with the record from the output without.

        D_t(Q||P) = log E_P[(dQ/dP)^t] / (t - 1),   t > 0, t != 1,

    continued by the Kullback-Leibler divergence at t = 1 and by the largest loss at
    t = inf.  That is the direction "remove"; "add" exchanges P and Q, and a mechanism
    itself has the larger of the two.

    Args:
        mechanism: A mechanism, or its `.remove` or `.add`.
        order: The order t, in (0, inf]; broadcasts.

    Returns:
        The divergence in nats; inf for t >= 1 if a loss can be infinite, and for losses
        known by their masses alone at orders so high that outputs of probability
        e^-800, which are not looked at, may matter.  A value and not a bound: the
        relative error is about 1e-13 (1e-6 for such losses), also where the divergence
        is tiny or t is close to 0 or 1.  (For subsampled Gaussians with a
        noise_multiplier below 0.002, mixtures with less of it over their largest shift,
        and any of these with weights below 1e-200: the divergence without sampling.  Of
        random allocation it leaves out the far tail, and is much too small at high
        orders.)

    Differentiable in:
        order and all parameters, of any order.

    Raises:
        ValueError: If order is not positive.
        TypeError: If `mechanism` is not a mechanism or view.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.divergences.renyi(fdp.Laplace(1.0), order=2.0):.9f}")
        0.619123630

    References:
        Mironov (2017), Definition 3 and Proposition 3 (closed forms); Mironov, Talwar
        and Zhang (2019) for the sampled Gaussian.
    """
    return _at_order(mechanism, order, "renyi")


def _at_order(mechanism: Any, order: Any, name: str) -> Array:
    loss, direction = loss_and_direction(mechanism, name)
    return _renyi(loss, order, direction=direction)


@at_any_length
@in_float64
def _renyi(loss: ComposedLoss, order: ArrayLike, *, direction: str) -> Array:
    return divergences_of(loss, order, direction)


def divergences_of(
    loss: ComposedLoss, order: Any, direction: str
) -> Float[Array, "..."]:
    """Rényi divergences of a loss, the largest of the directions."""
    loss, signs = loss.with_moving_ends(), signs_of(loss, direction)

    def one(order: Array) -> Array:
        return jnp.max(over_signs(lambda s: divergence(loss, s, order), signs))

    return elementwise(one, order)


@explained
def renyi_dp(mechanism: Any, *, orders: Any = _ORDERS) -> RenyiDP:
    """The guarantee that remains if only a mechanism's Rényi divergences are kept.

    For comparison with accountants that work this way, and to combine a mechanism with
    others of which no more is known.

    Args:
        mechanism: A mechanism (both directions; a view is one direction's mechanism).
        orders: Orders t in (0, inf), a vector; by default 158 from 1.1 to 1024, among
            them all that dp-accounting takes.

    Returns:
        `RenyiDP` with both directions' larger `renyi` at these orders, rounded up by
        1e-9 relative (the quadrature's error is about 1e-13), by 4e-6 for losses known
        by their masses alone, and by 2.5e-7 at least where numbers are traced and x64
        is off.  Of random allocation they are those without sampling, which are bounds.
        It says what later releases of the run share with it (`shared`), and is then
        composed with no others that share.

    Raises:
        ValueError: If an order is out of range.
        TypeError: If `mechanism` is not a mechanism or view.

    Example:
        >>> import fdp_jax as fdp
        >>> known = fdp.divergences.renyi_dp(fdp.Gaussian(1.0), orders=[2.0, 4.0, 8.0])
        >>> print(f"{known.epsilon(delta=1e-5):.6f}")
        5.087862

    References:
        Mironov (2017), Definition 4.
    """
    orders = jnp.atleast_1d(orders) if eqx.is_array(orders) else np.atleast_1d(orders)
    loss, _ = loss_and_direction(mechanism, "renyi_dp")
    orders = _checks.positive("orders", orders)
    double = float_dtype() == np.float64
    # Known numbers keep their digits in programs of any precision.
    with jax.enable_x64(double or outside_transformations()):
        divergences = _renyi(bounding(loss), orders, direction="both")
        single = divergences.dtype != jnp.float64
        slack = max(divergence_error(loss), _SINGLE_ROUNDING * single)
        return RenyiDP(orders, divergences * (1 + slack), shared=shared_by(mechanism))


@explained
def kl(mechanism: Any) -> Float[Array, ""]:
    """Kullback-Leibler divergence, KL(Q||P) = E_Q log dQ/dP: `renyi` of order 1.

    Args:
        mechanism: A mechanism, or its `.remove` or (exchanged) `.add`.

    Returns:
        The divergence in nats (the larger direction of a mechanism), a value.

    Raises:
        TypeError: If `mechanism` is not a mechanism or view.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.divergences.kl(fdp.Laplace(1.0)):.9f}")
        0.367879441

    References:
        Dong, Roth, Su (2022), Appendix B (divergences of a trade-off function).
    """
    return _at_order(mechanism, 1.0, "kl")


@explained
def chi_squared(mechanism: Any) -> Float[Array, ""]:
    """Pearson's chi-squared divergence, E_P[(dQ/dP)^2] - 1 = exp(D_2) - 1.

    Args:
        mechanism: A mechanism, or its `.remove` or (exchanged) `.add`.

    Returns:
        The divergence (the larger direction of a mechanism), a value; may be inf.

    Raises:
        TypeError: If `mechanism` is not a mechanism or view.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.divergences.chi_squared(fdp.Gaussian(1.0)):.9f}")
        1.718281828

    References:
        Dong, Roth, Su (2022), Appendix B: the integral of f'^2, minus 1.
    """
    return jnp.expm1(_at_order(mechanism, 2.0, "chi_squared"))


@explained
def squared_hellinger(mechanism: Any) -> Float[Array, ""]:
    """Squared Hellinger distance, 1 - E_P[(dQ/dP)^(1/2)] = 1 - exp(-D_{1/2} / 2).

    Args:
        mechanism: A mechanism or view; both directions have the same distance.

    Returns:
        The squared distance, in [0, 1], a value.

    Raises:
        TypeError: If `mechanism` is not a mechanism or view.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.divergences.squared_hellinger(fdp.Gaussian(1.0)):.9f}")
        0.117503097

    References:
        Dong, Roth, Su (2022), Appendix B.
    """
    return -jnp.expm1(-0.5 * _at_order(mechanism, 0.5, "squared_hellinger"))


@explained
def chernoff_information(mechanism: Any) -> Float[Array, ""]:
    """Chernoff information, max over 0 < s < 1 of -log E_P[(dQ/dP)^s].

    The Bayes error of an attacker who sees n independent runs falls like exp(-n C), for
    every prior.

    Args:
        mechanism: A mechanism or view; both directions have the same information.

    Returns:
        C in nats, a value; inf if a test without errors exists.

    Differentiable in:
        All parameters.

    Raises:
        TypeError: If `mechanism` is not a mechanism or view.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.divergences.chernoff_information(fdp.Gaussian(1.0)):.9f}")
        0.125000000

    References:
        Cover and Thomas (2006), Theorem 11.9.1.
    """
    loss, _ = loss_and_direction(mechanism, "chernoff_information")
    return _chernoff(loss)


@in_float64
def _chernoff(loss: ComposedLoss) -> Array:
    if loss.symmetric:
        return _exponent(jnp.full_like(loss.counts[0], 0.5), loss, ())
    ends = jnp.zeros_like(loss.counts[0]), jnp.ones_like(loss.counts[0])
    fixed = stop_gradient(loss)
    best = golden_section(lambda s: _exponent(s, fixed, ()), *ends)
    return optimal_value(_exponent, _exponent(best, fixed, ()), best, loss, ())


def _exponent(order: Array, loss: ComposedLoss, aux: tuple) -> Array:
    """-log E_P[(dQ/dP)^s] for s in (0, 1), concave in s."""
    del aux
    mass = finite_mass(loss, 1.0)
    finite = order * (1 - order) * normalized(loss, order)
    return finite - (1 - order) * mass.base - order * mass.included


@explained
def max_divergence(mechanism: Any) -> Float[Array, ""]:
    """The largest absolute privacy loss: the least pure epsilon, d_MULT.

        max(log |f'(0+)|, -log |f'(1-)|)

    Args:
        mechanism: A mechanism or view; both directions count, as in pure DP.

    Returns:
        Epsilon in nats, inf where no pure guarantee holds.

    Raises:
        TypeError: If `mechanism` is not a mechanism or view.

    Example:
        >>> import fdp_jax as fdp
        >>> print(fdp.divergences.max_divergence(fdp.Laplace(2.0).repeat(3)))
        1.5

    References:
        Dwork and Roth (2014), Section 3.5.1.
    """
    loss, _ = loss_and_direction(mechanism, "max_divergence")
    return _renyi(loss, np.inf, direction="both")


@explained(bound=_checks.member_of(Bound))
def total_variation(
    mechanism: AbstractGuarantee, *, bound: Bound | str = Bound.PESSIMISTIC
) -> Float[Array, ""]:
    """Total variation distance: the membership advantage, delta(0).

    Args:
        mechanism: Any guarantee.
        bound: Which end of the certified interval.

    Returns:
        The distance, in [0, 1].

    Guarantee:
        Upper bound by default.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.divergences.total_variation(fdp.Gaussian(1.0)):.9f}")
        0.382924923

    References:
        Dong, Roth, Su (2022), Appendix B.
    """
    return mechanism.advantage(bound=bound)
