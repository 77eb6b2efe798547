"""Intervals of measures, and the metrics of pure differential privacy."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._precision import Outward, in_float64
from .._internal._record import Record
from ..mechanisms import (
    as_float,
)


@explained
def d_mult(log_p: Any, log_q: Any) -> Float[Array, ""]:
    """The multiplicative distance sup_S |log P(S) / Q(S)|, with 0/0 = 1.

    epsilon-DP says that it is at most epsilon times the distance of the data sets.

    Args:
        log_p: Logarithms of masses or densities at some points; -inf is allowed.
        log_q: The same of the other measure, of the same length.

    Returns:
        max |log p - log q|, inf where only one of them is 0.  Between points it says
        nothing: for densities on a grid it is a lower bound.

    Raises:
        ValueError: If the vectors differ in length or hold NaN or inf.

    Example:
        >>> import numpy as np
        >>> import fdp_jax as fdp
        >>> p, q = np.log([0.5, 0.3, 0.2]), np.log([0.4, 0.45, 0.15])
        >>> print(f"{fdp.limits.d_mult(p, q):.6f}")
        0.405465

    References:
        Bailie and Gong (2023), Definition 2.
    """
    return _range_of(*_pair(log_p=log_p, log_q=log_q), False)


@explained
def density_ratio_metric(log_p: Any, log_q: Any) -> Float[Array, ""]:
    """The range of log p - log q: blind to factors, d_mult < it <= 2 d_mult.

    Args:
        log_p: As in `d_mult`.
        log_q: As in `d_mult`.

    Returns:
        sup log(p / q) - inf log(p / q), over points where not both are 0.

    Raises:
        ValueError: As in `d_mult`.
    """
    return _range_of(*_pair(log_p=log_p, log_q=log_q), True)


def _pair(**logs: Any) -> tuple[Any, Any]:
    """Logarithms of two measures on the same points."""
    (name, one), (other_name, other) = (
        (name, _checks.vector(name, _checks.below_infinity, value))
        for name, value in logs.items()
    )
    _checks.same_length(name, one, other_name, other)
    return one, other


@in_float64
def _range_of(log_p: Array, log_q: Array, both: bool) -> Array:
    p, q = as_float(log_p), as_float(log_q)
    neither = jnp.isneginf(p) & jnp.isneginf(q)
    gap = jnp.where(neither, 0.0, p) - jnp.where(neither, 0.0, q)
    if not both:
        return jnp.max(jnp.where(neither, 0.0, jnp.abs(gap)))
    high = jnp.max(jnp.where(neither, -jnp.inf, gap))
    low = jnp.min(jnp.where(neither, jnp.inf, gap))
    return jnp.where(high >= low, high - low, 0.0)


def _indicator(name: str, value: Any) -> Any:
    value = value.astype(float) if value.dtype == bool else value
    return _checks.checked(name, value, "0 or 1", lambda x: (x == 0) | (x == 1))


class MeasureInterval(Record):
    """All measures mu with L <= mu <= U, for finitely many points.

    Args:
        log_lower: Logarithms of L's masses; -inf is allowed.
        log_upper: Logarithms of U's masses, nowhere smaller.

    Raises:
        ValueError: If the vectors differ in length, hold NaN or inf, or are not in
            order.

    Example:
        >>> import numpy as np
        >>> import fdp_jax as fdp
        >>> p = np.log([0.2, 0.3, 0.5])
        >>> near = fdp.limits.MeasureInterval.around(p, epsilon=np.log(2.0))
        >>> low, high = near.mean_bounds([0.0, 1.0, 3.0])
        >>> print(f"{low:.2f} {high:.2f}")
        1.08 2.52

    References:
        DeRobertis and Hartigan (1981); Bailie and Gong (2023), Section 2.
    """

    log_lower: Float[Array, " n"]
    log_upper: Float[Array, " n"]

    def __init__(self, log_lower: Any, log_upper: Any):
        self.log_lower, self.log_upper = _checks.error_if(
            _pair(log_lower=log_lower, log_upper=log_upper),
            lambda ends: ends[0] > ends[1],
            "log_lower must be at most log_upper",
            lambda ends: ends[1],
            kind="a log_upper of",
        )

    @classmethod
    @explained(
        log_p=_checks.vector_of(_checks.below_infinity),
        epsilon=_checks.one(_checks.nonnegative),
    )
    def around(cls, log_p: Any, *, epsilon: Any) -> "MeasureInterval":
        """I(e^-epsilon P, e^epsilon P): where epsilon-DP keeps P's neighbors.

        Args:
            log_p: Logarithms of P's masses.
            epsilon: In [0, inf); for records at distance k, k epsilon.

        Returns:
            The interval.

        Raises:
            ValueError: If epsilon is out of range.
        """
        return cls(_moved(log_p, -epsilon), _moved(log_p, epsilon))

    @explained(factor=_checks.one(_checks.finite_positive))
    def scaled(self, factor: Any) -> "MeasureInterval":
        """The interval of the measures times a number.

        Args:
            factor: In (0, inf).

        Returns:
            The interval.

        Raises:
            ValueError: If the factor is out of range.
        """
        move = _log(factor)
        return MeasureInterval(
            _moved(self.log_lower, move), _moved(self.log_upper, move)
        )

    def intersected(self, other: "MeasureInterval") -> "MeasureInterval":
        """The measures in both intervals.

        Args:
            other: An interval on the same points.

        Returns:
            The interval.

        Raises:
            ValueError: If there are none.
        """
        other = _checks.instance("other", other, MeasureInterval, "a MeasureInterval")
        lower = jnp.maximum(self.log_lower, other.log_lower)
        return MeasureInterval(lower, jnp.minimum(self.log_upper, other.log_upper))

    @explained(
        log_p=_checks.vector_of(_checks.below_infinity), tolerance=_checks.tolerance
    )
    def contains(self, log_p: Any, *, tolerance: float = 1e-12) -> bool:
        """Whether a measure is in the interval.

        Args:
            log_p: Logarithms of its masses.
            tolerance: In logarithms, for rounding errors.

        Returns:
            True or False.
        """
        p = np.asarray(log_p)
        low, high = np.asarray(self.log_lower), np.asarray(self.log_upper)
        return bool(np.all((p >= low - tolerance) & (p <= high + tolerance)))

    @explained(event=_checks.vector_of(_indicator))
    def event_bounds(self, event: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The least and largest mu(A) / mu(all) over the interval.

        Args:
            event: Indicator of A, a Boolean vector or one of 0 and 1.

        Returns:
            L(A) / (L(A) + U(A^c)) and U(A) / (U(A) + L(A^c)).

        Raises:
            ValueError: If it is no such vector, or of another length.
        """
        return self.mean_bounds(event)

    @explained(values=_checks.vector_of(_checks.finite))
    def mean_bounds(self, values: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The least and largest normalized mean of a function over the interval.

        The interval holds measures that are no probabilities, so even I(e^-c P, e^c P)
        allows odds to change by e^{2c}.

        Args:
            values: The function at the points.

        Returns:
            Both means, exact.

        Differentiable in:
            The function and both ends of the interval.

        Raises:
            ValueError: If a value is not finite, the lengths differ, or U is 0.

        References:
            DeRobertis and Hartigan (1981), Theorem 4.1.
        """
        _checks.same_length("values", values, "log_lower", self.log_lower)
        nothing = lambda x: (x == -np.inf).all()
        upper = _checks.error_if(
            self.log_upper, nothing, _NO_MEAN, lambda x: x.max(), kind="at most"
        )
        return _means(self.log_lower, upper, values)


@in_float64(cast_out=False)
def _moved(logs: Array, move: Array) -> Array:
    return as_float(logs) + as_float(move)


@in_float64(cast_out=False)
def _log(factor: Array) -> Array:
    return jnp.log(as_float(factor))


_NO_MEAN = "log_upper must be above -inf at some point: the zero measure has no mean"


@in_float64
def _means(log_lower: Array, log_upper: Array, values: Array) -> tuple[Array, Array]:
    low, high, g = map(as_float, (log_lower, log_upper, values))
    top = stop_gradient(jnp.max(jnp.where(jnp.isfinite(high), high, -jnp.inf)))
    lower, upper = jnp.exp(low - top), jnp.exp(high - top)
    return Outward(-_largest(lower, upper, -g), _largest(lower, upper, g))


def _largest(lower: Array, upper: Array, g: Array) -> Array:
    """The largest mean: U where g is large and L where it is small.

    A mean is largest if the cut is where the mean itself is, so of all cuts the best.
    """
    order = jnp.argsort(stop_gradient(g))
    lower, upper, g = lower[order], upper[order], g[order]
    before = lambda x: jnp.concatenate([jnp.zeros(1), jnp.cumsum(x)])
    after = lambda x: jnp.concatenate([jnp.cumsum(x[::-1])[::-1], jnp.zeros(1)])
    mass = before(lower) + after(upper)
    # Relative to the largest value: no cancellation.
    moment = before(lower * (g - g[-1])) + after(upper * (g - g[-1]))
    known = mass > 0
    means = jnp.where(known, moment / jnp.where(known, mass, 1.0), -jnp.inf)
    return means[jnp.argmax(stop_gradient(means))] + g[-1]
