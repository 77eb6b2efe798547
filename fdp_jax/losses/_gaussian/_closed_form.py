"""Closed forms for the Gaussian pair G_mu = T(N(0, 1), N(mu, 1)).

The privacy loss is N(-mu^2/2, mu^2) under P and N(mu^2/2, mu^2) under Q. With the
standardised thresholds a = eps/mu - mu/2 and b = a + mu,

    delta(eps)     = Phic(a) - e^eps Phic(b)
    1 - delta(eps) = Phi(a) + e^eps Phic(b)

(Balle and Wang 2018; Dong, Roth and Su 2022, for every real eps). The first line
cancels completely in the tail. Since phi(a) = e^eps phi(b), it equals
phi(a) [m(a) - m(b)] with the Mills ratio m, and everything below is arranged so that
only positive numbers are added. Derivatives follow from the envelope theorem,

    d delta / d eps = -e^eps Phic(b),      d delta / d mu = phi(a).

`log_delta` and `log_one_minus_delta` are both exact to rounding, so a caller never has
to form one from the other.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._internal._arithmetic import two_product
from ..._internal._logs import LOG_2, LOG_SQRT_2PI
from ..._internal._mills import mills_difference, mills_moment, mills_parts
from ..._internal._special import (
    log1mexp,
    log1p,
    log_ndtr,
    lower_hazard,
    ndtri_from_logs,
    norm_pdf,
)
from .._closed_form import AbstractClosedForm

_MAX_NEWTON_STEPS = 60


@jax.custom_jvp
def lower_threshold(mu: jax.Array, epsilon: jax.Array) -> jax.Array:
    """Threshold a = (eps - mu^2/2) / mu, exact also where the terms cancel."""
    square, error = two_product(mu, mu)
    return ((epsilon - 0.5 * square) - 0.5 * error) / mu


@lower_threshold.defjvp
def _lower_threshold_jvp(primals, tangents):
    (mu, epsilon), (dmu, depsilon) = primals, tangents
    b = upper_threshold(mu, epsilon)
    return lower_threshold(mu, epsilon), (depsilon - b * dmu) / mu


@jax.custom_jvp
def upper_threshold(mu: jax.Array, epsilon: jax.Array) -> jax.Array:
    """Threshold b = (eps + mu^2/2) / mu, exact also where the terms cancel."""
    return -lower_threshold(mu, -epsilon)


@upper_threshold.defjvp
def _upper_threshold_jvp(primals, tangents):
    (mu, epsilon), (dmu, depsilon) = primals, tangents
    a = lower_threshold(mu, epsilon)
    return upper_threshold(mu, epsilon), (depsilon - a * dmu) / mu


def _limit(dtype) -> float:
    """Largest mu or |eps/mu| treated as finite; its fourth power does not overflow."""
    return float(jnp.finfo(dtype).max) ** 0.2


def interior(mu: jax.Array, epsilon: jax.Array) -> tuple[jax.Array, ...]:
    """Splits off mu = 0, mu = inf and infinite eps: `(is_interior, mu, epsilon)`.

    Beyond the limit log delta is below -1e122 (float64), which counts as degenerate.
    """
    limit = _limit(mu.dtype)
    inside = (mu > 0) & (mu < limit) & (jnp.abs(epsilon) < limit * mu)
    return inside, jnp.where(inside, mu, 1.0), jnp.where(inside, epsilon, 0.0)


def _degenerate_log_delta(mu: jax.Array, epsilon: jax.Array) -> jax.Array:
    """Logarithm of delta of identical distributions, of disjoint ones if mu = inf."""
    negative = epsilon < 0
    identical = log1mexp(jnp.where(negative, -epsilon, 1.0))
    identical = jnp.where(negative, identical, -jnp.inf)
    return jnp.where(mu < _limit(mu.dtype), identical, 0.0)


def _forward_parts(mu: jax.Array, epsilon: jax.Array) -> tuple[jax.Array, ...]:
    """For eps >= 0: `(a, delta if a < 0, log delta if a >= 0, log(1-delta) if a < 0)`.

    For a < 0, Phic(a) = Phic(|a|) + erf(|a|/sqrt 2) leaves a Mills difference between
    |a| and b, which are 2 eps/mu apart.
    """
    a = lower_threshold(mu, epsilon)
    far = jnp.abs(a)
    width = jnp.where(a < 0, 2.0 * epsilon / mu, mu)
    difference, near_ratio, far_ratio = mills_parts(far, width)
    centre = jax.lax.erf(far / np.sqrt(2.0).astype(a.dtype))
    direct = centre + norm_pdf(far) * difference
    log_density = -0.5 * far * far - LOG_SQRT_2PI
    log_rest = log_density + jnp.log(near_ratio + far_ratio)
    return a, direct, log_density + jnp.log(difference), log_rest


def _merge_log_delta(a, direct, log_tail, log_rest) -> jax.Array:
    small = jnp.log(jnp.where(direct < 0.5, direct, 0.5))
    near_one = log1p(-jnp.exp(jnp.minimum(log_rest, -LOG_2)))
    return jnp.where(a < 0, jnp.where(direct < 0.5, small, near_one), log_tail)


def _merge_log_rest(a, direct, log_tail, log_rest) -> jax.Array:
    delta = jnp.where(a < 0, direct, jnp.exp(log_tail))
    near_one = log1p(-jnp.minimum(delta, 0.5))
    return jnp.where((a < 0) & (direct >= 0.5), log_rest, near_one)


@jax.custom_jvp
def _log_rest_forward(mu: jax.Array, epsilon: jax.Array) -> jax.Array:
    """Logarithm of 1 - delta for eps >= 0."""
    return _merge_log_rest(*_forward_parts(mu, epsilon))


@_log_rest_forward.defjvp
def _log_rest_forward_jvp(primals, tangents):
    (mu, epsilon), (dmu, depsilon) = primals, tangents
    value = _log_rest_forward(mu, epsilon)
    a, b = lower_threshold(mu, epsilon), upper_threshold(mu, epsilon)
    below = a < 0
    # phi(a) / (1 - delta); for a < 0 both contain phi(a), which drops out.
    far, near = jnp.where(below, -a, 0.0), jnp.where(below, 0.0, a)
    ratio = jnp.where(
        below,
        1.0 / (mills_moment(0, far) + mills_moment(0, b)),
        norm_pdf(near) * jnp.exp(-value),
    )
    return value, ratio * (mills_moment(0, b) * depsilon - dmu)


def log_pair(mu: jax.Array, epsilon: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`(log delta, log(1 - delta))` for real eps; a negative one by reflection."""
    parts = _forward_parts(mu, jnp.abs(epsilon))
    forward = _merge_log_delta(*parts)
    negative = jnp.minimum(epsilon, 0.0)
    # delta(-e) = 1 - e^-e + e^-e delta(e); 1 - delta(-e) = e^-e (1 - delta(e)).
    delta = -jnp.expm1(negative) + jnp.exp(negative + forward)
    log_rest = negative + _merge_log_rest(*parts)
    small = delta < 0.5
    reflected = jnp.where(
        small,
        jnp.log(jnp.where(small, delta, 0.5)),
        log1p(-jnp.where(small, 0.5, jnp.exp(log_rest))),
    )
    return jnp.where(epsilon < 0, reflected, forward), log_rest


