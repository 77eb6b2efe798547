"""An accountant for Opacus, under the name "fdp"."""

import functools
from collections.abc import Iterator
from typing import Any

from .._internal import _checks
from .._internal._calls import explained
from ..mechanisms import (
    ADD_OR_REMOVE_ONE,
    AbstractMechanism,
    BlatantNonPrivacy,
    Gaussian,
    PoissonSubsampled,
)
from ._library import library, public
from ._steps import Step, Steps, whole

_NAME = "fdp"
_OPEN = BlatantNonPrivacy()


@functools.cache
def opacus_accountant_class() -> type:
    """`OpacusAccountant`, an `opacus.accountants.IAccountant` that answers by fdp_jax.

    It has the methods of Opacus's own accountants: `step(noise_multiplier=,
    sample_rate=)`, `get_epsilon(delta)`, `state_dict`, `load_state_dict`,
    `get_optimizer_hook_fn`, and their `history`, a list of (noise multiplier, sample
    rate, number of steps).  A step is taken as Opacus's are: a Poisson sample with that
    rate, noise on the sum of gradients whose standard deviation is the noise multiplier
    times the clipping norm, and neighbors that differ by one record added or removed.
    For a loader without Poisson sampling (`poisson_sampling=False`) the number says
    nothing, as of their other accountants.

    Returns:
        The class, which `fdp_jax.interop.OpacusAccountant` is too.

    Raises:
        ImportError: If opacus is not installed.

    Example:
        ::

            accountant = fdp.interop.OpacusAccountant()
            for _ in range(1000):
                accountant.step(noise_multiplier=1.1, sample_rate=0.01)
            accountant.get_epsilon(delta=1e-5)  # 1.5154
            accountant.guarantee.beta(alpha=0.1)  # 0.8209
    """
    theirs = library("OpacusAccountant", "opacus.accountants").IAccountant

    class OpacusAccountant(theirs):
        """Accounts for a training with Opacus by fdp_jax's certified upper bounds."""

        def __init__(self):
            super().__init__()

        def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
            """Takes one more step.

            Args:
                noise_multiplier: Standard deviation of the noise on the sum of
                    gradients, in units of the clipping norm, at least 0.
                sample_rate: Probability of each record to be in the batch, in [0, 1].
            """
            _checks.nonnegative("noise_multiplier", noise_multiplier)
            _checks.probability("sample_rate", sample_rate)
            last = tuple(self.history[-1]) if self.history else (None, None, 0)
            if last[:2] == (noise_multiplier, sample_rate):
                self.history.pop()
            else:
                last = (noise_multiplier, sample_rate, 0)
            self.history.append((noise_multiplier, sample_rate, last[2] + 1))

        def get_epsilon(self, delta: float, *args: Any, **options: Any) -> float:
            """An upper bound of epsilon, at least 0.

            Args:
                delta: In [0, 1].
                *args: Options of other accountants, which have no effect: nothing needs
                    to be set here.
                **options: The same.

            Returns:
                The epsilon of the whole composition at once; inf if a step had no
                noise.
            """
            return max(float(self.guarantee.epsilon(delta=delta)), 0.0)

        @property
        def guarantee(self) -> AbstractMechanism:
            """The mechanism that all steps so far are together, with all queries."""
            steps = Steps(ADD_OR_REMOVE_ONE)
            steps.add(x for entry in self.history for x in _steps(*entry))
            return steps.mechanism()

        def __len__(self) -> int:
            """The number of optimization steps that were taken."""
            return sum(count for _, _, count in self.history)

        @classmethod
        def mechanism(cls) -> str:
            """The name under which Opacus knows it."""
            return _NAME

        def load_state_dict(self, state_dict: Any) -> None:
            """Takes over what `state_dict` of this kind of accountant wrote.

            Raises:
                ValueError: If it is empty, or of another kind of accountant.  Their
                    histories mean the same: `accountant.history = other.history`.
            """
            super().load_state_dict(state_dict)
            self.history = [tuple(entry) for entry in self.history]

    return public(OpacusAccountant, "OpacusAccountant")


@explained
def register_with_opacus() -> None:
    """Makes `PrivacyEngine(accountant="fdp")` account by fdp_jax.

    After that "fdp" is a name like "prv" and "rdp" wherever Opacus takes one, also in
    `make_private_with_epsilon` and `opacus.accountants.utils.get_noise_multiplier`, and
    epsilon is a certified upper bound; see `opacus_accountant_class`.  A second call
    changes nothing.

    Raises:
        ImportError: If opacus is not installed.
        ValueError: If another accountant has that name in Opacus.

    Example:
        ::

            fdp.interop.register_with_opacus()
            engine = opacus.PrivacyEngine(accountant="fdp")
            ...  # the training, unchanged
            engine.get_epsilon(delta=1e-5)
    """
    registry = library("register_with_opacus", "opacus.accountants.registry")
    made = opacus_accountant_class()
    if registry._ACCOUNTANTS.get(_NAME) is not made:
        registry.register_accountant(_NAME, made)


def _steps(noise: Any, prob: Any, count: Any) -> Iterator[tuple[Step, Any]]:
    """An entry of a history as a step with its number."""
    noise = float(_checks.nonnegative("noise_multiplier", noise))
    prob = float(_checks.probability("sample_rate", prob))
    if prob > 0:
        private = noise > 0
        step = PoissonSubsampled(Gaussian(noise), prob) if private else _OPEN
        yield step, whole("steps", count)
