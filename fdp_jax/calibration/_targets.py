"""What a mechanism is calibrated to, where the target is a point of its curve.

Every target, whatever it speaks of, is reduced to one number: the certified *margin*
by which a composed loss exceeds it.  It grows with the privacy loss and is at most zero
where the target is met, so that one search serves them all.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Bool, Float, Real

from .._internal import _checks
from .._internal._arithmetic import ULP
from .._internal._concrete import is_traced, known
from .._internal._precision import in_float64
from .._internal._record import Record
from .._internal._special import safe_log
from .._internal._text import at_least, at_most
from ..curves import BY_ARGUMENT, AbstractGuarantee, Bounds, Directed
from ..curves.pointwise import both_logs, point_at, rates_at
from ..engines import Interval
from ..losses import ComposedLoss
from ..mechanisms import parameter


class UnreachableTarget(ValueError):
    """No value of the parameter meets the target."""


def in_full(target: "AbstractTarget", name: str) -> Any:
    """A target's numbers, with all digits wherever they are known.

    In programs of 32 bits JAX takes a delta below 1.2e-38 for zero.
    """
    return jax.tree.map(_known_or_traced, _asked(target, name))


@in_float64(cast_out=False)
def _asked(target: "AbstractTarget", name: str) -> Any:
    return getattr(target, name)()


def _known_or_traced(x: Any) -> Any:
    return np.asarray(x) if isinstance(x, jax.Array) and not is_traced(x) else x


def require_reachable(target: "AbstractTarget") -> None:
    """Raises `UnreachableTarget` if numbers are known that no search looks for."""
    inside, allowed = in_full(target, "reachable")
    if not is_traced(inside) and not bool(inside):
        raise UnreachableTarget(
            f"target {target.describe()} is out of reach of calibrate: {allowed}"
        )


class Margin(eqx.Module):
    """The excess of a loss over a target, and its place."""

    excess: Interval
    """At most zero where the target is met; only the estimate has a derivative."""
    binding: tuple[Array, ...] = ()
    """Where the target is hardest to meet, without derivative; see `binds`."""


class AbstractTarget(Record):
    """A bound on the privacy loss, under both directions of the relation."""

    _room: ClassVar[str] = "targets."

    at_one_point: ClassVar[bool] = False
    """Whether one query shows whether it is met, see `asked`."""
    of_profile: ClassVar[bool] = False
    """Whether the privacy profile alone shows whether it is met."""
    binds: ClassVar[Any] = ()
    """Names of the numbers that say where the target binds."""

    @abc.abstractmethod
    def margin(self, loss: Any) -> Margin:
        """The certified margin of a `ComposedLoss`, in float64.

        If a profile shows it (`of_profile`), of any guarantee as well.
        """

    def asked(self, mechanism: AbstractGuarantee) -> Bounds | None:
        """The answer of the query whose value it limits.

        None for targets that speak of more than one point of its curve.
        """

    def question(self) -> tuple[str, Any, Any] | None:
        """A query's argument, its value and the limit of its answer; None as above."""

    def share(self) -> Any:
        """The relative change of what it limits, over that of its logit."""
        return 1.0

    def is_met(self, mechanism: Any) -> Array | None:
        """Whether a plain query shows that a mechanism meets it; None as in `asked`."""
        question = self.question()
        if question is None:
            return None
        name, value, limit = question
        asked = BY_ARGUMENT[name]
        with jax.enable_x64(True):  # no rounding outward to float32
            value = asked.check(name, value)
            found = mechanism._bounds_of(asked.name, value, both=False)
            upper = asked.upper_is_pessimistic
            return found.upper <= limit if upper else found.lower >= limit

    def spent_by(self, guarantee: AbstractGuarantee) -> Bounds:
        """The number that it limits, for some guarantee.

        Raises:
            TypeError: If it limits more than one number.
        """
        found = self.asked(guarantee)
        if found is None:
            raise TypeError(
                f"{type(self).__name__} does not limit a single number: compare "
                "guarantees by fdp_jax.compare"
            )
        return found

    def is_missed(self, mechanism: AbstractGuarantee) -> bool:
        """Whether some questions show at once that a mechanism does not meet it."""
        return False

    @abc.abstractmethod
    def proxy(self) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """Some (epsilon, log delta) about as hard to meet: where a search may start."""

    @abc.abstractmethod
    def reachable(self) -> tuple[Bool[Array, ""], str]:
        """Whether finite noise can meet the target just so, and the range that can."""

    @abc.abstractmethod
    def describe(self) -> str:
        """The target in a few words."""

    def quantity(self) -> str:
        """The name of the number whose bounds `asked` returns."""
        return ""

    def require_relation(self, relation: Any) -> None:
        """Raises `ValueError` if the target refers to other neighbors."""


