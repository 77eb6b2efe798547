"""Bounds of privacy losses that hold with a stated probability, from samples."""

import contextlib
import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._compilation import compiled_at_once
from .._internal._precision import Outward, in_float64
from .._internal._record import Record
from .._internal._show import LOWER, MIDDLE, UPPER, Call, Shown
from ..curves import Bound, one_end
from ..mechanisms import AbstractMechanism, as_float
from ._estimate import DIRECTIONS, Ends, Plan, delta_ends, epsilon_ends
from ._model import make_model
from ._proposals import proposals
from ._read import Shape, noise_of, read

_CHUNK = 1 << 20
"""Numbers of an array of one batch of samples, about.  Where the samples of a question
have more of them in all, its program is compiled at once."""


class _Stated(Record):
    """Limits that may fail, or what answers with them."""

    if TYPE_CHECKING:  # fields of this class would come before all others
        failure_prob: ClassVar[Any]
        num_samples: ClassVar[Any]

    @property
    def statement(self) -> str:
        """Meaning of the limits, in words."""
        return (
            f"holds with probability 1 - {self.failure_prob:g} over the key, by "
            f"{self.num_samples} Monte Carlo samples in each direction"
        )


class ConfidenceBounds(_Stated):
    """A quantity between limits that samples prove with a stated probability."""

    lower: Float[Array, "..."] = eqx.field(metadata=LOWER)
    estimate: Float[Array, "..."] = eqx.field(metadata=MIDDLE)
    upper: Float[Array, "..."] = eqx.field(metadata=UPPER)
    failure_prob: float = eqx.field(static=True)
    """The probability, over the key, that the quantity is not between the limits."""
    num_samples: int = eqx.field(static=True)
    """How many samples the statement rests on, in each direction."""
    method: str = eqx.field(static=True, default="Monte Carlo")

    def _shown(self, parent: Any) -> Call:
        shown = super()._shown(parent)
        return Call(shown.name, [*shown.entries[:3], ("", Shown(self.statement))])


