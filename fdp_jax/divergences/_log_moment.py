"""The normalized log-moment function: all that the divergences need of a mechanism.

For a pair without infinite losses, with Lambda(w) = log E_P[(dQ/dP)^w],

    L(w) = Lambda(w) / (w (w - 1)) > 0

is smooth and positive at every real order, adds under composition, and gives

    D_t(Q||P) = t L(t),   D_t(P||Q) = t L(1 - t),   KL(Q||P) = L(1),   KL(P||Q) = L(0)

(for a Gaussian pair it is constant, mu^2 / 2).  Infinite losses are kept apart: they
have a probability under Q and one under P, and L belongs to the pair conditioned on
finite losses.

This is the only module of the stage that knows the losses.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._internal._divided import (
    exp_divided,
    is_small,
    log_moment_ratio,
    psi,
    sinhc,
)
from .._internal._special import log_ndtri
from ..losses import (
    AbstractLoss,
    AtomicLoss,
    ComposedLoss,
    GaussianLoss,
    GaussianMixtureLoss,
    LaplaceLoss,
    MassLoss,
    PoissonLoss,
    SubsampledGaussianLoss,
    TwoPointLoss,
)
from ..mechanisms import AbstractMechanism, Resolved, View, resolve
from ._subsampled import subsampled_log_moment, subsampled_moments


def resolved(mechanism: Any, name: str) -> Resolved:
    """The losses behind a mechanism or view, for the function of a name."""
    if not isinstance(mechanism, AbstractMechanism | View):
        raise TypeError(
            f"{name} takes a mechanism, or its .remove or .add, got "
            f"{type(mechanism).__name__}"
        )
    return resolve(mechanism)


def loss_and_direction(mechanism: Any, name: str) -> tuple[ComposedLoss, str]:
    """The privacy loss behind a mechanism or view, and the direction asked for."""
    subject = resolved(mechanism, name).whole
    return subject.composed, subject.direction


def directions(direction: str) -> tuple[float, ...]:
    """Signs of the directions to look at: +1 is "remove", -1 is "add"."""
    return {"remove": (1.0,), "add": (-1.0,), "both": (1.0, -1.0)}[direction]


def oriented(sign: float, order: Array) -> Array:
    """The order w at which L is the direction's: w itself, or 1 - w for "add"."""
    return order if sign > 0 else 1 - order


class FiniteMass(NamedTuple):
    """Logs of the probabilities of a finite loss, in one direction."""

    included: Float[Array, ""]
    """Under Q: one minus the probability of an output that P cannot produce."""
    base: Float[Array, ""]
    """Under P."""


def finite_mass(loss: ComposedLoss, sign: float) -> FiniteMass:
    """The two probabilities for a direction."""
    side = jnp.asarray(sign, loss.counts[0].dtype)
    return FiniteMass(loss.log_supported_mass(side), loss.log_supported_mass(-side))


def log_unseen(loss: ComposedLoss, sign: float) -> Float[Array, ""]:
    """Log of a bound on the probability, under Q, of outputs that are not looked at.

    Losses known by their masses alone have ends, beyond which e^-800 or so is left: it
    counts as infinite, but moments of high order do not know of it.  -inf if there are
    none.
    """
    found = [jnp.full_like(loss.counts[0], -jnp.inf)]
    for term, count in zip(loss.terms, loss.counts, strict=True):
        if not isinstance(term, MassLoss) or isinstance(term, AtomicLoss):
            continue
        lost = term.log_infinite_masses()[0 if sign > 0 else 1]
        seen = term.log_finite_masses()[0 if sign > 0 else 1] < 0
        found.append(jnp.where(seen | (count == 0), -jnp.inf, lost))
    return functools.reduce(jnp.maximum, found)


def normalized(loss: ComposedLoss, order: Float[Array, ""]) -> Float[Array, ""]:
    """L(w) of the composed loss, conditioned on finite losses; differentiable."""
    total = jnp.zeros_like(order)
    for term, count in zip(loss.terms, loss.counts, strict=True):
        total = total + count * _term(term, order)
    return total


def largest_finite(loss: ComposedLoss, sign: float) -> Float[Array, ""]:
    """The essential supremum of the finite part of the loss, in one direction."""
    low, high = loss.loss_range()
    return high if sign > 0 else -low


# ---------------------------------------------------------------- one loss at a time


@functools.singledispatch
def _term(term: AbstractLoss, order: Array) -> Array:
    """From the loss's own moments, with their accuracy (any other loss)."""
    return _from_moments(term, order, *(m[0] for m in term.moments(order[None])))


