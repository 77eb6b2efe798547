"""Laws of the number of runs, which must not depend on the data."""

import abc
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.special import erfinv
from jaxtyping import Array, ArrayLike, Bool, Float, Real

from .._internal import _checks
from .._internal._implicit import implicit_root
from .._internal._precision import in_float64
from .._internal._record import Record
from .._internal._roots import bisect
from ..losses import GaussianForm
from ..mechanisms import Declared, Search, as_float, parameter


class AbstractRepetitions(Declared, Record):
    """A public law of the number of runs, drawn independently of the data."""

    rounds: ClassVar[int] = 0
    """Number of thresholds that the search looks at after 0, at most."""

    @abc.abstractmethod
    def log_mean(self) -> Float[Array, ""]:
        """The logarithm of the mean number of runs."""

    def log_idle(self) -> Float[Array, ""]:
        """The logarithm of the probability that nothing is run."""
        return jnp.asarray(-jnp.inf)

    @abc.abstractmethod
    def _log_scale(self) -> Array:
        """The logarithm of the scale of `_winner.py`."""

    @abc.abstractmethod
    def _lag(self, fall: Any, gain: Any, h: Array) -> Array:
        """log(w(x) / w(h + (1 + gain) x)) where w(x) = e^-fall; see `_winner.py`."""

    def _own(self, log_delta: Array) -> Array:
        """The x for which `_power` times max(x, r) bounds the weights' log-ratio.

        Args:
            log_delta: Logarithm of the profile of the exchanged direction at r >= 0.
        """
        # p0' <= e^r p0 + delta, so for a negative binomial law the ratio
        # (g + (1 - g) p0') / (g + (1 - g) p0) is at most the larger of e^r and
        # 1 + delta (1 - g) / g; for a Poisson law r is 0.
        return self._lag(0, 0, jnp.exp(self._log_scale() + log_delta)) / self._power()

    def _bend(self) -> Array | float:
        """By what share -w' falls faster than w."""
        return 0.0

    def _power(self) -> Array:
        """The exponent of the weights."""
        return jnp.ones(())

    def _start(self, log_delta: Array) -> "Secant":
        """The search's begin, from the logarithm of the total variation."""
        zero = jnp.zeros_like(log_delta)
        done = jnp.ones((), bool)
        return Secant(zero, zero, zero, zero, (zero, zero), (zero, zero), zero, done)

    def _next(self, search: "Secant", log_delta: Array) -> "Secant":
        """A step of the secant method inside of a bracket."""
        return search


class Secant(NamedTuple):
    """A search for the threshold that gives the best bound; each one gives a bound.

    It is the root of y(u) = log(delta(r) (1 - g) / g) - u, u = log(e^r - 1) = log x.
    """

    u: Float[Array, ""]
    low: Float[Array, ""]
    high: Float[Array, ""]
    slope: Float[Array, ""]
    old: tuple[Array, Array]
    """The last u, and y there."""
    left: tuple[Array, Array]
    """The last x below the root, and x (e^y - 1) there."""
    best: Float[Array, ""]
    """The least bound found."""
    settled: Bool[Array, ""]


_ROUNDS = 10
_SETTLED = 1e-7
"""Relative distance of a bound from the best one at which the search ends."""
_HALVINGS, _STEP = 40, 1e-2
_LEAST = -650.0
"""The logarithm of what is taken for nothing."""
_TINY = 1e-300


