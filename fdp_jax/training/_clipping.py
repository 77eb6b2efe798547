"""How one record's gradient is bounded before it enters a sum."""

import abc
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Real

from .._internal import _checks
from .._internal._record import Record
from .._internal._tolerances import CLIPPED_LENGTH
from ..mechanisms import as_number
from ._exact import Whole, length, normal

_LESS = 1 - CLIPPED_LENGTH
"""Of the stated norm, for the rounding of factors and of products with them."""
_LEAST, _MOST = 2.0**-40, 2.0**40


clipping_norm = _checks.numbers_that_are(
    "in [2^-40, 2^40], about 1e-12 to 1e12", lambda x: (x >= _LEAST) & (x <= _MOST)
)
"""The check of a norm, for which the unit of sums is a normal number in float32.

What is small beside it cannot be lost beside the stabilizer of `AutomaticClipping`.
"""


class AbstractClipping(Record):
    """A rule by which one record's gradient is bounded.

    An empty record contributes nothing: not to the sum, and not to the numbers of
    gradients that were left as they were or scaled down.  A record whose gradient is
    zero, or not finite, is such a record, so that zeroing one out moves the numbers
    together by 1/2, like adding or removing it.
    """

    @abc.abstractmethod
    def start(self) -> Array:
        """The norm that a run begins with."""

    @abc.abstractmethod
    def factors(
        self, lengths: Float[Array, " leaves"], norm: Array
    ) -> tuple[Float[Array, "..."], Array]:
        """The factor of one record's gradient, and whether it is 1.

        Args:
            lengths: Euclidean lengths of the arrays that the gradient consists of, or
                a little more.
            norm: The present norm.

        Returns:
            One factor for all arrays, or one for each of them; and a flag.
        """

    def sensitivity(self, norm: Any, leaves: int) -> Any:
        """The distance that one record moves the sum, in the Euclidean norm.

        Args:
            norm: The present norm.
            leaves: Arrays that a gradient consists of.
        """
        return norm

    def noise_factor(self, noise_multiplier: Any) -> Any:
        """The factor of the gradients' noise that pays for what else is told.

        What else a step tells of its records must have noise of its own, independent
        in every step.

        Args:
            noise_multiplier: Standard deviation of the noise of a step's sum, given all
                earlier ones, over how far one record moves the sum.
        """
        return 1.0

    def next_norm(self, norm: Array, key: Array, excess: Array, size: Any) -> Array:
        """The norm of the next step, in [2^-40, 2^40].

        Args:
            norm: The present norm.
            key: For noise.
            excess: Number of records whose gradient was left as it was, minus the
                number of those whose gradient was scaled down: a whole number, which
                one record moves by 1.
            size: The expected number of records.
        """
        return norm


class FlatClipping(AbstractClipping):
    """The whole gradient is scaled down to a norm if it is longer.

    Args:
        norm: The clipping norm, in [2^-40, 2^40].

    Raises:
        ValueError: If it is no such number.

    References:
        Abadi et al. (2016), Algorithm 1.
    """

    norm: Real[ArrayLike, ""] = _checks.field("norm", clipping_norm)

    def start(self):
        return jnp.asarray(self.norm, jnp.float32)

    def factors(self, lengths, norm):
        return _scaled_down(length(lengths / norm))


class PerLayerClipping(FlatClipping):
    """Each array of the gradient is scaled down to a norm of its own, the same for all.

    Args:
        norm: The clipping norm of one array, in [2^-40, 2^40]; of L arrays together it
            is sqrt(L) times as much.

    Raises:
        ValueError: If it is no such number.

    References:
        McMahan et al. (2018), arXiv:1710.06963, Section 2.3.
    """

    def factors(self, lengths, norm):
        found, kept = _scaled_down(lengths / norm)
        return found, kept.all()

    def sensitivity(self, norm, leaves):
        return norm * math.sqrt(leaves)


