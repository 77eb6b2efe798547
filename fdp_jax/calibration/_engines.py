"""Which engines a calibration can ask, whatever the value."""

from collections.abc import Callable

import jax
import numpy as np

from .. import engines, mechanisms
from ..losses import ComposedLoss
from ..mechanisms import AbstractMechanism
from .unknowns import Unknown


def has_grid_too(mechanism: AbstractMechanism, unknown: Unknown) -> bool:
    """Whether the spectral engine is the first to answer, but not the only one."""

    def look(loss: ComposedLoss) -> bool:
        return engines.route(loss) == "spectral" and loss.on_grid

    return _of_loss(mechanism, unknown, look)


def can_split(mechanism: AbstractMechanism, unknown: Unknown) -> bool:
    """Whether its law may be split by the largest step, in a larger program."""
    return _of_loss(mechanism, unknown, engines.can_split)


def needs_no_splitting(mechanism: AbstractMechanism, unknown: Unknown) -> bool:
    """Whether that is known, whatever the value."""
    look = lambda loss: mechanisms.needs_no_splitting(mechanism, loss)
    return not unknown.factor and _of_loss(mechanism, unknown, look)


def _of_loss(
    mechanism: AbstractMechanism,
    unknown: Unknown,
    look: Callable[[ComposedLoss], bool],
) -> bool:
    """A fact about the loss that no number decides."""
    start = np.float64(1.0 if unknown.factor else unknown.start)
    seen = []
    with jax.enable_x64(True):
        jax.eval_shape(lambda: seen.append(look(unknown.put(mechanism, start).loss())))
    return seen[0]
