"""How records are drawn for the steps of a run: what a guarantee assumes."""

import enum
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import equinox as eqx
from jaxtyping import Array, Bool

from .._internal import _checks
from .._internal._record import Record
from ._fields import Declared
from ._relations import NeighboringRelation

if TYPE_CHECKING:
    from ._base import AbstractMechanism
    from ._joint import Shared


class Sampling(enum.Enum):
    """A scheme by which records enter steps, as reports state it."""

    POISSON = "Poisson sampling"
    """Every record enters every step with one probability, independently."""
    FIXED_SIZE = "fixed-size batches without replacement"
    """Every step draws a batch of a fixed size, uniformly and anew."""
    WITH_REPLACEMENT = "batches drawn with replacement"
    """Every place of a batch is drawn from all records, uniformly and anew."""
    TRUNCATED_POISSON = "truncated Poisson sampling"
    """Poisson sampling, of which no more than a largest batch is kept."""
    RANDOM_ALLOCATION = "random allocation to batches"
    """Every record is dealt into one batch of an epoch, uniformly, independently."""
    CYCLIC_POISSON = "cyclic Poisson sampling"
    """Fixed groups of records take turns, each sampled by Poisson."""
    SHUFFLED = "shuffled epochs"
    """The batches of an epoch are a random partition into equal parts."""
    USERS = "Poisson sampling of users"
    """Whole users are sampled, and what one contributes to a step is clipped."""
    MIN_SEPARATION = "sampling with a least separation"
    """Whoever takes part waits some steps, then is drawn with one probability each."""
    EXAMPLES = "Poisson sampling of a user's examples"
    """Examples are sampled, and the guarantee is for all examples of a user."""

    @property
    def caveat(self) -> str:
        """Limits of a guarantee that assumes the scheme."""
        return _CAVEATS[self]


_NOT_POISSON = (
    "Shuffled or fixed-size batches are not Poisson sampling: for these\n"
    "the numbers above are no proven guarantee."
)
_CAVEATS = {
    Sampling.POISSON: _NOT_POISSON,
    Sampling.FIXED_SIZE: (
        "Each step must draw its batch anew: batches that share out an epoch\n"
        "are another scheme, for which these numbers are no proven guarantee."
    ),
    Sampling.WITH_REPLACEMENT: (
        "A record that is drawn several times counts as often in the batch's sum, and\n"
        "the sizes of batch and data must not depend on the data."
    ),
    Sampling.TRUNCATED_POISSON: (
        "The batch kept of a larger sample must be a uniformly random one, and\n"
        "the number of records, the rate and the cap must not depend on the data."
    ),
    Sampling.RANDOM_ALLOCATION: (
        "Every record must draw its batch independently of all others: batches of\n"
        "equal size, as shuffling makes them, are another scheme."
    ),
    Sampling.CYCLIC_POISSON: (
        "The groups must not depend on the data (a replaced record's stand-in is in\n"
        "its group), and every record of the group whose turn it is must be drawn\n"
        "independently."
    ),
    Sampling.SHUFFLED: (
        "Nothing is claimed for the shuffling: the guarantee is that of every\n"
        "record taking part once in an epoch, in a step known to the attacker."
    ),
    Sampling.USERS: (
        "What one user contributes to a step, from however many records, must\n"
        "be clipped as a whole."
    ),
    Sampling.MIN_SEPARATION: (
        "Every record must be drawn independently of all others, without looking at\n"
        "the data: batches of equal size are another scheme."
    ),
    Sampling.EXAMPLES: (
        "No user may have more examples than stated, each clipped and drawn\n"
        "independently."
    ),
}