@_term.register
def _(term: MassLoss, order: Array) -> Array:
    # To about 1e-9 relative; its moments are upper bounds and less accurate.
    moment = term.partition().log_moment
    slope = jax.grad(moment)
    return _from_moments(
        term, order, moment(order), slope(order), jax.grad(slope)(order)
    )


def _from_moments(
    term: AbstractLoss, order: Array, value: Array, slope: Array, curvature: Array
) -> Array:
    product = order * (order - 1)
    close = jnp.abs(product) < 1e-4
    right = order > 0.5
    gap = jnp.where(right, order - 1, -order)
    # Lambda is zero at 0 and 1 but for the masses of infinite losses.
    included, base = term.log_finite_masses()
    value = value - order * included - (1 - order) * base
    slope = slope - included + base
    inner = jnp.where(right, slope, -slope) - 0.5 * gap * curvature
    near = inner / jnp.where(right, order, 1 - order)
    far = value / jnp.where(close, 1.0, product)
    return jnp.where(close, near, far)


@_term.register
def _(term: GaussianLoss, order: Array) -> Array:
    return 0.5 * term.precision() + 0 * order


@_term.register
def _(term: PoissonLoss, order: Array) -> Array:
    return term.normalized(order)


@_term.register
def _(term: SubsampledGaussianLoss, order: Array) -> Array:
    return subsampled_log_moment(term, order)


@_term.register
def _(term: LaplaceLoss, order: Array) -> Array:
    # E_P r^w - 1 = w (w - 1) mu^2 exp[0, (w - 1) mu, -w mu], and the same in logs.
    mu = 1 / term.noise_multiplier
    a = jnp.abs(order - 0.5)
    decay = -2 * a * mu
    direct = jnp.log(0.5 * (1 + jnp.exp(decay)) + 0.5 * mu * psi(decay))
    direct = direct + (a - 0.5) * mu
    moderate = is_small(direct)
    x, y = (jnp.where(moderate, z * mu, 0.0) for z in (order - 1, -order))
    excess = jnp.square(mu) * exp_divided(x, y)
    return log_moment_ratio(order, direct, excess)


@_term.register
def _(term: TwoPointLoss, order: Array) -> Array:
    # E_P r^w - 1 = 2 sinh(w eps / 2) sinh((w - 1) eps / 2) / cosh(eps / 2).
    epsilon = term.epsilon
    direct = _log_cosh((order - 0.5) * epsilon) - _log_cosh(0.5 * epsilon)
    moderate = is_small(direct)
    x, y, z = (
        jnp.where(moderate, 0.5 * w * epsilon, 0.0) for w in (order, order - 1, 1.0)
    )
    # e^-|x| sinh(x) / x = psi(-2 |x|), where the plain product would overflow.
    huge = epsilon > 500
    lift = jnp.abs(x) + jnp.abs(y) - z
    scaled = psi(-2 * jnp.abs(x)) * psi(-2 * jnp.abs(y)) * 2 * jnp.exp(lift)
    x, y, z = (jnp.where(huge, 0.0, v) for v in (x, y, z))
    ratio = jnp.where(huge, scaled, sinhc(x) * sinhc(y) / jnp.cosh(z))
    return log_moment_ratio(order, direct, 0.5 * jnp.square(epsilon) * ratio)


def _log_cosh(x: Array) -> Array:
    x = jnp.abs(x)
    return x + jnp.log1p(jnp.exp(-2 * x)) - math.log(2)


# ------------------------------------------------- further facts about single losses


def counted(loss: ComposedLoss, fact: Callable[[AbstractLoss], Any]) -> Any:
    """Sum of an additive number (or array) over the composition, with 0 inf = 0."""
    total: Any = 0.0
    for term, count in zip(loss.terms, loss.counts, strict=True):
        value = fact(term)
        safe = jnp.where(jnp.isfinite(value), value, 0.0)
        lost = ~jnp.isfinite(value) & (count > 0)
        total = total + jnp.where(lost, jnp.inf, count * safe)
    return total


def log_moment_ceiling(term: AbstractLoss, sign: float) -> Array:
    """A bound of L over all orders t > 1 of one direction; inf if none is known."""
    del sign
    if isinstance(term, GaussianLoss | SubsampledGaussianLoss):
        # Quasi-convexity: a mixture with P is no further from P than its component.
        return 0.5 / jnp.square(term.noise_multiplier)
    if isinstance(term, GaussianMixtureLoss):
        # Likewise no further than its most distant components.
        return 0.5 * jnp.square(term.largest_gap() / term.noise_multiplier)
    one = jnp.ones_like(term.loss_range()[0])
    if isinstance(term, LaplaceLoss | TwoPointLoss):
        # E_P r^w is an entire function of (w - 1/2)^2 with negative zeros only, so its
        # logarithm is concave there and its divided differences L decrease beyond 1.
        return _term(term, one)
    return jnp.inf * one