class _AbstractProfileTarget(AbstractTarget):
    """A target that is an upper bound of delta at one threshold."""

    at_one_point = of_profile = True

    @abc.abstractmethod
    def _point(self) -> tuple[Array, Array, Array]:
        """The threshold, and the logarithms of delta and of 1 - delta there."""

    def margin(self, loss: ComposedLoss | AbstractGuarantee) -> Margin:
        epsilon, log_delta, log_rest = self._point()
        if isinstance(loss, AbstractGuarantee):
            found = loss._profile(epsilon)
        else:
            found = point_at(Directed.of(loss, "both"), epsilon)
        goal = log_delta - log_rest
        excess = _logit(found.log_delta, found.log_rest).map(lambda x: x - goal)
        # With no delta at all both are -inf.
        none = jnp.isneginf(excess.upper)
        width = jnp.where(none, 0, excess.upper) - jnp.where(none, 0, excess.estimate)
        # So much that the certified epsilon at this delta does not exceed the target:
        # a wide bracket's is found to some 1e-9.
        slack = 1e-12 + stop_gradient(jnp.minimum(width, 1e-9))
        slack = slack * (2 + jnp.abs(goal) + jnp.abs(epsilon))
        upper = excess.upper + 0.05 * width + slack
        return Margin(Interval(excess.lower, excess.estimate, upper))

    def asked(self, mechanism):
        return mechanism.bounds(epsilon=in_full(self, "_point")[0])

    def quantity(self) -> str:
        return f"delta({float(self._point()[0]):g})"

    def proxy(self):
        epsilon, log_delta, _ = self._point()
        return epsilon[None], log_delta[None]


class ApproxDP(_AbstractProfileTarget):
    """(epsilon, delta)-DP.

    Args:
        epsilon: Any real number.
        delta: In (max(0, 1 - e^epsilon), 1).  `Accountant.remaining` takes 0 as well: a
            sum of pure epsilons is rounded, and meets epsilon up to 1e-12 of it.

    Raises:
        ValueError: If epsilon is NaN or delta outside [0, 1].
    """

    epsilon: Real[Any, ""] = _checks.field("epsilon", _checks.real, kw_only=True)
    delta: Real[Any, ""] = _checks.field("delta", _checks.rate, kw_only=True)

    def _point(self):
        return jnp.asarray(self.epsilon), *both_logs(jnp.asarray(self.delta))

    def question(self):
        delta = known(self.delta)
        if delta is None or delta > 0:
            return "epsilon", self.epsilon, self.delta
        # Losses that are bounded end at a sum, which is met although it is rounded.
        return "delta", 0.0, self.epsilon + 1e-12 * abs(self.epsilon)

    def reachable(self):
        least = jnp.maximum(0.0, -jnp.expm1(self.epsilon))
        inside = (self.delta > least) & (self.delta < 1)
        return inside & (self.epsilon < jnp.inf), (
            "delta must lie in (max(0, 1 - e^epsilon), 1), and epsilon must be finite"
        )

    def describe(self) -> str:
        return f"({at_most(float(self.epsilon))}, {at_most(float(self.delta))})-DP"

    def spent_by(self, guarantee):
        return guarantee.bounds(delta=self.delta)


