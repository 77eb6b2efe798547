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
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ..._internal._arithmetic import promote
from ..._internal._logs import LOG_2
from ..._internal._special import (
    log1mexp,
    log1p,
    log_mills,
    log_ndtr,
)
from .._closed_form import AbstractClosedForm, epsilon_by_search
from .._gaussian import _closed_form as _gaussian


def _cap(dtype) -> float:
    """Largest exponent whose exponential may still be raised to the fourth power.

    e^-x beyond it is only met for q = 1, where it is multiplied by 1 - q = 0.
    """
    return 0.2 * float(np.log(float(jnp.finfo(dtype).max)))


def _shrink(x: jax.Array) -> jax.Array:
    """e^-x."""
    return jnp.exp(-jnp.maximum(x, -_cap(x.dtype)))


def _lift(x: jax.Array) -> jax.Array:
    """1 - e^-x."""
    return -jnp.expm1(-jnp.maximum(x, -_cap(x.dtype)))


def _gap(q: jax.Array, x: jax.Array) -> jax.Array:
    """1 - (1-q) e^-x, accurate for small q and small x; negative for x < log(1-q)."""
    plain = (q > 0.5) | (x > 1.0)
    safe_x = jnp.where(plain, 0.0, x)
    # expm1(x) + q cancels at the end of the support, x = log(1-q); for small x the
    # leading x + q is then exact and only the remainder is rounded.
    small_x = jnp.clip(safe_x, -0.1, 0.1)
    series = jnp.zeros_like(x)
    for k in range(12, 1, -1):
        series = small_x / k * (1.0 + series) if k > 2 else 0.5 * (1.0 + series)
    short = (safe_x + q) + small_x * small_x * series
    near = jnp.where(safe_x == small_x, short, jnp.expm1(safe_x) + q) * _shrink(safe_x)
    return jnp.where(plain, 1.0 - (1.0 - q) * _shrink(x), near)


def _log_gap(q: jax.Array, x: jax.Array) -> jax.Array:
    """Logarithm of the gap, relatively accurate when the gap is close to one."""
    rest = (1.0 - q) * _shrink(x)
    small = rest < 0.5
    exact = log1p(-jnp.where(small, rest, 0.0))
    return jnp.where(small, exact, jnp.log(jnp.where(small, 1.0, _gap(q, x))))


@jax.custom_jvp
def _inner(q: jax.Array, x: jax.Array) -> jax.Array:
    """Threshold t = log(1 + (e^x - 1) / q) for x > log(1-q)."""
    # log1p is exact around t = 0; for large |t| the first form overflows or cancels.
    ratio = jnp.expm1(jnp.minimum(x, 30.0)) / q
    near = (ratio > -0.5) & (x < 30.0)
    small = log1p(jnp.where(near, ratio, 0.0))
    return jnp.where(near, small, x + jnp.log(_gap(q, x) / q))


@_inner.defjvp
def _inner_jvp(primals, tangents):
    (q, x), (dq, dx) = primals, tangents
    gap = _gap(q, x)
    return _inner(q, x), dx / gap - _lift(x) / (q * gap) * dq


def _prepare(sigma, q, epsilon, sign):
    """Common quantities `(inside, identical, mu, q, x)`, safe outside the support.

    `inside` says that eps lies strictly inside the support of the loss; `identical`
    that nothing is released.
    """
    identical = q == 0
    safe_q = jnp.where(identical, 0.5, q)
    x = jnp.where(sign > 0, epsilon, -epsilon)
    finite = jnp.isfinite(x)
    safe_x = jnp.where(finite, x, 0.0)
    inside = finite & (_gap(safe_q, safe_x) > 0) & ~identical
    return inside, identical, _mu(sigma), safe_q, jnp.where(inside, safe_x, 0.0)


def _mu(sigma: jax.Array) -> jax.Array:
    positive = sigma > 0
    return jnp.where(positive, 1.0 / jnp.where(positive, sigma, 1.0), jnp.inf)


def _factors(mu, q, x, sign) -> tuple[jax.Array, jax.Array]:
    """`(log f, log delta_G)` with delta = f delta_G."""
    forward = sign > 0
    t = _inner(q, x)
    log_inner = _gaussian.log_delta(mu, jnp.where(forward, t, -t))
    return jnp.where(forward, jnp.log(q), _log_gap(q, x)), log_inner