class AbstractSampling(Declared, Record):
    """A scheme with its numbers: what makes a run out of noisy releases.

    Schemes go wherever `sampling_prob` goes.  Their numbers are leaves, which may be
    traced, differentiated and, where they are left out, found by `calibrate`.
    """

    _room: ClassVar[str] = "sampling."

    if TYPE_CHECKING:  # a field of this class would come before all others
        scheme: ClassVar[Any]
        """Its `Sampling`."""
        shared: ClassVar[Any]
        """What `shares` says of it, as far as that does not depend on numbers."""
    else:
        shared: eqx.AbstractClassVar[Any]
    draws_independently: ClassVar[bool] = False
    """Whether records enter steps independently of each other and of their number."""
    refused: ClassVar[dict[NeighboringRelation, str]] = {}
    """Relations for which it has no guarantee, each with the reason."""
    _gaussian_alone: ClassVar[str] = ""
    """Why releases must be Gaussian, of a scheme with no theorem for others."""
    in_place_of_it: ClassVar[str] = ""
    """What to draw with instead, of a scheme without sampler."""

    def run(self, release: "AbstractMechanism", num_steps: Any) -> "AbstractMechanism":
        """A mechanism that dominates so many releases, of batches drawn like this.

        Nothing is checked here: it is called inside of programs.

        Args:
            release: What is done with a batch, as if every record were in it.
            num_steps: How many steps there are.
        """
        from ._composed import Composition

        step = self._step(release)
        return Composition.unchecked(parts=(step,), num_steps=(num_steps,))

    def _step(self, release: "AbstractMechanism") -> "AbstractMechanism":
        """One step, of which a run is so many, each drawn anew."""
        raise NotImplementedError

    def shares(self, num_steps: Any) -> "frozenset[Shared]":
        """Parts that later steps may share with so many; see `AbstractMechanism`.

        Nothing, if so many steps and, whatever came before, so many more of them (or of
        a run that is begun anew) leak at most what two independent runs do.

        Args:
            num_steps: How many there are, which may be open or traced.
        """
        return self.shared

    def require_release(self, release: "AbstractMechanism") -> None:
        """Raises an error if there is no theorem for a release.

        Raises:
            TypeError: If it is a composition.
            ValueError: If there is none for its neighboring relation, or its releases
                are not independent.
        """
        from ._additive import Gaussian
        from ._joint import raise_shared

        _checks.require(
            release.releases_once(),
            "mechanism must be a single release",
            f"{type(release).__name__}: sample each step, then repeat",
            TypeError,
        )
        _checks.require(
            not self._gaussian_alone or isinstance(release, Gaussian),
            f"mechanism must be Gaussian {self._gaussian_alone}",
            type(release).__name__,
            TypeError,
        )
        if release.shares():
            raise_shared(release)
        reason = self.refused.get(release.relation)
        if reason is not None:
            allowed = [r.name for r in NeighboringRelation if r not in self.refused]
            raise ValueError(
                f"relation must be {' or '.join(allowed)} for "
                f"{type(self).__name__}, got {release.relation.name}: {reason}"
            )

    def participants(
        self, key: Array, step: Any, *, num_records: int
    ) -> Bool[Array, " n"]:
        """Which records enter a step: the draw that the guarantee is for.

        Args:
            key: One random key (`jax.random.key`) for the whole run.
            step: Number of the step, from 0.
            num_records: Number of records, by their places in the data set.

        Returns:
            A mask, a function of these arguments alone.

        Raises:
            ValueError: If the number of records does not fit the scheme.
            TypeError: If there is no sampler for the scheme.
        """
        raise TypeError(f"there is no sampler for {self!r}{self.in_place_of_it}")

    def memory(self, num_records: int) -> Any:
        """The memory of draws for earlier steps, before the first one.

        Args:
            num_records: Number of records.

        Returns:
            A PyTree for `next_participants`; none where a draw needs no memory.
        """

    def next_participants(
        self, key: Array, step: Any, memory: Any, *, num_records: int
    ) -> tuple[Bool[Array, " n"], Any]:
        """The answer of `participants`, for steps that are asked for in order.

        Args:
            key: One random key for the whole run.
            step: Number of the step: one more than in the call before.
            memory: What that call returned, or `memory` before the first one.
            num_records: Number of records.

        Returns:
            The mask, and the memory for the next step.
        """
        return self.participants(key, step, num_records=num_records), memory

    def expected_size(self, num_records: int) -> Any:
        """The expected number of records of a step, which does not tell the data.

        Args:
            num_records: Number of records.
        """
        raise TypeError(f"there is no sampler for {self!r}{self.in_place_of_it}")

    def one_round(self) -> Any:
        """The number of steps after which the scheme starts again."""
        return 1.0

    def num_groups_known(self) -> float | None:
        """Number of groups of records that take turns, if that is fixed and known."""

    def participation(self, num_steps: int) -> Any:
        """The law of the steps in which a record takes part; see `sampling`.

        It is what Monte Carlo accounting draws from: each record's participation must
        be independent of the data and of all other records'.

        Args:
            num_steps: How many steps there are.

        Raises:
            TypeError: If participations are not of that kind.
            ValueError: If a number that sets a shape is traced.
        """
        raise TypeError(
            "sampling must be MinSeparation, Poisson, CyclicPoisson or "
            f"RandomAllocation for Monte Carlo accounting, got {self!r}"
        )

    def takes_fractions(self, release: "AbstractMechanism") -> bool:
        """Whether the number of steps may be any real number."""
        return False


def raise_not_proved(scheme: AbstractSampling) -> NoReturn:
    """The error where no bound by proof is known for a scheme."""
    raise ValueError(
        f"sampling must have a proved pair for this query, got {scheme!r}: ask "
        "fdp_jax.monte_carlo(mechanism, key), whose bounds hold with a stated "
        "probability, or leave out sampling and give MatrixMechanism the "
        "min_separation and max_participations of a record, without amplification"
    )
