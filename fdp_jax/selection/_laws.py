"""Laws of the number of runs, which must not depend on the data."""

import abc
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Real

from .._internal import _checks
from .._internal._record import Record
from ..mechanisms import as_float, parameter


class AbstractRepetitions(Record):
    """A public law of the number of runs, drawn independently of the data."""

    rounds: ClassVar[int]
    """How often the search is refined."""

    @abc.abstractmethod
    def log_mean(self) -> Float[Array, ""]:
        """The logarithm of the mean number of runs."""

    def log_idle(self) -> Float[Array, ""]:
        """The logarithm of the probability that nothing is run."""
        return jnp.asarray(-jnp.inf)

    @abc.abstractmethod
    def _search(self) -> "Search":
        """Where the profile of the run is looked at first."""

    @abc.abstractmethod
    def _need(self, r: Array, log_delta: Array) -> tuple[Array, Array]:
        """Two numbers, the larger of which bounds the log-ratio of the weights.

        Args:
            r: Thresholds, at least 0.
            log_delta: Logarithms of the profile of the exchanged direction there.
        """


class Search(NamedTuple):
    """A search for the threshold that gives the best bound; each one gives a bound."""

    nodes: Float[Array, " n"]
    best: Float[Array, ""]


_ROUNDS = 5
"""Looks at few thresholds around a secant's root, after one at the whole range."""


class NegativeBinomial(AbstractRepetitions):
    """A negative binomial number of runs that is not zero (truncated at 1).

    P(K = k) is proportional to (1 - success_prob)^k gamma(k + shape) / k! for k >= 1.

    Args:
        shape: In [0, inf); 1 is geometric, 0 logarithmic.
        success_prob: In (0, 1); the smaller, the more runs.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> law = fdp.selection.NegativeBinomial(shape=1.0, success_prob=0.1)
        >>> print(f"{law.mean():.4f}")
        10.0000

    References:
        Papernot and Steinke (2022), Definition 1.
    """

    shape: Real[ArrayLike, ""] = parameter("shape", _checks.nonnegative, kw_only=True)
    success_prob: Real[ArrayLike, ""] = parameter(
        "success_prob", _checks.open_share, kw_only=True
    )

    def mean(self) -> Float[Array, ""]:
        """The mean number of runs, an estimate."""
        return jnp.exp(self.log_mean())

    def log_mean(self):
        g, shape = as_float(self.success_prob), as_float(self.shape)
        rate = -jnp.log(g)
        # shape / (1 - g^shape), which is 1 / rate in the limit of shape zero.
        power = shape * rate
        some = power > 1e-300
        safe = jnp.where(some, power, 1.0)
        ratio = jnp.where(some, safe / -jnp.expm1(-safe), 1.0) / rate
        return jnp.maximum(jnp.log1p(-g) + rate + jnp.log(ratio), 0.0)

    rounds: ClassVar[int] = _ROUNDS

    def _search(self):
        most = -jnp.log(as_float(self.success_prob))
        most = most * (1 + 8 * jnp.finfo(most.dtype).eps)
        return Search(most * jnp.linspace(0.0, 1.0, 8), jnp.asarray(jnp.inf))

    def _need(self, r, log_delta):
        g, shape = as_float(self.success_prob), as_float(self.shape)
        # p0' <= e^r p0 + delta, so (g + (1 - g) p0') / (g + (1 - g) p0) is at most the
        # larger of e^r and 1 + delta (1 - g) / g.
        own = jnp.logaddexp(0.0, log_delta + jnp.log1p(-g) - jnp.log(g))
        return (1 + shape) * own, (1 + shape) * r


class Geometric(NegativeBinomial):
    """A geometric number of runs: after each one it stops with success_prob.

    Args:
        success_prob: In (0, 1); the mean is 1 / success_prob.

    Raises:
        ValueError: If it is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.selection.Geometric(success_prob=0.25).mean():.4f}")
        4.0000

    References:
        Liu and Talwar (2019).
    """

    def __init__(self, *, success_prob: Any):
        super().__init__(shape=1.0, success_prob=success_prob)


class Logarithmic(NegativeBinomial):
    """A logarithmic number of runs: P(K = k) proportional to (1 - success_prob)^k / k.

    Args:
        success_prob: In (0, 1).

    Raises:
        ValueError: If it is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.selection.Logarithmic(success_prob=0.01).mean():.4f}")
        21.4976

    References:
        Papernot and Steinke (2022), Definition 1 with shape 0.
    """

    def __init__(self, *, success_prob: Any):
        super().__init__(shape=0.0, success_prob=success_prob)


class Poisson(AbstractRepetitions):
    """A Poisson number of runs; where it is zero, nothing is released but that.

    Args:
        mean: In (0, inf).

    Raises:
        ValueError: If it is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.selection.Poisson(mean=10.0).mean():.4f}")
        10.0000

    References:
        Papernot and Steinke (2022), Theorem 6, for its Renyi form.
    """

    expected: Real[ArrayLike, ""]

    def __init__(self, *, mean: Any):
        self.expected = _checks.checked_scalar("mean", _checks.finite_positive, mean)

    def mean(self) -> Float[Array, ""]:
        """The mean number of runs."""
        return as_float(self.expected)

    def log_mean(self):
        return jnp.log(as_float(self.expected))

    def log_idle(self):
        return -as_float(self.expected)

    rounds: ClassVar[int] = 0

    def _search(self):
        return Search(jnp.zeros(1), jnp.asarray(jnp.inf))

    def _need(self, r, log_delta):
        # No test tells the runs apart by more than their total variation.
        own = as_float(self.expected) * jnp.exp(log_delta)
        return own, own
