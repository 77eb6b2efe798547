"""Poisson sampling: of all records, or of groups that take turns."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import ArrayLike, Real

from .._internal import _checks, _draws
from ..mechanisms import (
    COUNT,
    DPSGD,
    RATE,
    REPLACE_ONE,
    AbstractMechanism,
    AbstractSampling,
    ClippedSum,
    Gaussian,
    PoissonSubsampled,
    Sampling,
    as_known,
    as_number,
    at_full_precision,
    parameter,
)
from .participation import Separated


class AbstractPoisson(AbstractSampling):
    """Records enter steps with a probability, in a way that amounts to Poisson's."""

    prob: Real[ArrayLike, ""] | None = parameter(
        "prob", _checks.probability, RATE, default=None
    )
    shared: ClassVar = frozenset()  # every step draws anew

    def _step(self, release):
        return poisson_step(release, self.prob, self.scheme)

    def require_release(self, release):
        super().require_release(release)
        _checks.require(
            release.relation is not REPLACE_ONE or isinstance(release, ClippedSum),
            "relation must be ADD_OR_REMOVE_ONE or ZERO_OUT for a "
            f"Poisson sample of {type(release).__name__}",
            "REPLACE_ONE: a pair for replacement does not tell what a "
            "record's absence does (see DPSGD)",
        )

    def participants(self, key, step, *, num_records):
        return _draws.with_prob(_draws.at(key, step), self.prob, num_records)

    def expected_size(self, num_records):
        return as_number(self.prob) * num_records


class Poisson(AbstractPoisson):
    """Every record enters every step with one probability, independently.

    Args:
        prob: That probability, in [0, 1].  May be left out, for `calibrate` to find.

    For adding, removing or zeroing out a record any release may be sampled, for
    replacing one `DPSGD` alone.

    Raises:
        ValueError: If prob is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> scheme = fdp.sampling.Poisson(0.01)
        >>> run = fdp.DPSGD(noise_multiplier=1.0, sampling=scheme, num_steps=1000)
        >>> print(f"{run.epsilon(delta=1e-5):.4f}")
        1.8282
    """

    scheme: ClassVar[Sampling] = Sampling.POISSON
    draws_independently: ClassVar[bool] = True

    def participation(self, num_steps):
        return Separated(self.prob, 1)

    def takes_fractions(self, release):
        return isinstance(release, Gaussian) and release.relation is not REPLACE_ONE


def poisson_step(
    release: AbstractMechanism, prob: Any, scheme: Sampling
) -> AbstractMechanism:
    """One release of a Poisson sample, by a scheme that amounts to it."""
    if release.relation is REPLACE_ONE and isinstance(release, ClippedSum):
        return _REPLACING.get(scheme, DPSGD).unchecked(
            noise_multiplier=release.noise_over_norm,
            sampling_prob=prob,
            num_steps=1.0,
            relation=release.relation,
        )
    step = _STEPS.get(scheme, PoissonSubsampled)
    return step.unchecked(mechanism=release, sampling_prob=prob)


class _CyclicStep(PoissonSubsampled):
    _scheme: ClassVar = Sampling.CYCLIC_POISSON


class _CyclicReplacement(DPSGD):
    _scheme: ClassVar = Sampling.CYCLIC_POISSON


class _UserStep(PoissonSubsampled):
    _scheme: ClassVar = Sampling.USERS


class _UserReplacement(DPSGD):
    _scheme: ClassVar = Sampling.USERS


_STEPS = {Sampling.CYCLIC_POISSON: _CyclicStep, Sampling.USERS: _UserStep}
_REPLACING = {
    Sampling.CYCLIC_POISSON: _CyclicReplacement,
    Sampling.USERS: _UserReplacement,
}
"""Steps whose reports state another scheme."""


class CyclicPoisson(AbstractPoisson):
    """Groups of records take turns; each step samples its group by Poisson.

    The groups are chosen without looking at the data (by a hash of a record's name,
    say).  A record then takes part in every `num_groups`-th step alone, so that n
    steps leak what ceil(n / num_groups) steps of Poisson sampling do.  This is also
    what banded correlated noise needs: see `MatrixMechanism`.  Under REPLACE_ONE the
    other record has to be in the same group.

    Args:
        prob: Probability that a record of the group whose turn it is enters the step,
            in [0, 1].  For batches of expected size B from m records that is
            B num_groups / m.
        num_groups: Number of groups, whole, at least 1.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> scheme = fdp.sampling.CyclicPoisson(0.1, num_groups=10)
        >>> run = fdp.DPSGD(noise_multiplier=1.0, sampling=scheme, num_steps=1000)
        >>> print(f"{run.epsilon(delta=1e-5):.4f}")
        7.0466

    References:
        Choquette-Choo et al. (2023), arXiv:2306.08153, Theorem 1.
    """

    num_groups: Real[ArrayLike, ""] | None = parameter(
        "num_groups", _checks.positive_count, COUNT, default=None, kw_only=True
    )
    scheme: ClassVar[Sampling] = Sampling.CYCLIC_POISSON
    # The groups are no random draw: of each one the steps draw anew.  In n steps,
    # wherever they begin, its turn comes at most ceil(n / num_groups) times.
    draws_independently: ClassVar[bool] = True

    def run(self, release, num_steps):
        return super().run(release, rounds(num_steps, self.num_groups))

    def participation(self, num_steps):
        groups = shape_of("num_groups", self.num_groups)
        return Separated(self.prob, 1, stride=min(groups, num_steps))

    def num_groups_known(self):
        return as_known(self.num_groups)

    def participants(self, key, step, *, num_records):
        # The place of a record is its name.
        groups = int(as_number(self.num_groups))
        turn = jnp.arange(num_records) % groups == step % groups
        return turn & super().participants(key, step, num_records=num_records)

    def expected_size(self, num_records):
        return super().expected_size(num_records) / as_number(self.num_groups)


def shape_of(name: str, value: Any) -> int:
    """A number of groups or batches that sets a shape."""
    number = as_known(value)
    if number is None:
        raise ValueError(
            f"{name} must be a known number for Monte Carlo accounting, got {value!r}"
        )
    return int(number)


def rounds(num_steps: Any, length: Any) -> Any:
    """Number of rounds of so many steps, begun ones included."""
    if num_steps is None or length is None:
        return None
    return _all_rounds(num_steps, length)


@at_full_precision
def _all_rounds(num_steps: Any, length: Any) -> Any:
    return num_steps // length + (num_steps % length > 0)


@at_full_precision
def whole_rounds(num_steps: Any, length: Any) -> tuple[Any, Any]:
    """Number of finished rounds, and whether another one was begun (1 or 0)."""
    return num_steps // length, (num_steps % length > 0) * 1.0
