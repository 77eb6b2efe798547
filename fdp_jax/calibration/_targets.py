"""What a mechanism is calibrated to.

A target measures the excess of a composed loss over what is allowed, as a difference
of logits: increasing with the privacy loss, zero where the target is just met.
"""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Real

from .._internal import _checks
from .._internal._special import safe_log
from ..curves._queries import profile_at, signs_of
from ..curves._tradeoff import optimal_rates
from ..engines import Interval
from ..losses import ComposedLoss


class UnreachableTarget(ValueError):
    """No value of the parameter meets the target."""


class AbstractTarget(eqx.Module):
    """A bound on the privacy loss, under both directions of the relation."""

    @abc.abstractmethod
    def excess(self, loss: ComposedLoss) -> Interval:
        """Certified excess over the target; at most zero where the target is met."""

    @abc.abstractmethod
    def proxy(self) -> tuple[Array, Array]:
        """An (epsilon, log delta) about as hard to meet: where a search may start."""

    @abc.abstractmethod
    def reachable(self) -> tuple[Any, str]:
        """Whether finite noise can meet the target just so, and the range that can."""

    @abc.abstractmethod
    def describe(self) -> str:
        """The target in a few words."""


def _logit(log_value: Interval, log_rest: Interval) -> Interval:
    return Interval(
        log_value.lower - log_rest.upper,
        log_value.estimate - log_rest.estimate,
        log_value.upper - log_rest.lower,
    )


def _log(interval: Interval) -> Interval:
    return interval.map(safe_log)


def _delta_excess(loss: ComposedLoss, epsilon: Array, delta: Array) -> Interval:
    found = profile_at(loss, signs_of(loss, "both"), jnp.asarray(epsilon))
    goal = safe_log(jnp.asarray(delta)) - jnp.log1p(-delta)
    excess = _logit(found.log_delta, found.log_rest).map(lambda x: x - goal)
    # So much that the certified epsilon at this delta does not exceed the target.
    slack = 1e-12 * (2 + jnp.abs(goal) + jnp.abs(epsilon))
    upper = excess.upper + 0.05 * (excess.upper - excess.estimate) + slack
    return Interval(excess.lower, excess.estimate, upper)


class ApproxDP(AbstractTarget):
    """(epsilon, delta)-DP.

    Args:
        epsilon: Any real number.
        delta: In (max(0, 1 - e^epsilon), 1).
    """

    epsilon: Real[Array, ""]
    delta: Real[Array, ""]

    def __init__(self, *, epsilon: Any, delta: Any):
        self.epsilon = _checks.scalar("epsilon", _checks.real("epsilon", epsilon))
        self.delta = _checks.scalar("delta", _checks.probability("delta", delta))

    def excess(self, loss: ComposedLoss) -> Interval:
        return _delta_excess(loss, self.epsilon, self.delta)

    def proxy(self):
        return jnp.asarray(self.epsilon), safe_log(jnp.asarray(self.delta))

    def reachable(self):
        least = jnp.maximum(0.0, -jnp.expm1(self.epsilon))
        return (self.delta > least) & (self.delta < 1), (
            "delta must lie in (max(0, 1 - e^epsilon), 1)"
        )

    def describe(self) -> str:
        return f"({float(self.epsilon):g}, {float(self.delta):g})-DP"


class ErrorRates(AbstractTarget):
    """At type I error alpha, every attack has type II error at least beta.

    Args:
        alpha: In (0, 1).
        beta: In (0, 1 - alpha).
    """

    alpha: Real[Array, ""]
    beta: Real[Array, ""]

    def __init__(self, *, alpha: Any, beta: Any):
        self.alpha = _checks.scalar("alpha", _checks.probability("alpha", alpha))
        self.beta = _checks.scalar("beta", _checks.probability("beta", beta))

    def excess(self, loss: ComposedLoss) -> Interval:
        signs = signs_of(loss, "both")
        found = optimal_rates(loss, signs, jnp.asarray(self.alpha))
        beta = jnp.asarray(self.beta)
        goal = jnp.log1p(-beta) - safe_log(beta)
        return _logit(_log(found.tpr), _log(found.beta)).map(lambda x: x - goal)

    def proxy(self):
        # The Gaussian trade-off function through the point, at its own threshold.
        upper = ndtri(1 - jnp.asarray(self.alpha))
        mu = upper - ndtri(jnp.asarray(self.beta))
        epsilon = jnp.maximum(mu * upper - 0.5 * jnp.square(mu), 0)
        power = ndtr(mu / 2 - epsilon / mu)
        return epsilon, jnp.log(power - jnp.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))

    def reachable(self):
        inside = (self.alpha > 0) & (self.beta > 0) & (self.beta < 1 - self.alpha)
        return inside, "alpha must be positive and beta in (0, 1 - alpha)"

    def describe(self) -> str:
        return f"beta >= {float(self.beta):g} at alpha = {float(self.alpha):g}"


class Advantage(AbstractTarget):
    """Membership advantage (true minus false positive rate) at most `advantage`.

    Args:
        advantage: In (0, 1).
    """

    advantage: Real[Array, ""]

    def __init__(self, advantage: Any):
        checked = _checks.probability("advantage", advantage)
        self.advantage = _checks.scalar("advantage", checked)

    def excess(self, loss: ComposedLoss) -> Interval:
        return _delta_excess(loss, jnp.zeros_like(self.advantage), self.advantage)

    def proxy(self):
        advantage = jnp.asarray(self.advantage)
        return jnp.zeros_like(advantage), safe_log(advantage)

    def reachable(self):
        inside = (self.advantage > 0) & (self.advantage < 1)
        return inside, "advantage must lie in (0, 1)"

    def describe(self) -> str:
        return f"advantage <= {float(self.advantage):g}"