class MonteCarlo(_Stated):
    """A run's guarantee as samples show it; `monte_carlo` makes it.

    Every answer is a function of the key and of the question.  It holds with
    probability 1 - failure_prob over the key, for questions that do not depend on the
    key; several answers hold together with 1 minus the sum of their failure_probs.
    """

    mechanism: AbstractMechanism
    key: Array
    """Raw data of the key."""
    num_samples: int = eqx.field(static=True)
    failure_prob: float = eqx.field(static=True)
    chunk_size: int | None = eqx.field(static=True)
    implementation: str = eqx.field(static=True)
    """Of the key's generator of random numbers."""
    direction: str = eqx.field(static=True, default="both")

    def _shown(self, parent: Any) -> Call:
        entries = [
            ("", self.mechanism),
            ("direction", self.direction),
            ("", Shown(f"an answer {self.statement}")),
        ]
        return Call("MonteCarlo", entries)

    @property
    def remove(self) -> "MonteCarlo":
        """With the record (Q) against without (P)."""
        return dataclasses.replace(self, direction="remove")

    @property
    def add(self) -> "MonteCarlo":
        """Without the record against with it."""
        return dataclasses.replace(self, direction="add")

    def delta(
        self, *, epsilon: Any, bound: Bound | str = Bound.PESSIMISTIC
    ) -> Float[Array, "..."]:
        """The privacy profile at real thresholds.

        Args:
            epsilon: Any finite numbers, in nats.
            bound: Which limit; the upper one by default.

        Returns:
            Delta in [0, 1], without derivatives.

        Raises:
            ValueError: If epsilon is not finite.
        """
        return getattr(self.bounds(epsilon=epsilon), _ENDS[one_end(bound)])

    def epsilon(
        self, *, delta: Any, bound: Bound | str = Bound.PESSIMISTIC
    ) -> Float[Array, "..."]:
        """The least real epsilon with delta(epsilon) <= delta.

        Args:
            delta: In (0, 1].
            bound: Which limit; the upper one by default.

        Returns:
            Epsilon in nats, without derivatives.  Where the samples are too few it is
            what is proved without any, which may be inf.

        Raises:
            ValueError: If delta is outside (0, 1].
        """
        return getattr(self.bounds(delta=delta), _ENDS[one_end(bound)])

    def bounds(self, *, epsilon: Any = None, delta: Any = None) -> ConfidenceBounds:
        """Both limits of delta at an epsilon, or of epsilon at a delta.

        Args:
            epsilon: As in `delta`.
            delta: As in `epsilon`; one of the two.

        Returns:
            `ConfidenceBounds`.

        Raises:
            ValueError: If both or neither are given, or one is out of range.
        """
        _checks.require(
            (epsilon is None) != (delta is None),
            "epsilon or delta must be given, and not both",
            f"{epsilon} and {delta}",
        )
        query, value = (
            ("delta", _checks.finite("epsilon", epsilon))
            if delta is None
            else ("epsilon", _checks.share("delta", delta))
        )
        run = read(self.mechanism)
        directions = DIRECTIONS if self.direction == "both" else (self.direction,)
        log_inverse = math.log(len(directions) / self.failure_prob)
        chunk = self.chunk_size or min(max(_CHUNK // run.shape.num_steps, 256), 8192)
        plan = Plan(self.num_samples, min(chunk, self.num_samples), log_inverse)
        options = _Options(run.shape, plan, directions, query, self.implementation)
        long = self.num_samples * run.shape.num_steps > _CHUNK
        with compiled_at_once() if long else contextlib.nullcontext():
            found = _answers(
                run.strategy, run.noise, run.how, self.key, value, options=options
            )
        (lower, upper), estimate = found
        return ConfidenceBounds(
            lower, estimate, upper, self.failure_prob, self.num_samples
        )


_ENDS = {
    Bound.OPTIMISTIC: "lower",
    Bound.ESTIMATE: "estimate",
    Bound.PESSIMISTIC: "upper",
}


class _Options(eqx.Module):
    """Options that a program is compiled for."""

    shape: Shape
    plan: Plan
    directions: tuple[str, ...] = eqx.field(static=True)
    query: str = eqx.field(static=True)
    implementation: str = eqx.field(static=True)


@in_float64
def _answers(strategy, noise, how, key, value, options: _Options) -> tuple:
    """Limits at all values, one after the other, with the key's own samples."""
    noise = noise_of(as_float(noise))
    shape = options.shape
    model = make_model(strategy, noise, shape.num_steps, how, shape.bands)
    found = proposals(model)
    key = jax.random.wrap_key_data(key, impl=options.implementation)
    ask = delta_ends if options.query == "delta" else epsilon_ends

    def one(value: Array) -> Ends:
        ends = [
            ask(model, found, x, jax.random.fold_in(key, i), value, options.plan)
            for i, x in enumerate(options.directions)
        ]
        return Ends(*(jnp.max(jnp.stack(x)) for x in zip(*ends, strict=True)))

    value = as_float(value)
    ends = lax.map(one, value.reshape(-1))
    lower, estimate, upper = (x.reshape(value.shape) for x in ends)
    return Outward(lower, upper), estimate


@explained(
    num_samples=_checks.whole_in(1000, 1 << 40),
    failure_prob=_checks.number(_checks.open_share),
    chunk_size=_checks.whole_in(1, 1 << 24),
)
def monte_carlo(
    mechanism: AbstractMechanism,
    key: Array,
    *,
    num_samples: int = 1 << 20,
    failure_prob: float = 1e-6,
    chunk_size: int | None = None,
) -> MonteCarlo:
    """A run whose pair is only known as a mixture of very many, by sampling.

    With x the random pattern of steps in which a record takes part, C the strategy and
    s the noise multiplier, it is about

        P = law of C x + s Z,    Q = law of s Z,    Z ~ N(0, I).

    For strategies without negative entries, whose rows are released in an order in
    which a row comes after the steps that it weighs (lower triangular ones), and
    patterns drawn independently of the data and of all other records, this pair
    dominates the run in both directions, also if contributions of norm at most one
    are chosen in view of the earlier releases.  (Given the others' patterns, a record's
    contributions of one row have inner products of at most those of C x; by Kahane's
    inequality E F(sum_x w_x exp(G_x - Var G_x / 2)) is, for convex F, at most that of
    Gaussians G with covariances that are at least as large.  Applied to the last row,
    then the one before, with what follows as a function of the weights w, it bounds
    every hockey-stick divergence.)  That is for adding, removing or zeroing out a
    record.  It is a pair of nothing else: for a replaced record none is known.

    The likelihood ratio of a sample is exact, by recursions over the steps.  Samples
    are drawn from other laws where that makes a bound of what is averaged smaller.

    Args:
        mechanism: `DPSGD` or `MatrixMechanism` with `MinSeparation`, `Poisson`,
            `CyclicPoisson` or `RandomAllocation` sampling.
        key: A `jax.random` key; answers are functions of it.
        num_samples: Of each direction and question, in [1000, 2^40].
        failure_prob: The probability, over the key, that an answer is false; in (0, 1).
        chunk_size: Samples that are drawn at once, for the memory of a device.  Other
            sizes draw other samples.

    Returns:
        `MonteCarlo`, with the queries `delta`, `epsilon` and `bounds`.

    Guarantee:
        Every answer holds with probability 1 - failure_prob over the key.  It is no
        proof: nothing that is proved makes use of it.

    Raises:
        TypeError: If the mechanism is another one.
        ValueError: If a parameter is out of range, the strategy has a negative entry
            or too many bands for the scheme, or the relation is REPLACE_ONE.

    Example:
        >>> import fdp_jax as fdp, jax
        >>> scheme = fdp.sampling.MinSeparation(0.5, min_separation=4)
        >>> run = fdp.MatrixMechanism(
        ...     2.0, [1.0, 0.5, 0.25], num_steps=16, sampling=scheme
        ... )
        >>> found = fdp.monte_carlo(run, jax.random.key(0), num_samples=1 << 14)
        >>> print(f"{found.epsilon(delta=1e-2, bound='estimate'):.1f}")
        1.5

    References:
        Kahane (1985), Ann. Sci. Math. Quebec 9, 105-150, for the inequality;
        Choquette-Choo et al. (2024), arXiv:2410.06266, for balls in bins with
        correlated noise; Dong and Ganesh (2026), arXiv:2602.09338, for separated
        participations; Chua et al. (2024), arXiv:2412.16802, for Monte Carlo
        accounting; Maurer and Pontil (2009), Theorem 4, and Hoeffding (1963),
        Theorem 1, for the limits.
    """
    read(mechanism)
    data, implementation = _raw(key)
    return MonteCarlo(
        mechanism, data, num_samples, failure_prob, chunk_size, implementation
    )


def _raw(key: Any) -> tuple[Array, str]:
    """A key's numbers, and the name of its generator."""
    key = _checks.random_key(key)
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        implementation, key = str(jax.random.key_impl(key)), jax.random.key_data(key)
    else:
        implementation = str(jax.config.jax_default_prng_impl)  # pyright: ignore
    return key, implementation