def _slopes(mu, q, x, sign) -> tuple[jax.Array, ...]:
    """Derivatives of delta in mu, q and x, divided by delta_G."""
    forward = sign > 0
    t, gap, lift = _inner(q, x), _gap(q, x), _lift(x)
    inner = jnp.where(forward, t, -t)
    regular, safe_mu, safe_inner = _gaussian.interior(mu, inner)
    vega, slope = _gaussian.log_delta_slopes(safe_mu, safe_inner)
    vega, slope = jnp.where(regular, vega, 0.0), jnp.where(regular, slope, 0.0)
    # By the chain rule. The terms of the x derivative never differ in sign.
    in_mu = jnp.where(forward, q, gap) * vega
    in_x = jnp.where(forward, slope * q / gap, (1.0 - gap) - slope)
    in_q = jnp.where(forward, 1.0 - slope * lift / gap, 1.0 - lift + slope * lift / q)
    # Those of the q derivative do on one side of x = 0, not that of the tail. There
    # use the envelope theorem: d delta / dq is the power less the size of the test.
    steady = jnp.where(forward, x >= 0, x <= 0)
    use = regular & ~steady
    safe_t = jnp.where(use, t, 0.0)
    a = _gaussian.lower_threshold(safe_mu, safe_t)
    b = _gaussian.upper_threshold(safe_mu, safe_t)
    gain = _ndtr(jnp.where(forward, b, -a)) - _ndtr(jnp.where(forward, a, -b))
    log_weight = jnp.where(forward, 0.0, -x) - _gaussian.log_delta(mu, inner)
    envelope = gain * jnp.exp(jnp.where(use, log_weight, 0.0))
    return in_mu, jnp.where(use, envelope, in_q), in_x


def _ndtr(x: jax.Array) -> jax.Array:
    return 0.5 * jax.lax.erfc(-x / np.sqrt(2.0).astype(x.dtype))


@jax.custom_jvp
def _log_delta(mu, q, x, sign):
    log_factor, log_inner = _factors(mu, q, x, sign)
    return log_factor + log_inner


@_log_delta.defjvp
def _log_delta_jvp(primals, tangents):
    (_, q, x, sign), (dmu, dq, dx, _) = primals, tangents
    in_mu, in_q, in_x = _slopes(*primals)
    factor = jnp.where(sign > 0, q, _gap(q, x))
    return _log_delta(*primals), (in_mu * dmu + in_q * dq + in_x * dx) / factor


def _lossy(identical, epsilon, sign) -> jax.Array:
    """Where, outside the support of the loss, delta is 1 - e^eps rather than zero."""
    return (epsilon < 0) & ((sign > 0) | identical | jnp.isinf(epsilon))


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
    inside, identical, mu, safe_q, x = _prepare(sigma, q, epsilon, sign)
    value = _log_delta(mu, safe_q, x, sign)
    lossy = _lossy(identical, epsilon, sign)
    outside = log1mexp(jnp.where(lossy, -epsilon, 1.0))
    return jnp.where(inside, value, jnp.where(lossy, outside, -jnp.inf))


@jax.custom_jvp
def _log_rest(mu, q, x, sign):
    log_delta = _log_delta(mu, q, x, sign)
    inner_rest = _gaussian.log_one_minus_delta(mu, _inner(q, x))
    mixed = jnp.logaddexp(jnp.log1p(-q), jnp.log(q) + inner_rest)
    direct = mixed + jnp.where(sign > 0, 0.0, -x)
    near_one = log1p(-jnp.exp(jnp.minimum(log_delta, -LOG_2)))
    return jnp.where(log_delta < -LOG_2, near_one, direct)


@_log_rest.defjvp
def _log_rest_jvp(primals, tangents):
    q, (dmu, dq, dx, _) = primals[1], tangents
    value = _log_rest(*primals)
    in_mu, in_q, in_x = _slopes(*primals)
    # Finite also where 1 - delta underflows, which takes the slopes to zero faster.
    log_ratio = _factors(*primals)[1] - value
    ratio = jnp.exp(jnp.minimum(log_ratio, _cap(q.dtype)))
    return value, -ratio * (in_mu * dmu + in_q * dq + in_x * dx)