class Advantage(_AbstractProfileTarget):
    """Membership advantage (true minus false positive rate) at most `advantage`.

    Args:
        advantage: In (0, 1).

    Raises:
        ValueError: If it is outside [0, 1].
    """

    advantage: Real[Any, ""] = _checks.field("advantage", _checks.probability)

    def _point(self):
        return jnp.zeros(()), *both_logs(jnp.asarray(self.advantage))

    def question(self):
        return "epsilon", 0.0, self.advantage

    def reachable(self):
        inside = (self.advantage > 0) & (self.advantage < 1)
        return inside, "advantage must lie in (0, 1)"

    def describe(self) -> str:
        return f"advantage <= {at_most(float(self.advantage))}"


class BayesError(_AbstractProfileTarget):
    """Every attack errs with at least some probability.

    With a prior: R(prior) >= error.  Without one: R(prior) >= error min(prior,
    1 - prior) at *every* prior, so that no attacker, whatever they knew before, errs
    less than `error` times as often as before; prior 1/2 is where this binds.  For
    another bound at all priors see `TradeOff`: f >= g if and only if R_f >= R_g.

    Args:
        error: Least probability of error, in (0, min(prior, 1 - prior)); without a
            prior the least share of it that is left, in (0, 1).
        prior: Probability of H0 (record absent), in (0, 1).

    Raises:
        ValueError: If an argument is outside [0, 1].
    """

    error: Real[Any, ""] = _checks.field("error", _checks.rate, kw_only=True)
    prior: Real[Any, ""] | None = parameter(
        "prior", _checks.rate, default=None, kw_only=True
    )

    def _parts(self) -> tuple[Array, Array]:
        """|logit(prior)|, and the largest error there can be."""
        if self.prior is None:
            return jnp.zeros_like(jnp.asarray(self.error)), jnp.ones(())
        prior = jnp.asarray(self.prior)
        return (
            jnp.abs(jnp.log(prior) - jnp.log1p(-prior)),
            jnp.minimum(prior, 1 - prior),
        )

    def _point(self):
        # R = min(prior, 1 - prior) (1 - delta(|logit prior|)), both directions alike.
        epsilon, most = self._parts()
        error = jnp.asarray(self.error)
        return epsilon, safe_log((most - error) / most), safe_log(error / most)

    def question(self):
        return (
            ("prior", 0.5, self.error / 2)
            if self.prior is None
            else ("prior", self.prior, self.error)
        )

    def reachable(self):
        _, most = self._parts()
        allowed = "(0, 1)" if self.prior is None else "(0, min(prior, 1 - prior))"
        inside = (self.error > 0) & (self.error < most)
        return inside, f"error must lie in {allowed}"

    def describe(self) -> str:
        if self.prior is None:
            return f"Bayes error >= {at_least(float(self.error))} min(prior, 1 - prior)"
        error, prior = at_least(float(self.error)), float(self.prior)
        return f"Bayes error >= {error} at prior {prior:g}"


