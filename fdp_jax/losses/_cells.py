"""Losses as masses: of intervals, of points, and of a whole partition."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, ArrayLike, Float

from .._internal._arithmetic import ULP
from .._internal._special import log1mexp, safe_log
from .._internal._tolerances import ATOM_MASS


class Cells(eqx.Module):
    """The part of a loss without point masses, over some intervals."""

    log_mass: Float[Array, " n"]
    """Log P(X in the interval); -inf where that is empty."""
    loss: Float[Array, " n"]
    """Log of Q's mass over P's, inside the interval; any finite number if empty."""
    error: Float[Array, " n"]
    """Bound on the error of either logarithm of a mass, without derivative."""

    @classmethod
    def none(cls, low: Array, high: Array) -> "Cells":
        """The cells of a loss that is nothing but point masses."""
        inside = jnp.clip(jnp.zeros_like(low), low, high)
        return cls(jnp.full_like(low, -jnp.inf), inside, jnp.zeros_like(low))

    def exchanged(self) -> "Cells":
        """The cells of the exchanged pair and the negated intervals."""
        return Cells(self.log_mass + self.loss, -self.loss, self.error)


def exponential_cells(low: Array, high: Array, mu: Array) -> Cells:
    """Cells of the density e^(-(x + mu) / 2) / 2 of the losses between -mu and mu.

    That of Laplace noise, of which that of logistic noise is a multiple.
    """
    low, high = (jnp.clip(x, -mu, mu) for x in (low, high))
    width = high - low
    empty = width <= 0
    safe = jnp.where(empty, 1, width)
    log_mass = log1mexp(0.5 * safe) - 0.5 * (low + mu)
    # The ends are rounded, and logarithms of numbers as small as the width.
    size = (jnp.abs(low) + jnp.abs(high)) / safe - jnp.log(safe)
    error = stop_gradient(8 * ULP * (4 + mu + size))
    return Cells(jnp.where(empty, -jnp.inf, log_mass), low + 0.5 * width, error)


def together(one: Cells, other: Cells) -> Cells:
    """The cells of two parts of one loss, over the same intervals."""
    logs = jnp.stack([one.log_mass, other.log_mass])
    others = logs + jnp.stack([one.loss, other.loss])
    empty = jnp.isneginf(logs)
    log_p, log_q = (jnp.logaddexp(*jnp.where(empty, -1e5, x)) for x in (logs, others))
    neither = jnp.all(empty, axis=0)
    inside = jnp.where(neither, one.loss, log_q - log_p)
    error = jnp.where(empty, 0, jnp.stack([one.error, other.error]))
    return Cells(jnp.where(neither, -jnp.inf, log_p), inside, jnp.max(error, axis=0))


class Atoms(eqx.Module):
    """The finite point masses of a loss."""

    loss: Float[Array, " atoms"]
    log_mass: Float[Array, " atoms"]
    """Log P(X = loss)."""
    error: Float[ArrayLike, ""] = ATOM_MASS
    """Bound on the relative error of any mass, under P or Q."""

    def exchanged(self) -> "Atoms":
        """The atoms of the exchanged pair."""
        return Atoms(-self.loss, self.log_mass + self.loss, self.error)

    @classmethod
    def joined(cls, *parts: "Atoms") -> "Atoms":
        """The atoms of several parts of one loss."""
        return cls(
            jnp.concatenate([x.loss for x in parts]),
            jnp.concatenate([x.log_mass for x in parts]),
            jnp.max(jnp.stack([jnp.asarray(x.error) for x in parts])),
        )


class Partition(eqx.Module):
    """A whole loss as a list of pieces, each between two values of the loss."""

    cells: Cells
    low: Float[Array, " m"]
    high: Float[Array, " m"]

    def moments(
        self, order: Float[Array, " k"]
    ) -> tuple[Float[Array, " k"], Float[Array, " k"], Float[Array, " k"]]:
        """Lambda (an upper bound), and about Lambda' and Lambda''.

        Given the masses of a piece under P and Q, E[(dQ/dP)^w] is largest with all of
        it at the ends where x^w is convex, and at the mean where it is concave.
        """
        middle, spread = self._exponents(order)
        inside = (order[:, None] > 0) & (order[:, None] < 1)
        logs = middle + self.cells.error + jnp.where(inside, 0, spread)
        value = logsumexp(logs, axis=1)
        loss, weight = self.cells.loss, jax.nn.softmax(middle, axis=1)
        mean = weight @ loss
        square = jnp.sum(weight * jnp.square(loss - mean[:, None]), axis=1)
        return value, mean, square

    def log_moment(self, order: Float[Array, ""]) -> Float[Array, ""]:
        """About Lambda: an even density within the pieces has a third of the spread."""
        middle, spread = self._exponents(order[None])
        return logsumexp(middle + jnp.log1p(jnp.expm1(spread) / 3))

    def _exponents(self, order: Float[Array, " k"]) -> tuple[Array, Array]:
        """Log E[(dQ/dP)^w] of every piece all at its mean, and what its ends add."""
        mass, loss, w = self.cells.log_mass, self.cells.loss, order[:, None]
        width = self.high - self.low
        wide = width > 0
        share = jnp.expm1(loss - self.low) / jnp.expm1(jnp.where(wide, width, 1))
        share = jnp.where(wide, jnp.clip(share, 0, 1), 0)
        rise, fall = w * (self.high - loss), w * (self.low - loss)
        return mass + w * loss, _log_mean_exp(share, rise, fall)


def _log_mean_exp(share: Array, rise: Array, fall: Array) -> Array:
    """log(share e^rise + (1 - share) e^fall)."""
    small = jnp.maximum(jnp.abs(rise), jnp.abs(fall)) < 1
    rises, falls = (jnp.expm1(jnp.where(small, x, 0)) for x in (rise, fall))
    near = jnp.log1p(share * rises + (1 - share) * falls)
    far = jnp.logaddexp(safe_log(share) + rise, safe_log(1 - share) + fall)
    return jnp.where(small, near, far)


def partition(edges: Float[Array, " m+1"], cells: Cells, atoms: Atoms) -> Partition:
    """The pieces between edges, and the point masses."""
    join = lambda a, b: jnp.concatenate([a, b])
    exact = Cells(atoms.log_mass, atoms.loss, jnp.zeros_like(atoms.loss))
    return Partition(
        jax.tree.map(join, cells, exact),
        join(edges[:-1], atoms.loss),
        join(edges[1:], atoms.loss),
    )
