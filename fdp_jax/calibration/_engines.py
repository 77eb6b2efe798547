"""Which engines a calibration can ask, whatever the value."""

from .. import engines, mechanisms
from ..losses import ComposedLoss
from ..mechanisms import AbstractMechanism
from .unknowns import Unknown


def has_grid_too(mechanism: AbstractMechanism, unknown: Unknown) -> bool:
    """Whether the spectral engine is the first to answer, but not the only one."""
    loss = _loss_like(mechanism, unknown)
    return engines.route(loss) == "spectral" and loss.on_grid


def by_contour(mechanism: AbstractMechanism, unknown: Unknown) -> bool:
    """Whether queries of it would ask the contour first."""
    steps = (None, None) if unknown.factor else mechanism.known_steps()
    return mechanisms.by_contour(steps, _loss_like(mechanism, unknown))


def can_split(mechanism: AbstractMechanism, unknown: Unknown) -> bool:
    """Whether its law may be split by the largest step, in a larger program."""
    return engines.can_split(_loss_like(mechanism, unknown))


def needs_no_splitting(mechanism: AbstractMechanism, unknown: Unknown) -> bool:
    """Whether that is known, whatever the value."""
    return not unknown.factor and mechanisms.needs_no_splitting(
        mechanism.known_steps(), _loss_like(mechanism, unknown)
    )


def _loss_like(mechanism: AbstractMechanism, unknown: Unknown) -> ComposedLoss:
    """The loss without its numbers, for facts that none of them decides."""
    return mechanisms.loss_like(unknown.filled(mechanism))
