"""Closed forms for one release with finitely many outputs.

delta(eps) is the sum of (q - e^eps p)_+ over the outputs, straight in e^eps between two
losses.  All terms are positive, so logarithms of sums keep their relative accuracy.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._special import log1mexp, log_sum_exp, safe_log
from ..losses import AtomicLoss
from ._bounds import Interval

MASS_ERROR = 1e-13
"""Relative error allowed for the mass of an output."""


def log_delta(atoms: AtomicLoss, epsilon: Array) -> Array:
    """Log delta(eps), outputs of one pair member alone included."""
    loss, log_q, _ = _common(atoms)
    gap = loss - epsilon[..., None]
    above = gap > 0
    parts = log_q + log1mexp(jnp.where(above, gap, 1.0))
    finite = log_sum_exp(parts, above & jnp.isfinite(log_q))
    infinite, _ = atoms.log_infinite_masses()
    none, never = jnp.isneginf(finite), jnp.isneginf(infinite)
    either = jnp.logaddexp(jnp.where(none, 0, finite), jnp.where(never, 0, infinite))
    total = jnp.where(none, infinite, jnp.where(never, finite, either))
    return jnp.minimum(total, 0)


def log_rest(atoms: AtomicLoss, epsilon: Array) -> Array:
    """log(1 - delta(eps)): the sum of min(q, e^eps p)."""
    loss, log_q, log_p = _common(atoms)
    above = loss > epsilon[..., None]
    parts = jnp.where(above, log_p + epsilon[..., None], log_q)
    return jnp.minimum(log_sum_exp(parts, jnp.isfinite(parts)), 0)


def log_alpha(atoms: AtomicLoss, epsilon: Array) -> Array:
    """Log P(X > eps)."""
    loss, _, log_p = _common(atoms)
    above = loss > epsilon[..., None]
    return log_sum_exp(jnp.broadcast_to(log_p, above.shape), above)


def loss_error(atoms: AtomicLoss, epsilon: Array) -> Array:
    """What errors of the masses and rounding may do to a loss near a threshold.

    Each mass is within `MASS_ERROR`, so delta(eps) is at most the one calculated at
    eps minus this number, up to that relative error, and at least the one at eps plus
    it.  From the largest loss on there is nothing to be wrong about.
    """
    beyond = epsilon >= stop_gradient(jnp.max(_losses(atoms)))
    return jnp.where(beyond, 0, _slip(atoms, epsilon))


def _slip(atoms: AtomicLoss, epsilon: Array) -> Array:
    size = jnp.max(jnp.abs(_losses(atoms))) + jnp.abs(epsilon)
    rounding = 8 * jnp.finfo(epsilon.dtype).eps * (1 + size)
    return stop_gradient(2 * MASS_ERROR + rounding)


def _common(atoms: AtomicLoss) -> tuple[Array, Array, Array]:
    """Finite losses, and logarithms of their masses under Q and P (-inf for none)."""
    found = atoms.atoms()
    return found.loss, found.log_mass + found.loss, found.log_mass


def candidates(directions: tuple[AtomicLoss, ...]) -> Float[Array, " m"]:
    """All thresholds at which the larger of the directions' profiles may have a kink.

    The losses, and where two profiles cross between neighboring losses.
    """
    losses = jnp.sort(jnp.concatenate([_losses(atoms) for atoms in directions]))
    if len(directions) == 1:
        return losses
    scale = jnp.exp(losses)
    one, two = (jnp.exp(log_delta(atoms, losses)) for atoms in directions)
    gap = one - two
    left, right = gap[:-1], gap[1:]
    cross = left * right < 0
    share = jnp.where(cross, left / jnp.where(cross, left - right, 1), 0)
    middle = safe_log(scale[:-1] + share * (scale[1:] - scale[:-1]))
    return jnp.concatenate([losses, jnp.where(cross, middle, losses[:-1])])


def _losses(atoms: AtomicLoss) -> Array:
    """The losses of outputs that both members have; others repeat one of those."""
    loss, _, log_p = _common(atoms)
    return jnp.where(jnp.isneginf(log_p), loss[jnp.argmax(log_p)], loss)


class ErrorPair(eqx.Module):
    """Type II error and power of a test."""

    alpha: Float[Array, "..."]
    beta: Float[Array, "..."]
    tpr: Float[Array, "..."]


def error_rates(
    directions: tuple[AtomicLoss, ...], alpha: Float[Array, ""]
) -> tuple[Interval, Interval]:
    """f(alpha) and 1 - f(alpha) of the worst direction, for 0 < alpha < 1.

    f(alpha) = max over eps of 1 - delta(eps) - e^eps alpha, whose kinks are known: the
    maximum is at one of them.  There f joins two vertices of the directions' trade-off
    functions, which have the derivatives of every order.
    """
    fixed, level = stop_gradient((directions, alpha))
    thresholds = candidates(fixed)
    rests = jnp.exp(jnp.stack([log_rest(atoms, thresholds) for atoms in fixed]))
    powers = jnp.exp(jnp.stack([log_delta(atoms, thresholds) for atoms in fixed]))
    used = jnp.exp(jnp.minimum(thresholds + safe_log(level), 700))
    best = jnp.argmin(jnp.max(powers, axis=0) + used)
    epsilon, rest = thresholds[best], rests[:, best]
    # Errors of the masses and of a crossing's place: see `loss_error`.
    slip = 4 * jnp.max(jnp.stack([_slip(atoms, epsilon) for atoms in fixed]))
    active = rest <= jnp.min(rest) + slip
    tests = [_tests_at(atoms, epsilon, slip) for atoms in directions]
    tests = jax.tree.map(lambda *x: jnp.stack(x), *tests)
    first = jnp.argmin(jnp.where(active, stop_gradient(tests.alpha[:, 0]), jnp.inf))
    last = jnp.argmax(jnp.where(active, stop_gradient(tests.alpha[:, 1]), -jnp.inf))
    low = jax.tree.map(lambda x: x[first, 0], tests)
    high = jax.tree.map(lambda x: x[last, 1], tests)
    width = high.alpha - low.alpha
    share = (alpha - low.alpha) / jnp.where(width > 0, width, 1)
    share = jnp.where(width > 0, share, 0)
    beta = (1 - share) * low.beta + share * high.beta
    tpr = (1 - share) * low.tpr + share * high.tpr
    value, power = stop_gradient((beta, tpr))
    # What was left out counts for the attacker, in the lower bound of beta alone.
    unsure = [jnp.exp(atoms.log_unsure_masses()[0]) for atoms in fixed]
    unsure = jnp.max(jnp.stack(unsure))
    lost = max(atoms.lost for atoms in fixed)
    return (
        Interval(value - slip, beta, value + slip + unsure + lost),
        Interval(power * (1 - slip) - unsure, tpr, power * (1 + slip)),
    )


def _tests_at(atoms: AtomicLoss, epsilon: Array, slip: Array) -> ErrorPair:
    """The tests that reject losses above a threshold, without and with those at it."""
    loss, log_q, log_p = _common(atoms)
    fixed = stop_gradient(loss)
    rejected = jnp.stack([fixed > epsilon + slip, fixed >= epsilon - slip])
    total = lambda logs, chosen: jnp.exp(log_sum_exp(logs, chosen))
    p, q = (jnp.broadcast_to(x, rejected.shape) for x in (log_p, log_q))
    infinite = jnp.exp(atoms.log_infinite_masses()[0])
    return ErrorPair(
        total(p, rejected), total(q, ~rejected), total(q, rejected) + infinite
    )
