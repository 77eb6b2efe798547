"""What a private training run is: sampling, clipping, noise and account in one."""

import dataclasses
import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import sampling as schemes
from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import known
from .._internal._record import Record
from ..calibration import AbstractTarget, calibrate
from ..mechanisms import (
    ADD_OR_REMOVE_ONE,
    DPSGD,
    AbstractMechanism,
    AbstractSampling,
    MatrixMechanism,
    as_known,
    as_number,
)
from ._clipping import AbstractClipping, FlatClipping
from ._gradients import GradientSum

_LEAST_DRAWN = 0.01
"""Expected number of records that are drawn in all steps: with less there is nothing to
train on, and a rate or a number of records is not the one that was meant."""
_MICROBATCH = 256
_MOST_RECORDS = 1 << 30
"""So many can be counted, and told apart, with 32 bits."""


class Plan(Record):
    """A private training run: one object for what is drawn, added and accounted.

    The batches are those that the guarantee is for, the noise is the mechanism's times
    how far the clipping lets one record move a batch's sum, and the mean is over the
    expected number of records.

    Args:
        mechanism: `DPSGD` or `MatrixMechanism`, with all its numbers.
        num_records: Number of records.  Like the number of steps it is taken as public.
        clipping: How a record's gradient is bounded; a number is short for
            `FlatClipping`.
        microbatch_size: Records whose gradients are in memory at a time.  Nothing else
            depends on it: batches' sums are exact.

    Raises:
        ValueError: If a number is missing or out of range, or fits no batches.
        TypeError: If the mechanism is another one, or there is no sampler for it.

    Example:
        >>> import fdp_jax as fdp
        >>> run = fdp.DPSGD(noise_multiplier=1.1, sampling_prob=0.01, num_steps=500)
        >>> plan = fdp.training.Plan(run, num_records=60_000, clipping=1.0)
        >>> plan.expected_size
        600.0
        >>> print(f"{plan.after(100).epsilon(delta=1e-5):.4f}")
        0.5498
    """

    mechanism: DPSGD | MatrixMechanism
    clipping: AbstractClipping = eqx.field(kw_only=True)
    num_records: int = eqx.field(static=True, kw_only=True)
    microbatch_size: int = eqx.field(static=True, kw_only=True)

    def __init__(
        self,
        mechanism: DPSGD | MatrixMechanism,
        *,
        num_records: int,
        clipping: AbstractClipping | float,
        microbatch_size: int | None = None,
    ):
        kinds, wanted = DPSGD | MatrixMechanism, "a DPSGD or a MatrixMechanism"
        mechanism = _checks.instance("mechanism", mechanism, kinds, wanted)
        mechanism.require_complete()
        self.mechanism = mechanism
        self.num_records = _checks.whole("num_records", num_records, 1, _MOST_RECORDS)
        is_rule = isinstance(clipping, AbstractClipping)
        self.clipping = clipping if is_rule else FlatClipping(clipping)
        # What the sampler refuses is refused now, without drawing anything.
        scheme, records = self.sampling, self.num_records
        draw = lambda key: scheme.next_participants(
            key, 0, scheme.memory(records), num_records=records
        )
        jax.eval_shape(draw, jax.random.key(0))
        size = self.expected_size
        if microbatch_size is None:
            parts = max(4, math.ceil(size / _MICROBATCH))
            microbatch_size = max(1, math.ceil(size / parts))
        self.microbatch_size = _checks.whole(
            "microbatch_size", microbatch_size, 1, 1 << 30
        )
        self._noise_factor()
        steps = _checks.whole("num_steps", self.num_steps, 1, 1 << 31)
        _checks.require(
            size * steps >= _LEAST_DRAWN,
            "num_records must be so many that all steps together draw at least "
            f"{_LEAST_DRAWN} records on average",
            f"{self.num_records} records, of which they draw {size * steps:.3g}",
        )

    @classmethod
    @explained(
        num_records=_checks.whole_in(1, _MOST_RECORDS),
        num_epochs=_checks.one(_checks.finite_positive),
    )
    def for_target(
        cls,
        target: AbstractTarget,
        *,
        num_records: int,
        num_epochs: float,
        clipping: AbstractClipping | float,
        batch_size: int | None = None,
        sampling: AbstractSampling | None = None,
        relation: Any = ADD_OR_REMOVE_ONE,
        microbatch_size: int | None = None,
    ) -> "Plan":
        """The plan with the least noise that meets a target.

        Args:
            target: Of `fdp_jax.targets`.
            num_records: Number of records.
            num_epochs: How often a record is expected to take part; the number of steps
                is rounded up.
            clipping: As of a plan.
            batch_size: Expected number of records of a batch, for Poisson sampling, or
            sampling: another scheme of `fdp.sampling`.
            relation: The neighboring relation.
            microbatch_size: As of a plan.

        Raises:
            ValueError: If a number is out of range, or not one of batch_size and
                sampling is given.
            UnreachableTarget: If no noise meets the target.
        """
        other = isinstance(sampling, AbstractSampling)
        _checks.require(
            (batch_size is None) == other and (sampling is None) != other,
            "give batch_size, for Poisson sampling, or sampling, a scheme of "
            f"fdp.sampling: got batch_size={batch_size} and sampling={sampling}",
        )
        if sampling is None:
            batch = _checks.whole("batch_size", batch_size, 1, num_records)
            prob = batch / num_records
        else:
            sampling.require_complete()
            batch, prob = float(sampling.expected_size(num_records)), None
        _checks.require(batch != 0, "sampling must draw records", sampling)
        # Rounding must not add a step: 1.1 epochs of 10 batches are 11.
        steps = math.ceil(float(num_epochs) * num_records / batch * (1 - 1e-12))
        run = functools.partial(
            DPSGD,
            sampling_prob=prob,
            sampling=sampling,
            num_steps=steps,
            relation=relation,
        )
        plan = functools.partial(
            cls,
            num_records=num_records,
            clipping=clipping,
            microbatch_size=microbatch_size,
        )
        plan(run(noise_multiplier=1.0))  # What it refuses is refused before the search.
        found = calibrate(run(), target, solve_for="noise_multiplier")
        assert isinstance(found.mechanism, DPSGD)
        return plan(found.mechanism)

    @property
    def num_steps(self) -> int:
        """The number of steps.

        Raises:
            ValueError: If they are not a whole number.
        """
        return _checks.known_whole("num_steps", as_known(self.mechanism.num_steps))

    @property
    def sampling(self) -> AbstractSampling:
        """The scheme by which batches are drawn."""
        mechanism = self.mechanism
        if mechanism.sampling is not None:
            return mechanism.sampling
        if isinstance(mechanism, DPSGD):
            return schemes.Poisson(mechanism.sampling_prob)
        # Records in a fixed order take part once in so many steps.
        return schemes.CyclicPoisson(1.0, num_groups=mechanism.min_separation)

    @property
    def expected_size(self) -> float:
        """The expected number of records of a batch."""
        return float(self.sampling.expected_size(self.num_records))

    def participants(self, key: Array, step: Any) -> Array:
        """Which records take part in a step; see `sampling`."""
        return self.sampling.participants(key, step, num_records=self.num_records)

    def correlation(self) -> tuple[float, ...]:
        """The first column of the strategy; of independent noise a single 1.

        Raises:
            ValueError: If the strategy is not given by its first column, or more often
                used than stated.
        """
        mechanism = self.mechanism
        if isinstance(mechanism, DPSGD):
            return (1.0,)
        strategy = mechanism.strategy
        _checks.require(
            strategy.ndim == 1 and strategy[0] != 0,
            "strategy must be the first column of a Toeplitz matrix, beginning "
            "with another number than 0",
            f"an array of shape {strategy.shape}",
        )
        if mechanism.sampling is None:
            often = -(-mechanism.num_steps // mechanism.min_separation)
            _checks.require(
                often <= mechanism.max_participations,
                f"max_participations must be at least {often}, which records in a "
                f"fixed order have in {mechanism.num_steps} steps with "
                f"min_separation = {mechanism.min_separation}",
                mechanism.max_participations,
            )
        return tuple(np.asarray(strategy, np.float64).tolist())

    def noise_deviation(self, found: GradientSum) -> Float[Array, ""]:
        """The standard deviation of the (independent) noise on a batch's sum."""
        noise = float(as_number(self.mechanism.noise_multiplier))
        return found.sensitivity * (noise * self._noise_factor() * _MORE)

    def _noise_factor(self) -> Any:
        """The factor of the noise that pays for what else the clipping tells.

        Given all steps before, that of a step is over the first entry of C.

        Raises:
            ValueError: If what else is told is not known to be paid for.
        """
        column = self.correlation()
        noise = as_number(self.mechanism.noise_multiplier)
        found = self.clipping.noise_factor(noise / abs(column[0]))
        scheme = self.mechanism.sampling
        if found == 1 or len(column) == 1 or scheme is None:
            return found
        _checks.require(
            (scheme.num_groups_known() or 0) >= len(column),
            f"clipping must tell nothing of its own beside {len(column)} bands "
            "of correlated noise unless CyclicPoisson has as many groups or "
            "more, or there is no sampling: no theorem covers both",
            f"{self.clipping!r}",
        )
        return found

    def after(self, num_steps: Any) -> AbstractMechanism:
        """The mechanism of the first steps alone: what was spent until then.

        Args:
            num_steps: A whole number, at most all of them.

        Raises:
            ValueError: If it is no such number.
        """
        number = known(num_steps)
        if number is not None and number.ndim == 0:
            whole = number.dtype.kind == "f" and number == np.round(number)
            num_steps = int(number) if whole else number.item()
        steps = _checks.whole("num_steps", num_steps, 0, self.num_steps)
        if isinstance(self.mechanism, DPSGD):
            return dataclasses.replace(self.mechanism, num_steps=float(steps))
        return _first_steps(self.mechanism, steps)

    @explained(num_points=_checks.whole_in(2, 1 << 12))
    def progress(
        self,
        *,
        delta: Any = None,
        epsilon: Any = None,
        alpha: Any = None,
        fpr: Any = None,
        prior: Any = None,
        num_points: int = 33,
    ) -> "Progress":
        """A table of what is spent as the run goes on, for use inside of programs.

        Args:
            delta: One of these is given, as of `bounds`: a number or an array.  By
                delta the table is of epsilon;
            epsilon: of delta;
            alpha: of beta;
            fpr: of the true positive rate;
            prior: of the Bayes error.
            num_points: Numbers of steps for which it is found.

        Raises:
            TypeError: If not one of the arguments is given.
            ValueError: If it, or num_points, is out of range.
        """
        steps = np.unique(
            np.geomspace(1, self.num_steps, num_points).round().astype(int)
        )
        names = ("delta", "epsilon", "alpha", "fpr", "prior")
        values = zip(names, (delta, epsilon, alpha, fpr, prior), strict=True)
        query = {name: value for name, value in values if value is not None}
        _checks.require(
            len(query) == 1,
            "progress takes exactly one of delta=, epsilon=, alpha=, fpr= or prior=",
            ", ".join(query) or "none",
            TypeError,
        )
        found = [self.after(n).bounds(**query) for n in steps]
        lower = not query.keys().isdisjoint(("alpha", "prior"))
        # In the user's precision they are on the private side already.
        ends = [x.lower if lower else x.upper for x in found]
        return Progress(jnp.asarray(steps, jnp.int32), jnp.stack(ends))


class Progress(Record):
    """The budget spent after some steps of a plan: bounds on the private side."""

    steps: Array
    """Numbers of steps, increasing."""
    values: Array
    """The certified bounds for these, with the shape of the query behind."""

    def at(self, step: Any) -> Array:
        """The bound for the next number of steps in the table.

        Raises:
            ValueError: If there are more than the plan has (`EquinoxRuntimeError` if
                traced).
        """
        allowed = "at most the number of steps of the plan"
        step = _checks.checked("step", step, allowed, lambda x: x <= self.steps[-1])
        return self.values[jnp.searchsorted(self.steps, jnp.maximum(step, 1))]


_MORE = 1 + 1e-6
"""For the rounding of the deviation to float32."""


def _first_steps(mechanism: MatrixMechanism, steps: int) -> AbstractMechanism:
    """The first rows of C x are those of the first rows and columns."""
    if steps == 0:
        return mechanism.as_steps()[0][0].repeat(0)
    options: dict[str, Any] = {}
    if mechanism.sampling is None:
        apart = min(mechanism.min_separation, steps)
        options = {
            # As many as there is room for.
            "max_participations": min(mechanism.max_participations, -(-steps // apart)),
            "min_separation": apart,
            "cyclic": mechanism.cyclic,
        }
    return MatrixMechanism(
        mechanism.noise_multiplier,
        mechanism.strategy[:steps],
        num_steps=steps,
        sampling=mechanism.sampling,
        relation=mechanism.relation,
        **options,
    )