@jax.custom_jvp
def _log_delta(mu: jax.Array, epsilon: jax.Array) -> jax.Array:
    return log_pair(mu, epsilon)[0]


def log_delta_slopes(mu: jax.Array, epsilon: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Derivatives of log delta in mu and eps: phi(a)/delta and -e^eps Phic(b)/delta.

    Like everything with a leading underscore, only for arguments in the interior.
    """
    log_delta = _log_delta(mu, epsilon)
    a, b = lower_threshold(mu, epsilon), upper_threshold(mu, epsilon)
    tail = a >= 0
    # In the tail phi(a) drops out; exp(log phi - log delta) would lose digits there.
    inside = jnp.where(tail, 0.0, a)
    vega = jnp.where(
        tail,
        1.0 / mills_difference(jnp.where(tail, a, 0.0), jnp.where(tail, mu, 1.0)),
        jnp.exp(-0.5 * inside * inside - LOG_SQRT_2PI - log_delta),
    )
    right = vega * mills_moment(0, jnp.maximum(b, 0.0))
    log_left = epsilon + log_ndtr(-jnp.minimum(b, 0.0)) - log_delta
    left = jnp.exp(jnp.where(b < 0, log_left, 0.0))
    return vega, -jnp.where(b < 0, left, right)


@_log_delta.defjvp
def _log_delta_jvp(primals, tangents):
    (mu, epsilon), (dmu, depsilon) = primals, tangents
    value = _log_delta(mu, epsilon)
    vega, slope = log_delta_slopes(mu, epsilon)
    return value, vega * dmu + slope * depsilon


def _newton_start(mu, log_delta, log_rest) -> jax.Array:
    """Start on the side of the root from which Newton's iteration is monotone.

    log delta and log(1 - delta) are concave in eps (convolutions of log-concave
    functions), so a start where the function is below its target never overshoots.
    For delta < 1/2 it lies to the right: delta <= exp(-a^2/2) when eps >= 0, and
    delta(eps) <= 1 - e^eps (1 - delta(0)) when eps < 0. For delta >= 1/2 it lies to the
    left: 1 - delta <= e^eps, and 1 - delta <= exp(-a^2/2) on -mu^2/2 <= eps <= mu^2/2.
    """
    log_rest_at_zero = log_ndtr(-0.5 * mu) + LOG_2
    right = 0.5 * mu * mu + mu * jnp.sqrt(-2.0 * log_delta)
    right = jnp.where(log_rest < log_rest_at_zero, log_rest - log_rest_at_zero, right)
    reach = jnp.sqrt(-2.0 * log_rest)
    left = jnp.where(mu >= reach, 0.5 * mu * mu - mu * reach, log_rest)
    return jnp.where(log_delta < -LOG_2, right, left)


def _solve_epsilon(mu: jax.Array, log_delta: jax.Array) -> jax.Array:
    """Newton's iteration for 0 < delta < 1 and mu inside its range."""
    log_rest = log1mexp(-log_delta)
    small = log_delta < -LOG_2
    resolution = float(jnp.finfo(mu.dtype).eps)

    def newton(epsilon):
        value, rest = log_pair(mu, epsilon)
        # d delta/d eps = -e^eps P(X > eps); its digits only set the speed.
        log_slope = epsilon + log_ndtr(-upper_threshold(mu, epsilon))
        step_small = (value - log_delta) * jnp.exp(value - log_slope)
        step_large = (log_rest - rest) * jnp.exp(rest - log_slope)
        return jnp.where(small, step_small, step_large)

    def condition(state):
        _, active, count = state
        return jnp.any(active) & (count < _MAX_NEWTON_STEPS)

    def body(state):
        epsilon, active, count = state
        step = jnp.where(active, newton(epsilon), 0.0)
        forward = jnp.where(small, step < 0, step > 0)
        # A step against the monotone direction is rounding noise: take it and stop.
        settled = jnp.abs(step) <= 2.0 * resolution * jnp.abs(epsilon)
        active = active & ~settled & (forward | (count == 0))
        return epsilon + step, active, count + 1

    start = _newton_start(mu, log_delta, log_rest)
    state = start, jnp.ones(mu.shape, bool), jnp.asarray(0, jnp.int32)
    return jax.lax.while_loop(condition, body, state)[0]


@jax.custom_jvp
def _epsilon(mu: jax.Array, log_delta: jax.Array) -> jax.Array:
    return _solve_epsilon(mu, log_delta)


@_epsilon.defjvp
def _epsilon_jvp(primals, tangents):
    (mu, log_delta), (dmu, dlog_delta) = primals, tangents
    epsilon = _epsilon(mu, log_delta)
    a, b = lower_threshold(mu, epsilon), upper_threshold(mu, epsilon)
    # Implicit function theorem with phi(a) = e^eps phi(b): d eps/d mu = phi(b)/Phic(b)
    # and d eps/d log delta = -delta / (e^eps Phic(b)).
    hazard = lower_hazard(-b)
    tail = a >= 0
    difference = mills_difference(
        jnp.where(tail, a, 0.0), jnp.where(tail, mu, 1.0)
    ) / mills_moment(0, jnp.where(tail, b, 0.0))
    # Finite also where 1 - delta is below 1e-120 (float64), so that 0 * inf stays out.
    cap = 0.4 * float(np.log(float(jnp.finfo(mu.dtype).max)))
    log_ratio = log_delta - epsilon - log_ndtr(-jnp.where(tail, 0.0, b))
    ratio = jnp.exp(jnp.minimum(jnp.where(tail, 0.0, log_ratio), cap))
    inverse_slope = jnp.where(tail, difference, ratio)
    return epsilon, hazard * dmu - inverse_slope * dlog_delta


class GaussianForm(AbstractClosedForm):
    """Any composition of Gaussian mechanisms: mu^2 adds (Dong, Roth, Su 2022).

    For mu in [0, inf] and every eps.
    """

    mu: Float[Array, ""]

    def log_delta(self, epsilon):
        inside, mu, safe = interior(self.mu, epsilon)
        edge = _degenerate_log_delta(self.mu, epsilon)
        return jnp.where(inside, _log_delta(mu, safe), edge)

    def log_rest(self, epsilon):
        inside, mu, safe = interior(self.mu, epsilon)
        value = _log_rest_forward(mu, jnp.where(safe < 0, -safe, safe))
        value = value + jnp.where(safe < 0, safe, 0.0)
        finite = self.mu < _limit(mu.dtype)
        edge = jnp.where(finite, jnp.minimum(epsilon, 0.0), -jnp.inf)
        return jnp.where(inside, value, edge)

    def log_alpha(self, epsilon):
        inside, mu, safe = interior(self.mu, epsilon)
        finite = self.mu < _limit(mu.dtype)
        certain = (epsilon < 0) & (finite | jnp.isinf(epsilon))
        edge = jnp.where(certain, 0.0, -jnp.inf)
        return jnp.where(inside, log_ndtr(-upper_threshold(mu, safe)), edge)

    def epsilon(self, log_delta):
        """The eps at which delta(eps) of G_mu has the given logarithm.

        Negative when delta exceeds delta(0); +inf for delta = 0 and -inf for delta = 1.
        For mu = 0 it is the smallest eps with max(0, 1 - e^eps) <= delta, and for
        mu = inf it is +inf unless delta = 1.
        """
        finite = (self.mu > 0) & (self.mu < _limit(self.mu.dtype))
        inside = finite & (log_delta < 0) & (log_delta > -jnp.inf)
        mu, target = jnp.where(inside, self.mu, 1.0), jnp.where(inside, log_delta, -1.0)
        null = (self.mu == 0) & (log_delta < 0)
        identical = log1mexp(-jnp.where(null, log_delta, -1.0))
        edge = jnp.where(null, identical, jnp.inf)
        edge = jnp.where(log_delta >= 0, -jnp.inf, edge)
        return jnp.where(inside, _epsilon(mu, target), edge)

    def log_rates(self, log_alpha, log_tnr):
        # For mu = inf the value at alpha = 0 is the limit mu -> inf, one.
        none = jnp.isneginf(log_alpha)
        inside = (self.mu < jnp.inf) & ~none & (log_tnr > -jnp.inf)
        safe = (jnp.where(inside, x, -LOG_2) for x in (log_alpha, log_tnr))
        threshold = ndtri_from_logs(*safe) + jnp.where(inside, self.mu, 0.0)
        beta, power = log_ndtr(jnp.stack([-threshold, threshold]))
        edge = lambda sure: jnp.where(sure, 0.0, -jnp.inf)
        beta = jnp.where(inside, beta, edge(none))
        return beta, jnp.where(inside, power, edge(~none))