class _AbstractRateTarget(AbstractTarget):
    """A target that is a lower bound of f at one type I error."""

    at_one_point = True
    direction: ClassVar[str]

    @abc.abstractmethod
    def _rates(self) -> tuple[Array, Array, Array]:
        """The type I error, and the logarithms of the power and of its complement."""

    def margin(self, loss: Any) -> Margin:
        alpha, log_power, log_beta = self._rates()
        goal = log_power - log_beta
        if isinstance(loss, AbstractGuarantee):
            # Of the lesser of the two more digits are known.
            by_power = bool(goal < 0)
            asked = self._view(loss)._bounds_of("tpr" if by_power else "beta", alpha)
            ends = asked.lower, asked.estimate, asked.upper
            odds = Interval(*(jnp.subtract(*both_logs(x)) for x in ends)).widened(
                lambda x: 16 * ULP * (1 + jnp.abs(x))
            )
            excess = odds if by_power else odds.map_down(jnp.negative)
        else:
            found = rates_at(Directed.of(loss, self.direction), *both_logs(alpha))
            excess = _logit(found.log_tpr, found.log_beta)
        return Margin(excess.map(lambda x: x - goal))

    def share(self):
        return jnp.exp(self._rates()[1 if self.direction == "both" else 2])

    def _view(self, mechanism: Any) -> Any:
        return mechanism if self.direction == "both" else mechanism.remove

    def asked(self, mechanism: Any):
        return self._view(mechanism).bounds(alpha=in_full(self, "_rates")[0])

    def quantity(self) -> str:
        return f"beta at alpha = {float(self._rates()[0]):g}"

    def proxy(self):
        # The Gaussian trade-off function through the point, at its own threshold.
        alpha, _, log_beta = self._rates()
        upper = ndtri(1 - alpha)
        mu = upper - ndtri(jnp.exp(log_beta))
        epsilon = jnp.maximum(mu * upper - 0.5 * jnp.square(mu), 0)
        power = ndtr(mu / 2 - epsilon / mu)
        rest = jnp.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
        return epsilon[None], jnp.log(power - rest)[None]


class ErrorRates(_AbstractRateTarget):
    """At type I error alpha, every attack has type II error at least beta.

    Args:
        alpha: In (0, 1).
        beta: In (0, 1 - alpha).

    Raises:
        ValueError: If an argument is outside [0, 1].
    """

    alpha: Real[Any, ""] = _checks.field("alpha", _checks.rate, kw_only=True)
    beta: Real[Any, ""] = _checks.field("beta", _checks.rate, kw_only=True)
    direction = "both"

    def _rates(self):
        log_beta, log_power = both_logs(jnp.asarray(self.beta))
        return jnp.asarray(self.alpha), log_power, log_beta

    def question(self):
        return "alpha", self.alpha, self.beta

    def reachable(self):
        inside = (self.alpha > 0) & (self.beta > 0) & (self.beta < 1 - self.alpha)
        return inside, "alpha must be positive and beta in (0, 1 - alpha)"

    def describe(self) -> str:
        # At a smaller alpha beta is no smaller.
        beta, alpha = at_least(float(self.beta)), at_least(float(self.alpha))
        return f"beta >= {beta} at alpha = {alpha}"


class Reconstruction(_AbstractRateTarget):
    """No attack reconstructs a record with a probability above `value`.

    Args:
        kappa: Probability of success of an attack that sees nothing, in (0, 1).
        value: The bound of the probability of success, in (kappa, 1).

    Raises:
        ValueError: If an argument is outside [0, 1].

    References:
        Hayes, Mahloujifar, Balle (2023); see `comparison.reconstruction_bound`.
    """

    kappa: Real[Any, ""] = _checks.field("kappa", _checks.probability, kw_only=True)
    value: Real[Any, ""] = _checks.field("value", _checks.probability, kw_only=True)
    direction = "remove"

    def _rates(self):
        return jnp.asarray(self.kappa), *both_logs(jnp.asarray(self.value))

    def question(self):
        return "fpr", self.kappa, self.value

    def is_met(self, mechanism):
        return super().is_met(mechanism.remove)

    def reachable(self):
        inside = (self.kappa > 0) & (self.value > self.kappa) & (self.value < 1)
        return inside, "kappa must be positive and value in (kappa, 1)"

    def describe(self) -> str:
        return (
            f"reconstruction with probability <= {at_most(float(self.value))} "
            f"(blindly {at_least(float(self.kappa))})"
        )


def _logit(log_value: Interval, log_rest: Interval) -> Interval:
    return Interval(
        log_value.lower - log_rest.upper,
        log_value.estimate - log_rest.estimate,
        log_value.upper - log_rest.lower,
    )
