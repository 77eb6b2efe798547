"""Amplification by sampling: a record that takes part with probability q.

With the mixture Q' = (1 - q) P + q Q, the loss of Q' against P is log(1 - q + q e^t)
with that of Q for t (`log_ratio`; back by `inner_loss`).  One exceeds eps exactly where
the other exceeds t(eps), so the profile of a single release is a multiple of the
profile d of the pair itself in the same direction (Balle, Barthe and Gaboardi 2018):

    remove:  delta(eps) = q d(t),               P(X' > eps) = P(X > t),
    add:     delta(eps) = q e^{t + eps} d(-t),
             P(X' > eps) = (1 - q) d(-t) + e^{-t - eps} Q(-X > -t).

With the record removed, d is the profile of (Q, P), and t that of eps; with the record
added, that of (P, Q), and t that of -eps.  The second line is the first one reflected,
delta(-e) = 1 - e^-e + e^-e delta'(e), and the last one is the power of its test,
d(-t) + e^-t Q(-X > -t), mixed with the error.  With F for the factor of d,
1 - delta = (1 - d) + (1 - F) d.  All of this only adds positive numbers and holds
exactly: the error is that of the pair's own closed form and of t, which is as
ill-conditioned next to the least loss, log(1 - q), as delta itself.
`SubsampledForm.loss_error` allows for the rounding of a threshold there.
"""

import jax
import jax.numpy as jnp
from jax.lax import optimization_barrier
from jaxtyping import Array, Float

from .._internal._logs import log_add
from .._internal._special import log1mexp, log1p
from ._closed_form import AbstractClosedForm, complements, settled


@jax.jit
def log_ratio(u: Array, q: Array) -> Array:
    """log(1 - q + q e^u) with full relative accuracy, for q in [0, 1]."""
    return _log_ratio_of(u, q)


@jax.custom_jvp
def _log_ratio_of(u: Array, q: Array) -> Array:
    change = q * jnp.expm1(jnp.minimum(u, 80))  # finite in float32 too
    small = (jnp.abs(change) < 0.5) & (u < 80)
    near = optimization_barrier(1 + change)
    # Elsewhere over e^max(u, 0), where nothing cancels or overflows.
    least = jnp.exp(-jnp.abs(u))
    far = jnp.where(u < 0, (1 - q) + q * least, (1 - q) * least + q)
    lost = jnp.where(small, change - (near - 1), 0) / jnp.where(small, near, 1)
    top = jnp.where(small, 0, jnp.maximum(u, 0))
    value = top + jnp.log(jnp.where(small, near, far)) + lost
    return jnp.where(q < 1, value, u)  # where e^u underflows


@_log_ratio_of.defjvp
def _log_ratio_jvp(primals, tangents):
    u, q = primals
    du, dq = tangents
    value = _log_ratio_of(u, q)
    # d/dq = (e^u - 1) / (1 - q + q e^u): finite at q = 0 and q = 1, where the
    # formula above is not.
    top = jnp.maximum(u, 0)
    slope = (jnp.exp(u - top) - jnp.exp(-top)) * jnp.exp(top - value)
    return value, inclusion(u, q) * du + slope * dq


@jax.jit
def inclusion(u: Array, q: Array) -> Array:
    """Posterior probability that the record was sampled; dX/du."""
    return q * jnp.exp(u - log_ratio(u, q))


def inner_loss(loss: Array, q: Array) -> Array:
    """The u with log(1 - q + q e^u) = `loss`, q in (0, 1]; -inf if there is none."""
    room = loss - log1p(-q)
    inside = (room > 0) & (loss < jnp.inf)
    x = jnp.where(inside, loss, 0)
    # Exact around zero; for large |u| it would overflow, or cancel.
    change = jnp.expm1(jnp.minimum(x, 30)) / q
    near = (change > -0.5) & (x < 30)
    far = x - jnp.log(q) + log1mexp(jnp.where(inside, room, 1))
    found = jnp.where(near, log1p(jnp.where(near, change, 0)), far)
    return jnp.where(inside, found, jnp.where(loss > 0, jnp.inf, -jnp.inf))


class SubsampledForm(AbstractClosedForm):
    """One release of a sampled record, in one direction."""

    base: AbstractClosedForm
    """The closed form of the release itself, in the same direction."""
    sampling_prob: Float[Array, ""]
    """In (0, 1]."""
    sign: Float[Array, ""]

    def logs(self, epsilon):
        inside, place = self._placed(epsilon)
        found = self._logs_at(place, jnp.where(inside, epsilon, 0))
        # Whether all losses are larger than eps, where not some of them are.
        every = (epsilon < 0) & ((self.sign > 0) | jnp.isinf(epsilon))
        return settled(inside, found, epsilon, every)

    def _logs_at(self, place: Array, epsilon: Array) -> tuple[Array, Array, Array]:
        """`logs` at a threshold of the pair itself, and eps there."""
        log_delta, log_rest, log_alpha = self.base.logs(place)
        remove, kept = self.sign > 0, log1p(-self.sampling_prob) + log_delta
        # F is at most one, also after rounding.
        log_q = jnp.log(self.sampling_prob)
        shift = jnp.where(remove, 0, jnp.minimum(epsilon - place, -log_q))
        log_rest = log_add(log_rest, kept + jnp.where(remove, 0, epsilon))
        mixed = jnp.minimum(log_add(kept, log_alpha - shift), 0)
        log_alpha = jnp.where(remove, log_alpha, mixed)
        return *complements(log_q + shift + log_delta, log_rest), log_alpha

    def epsilon(self, log_delta):
        # Up to the least loss delta is 1 - e^eps.
        least = log1mexp(-jnp.where(log_delta < 0, log_delta, -1.0))
        some = self._placed(least)[0] | ~(log_delta < 0)
        return jnp.where(some, super().epsilon(log_delta), least)

    # On the scale of the pair itself, since eps crowds at the end of its losses.

    def places(self, least):
        start = self._placed(least)[1]
        return lambda u: start + u

    def threshold_at(self, place):
        return self.sign * log_ratio(self.sign * place, self.sampling_prob)

    def pair_at(self, place):
        return self._logs_at(place, self.threshold_at(place))[:2]

    def log_truncated(self):
        return self.base.log_truncated()

    def lost(self):
        return self.base.lost()

    def mass_error(self):
        return self.base.mass_error()

    def loss_error(self, epsilon):
        # Without the record no loss is larger than -log(1 - q).  A loss changes less
        # than that of the pair itself.
        rounding = self._rounding(epsilon, self.sampling_prob)
        inner = self.base.loss_error(self._placed(epsilon)[1])
        return rounding if inner is None else rounding + inner

    def _placed(self, epsilon: Array) -> tuple[Array, Array]:
        """Whether some losses pass eps, and the pair's own threshold there."""
        inner = inner_loss(self.sign * epsilon, self.sampling_prob)
        inside = jnp.isfinite(inner)
        return inside, self.sign * jnp.where(inside, inner, 0)