class AutomaticClipping(AbstractClipping):
    """Every gradient is divided by its own length: there is no norm to tune.

    Args:
        stabilizer: Added to the length, so that short gradients stay shorter; in
            [2^-40, 2^40].

    Raises:
        ValueError: If it is no such number.

    References:
        Bu et al. (2022), arXiv:2206.07136, AUTO-S.
    """

    stabilizer: Real[ArrayLike, ""] = _checks.field(
        "stabilizer", clipping_norm, default=0.01
    )

    def start(self):
        return jnp.ones((), jnp.float32)

    def factors(self, lengths, norm):
        least = jnp.asarray(as_number(self.stabilizer), lengths.dtype)
        factor = norm * _LESS / (length(lengths) + least)
        return factor, jnp.zeros((), bool)


class AdaptiveClipping(FlatClipping):
    """A norm that follows a quantile of the gradients' lengths.

    Each step also tells, with noise, how many gradients were no longer than the norm,
    minus half the number of all: one record moves that by 1/2.  The gradients get so
    much more noise that both together leak what the mechanism states:
    1 / z^2 = 1 / z'^2 + 1 / (2 c count_noise)^2.  Here c is 1, or for a
    `MatrixMechanism` the first entry of its strategy, which is by what a record moves
    the first of its steps.  (With k participations in the first n steps, of which the
    record moves C x by s_n, the square of mu is s_n^2 / z'^2 + k / (2 count_noise)^2,
    and s_n^2 is at least k c^2, since every column has the entry c: it is at most
    s_n^2 / z^2.  For n = 1 it is just that, so that no less noise would do.)

    Args:
        norm: The norm of the first step, in [2^-40, 2^40], where it also stays.
        quantile: Share of gradients that are to be left as they are, in (0, 1).
        count_noise: Standard deviation of the noise on that number of records, more
            than half the noise multiplier, over c.
        learning_rate: By how much the norm follows, in (0, inf): it is multiplied by
            exp(-learning_rate (share - quantile)).

    Raises:
        ValueError: If a number is out of range.

    References:
        Andrew et al. (2021), arXiv:1905.03871, Algorithm 1 and Theorem 1.
    """

    quantile: Real[ArrayLike, ""] = _checks.field(
        "quantile", _checks.open_share, default=0.5, kw_only=True
    )
    count_noise: Real[ArrayLike, ""] = _checks.field(
        "count_noise", _checks.finite_positive, kw_only=True
    )
    learning_rate: Real[ArrayLike, ""] = _checks.field(
        "learning_rate", _checks.finite_positive, default=0.2, kw_only=True
    )

    def noise_factor(self, noise_multiplier):
        half = float(as_number(noise_multiplier)) / 2
        ratio = half / float(as_number(self.count_noise))
        _checks.require(
            ratio < 1,
            f"count_noise must be more than half the noise multiplier, {half:g}",
            f"{self.count_noise:g}",
        )
        return 1 / math.sqrt((1 - ratio) * (1 + ratio)) * (1 + 1e-15)

    def next_norm(self, norm, key, excess, size):
        # In halves of a record, exact however many records there are.
        drawn, blurred = jax.random.split(key)
        noise = 2 * as_number(self.count_noise) * normal(drawn, (), norm.dtype)
        halves = Whole.of_integers(excess).with_noise(blurred, noise)
        below = halves.value(norm.dtype) / 2 / size + 0.5
        missed = below - as_number(self.quantile)
        moved = norm * jnp.exp(-as_number(self.learning_rate) * missed)
        moved = jnp.where(jnp.isnan(moved), norm, moved)
        return jnp.clip(moved, _LEAST, _MOST).astype(norm.dtype)


def _scaled_down(length: Array) -> tuple[Array, Array]:
    """The factor for a length over the norm, and whether it is 1."""
    kept = length <= _LESS
    return jnp.where(kept, 1.0, _LESS / jnp.where(kept, 1.0, length)), kept
