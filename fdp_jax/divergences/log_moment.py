"""The normalized log-moment function: all that the divergences need of a mechanism.

For a pair without infinite losses, with Lambda(w) = log E_P[(dQ/dP)^w],

    L(w) = Lambda(w) / (w (w - 1)) > 0

is smooth and positive at every real order, adds under composition, and gives

    D_t(Q||P) = t L(t),   D_t(P||Q) = t L(1 - t),   KL(Q||P) = L(1),   KL(P||Q) = L(0)

(for a Gaussian pair it is constant, mu^2 / 2).  Infinite losses are kept apart: they
have a probability under Q and one under P, and L belongs to the pair conditioned on
finite losses.  What is known of single losses stands with the losses.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..losses import AbstractLoss, ComposedLoss, MassLoss
from ..mechanisms import AbstractMechanism, Resolved, Shared, View, resolve
from ..tradeoff import AbstractTradeOff


def resolved(mechanism: Any, name: str) -> Resolved:
    """The losses behind a mechanism or view, for the function of a name."""
    mechanism = mechanism_of(mechanism)
    if not isinstance(mechanism, AbstractMechanism | View):
        raise TypeError(
            f"{name} takes a mechanism, or its .remove or .add, or a trade-off "
            f"function, got {type(mechanism).__name__}"
        )
    return resolve(mechanism)


def mechanism_of(value: Any) -> Any:
    """A trade-off function's mechanism; anything else as it is.

    All divergences with a data processing inequality are functionals of f (Blackwell
    1953), so whichever pair has this f will do.
    """
    return value.as_mechanism() if isinstance(value, AbstractTradeOff) else value


def loss_and_direction(mechanism: Any, name: str) -> tuple[ComposedLoss, str]:
    """The privacy loss behind a mechanism or view, and the direction asked for."""
    subject = resolved(mechanism, name).whole
    return subject.composed, subject.direction


def shared_by(mechanism: Any) -> frozenset[Shared] | None:
    """The randomness that later releases share with a mechanism or view, or None."""
    mechanism = mechanism_of(mechanism)
    whole = mechanism.mechanism if isinstance(mechanism, View) else mechanism
    return whole.shares() or None


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
        if not isinstance(term, MassLoss):
            continue
        lost = term.log_infinite_masses()[0 if sign > 0 else 1]
        seen = term.log_finite_masses()[0 if sign > 0 else 1] < 0
        found.append(jnp.where(seen | (count == 0), -jnp.inf, lost))
    return functools.reduce(jnp.maximum, found)


def normalized(loss: ComposedLoss, order: Float[Array, ""]) -> Float[Array, ""]:
    """L(w) of the composed loss, conditioned on finite losses; differentiable."""
    total = jnp.zeros_like(order)
    for term, count in zip(loss.terms, loss.counts, strict=True):
        total = total + count * term.normalized_log_moment(order)
    return total


def largest_finite(loss: ComposedLoss, sign: float) -> Float[Array, ""]:
    """The essential supremum of the finite part of the loss, in one direction."""
    low, high = loss.loss_range()
    return high if sign > 0 else -low


def counted(loss: ComposedLoss, fact: Callable[[AbstractLoss], Any]) -> Any:
    """Sum of an additive number (or array) over the composition, with 0 inf = 0."""
    total: Any = 0.0
    for term, count in zip(loss.terms, loss.counts, strict=True):
        value = fact(term)
        safe = jnp.where(jnp.isfinite(value), value, 0.0)
        lost = ~jnp.isfinite(value) & (count > 0)
        total = total + jnp.where(lost, jnp.inf, count * safe)
    return total


def log_moment_tail(term: AbstractLoss, sign: float, order: Array) -> Array:
    """A bound of L over all orders t >= `order` > 1 of one direction."""
    low, high = term.loss_range()
    most = high if sign > 0 else -low
    return jnp.minimum(term.log_moment_ceiling(sign), most / order)