def log_one_minus_delta(
    noise_multiplier: ArrayLike,
    sampling_prob: ArrayLike,
    epsilon: ArrayLike,
    sign: ArrayLike,
) -> jax.Array:
    """Logarithm of 1 - delta(eps) of one step; arguments as for `log_delta`."""
    sigma, q, epsilon, sign = promote(noise_multiplier, sampling_prob, epsilon, sign)
    inside, identical, mu, safe_q, x = _prepare(sigma, q, epsilon, sign)
    value = _log_rest(mu, safe_q, x, sign)
    lossy = _lossy(identical, epsilon, sign)
    return jnp.where(inside, value, jnp.where(lossy, epsilon, 0.0))


def _log_mixed_lower(mu, q, t) -> jax.Array:
    """Log of (1-q) P(X < t) + q Q(X < t) for the Gaussian pair."""
    a, b = _gaussian.lower_threshold(mu, t), _gaussian.upper_threshold(mu, t)
    below = b < 0
    # Phi(a) / Phi(b) = e^t m(-a) / m(-b): the difference of two huge logarithms has no
    # digits left in the far tail.
    far_a, far_b = jnp.where(below, -a, 0.0), jnp.where(below, -b, 0.0)
    far = jnp.exp(jnp.where(below, t, 0.0))
    far = far * jnp.exp(log_mills(far_a) - log_mills(far_b))
    near = _ndtr(a) / _ndtr(jnp.where(below, 0.0, b))
    # For q = 1 the bracket may underflow.
    whole = q == 1
    bracket = (1.0 - q) + q * jnp.where(below, far, near)
    small = log_ndtr(b) + jnp.log(jnp.where(whole, 1.0, bracket))
    small = jnp.where(whole, log_ndtr(a), small)
    upper = (1.0 - q) * _ndtr(-b) + q * _ndtr(-a)
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
    inside, identical, mu, safe_q, x = _prepare(sigma, q, epsilon, sign)
    forward, t = sign > 0, _inner(safe_q, x)
    regular, safe_mu, safe_t = _gaussian.interior(mu, t)
    removed = log_ndtr(-_gaussian.upper_threshold(safe_mu, safe_t))
    value = jnp.where(forward, removed, _log_mixed_lower(safe_mu, safe_q, safe_t))
    # Identical pairs have loss 0. Of disjoint ones, an outcome of P shows up with
    # probability 1 - q in the mixture; its loss is log(1-q), or minus that.
    disjoint = mu > 1.0
    partial = disjoint & (safe_q < 1)
    mixed = jnp.where(partial, jnp.log1p(-jnp.where(partial, safe_q, 0.5)), -jnp.inf)
    null = jnp.where(jnp.where(forward, t < 0, t > 0), 0.0, -jnp.inf)
    edge = jnp.where(disjoint, jnp.where(forward, -jnp.inf, mixed), null)
    lossy = _lossy(identical, epsilon, sign)
    outside = jnp.where(lossy, 0.0, -jnp.inf)
    return jnp.where(inside, jnp.where(regular, value, edge), outside)


class OneStepForm(AbstractClosedForm):
    """One Poisson-subsampled Gaussian release, in one direction."""

    noise_multiplier: Float[Array, ""]
    sampling_prob: Float[Array, ""]
    sign: Float[Array, ""]

    def _parameters(self) -> tuple[Array, Array]:
        return self.noise_multiplier, self.sampling_prob

    def log_delta(self, epsilon):
        return log_delta(*self._parameters(), epsilon, self.sign)

    def log_rest(self, epsilon):
        return log_one_minus_delta(*self._parameters(), epsilon, self.sign)

    def log_alpha(self, epsilon):
        return log_alpha(*self._parameters(), epsilon, self.sign)

    def epsilon(self, log_delta):
        return epsilon_by_search(self, log_delta)

    def loss_error(self, epsilon):
        # Without the record no loss is larger than -log(1 - q).
        return self._rounding(epsilon, self.sampling_prob)
