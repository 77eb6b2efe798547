"""Closed forms for one step of the Poisson-subsampled Gaussian mechanism.

With mu = 1/sigma and e^t = 1 + (e^x - 1) / q, the likelihood ratio of the mixture
(1-q) P + q Q against P exceeds e^x exactly where that of the Gaussian pair exceeds e^t.
Amplification by subsampling (Balle, Barthe and Gaboardi 2018) then gives, for
e^eps > 1 - q and x = eps,

    remove:  delta = q delta_G(t),          1 - delta = (1-q) + q (1 - delta_G(t)),

and delta = 1 - e^eps for smaller eps. Exchanging the pair, x = -eps, and reflecting
both profiles, delta(-e) = 1 - e^-e + e^-e delta_reversed(e), leaves a product again:

    add:     delta = (1 - (1-q) e^eps) delta_G(-t),
             1 - delta = e^eps (1 - delta_remove(x)),

with delta = 0 for e^-eps <= 1 - q. None of these subtracts, except in t and in
1 - (1-q) e^-x, which are evaluated with care.

References:
    Dong, Roth and Su, "Gaussian differential privacy", JRSSB 84 (2022).
    Zhu, Dong and Wang, "Optimal accounting of differential privacy via characteristic
    function", AISTATS 2022, for the two directions.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from fdp_jax._internal._special import (
    log1mexp,
    log1p,
    log_mills,
    log_ndtr,
    promote,
)
from fdp_jax.engines import _gaussian

_LOG_2 = 0.6931471805599453
# exp(-x) beyond this is only met for q = 1, where it is multiplied by 1 - q = 0.
_MAX_EXPONENT = 150.0


def _gap(q: jax.Array, x: jax.Array) -> jax.Array:
    """1 - (1-q) e^-x for x > log(1-q), accurate for small q and small x."""
    shrink = jnp.exp(-jnp.maximum(x, -_MAX_EXPONENT))
    plain = (q > 0.5) | (x > 1.0)
    near = (jnp.expm1(jnp.where(plain, 0.0, x)) + q) * shrink
    return jnp.where(plain, 1.0 - (1.0 - q) * shrink, near)


@jax.custom_jvp
def _inner(q: jax.Array, x: jax.Array) -> jax.Array:
    """Threshold t = log(1 + (e^x - 1) / q) for x > log(1-q)."""
    # log1p is exact around t = 0; for large |t| the first form overflows or cancels.
    ratio = jnp.expm1(jnp.minimum(x, 30.0)) / q
    near = (ratio > -0.5) & (x < 30.0)
    small = jnp.log1p(jnp.where(near, ratio, 0.0))
    return jnp.where(near, small, x + jnp.log(_gap(q, x) / q))


@_inner.defjvp
def _inner_jvp(primals, tangents):
    (q, x), (dq, dx) = primals, tangents
    gap = _gap(q, x)
    return _inner(q, x), dx / gap - _inner_lift(x) / (q * gap) * dq


def _inner_lift(x: jax.Array) -> jax.Array:
    """1 - e^-x."""
    return -jnp.expm1(-jnp.maximum(x, -_MAX_EXPONENT))


def _prepare(sigma, q, epsilon, sign):
    """Common quantities `(inside, identical, mu, q, x, t)`, safe outside the support.

    `inside` says that eps lies where both tests errors are positive; `identical` that
    nothing is released.
    """
    positive = sigma > 0
    mu = jnp.where(positive, 1.0 / jnp.where(positive, sigma, 1.0), jnp.inf)
    x = jnp.where(sign > 0, epsilon, -epsilon)
    identical = q == 0
    safe_q = jnp.where(identical, 0.5, q)
    finite = jnp.isfinite(x)
    safe_x = jnp.where(finite, x, 0.0)
    below_one = jnp.where(safe_q < 1, safe_q, 0.5)
    bounded = (safe_q < 1) & (safe_x <= jnp.log1p(-below_one))
    safe_x = jnp.where(bounded, 0.0, safe_x)
    inside = finite & ~bounded & (_gap(safe_q, safe_x) > 0) & ~identical
    safe_x = jnp.where(inside, safe_x, 0.0)
    return inside, identical, mu, safe_q, safe_x, _inner(safe_q, safe_x)


@jax.custom_jvp
def _log_delta(mu, q, x, sign):
    forward = sign > 0
    factor = jnp.where(forward, q, _gap(q, x))
    t = _inner(q, x)
    return jnp.log(factor) + _gaussian.log_delta(mu, jnp.where(forward, t, -t))


@_log_delta.defjvp
def _log_delta_jvp(primals, tangents):
    (mu, q, x, sign), (dmu, dq, dx, _) = primals, tangents
    value = _log_delta(mu, q, x, sign)
    forward = sign > 0
    t, gap, lift = _inner(q, x), _gap(q, x), _inner_lift(x)
    regular, safe_mu, inner = _gaussian.interior(mu, jnp.where(forward, t, -t))
    vega, slope = _gaussian.log_delta_slopes(safe_mu, inner)
    vega, slope = jnp.where(regular, vega, 0.0), jnp.where(regular, slope, 0.0)
    # By the chain rule. The terms of the x derivative never differ in sign.
    in_x = jnp.where(forward, slope, (1.0 - gap) - slope) / gap
    chain = jnp.where(forward, 1.0 - slope * lift / gap, 0.0) / q
    chain = chain + jnp.where(forward, 0.0, (1.0 - lift + slope * lift / q) / gap)
    # Those of the q derivative do on one side of x = 0, where the tail is not: there
    # use the envelope theorem, d delta / dq = power - size of the optimal test.
    steady = jnp.where(forward, x >= 0, x <= 0)
    t = jnp.where(steady | ~regular, 0.0, t)
    a = _gaussian.lower_threshold(safe_mu, t)
    b = _gaussian.upper_threshold(safe_mu, t)
    left = jnp.exp(log_ndtr(b)) - jnp.exp(log_ndtr(a))
    right = jnp.exp(log_ndtr(-a)) - jnp.exp(log_ndtr(-b))
    weight = jnp.exp(jnp.where(steady, 0.0, jnp.where(forward, 0.0, -x) - value))
    envelope = weight * jnp.where(forward, left, right)
    in_q = jnp.where(steady, chain, jnp.where(regular, envelope, 0.0))
    return value, vega * dmu + in_q * dq + in_x * dx


def _outside(identical, epsilon, sign) -> jax.Array:
    """Log delta outside the support of the loss: 1 - e^eps, or zero."""
    lossy = (epsilon < 0) & ((sign > 0) | identical | jnp.isinf(epsilon))
    return jnp.where(lossy, log1mexp(jnp.where(lossy, -epsilon, 1.0)), -jnp.inf)


def log_delta(
    noise_multiplier: ArrayLike,
    sampling_prob: ArrayLike,
    epsilon: ArrayLike,
    sign: ArrayLike,
) -> jax.Array:
    """Logarithm of delta(eps) of one step, for every real eps.

    Args:
        noise_multiplier: standard deviation sigma of the noise over the sensitivity.
        sampling_prob: probability q of taking part, in [0, 1].
        epsilon: real or infinite.
        sign: +1 for the remove direction, -1 for the add direction.
    """
    sigma, q, epsilon, sign = promote(noise_multiplier, sampling_prob, epsilon, sign)
    inside, identical, mu, safe_q, x, _ = _prepare(sigma, q, epsilon, sign)
    value = _log_delta(mu, safe_q, x, sign)
    return jnp.where(inside, value, _outside(identical, epsilon, sign))


@jax.custom_jvp
def _log_rest(mu, q, x, sign):
    log_delta = _log_delta(mu, q, x, sign)
    log_p = jnp.log1p(-q)
    mixed = jnp.logaddexp(
        log_p, jnp.log(q) + _gaussian.log_one_minus_delta(mu, _inner(q, x))
    )
    direct = mixed + jnp.where(sign > 0, 0.0, -x)
    near_one = log1p(-jnp.exp(jnp.minimum(log_delta, -_LOG_2)))
    return jnp.where(log_delta < -_LOG_2, near_one, direct)


@_log_rest.defjvp
def _log_rest_jvp(primals, tangents):
    value = _log_rest(*primals)
    log_delta, slope = jax.jvp(_log_delta, primals, tangents)
    # Finite also where 1 - delta underflows, which takes the slope to zero faster.
    ratio = jnp.exp(jnp.minimum(log_delta - value, _MAX_EXPONENT))
    return value, -ratio * slope


def log_one_minus_delta(
    noise_multiplier: ArrayLike,
    sampling_prob: ArrayLike,
    epsilon: ArrayLike,
    sign: ArrayLike,
) -> jax.Array:
    """Logarithm of 1 - delta(eps) of one step; arguments as for `log_delta`."""
    sigma, q, epsilon, sign = promote(noise_multiplier, sampling_prob, epsilon, sign)
    inside, identical, mu, safe_q, x, _ = _prepare(sigma, q, epsilon, sign)
    value = _log_rest(mu, safe_q, x, sign)
    lossy = (epsilon < 0) & ((sign > 0) | identical | jnp.isinf(epsilon))
    return jnp.where(inside, value, jnp.where(lossy, epsilon, 0.0))


def _log_mixed_lower(mu, q, t) -> jax.Array:
    """log[(1-q) P(X < t) + q Q(X < t)] of the Gaussian pair."""
    a, b = _gaussian.lower_threshold(mu, t), _gaussian.upper_threshold(mu, t)
    below = b < 0
    # Phi(a) / Phi(b) = e^t m(-a) / m(-b): the difference of two huge logarithms has no
    # digits left in the far tail.
    far_a, far_b = jnp.where(below, -a, 0.0), jnp.where(below, -b, 0.0)
    far = jnp.where(below, t, 0.0) + log_mills(far_a) - log_mills(far_b)
    close = log_ndtr(a) - log_ndtr(b)
    ratio = jnp.exp(jnp.where(below, far, jnp.where(below, 0.0, close)))
    small = log_ndtr(b) + jnp.log((1.0 - q) + q * ratio)
    upper = (1.0 - q) * jnp.exp(log_ndtr(-b)) + q * jnp.exp(log_ndtr(-a))
    likely = upper < 0.5
    return jnp.where(likely, log1p(-jnp.where(likely, upper, 0.0)), small)


def log_alpha(
    noise_multiplier: ArrayLike,
    sampling_prob: ArrayLike,
    epsilon: ArrayLike,
    sign: ArrayLike,
) -> jax.Array:
    """Logarithm of the probability, under H0, that the loss exceeds eps.

    Arguments as for `log_delta`. H0 is the run without the record in the remove
    direction and with it in the add direction.
    """
    sigma, q, epsilon, sign = promote(noise_multiplier, sampling_prob, epsilon, sign)
    inside, identical, mu, safe_q, _, t = _prepare(sigma, q, epsilon, sign)
    regular, safe_mu, safe_t = _gaussian.interior(mu, t)
    removed = log_ndtr(-_gaussian.upper_threshold(safe_mu, safe_t))
    value = jnp.where(sign > 0, removed, _log_mixed_lower(safe_mu, safe_q, safe_t))
    # Identical or disjoint pairs: everything is decided by the sign of t.
    disjoint = jnp.isinf(mu)
    mixed = jnp.where(disjoint, jnp.log1p(-jnp.minimum(safe_q, 1.0)), 0.0)
    above = jnp.where(sign > 0, (t < 0) & ~disjoint, (t > 0) | disjoint)
    edge = jnp.where(above, jnp.where(sign > 0, 0.0, mixed), -jnp.inf)
    lossy = (epsilon < 0) & ((sign > 0) | identical | jnp.isinf(epsilon))
    outside = jnp.where(lossy, 0.0, -jnp.inf)
    return jnp.where(inside, jnp.where(regular, value, edge), outside)


def log_beta_at(
    noise_multiplier: ArrayLike,
    sampling_prob: ArrayLike,
    epsilon: ArrayLike,
    sign: ArrayLike,
) -> jax.Array:
    """Logarithm of the probability, under H1, that the loss is at most eps.

    Exchanging the pair turns the loss around, and for 0 < mu < inf it has no atoms.
    """
    return log_alpha(noise_multiplier, sampling_prob, -jnp.asarray(epsilon), -sign)
