"""The pair of (epsilon, delta)-DP itself: losses epsilon, -epsilon and infinity."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._arithmetic import ULP, promote, two_product
from .._internal._binomial import log_tail_at_logit
from .._internal._divided import is_small, log_moment_ratio, psi, sinhc
from .._internal._logs import log_add, log_cosh, times
from .._internal._special import log1p, log_ndtri, safe_log
from ._atomic import AtomicLoss
from ._closed_form import AbstractClosedForm, complements, settled

_LARGEST = 700.0
"""Exponents from which on e^x may overflow."""


class TwoPointLoss(AtomicLoss):
    """The worst pair of an (epsilon, delta)-DP mechanism (Kairouz, Oh, Viswanath 2015).

    Y is infinite with probability delta, else epsilon or -epsilon with odds e^epsilon.
    Randomized response is the case delta = 0.
    """

    epsilon: Float[Array, ""] = eqx.field(kw_only=True)
    delta: Float[Array, ""] = eqx.field(kw_only=True)

    stacks: ClassVar[bool] = True

    @classmethod
    def of(cls, epsilon: Float[Array, ""], delta: Float[Array, ""]) -> "TwoPointLoss":
        """The pair with these parameters."""
        epsilon, delta = promote(epsilon, delta)
        likely = jnp.log1p(-delta) - jnp.log1p(jnp.exp(-epsilon))
        none = jnp.full_like(delta, -jnp.inf)
        log_p = jnp.stack([likely, likely - epsilon, safe_log(delta), none])
        loss = jnp.stack([-epsilon, epsilon, 0 * epsilon, 0 * epsilon])
        return cls(
            log_p,
            log_p[jnp.asarray([1, 0, 3, 2])],
            unit=epsilon,
            symmetric=True,
            loss=loss,
            # Logarithms are rounded, and as large as epsilon.
            mass_error=stop_gradient(ULP * (80 + 4 * jnp.minimum(epsilon, 1e6))),
            loss_error=0.0,
            epsilon=epsilon,
            delta=delta,
        )

    def loss_range(self):
        return -self.epsilon, self.epsilon  # exactly

    in_closed_form: ClassVar[str] = "one kind"

    @classmethod
    def closed_form(cls, terms, counts, sign):
        (term,), (count,) = terms, counts
        return TwoPointForm(term.epsilon, term.delta, count)

    def normalized_log_moment(self, order):
        # E_P r^w - 1 = 2 sinh(w eps / 2) sinh((w - 1) eps / 2) / cosh(eps / 2).
        epsilon = self.epsilon
        direct = log_cosh((order - 0.5) * epsilon) - log_cosh(0.5 * epsilon)
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

    def log_moment_ceiling(self, sign):
        # As of a Laplace pair: L decreases beyond 1.
        return self.normalized_log_moment(jnp.ones_like(self.epsilon))

    def gaussian_precision(self):
        mu = 2 * log_ndtri(-jnp.logaddexp(0.0, self.epsilon))
        return jnp.where(self.delta > 0, jnp.inf, jnp.square(mu))


class TwoPointForm(AbstractClosedForm):
    """Any number of releases of one (epsilon, delta)-DP pair.

    The number K of positive losses among n finite ones is Bin(n, p) under Q and
    Bin(n, 1 - p) under P, with p = e^epsilon0 / (1 + e^epsilon0).  With k the first
    number for which the sum (2 k - n) epsilon0 of the losses exceeds eps,

        delta(eps) = 1 - (1 - delta0)^n + (1 - delta0)^n r(eps),
        r(eps)     = sum_{j >= k} Q(K = j) (1 - e^{eps - (2 j - n) epsilon0}),
        1 - r(eps) = Q(K < k) + e^eps P(K >= k),

    tails of binomial laws, in which only positive numbers are added.  Derivatives are
    those of the piece to the right of such a sum of losses; none in the number n.
    """

    epsilon0: Float[Array, ""]
    delta0: Float[Array, ""]
    count: Float[Array, ""]

    def logs(self, epsilon):
        epsilon0, delta0, count, epsilon = promote(
            self.epsilon0, self.delta0, self.count, epsilon
        )
        count = stop_gradient(count)
        first = _first_above(epsilon0, count, epsilon)
        inner = (first >= 1) & (first <= count)
        size, n, k = (jnp.where(inner, x, 1.0) for x in (epsilon0, count, first))
        place = jnp.where(inner, epsilon, 0.0)
        # r and the two tails at once: at a distance of infinity all weights are 1.
        beyond = jnp.full_like(place, jnp.inf)
        distance = jnp.stack([_above(size, n, k, place), beyond, beyond])
        gain = 2 * jnp.sinh(jnp.minimum(size, _LARGEST))

        def weight(u: Array) -> Array:
            # log of (1 + u e^size) / (1 + u e^-size), how Q falls less than P.
            rise = jnp.log1p(gain[..., None] * u / (1 + u * jnp.exp(-size)[..., None]))
            return -jnp.expm1(-distance[..., None] - (n - k)[..., None] * rise)

        logits, firsts = jnp.stack([size, -size, -size]), jnp.stack([k, k, n - k + 1])
        trials = jnp.broadcast_to(n, logits.shape)
        log_gain, log_alpha, log_error = log_tail_at_logit(
            logits, trials, firsts, weight
        )
        log_rest = jnp.logaddexp(log_error, place + log_alpha)
        log_gain, log_rest, log_alpha = settled(
            inner, (log_gain, log_rest, log_alpha), epsilon, first < 1
        )
        log_gain, log_rest = complements(log_gain, log_rest)
        # Infinite losses; the first formula has the derivative at delta0 = 0.
        kept = times(count, log1p(-delta0))
        failed, ratio = -jnp.expm1(kept), jnp.minimum(log_rest - log_gain, _LARGEST)
        near = log_gain + jnp.log1p(failed * jnp.exp(ratio))
        far = log_add(safe_log(failed), kept + log_gain)
        log_delta = jnp.where(log_gain > -0.9 * _LARGEST, near, far)
        return *complements(log_delta, kept + log_rest), kept + log_alpha

    def loss_error(self, epsilon):
        # Rounding of epsilon0 counts n times; there is nothing above the largest loss.
        slip = self._rounding(epsilon, self.count * self.epsilon0)
        highest = _above(self.epsilon0, self.count, self.count, epsilon)
        return jnp.where(highest <= 0, 0.0, slip)


def _above(epsilon0: Array, n: Array, k: Array, epsilon: Array) -> Array:
    """The sum of k positive losses among n, less eps; rounded once."""
    _, error = two_product(2 * k - n, epsilon0)
    return (2 * k - n) * epsilon0 - epsilon + stop_gradient(error)


def _first_above(epsilon0: Array, n: Array, epsilon: Array) -> Array:
    """The least k in 0..n+1 whose losses exceed eps, without derivative."""
    epsilon0, n, epsilon = stop_gradient(promote(epsilon0, n, epsilon))
    some = epsilon0 > 0
    size = jnp.where(some, epsilon0, 1.0)
    k = jnp.clip(jnp.floor(0.5 * (epsilon / size + n)) + 1, 0, n + 1)
    k = jnp.where(_above(size, n, k, epsilon) <= 0, k + 1, k)
    k = jnp.where(_above(size, n, k - 1, epsilon) > 0, k - 1, k)
    return jnp.where(some, jnp.clip(k, 0, n + 1), jnp.where(epsilon < 0, 0, n + 1))
