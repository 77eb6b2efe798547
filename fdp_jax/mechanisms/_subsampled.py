"""Any release, of batches that are drawn by any scheme."""

import abc
from typing import TYPE_CHECKING, Any, ClassVar

from jaxtyping import ArrayLike, Real

from .._internal import _checks
from .._internal._record import described, sketch
from ..losses import ComposedLoss
from ._base import AbstractMechanism, AbstractWrapped, require_mechanism
from ._fields import STEPS, parameter
from ._joint import Shared
from ._sampling import AbstractSampling, Sampling


class AbstractRun(AbstractMechanism):
    """Releases of batches that a scheme draws: the run that it makes of them."""

    _one_release: ClassVar = False

    if TYPE_CHECKING:  # fields of this class would come before all others
        sampling: ClassVar[Any]
        """The scheme."""
        num_steps: ClassVar[Any]
        """The number of releases."""

    @abc.abstractmethod
    def _release(self) -> AbstractMechanism:
        """The release, as if the batch were all records."""

    def _run(self) -> AbstractMechanism:
        return self.sampling.run(self._release(), self.num_steps)

    def takes_fractions(self, index: int = 0) -> bool:
        return self.sampling.takes_fractions(self._release())

    def known_steps(self) -> tuple[float | None, float | None]:
        return self._run().known_steps()

    def shares(self) -> frozenset[Shared]:
        return self.sampling.shares(self.num_steps)

    def as_steps(self) -> tuple[tuple[AbstractMechanism, Any], ...]:
        return self._run().as_steps()

    def attained(self) -> AbstractMechanism | None:
        return self._run().attained()

    def simplified(self) -> AbstractMechanism:
        return self._run().simplified()

    def loss(self) -> ComposedLoss:
        return self._run().loss()

    def _group(self, size):
        return self._run().group(size)


class Subsampled(AbstractRun, AbstractWrapped):
    """A mechanism run on batches that a sampling scheme draws.

    Args:
        mechanism: What is run on a batch: a single release, whose guarantee must hold
            for every batch.
        sampling: One of the schemes of `fdp_jax.sampling`.
        num_steps: Number of steps, whole but for Poisson sampling of Gaussians; one
            round of the scheme by default, that is one step or, where batches share
            out an epoch, one epoch.

    Raises:
        TypeError: If an argument is of another kind, or the mechanism is a composition.
        ValueError: If the scheme has no guarantee for the mechanism's relation.

    Example:
        >>> import fdp_jax as fdp
        >>> step = fdp.Subsampled(fdp.Laplace(1.0), fdp.sampling.Poisson(0.1))
        >>> print(f"{step.epsilon(delta=0.0):.6f}")
        0.158565
    """

    mechanism: AbstractMechanism
    sampling: AbstractSampling
    num_steps: Real[ArrayLike, ""] = parameter("num_steps", _checks.nonnegative, STEPS)

    def __init__(self, mechanism: Any, sampling: Any, num_steps: Any = None):
        self.mechanism = require_mechanism("mechanism", mechanism)
        self.sampling = require_sampling(sampling)
        sampling.require_release(mechanism)
        self.num_steps = sampling.one_round() if num_steps is None else num_steps

    def __check_init__(self):
        if not self.takes_fractions():
            _checks.count("num_steps", self.num_steps)

    def _release(self):
        return self.mechanism

    @property
    def _scheme(self) -> Sampling:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.sampling.scheme


def require_sampling(value: Any) -> AbstractSampling:
    """The scheme, if it is one.

    Raises:
        TypeError: If it is not.
    """
    if not isinstance(value, AbstractSampling):
        hint = f": make one, {sketch(value)}" if isinstance(value, type) else ""
        raise TypeError(
            "sampling must be a scheme of fdp_jax.sampling, such as Poisson(0.01), "
            f"got {described(value)}{hint}"
        )
    return value
