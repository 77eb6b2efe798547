"""Guarantees for all examples of a user."""

from typing import ClassVar

from jaxtyping import ArrayLike, Real

from .._internal import _checks, _draws
from ..mechanisms import (
    RATE,
    AbstractSampling,
    ClippedSum,
    Gaussian,
    Sampling,
    SubsampledGroup,
    as_number,
    option,
    parameter,
)
from ._poisson import Poisson, poisson_step

_MOST = 64


class UserLevel(AbstractSampling):
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

    prob: Real[ArrayLike, ""] | None = parameter(
        "prob", _checks.probability, RATE, default=None
    )
    max_examples: int | None = option(
        "max_examples",
        _checks.whole,
        1,
        _MOST,
        optional=True,
        default=None,
        kw_only=True,
    )

    shared: ClassVar = frozenset()  # every step draws anew
    draws_independently: ClassVar[bool] = True

    @property
    def scheme(self) -> Sampling:
        return Sampling.USERS if self.max_examples is None else Sampling.EXAMPLES

    def _step(self, release):
        if self.max_examples is None:
            return poisson_step(release, self.prob, Sampling.USERS)
        assert isinstance(release, Gaussian)
        clipped = isinstance(release, ClippedSum)
        noise = release.noise_over_norm if clipped else release.noise_multiplier
        return _Examples.unchecked(
            noise_multiplier=noise,
            sampling_prob=self.prob,
            size=self.max_examples,
            relation=release.relation,
        )

    def require_release(self, release):
        super().require_release(release)
        _checks.require(
            self.max_examples is None or isinstance(release, Gaussian),
            "mechanism must be Gaussian where examples of a user are sampled",
            type(release).__name__,
            TypeError,
        )
        Poisson(0.5).require_release(release)

    def participants(self, key, step, *, num_records):
        return _draws.with_prob(_draws.at(key, step), self.prob, num_records)

    def expected_size(self, num_records):
        return as_number(self.prob) * num_records


class _Examples(SubsampledGroup):
    _scheme: ClassVar = Sampling.EXAMPLES
