"""The normalized log-moment function: all that the divergences need of a mechanism.

For a pair without infinite losses, with Lambda(w) = log E_P[(dQ/dP)^w],

    L(w) = Lambda(w) / (w (w - 1)) > 0

is smooth and positive at every real order, adds under composition, and gives

    D_t(Q||P) = t L(t),   D_t(P||Q) = t L(1 - t),   KL(Q||P) = L(1),   KL(P||Q) = L(0)

(for a Gaussian pair it is constant, mu^2 / 2).  Infinite losses are kept apart: they
have a probability under Q and one under P, and L belongs to the pair conditioned on
finite losses.  What is known of single losses stands with the losses.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

from ._base import AbstractLoss
from ._composed import ComposedLoss
from ._gaussian import GaussianLoss
from ._mass import MassLoss
from ._random_allocation import EnclosedLoss

_ERROR, _MASS_ERROR = 1e-9, 4e-6


def divergence_error(loss: ComposedLoss) -> float:
    """More than the relative error of `divergence`: larger where masses are known."""
    by_masses = lambda x: isinstance(x, MassLoss)
    # Normal mixtures have a quadrature, but not what holds them or other such losses.
    terms = [x for x in loss.terms if not (by_masses(x) and x.pairs)]
    found = any(map(by_masses, jax.tree.leaves(terms, is_leaf=by_masses)))
    return _MASS_ERROR if found else _ERROR


def bounding(loss: ComposedLoss) -> ComposedLoss:
    """The loss, or one above it whose moments are known as bounds.

    Those of random allocation are values without the far tail, which rules them at high
    orders: by convexity the Gaussian mechanism without sampling is above it.
    """
    enclosed = lambda x: isinstance(x, EnclosedLoss)
    if not any(map(enclosed, jax.tree.leaves(loss.terms, is_leaf=enclosed))):
        return loss
    above = lambda x: (
        GaussianLoss((1 - 1e-14) * x.noise_multiplier) if enclosed(x) else x
    )
    return jax.tree.map(above, dataclasses.replace(loss, ends=None), is_leaf=enclosed)


def directions(direction: str) -> tuple[float, ...]:
    """Signs of the directions to look at: +1 is "remove", -1 is "add"."""
    return {"remove": (1.0,), "add": (-1.0,), "both": (1.0, -1.0)}[direction]


def oriented(sign: ArrayLike, order: Array) -> Array:
    """The order w at which L is the direction's: w itself, or 1 - w for "add"."""
    return jnp.where(jnp.asarray(sign) > 0, order, 1 - order)


class FiniteMass(NamedTuple):
    """Logs of the probabilities of a finite loss, in one direction."""

    included: Float[Array, ""]
    """Under Q: one minus the probability of an output that P cannot produce."""
    base: Float[Array, ""]
    """Under P."""


def finite_mass(loss: ComposedLoss, sign: ArrayLike) -> FiniteMass:
    """The two probabilities for a direction."""
    side = jnp.asarray(sign, loss.counts[0].dtype)
    return FiniteMass(loss.log_supported_mass(side), loss.log_supported_mass(-side))


def log_unseen(
    loss: ComposedLoss, sign: ArrayLike, *, moments: bool = False
) -> Float[Array, ""]:
    """Log of a bound on the probability, under Q, of outputs that are not looked at.

    Losses known by their masses alone have ends, beyond which e^-800 or so is left: it
    counts as infinite, but moments of high order do not know of it.  -inf if there are
    none, or none that `moments` do not know of: those of normal mixtures have no ends.
    """
    found = [jnp.full_like(loss.counts[0], -jnp.inf)]
    for term, count in zip(loss.terms, loss.counts, strict=True):
        if not isinstance(term, MassLoss) or (moments and term.pairs):
            continue
        pick = lambda sides: jnp.where(jnp.asarray(sign) > 0, *sides)
        lost = pick(term.log_infinite_masses())
        seen = pick(term.log_finite_masses()) < 0
        found.append(jnp.where(seen | (count == 0), -jnp.inf, lost))
    return functools.reduce(jnp.maximum, found)


def normalized(loss: ComposedLoss, order: Float[Array, ""]) -> Float[Array, ""]:
    """L(w) of the composed loss, conditioned on finite losses; differentiable."""
    total = jnp.zeros_like(order)
    for term, count in zip(loss.terms, loss.counts, strict=True):
        total = total + count * term.normalized_log_moment(order)
    return total


def largest_finite(
    loss: ComposedLoss | AbstractLoss, sign: ArrayLike
) -> Float[Array, ""]:
    """The essential supremum of the finite part of the loss, in one direction."""
    low, high = loss.loss_range()
    return jnp.where(jnp.asarray(sign) > 0, high, -low)


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
    return jnp.minimum(
        term.log_moment_ceiling(sign), largest_finite(term, sign) / order
    )


def finite_divergence(loss: ComposedLoss, sign: ArrayLike, order: Array) -> Array:
    """D_t of the pair of a direction, conditioned on finite losses."""
    mass = finite_mass(loss, sign)
    limit = jnp.isposinf(order)
    t = jnp.where(limit, 2.0, order)
    value = t * normalized(loss, oriented(sign, t))
    most = largest_finite(loss, sign)
    value = jnp.where(limit, most + mass.included, value)
    # At high orders the outputs that are not looked at may matter.
    unseen = log_unseen(loss, sign, moments=True)
    unseen = unseen + (t - 1) * jnp.where(jnp.isfinite(most), most, 0)
    matters = (unseen > (t - 1) * value - 30) & (t > 1)
    matters = matters | (limit & ~jnp.isneginf(log_unseen(loss, sign)))
    return jnp.where(stop_gradient(matters), jnp.inf, value)


def divergence(loss: ComposedLoss, sign: ArrayLike, order: Array) -> Array:
    """D_t of the pair of a direction."""
    mass = finite_mass(loss, sign)
    certain = mass.included == 0
    # Mass that Q has alone makes the divergence infinite from order 1 on.
    below = order < 1
    odds = order / (1 - jnp.where(below, order, 0.0))
    charge = jnp.where(below, -odds * jnp.where(certain, 0, mass.included), jnp.inf)
    value = finite_divergence(loss, sign, order)
    return value - mass.base + jnp.where(certain, 0.0, charge)
