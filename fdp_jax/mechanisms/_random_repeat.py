"""A random number of releases, where the number is told."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import known
from ..losses import Alternatives, ComposedLoss, revealed_mixture
from ._base import AbstractMechanism, AbstractWrapped, require_mechanism
from ._composed import Composition, repetitions_of
from ._fields import (
    PROBABILITIES,
    STEPS,
    as_float,
)
from ._joint import require_joint


class RandomRepeat(AbstractWrapped):
    """A mechanism run a random number of times; all outputs and the number are told.

    The number must not depend on the data (or the outputs).  Then the guarantee is
    delta = sum_i probs[i] delta_i + tail_prob, with delta_i that of `num_steps[i]`
    releases, and it bounds what is learned if the number is kept secret.

    In closed form where all numbers of releases have one (Gaussian noise, randomized
    response, Poisson counts).  Otherwise, and if it is composed, bounds are as narrow
    as those of the mechanism itself, by contour integrals, if all numbers release
    something that decays (Gaussians, DP-SGD), or, as with a number of zero or point
    masses, about 1e-6 relative on the grid.  A zero that is traced leaves the contour
    integral's bounds valid, but loose.

    Args:
        mechanism: What is repeated, with fresh randomness in every release.
        num_steps: Possible numbers of releases, shape (n,), at least 0.  Real numbers
            for Gaussian, Poisson-subsampled Gaussian and infinitely divisible
            mechanisms, else whole ones.
        probs: Their probabilities, shape (n,), which with `tail_prob` have the sum 1.
        tail_prob: Probability of all numbers left out, in [0, 1); in estimates and
            upper bounds of the loss they count as telling the record, so that a
            truncated law stays certified.

    Raises:
        ValueError: If a parameter is out of range, the lengths differ, or the sum of
            all probabilities misses 1 by more than 1e-12 (1e-6 in float32), or releases
            would share randomness.
        TypeError: If the mechanism is none.

    Example:
        >>> import fdp_jax as fdp
        >>> runs = fdp.RandomRepeat(
        ...     fdp.Gaussian(4.0), num_steps=[1, 4, 16], probs=[0.5, 0.3, 0.2]
        ... )
        >>> print(f"{runs.epsilon(delta=1e-5):.6f}")
        3.984917

    References:
        Dong, Roth, Su (2022): trade-off functions; the supports of revealed
        alternatives are disjoint, so hockey-stick divergences add.
    """

    mechanism: AbstractMechanism
    num_steps: Real[Array, " n"] = eqx.field(metadata=STEPS.metadata)
    probs: Real[Array, " n"] = eqx.field(metadata=PROBABILITIES.metadata)
    tail_prob: Real[ArrayLike, ""]
    idle: bool = eqx.field(static=True)
    """Whether zero releases are known to be possible."""
    whole: bool = eqx.field(static=True)
    """Whether all numbers are known to be whole."""
    _one_release: ClassVar = False

    @explained(probs=_checks.vector_of(_checks.probability))
    def __init__(
        self, mechanism: Any, *, num_steps: Any, probs: Any, tail_prob: Any = 0.0
    ):
        self.mechanism = require_mechanism("mechanism", mechanism)
        check = repetitions_of(mechanism)
        self.num_steps = _checks.vector("num_steps", check, num_steps)
        _checks.same_length("num_steps", self.num_steps, "probs", probs)
        self.tail_prob = _checks.checked_scalar(
            "tail_prob", _checks.below_one, tail_prob
        )
        double = np.dtype(probs.dtype) == np.float64
        self.probs = _checks.total(
            "probs and tail_prob", probs, 1e-12 if double else 1e-6, self.tail_prob
        )
        counts = known(self.num_steps)
        most = None if counts is None else np.max(counts, initial=0)
        require_joint((mechanism,), (most,), joins=False)
        self.idle = counts is not None and bool(np.any(counts == 0))
        self.whole = counts is not None and bool(np.all(counts == np.round(counts)))

    def with_fractions(self) -> "RandomRepeat":
        """This mechanism, its numbers of releases not known to be whole."""
        # Known of the numbers when this was made, and no leaf that could be replaced.
        return self.unchecked(**vars(self) | {"whole": False})

    def require_many(self, index: int = 0) -> None:
        require_joint((self.mechanism,), (None,), joins=False)

    def takes_fractions(self, index: int = 0) -> bool:
        return self.mechanism.has_fractional_powers()

    def simplified(self) -> AbstractMechanism:
        inner = self.mechanism.simplified()
        certain = self.num_steps.shape == (1,)
        lost = known(self.tail_prob)
        if certain and lost is not None and lost == 0:
            return Composition((inner,), (self.num_steps[0],)).simplified()
        return self.made_with([inner])

    def loss(self) -> ComposedLoss:
        # What is repeated may itself be a fraction of a loss, as a triplet's time is.
        step = self.mechanism.loss().absorbed()
        lost = as_float(self.tail_prob)
        probs = as_float(self.probs)
        probs = probs / jnp.sum(probs)
        counts = as_float(self.num_steps)[:, None] * jnp.stack(step.counts)
        group = Alternatives(step.terms, counts, probs)
        if not self.whole:
            group = group.absorbed()
        some = jnp.any((counts > 0) & (probs > 0)[:, None]) | (lost > 0)
        term = revealed_mixture((group,), lost, idle=self.idle)
        return ComposedLoss((term,), (jnp.where(some, 1.0, 0.0),), single=True)

    def _group(self, size):
        return self.made_with([self.mechanism.group(size)])
