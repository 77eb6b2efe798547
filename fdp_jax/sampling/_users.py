"""Guarantees for all examples of a user."""

from typing import ClassVar

from .._internal import _checks
from ..mechanisms import (
    ClippedSum,
    Gaussian,
    Sampling,
    SubsampledGroup,
    option,
)
from ._poisson import AbstractPoisson

_MOST = 64


class UserLevel(AbstractPoisson):
    """Poisson sampling, with all examples of a user as what neighbors differ by.

    Either whole users are sampled, and what a user contributes to a step is clipped as
    a whole: then it is Poisson sampling, of users.  Or examples are sampled and
    clipped, and a user has at most `max_examples` of them: binomially many are in a
    batch, which is an exact pair under composition, in both directions.  An example
    with several owners counts for each of them.  That examples are drawn independently
    is essential: in batches of a fixed size others stand in their places, and the
    mixture with hypergeometric weights does not dominate.

    Args:
        prob: Probability that a user, or an example, enters a step, in [0, 1].
        max_examples: Most examples of one user, from 1 to 64; None if users are
            sampled.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> scheme = fdp.sampling.UserLevel(0.01, max_examples=4)
        >>> run = fdp.DPSGD(noise_multiplier=4.0, sampling=scheme, num_steps=100)
        >>> print(f"{run.epsilon(delta=1e-5):.4f}")
        0.3632

    References:
        Ganesh (2024), arXiv:2401.10294; Charles et al. (2024), arXiv:2407.07737.
    """

    max_examples: int | None = option(
        "max_examples",
        _checks.whole,
        1,
        _MOST,
        optional=True,
        default=None,
        kw_only=True,
    )

    draws_independently: ClassVar[bool] = True

    @property
    def scheme(self) -> Sampling:
        return Sampling.USERS if self.max_examples is None else Sampling.EXAMPLES

    def _step(self, release):
        if self.max_examples is None:
            return super()._step(release)
        assert isinstance(release, Gaussian)
        clipped = isinstance(release, ClippedSum)
        noise = release.noise_over_norm if clipped else release.noise_multiplier
        return _Examples.unchecked(
            noise_multiplier=noise,
            sampling_prob=self.prob,
            size=self.max_examples,
            relation=release.relation,
        )

    @property
    def _gaussian_alone(self) -> str:
        return "where examples of a user are sampled" if self.max_examples else ""


class _Examples(SubsampledGroup):
    _scheme: ClassVar = Sampling.EXAMPLES
