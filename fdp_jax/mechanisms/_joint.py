"""What releases of a run share with later ones, and when they may be composed.

Composition is of independent releases.  Whoever enters a run piece by piece means one
run that goes on, and cannot be told from whoever means several runs: what is composed
here has to bound both, or is refused.
"""

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax

from ._fields import as_known, identity
from ._sampling import Sampling

if TYPE_CHECKING:
    from ._base import AbstractMechanism
    from ._renyi import AbstractRenyi


class Shared(enum.Enum):
    """Parts that later releases of a run may have in common with earlier ones."""

    SAME_BATCH = "a record keeps its batch in all epochs"
    """Runs add up to one; see `SameBatchEpochs`."""
    BEGUN_EPOCH = "the next steps may belong to an epoch that was begun"
    """Pieces of a run of n_1, n_2, ... steps are ceil(n_i / t) epochs each, and so at
    least as many as the run has, if it has the same settings all along.  Steps with
    other settings may begin in the middle of an epoch, and reach into one more."""
    WAITING = "a record that took part has to wait"
    NOISE = "the noise is correlated from step to step"


_WAYS_OUT = {
    Shared.SAME_BATCH: "enter the whole run once, with all its num_steps",
    Shared.BEGUN_EPOCH: (
        "make num_steps whole epochs, multiples of num_batches (rounded up, they have "
        "the same bound)"
    ),
    Shared.WAITING: "enter the whole run once, with all its num_steps",
    Shared.NOISE: (
        "enter the whole run once, with all its num_steps; for runs with noise of "
        "their own, compose Gaussian mechanisms of the noise over their sensitivity()"
    ),
}


def require_joint(
    parts: Sequence["AbstractMechanism"], counts: Sequence[Any], *, joins: bool = True
) -> None:
    """Raises an error where composing these is not known to bound a run that goes on.

    It looks at the structure, and at numbers as far as they are known.

    Args:
        parts: What is composed.
        counts: How often each; None if that is open.
        joins: Whether what keeps its batches is put together, as a composition does.

    Raises:
        ValueError: With what they share, and the way out.
    """
    shared = [part.shares() for part in parts]
    for what in Shared:
        having = [i for i, found in enumerate(shared) if what in found]
        once = len(having) == 1 and _is_at_most_one(counts[having[0]])
        if what is Shared.BEGUN_EPOCH:
            fine = not having or _have_one_setting(parts)
        elif what is Shared.SAME_BATCH and joins:
            fine = once or all(_can_be_joined(parts[i]) for i in having)
        else:
            fine = not having or once
        if not fine:
            raise_shared(parts[having[0]], what)


def require_alone(
    parts: Sequence["AbstractMechanism | AbstractRenyi"],
    counts: Sequence[Any],
    *,
    after_one: bool = False,
) -> None:
    """Raises an error where one more than a single part, once, shares randomness.

    For what does not tell what a run that goes on would be, as numbers do not.

    Args:
        parts: What is composed.
        counts: How often each.
        after_one: Whether one that shares was there before these.

    Raises:
        ValueError: With what they share, and the way out.
    """
    having = [i for i, part in enumerate(parts) if part.shares()]
    for i in having:
        # Whatever comes later may reach into an epoch that was begun.
        if Shared.BEGUN_EPOCH in parts[i].shares():
            raise_shared(parts[i], Shared.BEGUN_EPOCH)
    once = len(having) == 1 and _is_at_most_one(counts[having[0]])
    if having and (after_one or not once):
        raise_shared(parts[having[0]])


def raise_shared(
    part: "AbstractMechanism | AbstractRenyi",
    what: Shared | None = None,
    way_out: str | None = None,
) -> NoReturn:
    """The error where releases would have to be independent."""
    what = what or next(found for found in Shared if found in part.shares())
    way_out = way_out or _WAYS_OUT[what]
    raise ValueError(
        "releases must be independent of earlier ones to be composed here, got "
        f"{type(part).__name__}, of which {what.value}: {way_out}"
    )


def _is_at_most_one(count: Any) -> bool:
    number = as_known(count)
    return number is not None and number <= 1


def _can_be_joined(part: "AbstractMechanism") -> bool:
    """Whether all in it that keeps its batches is a step of its own."""
    from ._random_allocation import SameBatchEpochs

    return all(
        isinstance(step, SameBatchEpochs)
        for step, _ in part.as_steps()
        if Shared.SAME_BATCH in step.shares()
    )


def _have_one_setting(parts: Sequence["AbstractMechanism"]) -> bool:
    """Whether all epochs of random allocation are of one kind, with known numbers."""
    found = set()
    for part in parts:
        if Sampling.RANDOM_ALLOCATION in part.samplings():
            found |= {_settings(step) for step, _ in part.as_steps()}
    return len(found - {None}) <= 1


def _settings(step: "AbstractMechanism") -> Any:
    """Settings that equal epochs share; None if it is no epoch that deals anew."""
    from ._random_allocation import BegunEpoch

    deals = Sampling.RANDOM_ALLOCATION in step.samplings()
    if not deals or Shared.SAME_BATCH in step.shares():
        return None
    epoch = step.epoch if isinstance(step, BegunEpoch) else step
    # An open number is equal to no other one.
    numbers = jax.tree.leaves(epoch, is_leaf=lambda x: x is None)
    return object() if any(x is None for x in numbers) else identity(epoch)
