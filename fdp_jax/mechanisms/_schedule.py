"""Schedules: steps of one kind whose parameters change from step to step."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import known
from ..losses import AnalyticLoss, ComposedLoss, GaussianLoss, ScheduleLoss, total_mu
from ._additive import Gaussian
from ._base import AbstractMechanism, AbstractWrapped
from ._joint import raise_shared


class Schedule(AbstractWrapped):
    """Steps of one kind, each with its own parameters, on the same data.

    As arrays: a thousand different noise multipliers compile like one, and derivatives
    reach every one of them.

    Args:
        step: Function that makes one step (a mechanism) from one entry of each array.
        *parameters: Arrays of one length, the number of steps.

    Raises:
        ValueError: If the arrays differ in length or there is none, or steps would
            share randomness.
        TypeError: If the steps are not of a kind that the contour engine handles:
            Gaussian, Laplace, logistic (so choices by the exponential mechanism, too)
            or Poisson-subsampled Gaussian, as of DP-SGD.

    Example:
        >>> import fdp_jax as fdp, jax.numpy as jnp
        >>> noise = jnp.linspace(0.8, 1.2, 100)
        >>> step = lambda s: fdp.PoissonSubsampled(fdp.Gaussian(s), 0.01)
        >>> print(f"{fdp.Schedule(step, noise).epsilon(delta=1e-5):.3f}")
        0.990
    """

    steps: AbstractMechanism
    """The steps, stacked: leaves have a leading axis."""
    _one_release: ClassVar = False

    @explained(step=_checks.instance_of(Callable, "a function"))
    def __init__(self, step: Callable[..., AbstractMechanism], *parameters: Any):
        arrays = [_checks.vector("parameters", _checks.real, x) for x in parameters]
        _checks.require(arrays, "Schedule needs at least one array of parameters")
        for i, other in enumerate(arrays[1:], 1):
            _checks.same_length("parameters[0]", arrays[0], f"parameters[{i}]", other)
        # Checked one by one in Python, so that errors name values.
        self.steps = _stacked(step, arrays)
        _checks.require(
            _stacks(self._term()),
            "step must make Gaussian, Laplace, logistic or Poisson-subsampled "
            "Gaussian mechanisms",
            type(self.steps).__name__,
            TypeError,
        )

    _for_one_record = "a Schedule", "group its steps instead"

    def has_fractional_powers(self) -> bool:
        return isinstance(self.steps, Gaussian)

    def takes_fractions(self, index: int = 0) -> bool:
        return self.steps.takes_fractions(index)

    def _term(self) -> Any:
        (term,) = jax.eval_shape(jax.vmap(lambda m: m.loss()), self.steps).terms
        return term

    def loss(self) -> ComposedLoss:
        return stacked_loss(self.steps)


def can_be_stacked(loss: ComposedLoss) -> bool:
    """Whether steps with such a loss go into one program, however many there are."""
    return len(loss.terms) == 1 and _stacks(loss.terms[0])


def _stacks(term: Any) -> bool:
    return isinstance(term, AnalyticLoss) and term.stacks


def stacked_loss(steps: AbstractMechanism, times: Any = 1.0) -> ComposedLoss:
    """The loss of stacked steps, each taken so many times."""
    each = jax.vmap(lambda mechanism: mechanism.loss())(steps)
    (term,), (counts,) = each.terms, each.counts
    counts = times * counts
    if isinstance(term, GaussianLoss):
        return _one_gaussian(term, counts)
    some = jnp.any(counts > 0)
    # A loss that is safe to evaluate even where nothing is released.
    total = ScheduleLoss.of(term, jnp.where(some, counts, 1.0))
    return ComposedLoss((total,), (jnp.where(some, 1.0, 0.0).astype(counts.dtype),))


def _stacked(
    step: Callable[..., AbstractMechanism], arrays: list[Any]
) -> AbstractMechanism:
    """One mechanism whose leaves are arrays, from the one of every entry."""

    def one(*entries: Any) -> AbstractMechanism:
        mechanism = step(*entries)
        if not isinstance(mechanism, AbstractMechanism):
            raise TypeError(f"step must make mechanisms, got {mechanism!r}")
        if mechanism.shares():
            raise_shared(mechanism)
        return mechanism

    numbers = [known(x) for x in arrays]
    if not any(x is None for x in numbers):
        made = [one(*entries) for entries in zip(*numbers, strict=True)]
        for mechanism in made:
            mechanism.require_complete()
        # Inside of a transformation a step may trace what it makes of known numbers.
        if all(known(x) is not None for x in jax.tree.leaves(made)):
            return jax.tree.map(lambda *leaves: np.stack(leaves), *made)
    return jax.vmap(one)(*arrays)


def _one_gaussian(term: GaussianLoss, counts: Array) -> ComposedLoss:
    """Gaussian mechanisms compose to one."""
    mu = total_mu(term.noise_multiplier, counts)
    released = mu != 0
    noise = 1 / jnp.where(released, mu, 1)
    return ComposedLoss((GaussianLoss(noise),), (jnp.where(released, 1.0, 0.0),))
