"""How one record takes part in the steps of a run: a law of patterns of 0 and 1.

Of all patterns the columns of a strategy are summed; that is what a record adds to the
releases at worst.  Other records' patterns are independent of it.
"""

from typing import Any

import equinox as eqx

from .._internal._record import Record


class Participation(Record):
    """A law of the steps in which a record takes part, drawn without the data."""


class Separated(Participation):
    """Whoever has taken part waits, then takes part with one probability per step."""

    prob: Any
    """Probability of taking part in a step, if no step before forbids it."""
    min_separation: int = eqx.field(static=True)
    """Least distance of two participations; 1 is Poisson sampling."""
    warm_start: bool = eqx.field(static=True, default=True)
    """Whether the run begins as if it had gone on forever."""
    stride: int = eqx.field(static=True, default=1)
    """Only every so many steps count: the turns of a group of records."""


class Dealt(Participation):
    """One of the batches of every epoch, uniformly."""

    num_batches: int = eqx.field(static=True)
    same_every_epoch: bool = eqx.field(static=True)