def log_moment_limit(term: AbstractLoss, sign: float) -> Array:
    """The limit of L at infinite order in one direction."""
    zero = jnp.zeros_like(term.loss_range()[0])
    if isinstance(term, PoissonLoss):
        return jnp.where(sign * term.jump() > 0, jnp.inf, zero)
    if isinstance(term, GaussianLoss):
        return 0.5 * term.precision()
    if isinstance(term, SubsampledGaussianLoss) and sign > 0:
        return 0.5 / jnp.square(term.noise_multiplier)
    return zero


def log_moment_tail(term: AbstractLoss, sign: float, order: Array) -> Array:
    """A bound of L over all orders t >= `order` > 1 of one direction."""
    low, high = term.loss_range()
    most = high if sign > 0 else -low
    return jnp.minimum(log_moment_ceiling(term, sign), most / order)


def gaussian_precision(term: AbstractLoss) -> Array:
    """mu^2 of the tight mu-GDP of one release; inf if there is none known."""
    if isinstance(term, GaussianLoss | SubsampledGaussianLoss):
        # With sampling as well: the slope of f at 0 is that of the Gaussian.
        return 1 / jnp.square(term.noise_multiplier)
    if isinstance(term, LaplaceLoss):
        half = -0.5 / term.noise_multiplier - math.log(2)
        return jnp.square(2 * log_ndtri(half))
    if isinstance(term, TwoPointLoss):
        mu = 2 * log_ndtri(-jnp.logaddexp(0.0, term.epsilon))
        return jnp.where(term.delta > 0, jnp.inf, jnp.square(mu))
    return jnp.full_like(term.loss_range()[0], jnp.inf)


def clt_cumulants(term: AbstractLoss, sign: float) -> Float[Array, " 2"]:
    """-E X and Var X of one release, as the central limit theorem for GDP takes them.

    For a subsampled Gaussian the limit of weak sampling: both are multiples of
    chi^2 = q^2 (e^(1/s^2) - 1).
    """
    if isinstance(term, SubsampledGaussianLoss):
        chi2 = jnp.expm1(1 / jnp.square(term.noise_multiplier))
        chi2 = jnp.square(term.sampling_prob) * chi2
        return jnp.stack([0.5 * chi2, chi2])
    mean, variance = cumulants(term, included=sign < 0)[:2]
    return jnp.stack([-sign * mean, variance])


def cumulants(term: AbstractLoss, *, included: bool) -> Float[Array, " 4"]:
    """First four cumulants of X = log dQ/dP of one release under P, or under Q."""
    if isinstance(term, SubsampledGaussianLoss):
        mean, (_, second, third, fourth) = subsampled_moments(term, included)
        return jnp.stack([mean, second, third, fourth - 3 * jnp.square(second)])
    side = 1.0 if included else -1.0
    if isinstance(term, TwoPointLoss):
        t = side * jnp.tanh(0.5 * term.epsilon)
        rest = 1 - jnp.square(t)
        shapes = t, rest, -2 * t * rest, -2 * rest * (1 - 3 * jnp.square(t))
        return jnp.stack([term.epsilon**k * x for k, x in enumerate(shapes, 1)])
    if isinstance(term, LaplaceLoss):
        # Under Q the loss is minus what it is under P.
        odd = jnp.asarray([-side, 1.0, -side, 1.0])
        return odd * _laplace_cumulants(1 / term.noise_multiplier)
    at = jnp.full((1,), 1.0 if included else 0.0, term.loss_range()[0].dtype)
    bends = [lambda w: term.moments(w[None])[2][0]]
    for _ in range(2):
        bends.append(jax.grad(bends[-1]))
    return jnp.stack([term.moments(at)[1][0], *(bend(at[0]) for bend in bends)])


def _laplace_cumulants(mu: Array) -> Float[Array, " 4"]:
    """Under P: atoms at -mu and mu, and 2 x - mu with density e^-x / 2 between."""
    nodes, weights = np.polynomial.legendre.leggauss(48)
    span = jnp.minimum(mu, 40.0)
    x = 0.5 * span * (nodes + 1)
    values = jnp.concatenate([jnp.stack([-mu, mu]), 2 * x - mu])
    atoms = jnp.stack([jnp.ones_like(mu), jnp.exp(-mu)])
    masses = 0.5 * jnp.concatenate([atoms, 0.5 * span * weights * jnp.exp(-x)])
    mean = values @ masses
    second, third, fourth = (((values - mean) ** k) @ masses for k in (2, 3, 4))
    return jnp.stack([mean, second, third, fourth - 3 * jnp.square(second)])
