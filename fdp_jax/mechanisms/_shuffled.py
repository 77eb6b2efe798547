"""Reports of local randomizers that a trusted party shuffles."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Real

from .._internal import _checks
from .._internal._concrete import is_traced
from .._internal._precision import in_float64
from .._internal._record import described
from ..losses import (
    AttainedOnce,
    ComposedLoss,
    ResponsesOnce,
    ShuffledLoss,
    ShuffledOnce,
)
from ._base import AbstractMechanism, one_release, require_mechanism
from ._black_box import ApproxDP, PerfectPrivacy, PureDP
from ._discrete import KaryRandomizedResponse, RandomizedResponse
from ._fields import Search, as_float, parameter
from ._relations import REPLACE_ONE, NeighboringRelation

_RECORDS = Search(-1, 1.0, 1e12, 1e4, counts=True)
_RESPONSES = RandomizedResponse, KaryRandomizedResponse
_NAMED = (*_RESPONSES, PureDP, PerfectPrivacy)
"""Randomizers that are pure, whatever their numbers."""


_records = _checks.numbers_that_are(
    "a whole number in [1, 1e12]",
    lambda x: (x >= 1) & (x <= 1e12) & (x == x.round()),
)


class Shuffled(AbstractMechanism):
    """Reports of n records, each by its own run of a local randomizer, in random order.

    Only the multiset of the reports is released.  The randomizer must have a pure
    epsilon for replacing its record.

    Any randomizer: every other report is, with probability e^-epsilon, that of the
    record in question with either of its two values, by a fair coin.  Randomized
    response, with any number of categories: with probability 2 / (e^epsilon + 1).  The
    pair is that of the coins ("clones").  The first form also holds where shuffled
    records are asked one after the other, by randomizers that earlier reports choose.
    The second one is for randomized response alone: its theorem for all randomizers was
    withdrawn by the second reference's erratum.  One round of responses of three
    categories or more has the smaller bound of its blanket: every other report is, with
    probability k / (e^epsilon + k - 1), one of all k categories at random.

    The other end of `bounds` is what one round of responses of three categories or more
    does leak by two of their counts, if all other records are of a third one: the exact
    delta of that.  `PureDP` allows such responses, too.  Elsewhere it is the trivial
    end.  Rounds of fresh reports, `repeat`, compose finitely many losses that dominate,
    by clones; so does either direction by itself.
    Differentiable in the randomizer's numbers; num_records has derivative zero.

    Args:
        randomizer: The mechanism that every record is reported by, such as
            RandomizedResponse(1.0), PureDP(1.0, relation="replace_one") or Laplace
            noise on a bounded number.
        num_records: n, a whole number of at least 1, up to 1e12.

    Raises:
        ValueError: If num_records is no such number, or the randomizer's guarantee is
            for another relation than REPLACE_ONE.
        TypeError: If randomizer is no mechanism, or has no pure epsilon.

    Example:
        >>> import fdp_jax as fdp
        >>> reports = fdp.Shuffled(fdp.RandomizedResponse(4.0), num_records=100_000)
        >>> print(f"{reports.epsilon(delta=1e-6):.5f}")
        0.11815

    References:
        Feldman, McMillan, Talwar (2021), arXiv:2012.12803, Theorem 3.1; and (2023),
        arXiv:2208.04591, with its erratum.  Balle, Bell, Gascon, Nissim (2019),
        arXiv:1903.02837, Lemma 5.3, for the blanket.
    """

    randomizer: AbstractMechanism
    num_records: Real[ArrayLike, ""] | None = parameter(
        "num_records", _records, _RECORDS, default=None, kw_only=True
    )
    relation: ClassVar[NeighboringRelation] = REPLACE_ONE

    def __check_init__(self):
        randomizer = require_mechanism("randomizer", self.randomizer)
        _checks.require(
            randomizer.relation is REPLACE_ONE,
            "randomizer must have its guarantee for replacing its "
            "record, relation='replace_one'",
            NeighboringRelation(randomizer.relation).name,
        )
        known = isinstance(randomizer, _NAMED) or is_traced(randomizer)
        _checks.require(
            known or (not isinstance(randomizer, ApproxDP) and _is_pure(randomizer)),
            "randomizer must have a pure epsilon (a bounded privacy loss)",
            described(randomizer),
            TypeError,
        )

    def alone(self, way: str) -> AbstractMechanism:
        if way != "both":
            return self
        return _Once.unchecked(randomizer=self.randomizer, num_records=self.num_records)

    def attained(self) -> AbstractMechanism | None:
        return PerfectPrivacy(relation=REPLACE_ONE)

    def loss(self) -> ComposedLoss:
        return one_release(ShuffledLoss.of(*self._numbers()))

    def _numbers(self) -> tuple[Array, Array, Array]:
        """The pure epsilon, the number of records, and the probability of a clone."""
        epsilon = _pure_epsilon(self.randomizer)
        responds = isinstance(self.randomizer, _RESPONSES)
        clone = 2 * jax.nn.sigmoid(-epsilon) if responds else jnp.exp(-epsilon)
        return epsilon, as_float(self.num_records), clone


class _Once(Shuffled):
    """A single round, both of whose directions are asked about together."""

    def attained(self) -> AbstractMechanism | None:
        if not (isinstance(self.randomizer, PureDP) or self._categories() > 2):
            return super().attained()
        return _Attained.unchecked(
            randomizer=self.randomizer, num_records=self.num_records
        )

    def _categories(self) -> int:
        """The number of categories, of randomized response."""
        return getattr(self.randomizer, "num_categories", 2)

    def loss(self) -> ComposedLoss:
        numbers, k = self._numbers(), self._categories()
        if k == 2:
            return one_release(ShuffledOnce(*numbers))
        return one_release(ResponsesOnce(*numbers, as_float(k)))


class _Attained(_Once):
    """Responses of at least three categories, all but one of them of a third one."""

    def alone(self, way: str) -> AbstractMechanism:
        return self

    def attained(self) -> AbstractMechanism | None:
        return None

    def loss(self) -> ComposedLoss:
        k = as_float(max(self._categories(), 3))
        return one_release(AttainedOnce(*self._numbers(), k))


def _pure_epsilon(randomizer: AbstractMechanism) -> Float[Array, ""]:
    """The largest size of the randomizer's loss."""
    if isinstance(randomizer, (*_RESPONSES, PureDP)):
        return as_float(randomizer.epsilon0)
    loss = randomizer.loss()
    low, high = loss.loss_range()
    never = [jnp.isneginf(loss.log_infinite_mass(jnp.asarray(x))) for x in (1.0, -1.0)]
    finite = jnp.all(jnp.stack(never))
    return jnp.where(finite, jnp.maximum(-low, high), jnp.inf)


def _is_pure(randomizer: AbstractMechanism) -> bool:
    try:
        randomizer.require_complete()
    except ValueError:
        return True  # a number that `calibrate` is to find
    return bool(jnp.isfinite(_known_epsilon(randomizer)))


@in_float64(cast_out=False)
def _known_epsilon(randomizer: AbstractMechanism) -> Array:
    return _pure_epsilon(randomizer)
