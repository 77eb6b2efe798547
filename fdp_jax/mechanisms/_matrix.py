"""Matrix mechanisms: Gaussian noise that is correlated between steps."""

from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks
from .._internal._concrete import known
from ..losses import ComposedLoss
from ._base import AbstractMechanism
from ._exact import Exact
from ._fields import NOISE, OPTION, parameter, with_noise_over
from ._joint import Shared
from ._pattern import Pattern
from ._random_allocation import nothing
from ._relations import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    NeighboringRelation,
    relation_field,
)
from ._sampled import DPSGD, ClippedSum
from ._sampling import AbstractSampling, Sampling, raise_not_proved
from ._sensitivity import (
    Strategy,
    distance,
    is_attained,
    noise_over,
    quotient_attained,
    rounded_up,
)
from ._strategies import StrategiesByName
from ._subsampled import require_sampling
from ._tree import Tree


def _option() -> Any:
    return eqx.field(static=True, metadata=OPTION, kw_only=True)


class MatrixMechanism(StrategiesByName):
    """Noisy sums of n steps through a strategy C: what is released tells C x + noise.

    x has the clipped batch sums of the steps as rows, the noise is independent, and a
    trainer takes C^-1 (C x + noise), whose noise is correlated and cancels in part.
    All n steps together are one Gaussian release, whose sensitivity depends on how
    often, and how far apart, a record may take part.  A run is entered into an account
    or a composition once, as a whole: its steps are not independent.

    Args:
        noise_multiplier: Standard deviation of the independent noise over the clipping
            norm, in (0, inf].
        strategy: C, of shape (m, n), or the first column, of shape (n,), of a lower
            triangular Toeplitz matrix.
        num_steps: n, if the first column is given without the zeros that follow
            (a banded strategy).
        max_participations: Most steps in which a record takes part, at most as many as
            are `min_separation` apart; so many by default.
        min_separation: Least distance of two such steps; n, that is a single
            participation, by default.
        cyclic: Whether that distance is always the same, as with fixed epochs in a
            fixed order.  Where participations are only so far apart at least, as with
            federated clients, this would claim too little.
        sampling: `sampling.CyclicPoisson` with at least as many groups as C has bands
            amplifies; `max_participations` and so on must then be left out.  Where no
            amplification is proved (fewer groups, `MinSeparation`, `Poisson`,
            `RandomAllocation`) queries raise an error, and `fdp_jax.monte_carlo`
            answers.
        relation: Replacing a record moves its contributions by twice the norm.

    The largest sensitivity over all patterns of participations is known for a single
    one, at most `min_separation` bands, first columns that do not increase and are not
    negative, trees, and patterns of a fixed distance if no product of columns is
    negative.  For all others upper ends rest on an upper bound of it and lower ends on
    a pattern's own.

    Raises:
        ValueError: If a parameter is out of range or arguments contradict each other.
        TypeError: If sampling is another scheme.

    Example:
        >>> import fdp_jax as fdp
        >>> once = fdp.MatrixMechanism(2.0, [1.0, 0.5, 0.25], num_steps=100)
        >>> print(f"{once.epsilon(delta=1e-6):.4f}")
        2.6183

    References:
        Choquette-Choo et al. (2022), arXiv:2211.06530, Section 2, for fixed epochs;
        (2023), arXiv:2306.08153, for banded strategies, separated participations and
        Theorem 1 on amplification, Algorithm 4 on the sensitivity of other matrices;
        Kalinin and Lampert (2024), arXiv:2405.13763, Theorem 2, for Toeplitz matrices
        that do not increase.
    """

    noise_multiplier: Real[ArrayLike, ""] | None = parameter(
        "noise_multiplier", _checks.noise, NOISE
    )
    strategy: Any = eqx.field(kw_only=True)  # Array | Tree
    num_steps: int = _option()
    max_participations: int = _option()
    min_separation: int = _option()
    cyclic: bool = _option()
    sampling: AbstractSampling | None = eqx.field(kw_only=True)
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)
    _optional: ClassVar = ("sampling",)
    _amplified: bool = eqx.field(static=True, init=False, repr=False, default=False)
    """Whether a theorem of the reference of 2023 covers the scheme."""
    _restart_every: int | None = eqx.field(
        static=True, metadata=OPTION, init=False, repr=False, default=None
    )
    """Steps of each tree, which no leaf tells."""
    _meets: bool = eqx.field(static=True, init=False, repr=False, default=True)
    """Whether the columns of two participations may both have entries in a row."""

    def __init__(
        self,
        noise_multiplier: Any,
        strategy: Any,
        *,
        num_steps: int | None = None,
        max_participations: int | None = None,
        min_separation: int | None = None,
        cyclic: bool = False,
        sampling: Any = None,
        relation: Any = ADD_OR_REMOVE_ONE,
    ):
        self.noise_multiplier = noise_multiplier
        self.strategy = _strategy(strategy)
        length = self.strategy.shape[-1]
        if num_steps is None:
            num_steps = length
        _checks.require(
            self.strategy.ndim != 2 or num_steps == length,
            f"num_steps must be the number of columns, {length}",
            num_steps,
        )
        self.num_steps = _checks.whole("num_steps", num_steps, length, 1 << 20)
        given = max_participations, min_separation
        _checks.require(
            sampling is None
            or (not cyclic and (not any(x is not None for x in given))),
            "sampling says how records take part: leave out "
            "max_participations, min_separation and cyclic",
        )
        n = self.num_steps
        apart = n if min_separation is None else min_separation
        self.min_separation = _checks.whole("min_separation", apart, 1, n)
        most = -(-n // self.min_separation)
        k = most if max_participations is None else max_participations
        k = _checks.whole("max_participations", k, 1, n)
        usual = " (its default)" if min_separation is None else ""
        _checks.require(
            k <= most,
            f"max_participations must be at most {most}, of {n} steps with "
            f"min_separation = {self.min_separation}{usual}",
            k,
        )
        self.max_participations = k
        self.cyclic = _checks.flag("cyclic", cyclic)
        self.sampling = sampling
        # Not converted yet: Equinox does so after this function.
        self.relation = _checks.member("relation", NeighboringRelation, relation)
        self._amplified = False
        tree = isinstance(self.strategy, Tree)
        self._restart_every = self.strategy.restart_every if tree else None
        bands = None if tree else _bands(self.strategy)
        self._meets = bands is None or bands > self.min_separation
        if sampling is not None:
            self._require_sampling(require_sampling(sampling))

    def _require_sampling(self, sampling: AbstractSampling) -> None:
        sampling.require_release(ClippedSum(1.0, relation=self.relation))
        _checks.require(
            sampling.scheme in _SAMPLED,
            "sampling must be CyclicPoisson, or for "
            "fdp_jax.monte_carlo MinSeparation, Poisson or "
            "RandomAllocation",
            f"{sampling!r}",
            TypeError,
        )
        if sampling.scheme is not Sampling.CYCLIC_POISSON:
            return
        groups, bands = sampling.num_groups_known(), _bands(self.strategy)
        _checks.require(
            groups is not None,
            "sampling must be CyclicPoisson with a known number of groups",
            f"{sampling!r}",
            TypeError,
        )
        self._amplified = bands is not None and (groups or 0) >= bands

    def _run(self) -> AbstractMechanism:
        noise = self.noise_multiplier
        if noise is not None:
            noise = noise_over(noise, *self._unit())
        return self._with_noise(noise)

    def _with_noise(self, noise: Any) -> AbstractMechanism:
        """This mechanism with other noise, in the unit of `_unit`."""
        if self.sampling is None:
            return ClippedSum.unchecked(noise_multiplier=noise, relation=self.relation)
        if not self._amplified:
            raise_not_proved(self.sampling)
        return DPSGD.unchecked(
            noise_multiplier=noise,
            num_steps=float(self.num_steps),
            sampling=self.sampling,
            relation=self.relation,
        )

    def _unit(self) -> tuple[Strategy, Pattern, float]:
        """Numbers from which the distance of neighbors follows.

        The noise of a single release is over that distance, that of `DPSGD` over the
        norm also where a record is replaced.
        """
        twice = self.sampling is None and self.relation is REPLACE_ONE
        return self.strategy, self._pattern(), 2.0 if twice else 1.0

    def rescaled(self, solve_for):
        if solve_for != _UNKNOWN:
            return None
        return self._with_noise(None), distance(*self._unit())

    def _pattern(self) -> Pattern:
        return Pattern(
            self.num_steps,
            self.max_participations if self.sampling is None else 1,
            self.min_separation,
            self.cyclic,
            self._meets,
        )

    def sensitivity(self) -> Array:
        """L2 distance that a record moves C x, over the clipping norm; rounded up.

        An upper bound of it where the worst pattern is not known; of sampled batches
        that of one participation.
        """
        return rounded_up(self.strategy, self._pattern()).upper

    @property
    def _scheme(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return None if self.sampling is None else self.sampling.scheme

    def releases_once(self) -> bool:
        return self.sampling is None

    def exact(self) -> Exact | None:
        whole = self.sampling is None and self.attained() is None
        return self._run().exact() if whole else None

    def simplified(self) -> AbstractMechanism:
        return self._run().simplified() if self.attained() is None else self

    def attained(self) -> AbstractMechanism | None:
        """A lower bound, where the sensitivity is not that of some pattern.

        Of groups that are amplified, not all participations may have the longest
        column.  One with a shorter column is one with more noise, and others may be
        left out: the m longest of a group leak at least m times what the shortest of
        them does.
        """
        scheme, steps = self.sampling, self.num_steps
        if scheme is None:
            return self._of_a_pattern()
        if not self._amplified:
            return None
        bands, groups = self.strategy.shape[0], int(scheme.num_groups_known() or 1)
        most = -(-steps // groups)
        if self.strategy.ndim == 1 and (most - 1) * groups + bands <= steps:
            return None  # the first group's columns are not cut off
        entries = known(self.strategy)
        if entries is None:
            return nothing(self.relation)
        if entries.ndim == 1:
            column = np.zeros(steps)
            column[: entries.size] = entries
            lengths = np.sqrt(np.cumsum(np.square(column)))[::-1]
        else:
            lengths = np.linalg.norm(entries, axis=0)
        padded = np.zeros(most * groups)
        padded[:steps] = lengths
        ranked = -np.sort(-padded.reshape(most, groups), axis=0)
        if ranked[-1].max() >= lengths.max() * (1 - 1e-14):
            return None
        leaks = np.arange(1, most + 1)[:, None] * np.square(ranked)
        count, group = np.unravel_index(np.argmax(leaks), leaks.shape)
        # Less than that by more than the rounding of a quotient in float32.
        shortest = ranked[count, group] * (1 - 1e-6)
        return DPSGD.unchecked(
            noise_multiplier=self.noise_multiplier / shortest,
            num_steps=float(count * groups + 1),
            sampling=scheme,
            relation=self.relation,
        )

    def _of_a_pattern(self) -> AbstractMechanism | None:
        """A pattern's release; None if its sensitivity is known to be the most."""
        strategy, pattern, times = self._unit()
        if _is_worst_known(strategy, pattern):
            return None
        if known(strategy) is not None and known(is_attained(strategy, pattern)):
            return None
        noise = quotient_attained(self.noise_multiplier, strategy, pattern, times)
        return ClippedSum.unchecked(noise_multiplier=noise, relation=self.relation)

    def shares(self) -> frozenset[Shared]:
        # A first column says how the noise of a run goes on: pieces that are composed
        # have it cut off at their ends.  A matrix is that of a whole run.  Amplified,
        # pieces are as many steps of each group, of the whole column, as the run has.
        goes_on = self.strategy.ndim == 1 and self.strategy.shape[0] > 1
        once = goes_on and self.sampling is None
        return frozenset({Shared.NOISE}) if once else frozenset()

    def as_steps(self) -> tuple[tuple[AbstractMechanism, Any], ...]:
        # An account is to know of what it has a step.
        whole = self.shares() or self.attained() is not None
        return ((self, 1),) if whole else self._run().as_steps()

    def loss(self) -> ComposedLoss:
        return self._run().loss()

    def _group(self, size):
        if self.attained() is None:
            return self._run().group(size)
        if self.sampling is not None:
            return super()._group(size)
        # Their contributions sum to so many times one's, and may all be the same.
        return with_noise_over(self, size)


_UNKNOWN = "noise_multiplier"
_SAMPLED = frozenset(
    {
        *(Sampling.CYCLIC_POISSON, Sampling.MIN_SEPARATION, Sampling.POISSON),
        Sampling.RANDOM_ALLOCATION,
    }
)
"""Schemes that draw records independently, one by one."""


def _strategy(value: Any) -> Any:
    """A tree, a matrix or a first column, checked."""
    if isinstance(value, Tree):
        return value
    array = _checks.numbers("strategy", value)
    _checks.require(
        array.ndim in (1, 2) and 0 not in array.shape,
        "strategy must be a matrix, or the first column of a Toeplitz one",
        f"an array of shape {array.shape}",
    )
    return _checks.finite("strategy", array)


def _bands(strategy: Any) -> int | None:
    """Bands of a lower triangular strategy, the diagonal included; None if it is not.

    Of traced numbers what the shape says.
    """
    if strategy.ndim == 1:
        return strategy.shape[0]
    entries = known(strategy)
    rows, columns = strategy.shape
    if entries is None or rows != columns:
        return rows if rows == columns and entries is None else None
    if np.any(np.triu(entries, 1)):
        return None
    row, column = np.nonzero(entries)
    return int(np.max(row - column, initial=0)) + 1


def _is_worst_known(strategy: Strategy, pattern: Pattern) -> bool:
    """Whether a pattern is known to have the sensitivity, without looking for one."""
    if pattern.most == 1 or not (pattern.meets or pattern.cyclic):
        return True
    if isinstance(strategy, Tree):
        least, most = strategy.squares(pattern)
        return least == most
    entries = known(strategy)
    if entries is None:
        return False
    falls = entries.ndim == 1 and not np.any(entries[1:] > entries[:-1])
    return bool(np.all(entries >= 0)) and (falls or pattern.cyclic)