class NegativeBinomial(AbstractRepetitions):
    """A negative binomial number of runs that is not zero (truncated at 1).

    P(K = k) is proportional to (1 - success_prob)^k gamma(k + shape) / k! for k >= 1.

    Args:
        shape: In [0, inf); 1 is geometric, 0 logarithmic.
        success_prob: In (0, 1); the smaller, the more runs.  None for `calibrate` to
            find, as of all laws.

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

    shape: Real[ArrayLike, ""] | None = parameter(
        "shape", _checks.nonnegative, Search(1, 0.0, 1e3), kw_only=True
    )
    success_prob: Real[ArrayLike, ""] | None = parameter(
        "success_prob",
        _checks.open_share,
        Search(-1, 1e-12, 1 - 1e-9, 0.1),
        default=None,
        kw_only=True,
    )

    @in_float64
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

    def _log_scale(self):
        g = as_float(self.success_prob)
        return jnp.log1p(-g) - jnp.log(g)

    def _lag(self, fall, gain, h):
        share = jnp.exp(-fall / self._power())  # 1 / (1 + x)
        return self._power() * jnp.log1p(gain * (1 - share) + h * share)

    def _bend(self):
        return 1 / self._power()

    def _power(self):
        return 1 + as_float(self.shape)

    def _guess(self, log_delta: Array) -> tuple[Array, Array, Array]:
        """The root if the run is Gaussian noise of this total variation, in its range.

        Args:
            log_delta: The logarithm of the total variation.
        """
        # The profile falls by at most e^r - 1, so that the root is one of this range.
        args = jnp.maximum(log_delta, _LEAST), self._log_scale()
        high = args[0] + args[1]
        low = high - jnp.logaddexp(0.0, self._log_scale())
        fixed = stop_gradient(args)
        gap = lambda u: _gap(u, fixed, ())
        u = bisect(gap, *stop_gradient((high, low)), _HALVINGS)[0]
        return implicit_root(_gap, u, args, ()), low, high

    def _start(self, log_delta):
        u, low, high = self._guess(log_delta)
        args = jnp.maximum(log_delta, _LEAST), self._log_scale()
        slope = (_gap(u + _STEP, args, ()) - _gap(u - _STEP, args, ())) / (2 * _STEP)
        slope = jnp.where(slope < -1, slope, -1.0)
        none, left = jnp.full_like(u, jnp.nan), (0 * u, jnp.exp(high))
        settled = log_delta <= _LEAST
        return Secant(u, low, high, slope, (none, none), left, u, settled)

    def _next(self, search, log_delta):
        u, (old, old_value) = search.u, search.old
        value = jnp.maximum(log_delta + self._log_scale() - u, _LEAST)
        above, smooth = value > 0, jnp.minimum(value, old_value) > _LEAST
        low, high = jnp.where(above, u, search.low), jnp.where(above, search.high, u)
        slope = (value - old_value) / (u - old)
        slope = jnp.where((slope < 0) & smooth, slope, search.slope)
        # In x it is convex: the secant of two points below the root ends below it.
        x, (left, at_left) = jnp.exp(u), search.left
        height = x * jnp.expm1(value)
        below = x + height * (x - left) / jnp.maximum(at_left - height, _TINY)
        left = jnp.where(above, x, left), jnp.where(above, height, at_left)
        below = jnp.where(above, jnp.log(below), -jnp.inf)
        inside = lambda u: (u > low) & (u < high)
        middle = jnp.where(inside(below), below, 0.5 * (low + high))
        nearer = u - value / slope
        nearer = jnp.where(inside(nearer) & (value > _LEAST), nearer, middle)
        settled = search.settled | (jnp.abs(value) <= _SETTLED)
        old = u, value
        return Secant(nearer, low, high, slope, old, left, search.best, settled)


def _gap(u: Array, args: tuple[Array, Array], aux: tuple[()]) -> Array:
    """The search's y(u) for Gaussian noise of a total variation."""
    log_delta, log_scale = args
    share = jnp.minimum(jnp.exp(log_delta), 1 - 1e-12)
    form = GaussianForm(jnp.sqrt(8.0) * erfinv(share))
    return form.log_delta(jnp.logaddexp(0.0, u)) + log_scale - u


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

    def __init__(self, *, success_prob: Any = None):
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

    def __init__(self, *, success_prob: Any = None):
        super().__init__(shape=0.0, success_prob=success_prob)


class Poisson(AbstractRepetitions):
    """A Poisson number of runs; where it is zero, nothing is released but that.

    Args:
        mean: In (0, inf), or None for `calibrate` to find by the name "expected".

    Raises:
        ValueError: If it is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.selection.Poisson(mean=10.0).mean():.4f}")
        10.0000

    References:
        Papernot and Steinke (2022), Theorem 6, for its Renyi form.
    """

    expected: Real[ArrayLike, ""] | None = parameter(
        "mean", _checks.finite_positive, Search(1, 1e-9, 1e9, 10.0)
    )

    def __init__(self, *, mean: Any = None):
        self.expected = mean

    def mean(self) -> Float[Array, ""]:
        """The mean number of runs."""
        return as_float(self.expected)

    def log_mean(self):
        return jnp.log(as_float(self.expected))

    def log_idle(self):
        return -as_float(self.expected)

    def _log_scale(self):
        return self.log_mean()

    def _lag(self, fall, gain, h):
        return h + gain * fall
