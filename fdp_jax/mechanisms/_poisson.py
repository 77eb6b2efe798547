"""Counts released as Poisson variables."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Key, Real

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import known
from .._internal._counts import log_poisson
from .._internal._precision import in_float64
from ..losses import ComposedLoss, PoissonLoss
from ._base import AbstractMechanism, one_release
from ._fields import (
    Search,
    as_float,
    parameter,
    product,
)
from ._relations import ADD_OR_REMOVE_ONE, relation_field

_MANY = 10.0
_MEAN, _LARGEST_MEAN = "offset + gain statistic", 2.0**53
"""Counts beyond are not told apart by floats."""


# Of more the smaller mean is not a number.
_log_change = _checks.numbers_that_are("in (0, 600]", lambda x: (x > 0) & (x <= 600))
_rate = _checks.numbers_that_are(
    "positive and finite", lambda x: (x > 0) & jnp.isfinite(x)
)
_countable = _checks.numbers_that_are("at most 2^53", lambda x: x <= _LARGEST_MEAN)


class PoissonMechanism(AbstractMechanism):
    r"""Releases a count y >= 0 as a Poisson variable of mean offset + gain y.

    Neighbors' counts differ by at most `sensitivity` = w, so their means by at most
    gain w, and the quotient of their means is at most 1 + gain w / offset, attained
    by the counts 0 and w.  That pair dominates all others, in both orders:

        T(Poisson(l1), Poisson(l2)) >= T(Poisson(m1), Poisson(m2))
        if and only if  l2 - l1 <= m2 - m1  and  l2 / l1 <= m2 / m1   (0 < m1 < m2).

    *Proof.*  If both hold, keep each of the Poisson(m_i) counts with probability
    k = (l2 - l1) / (m2 - m1) and add an independent Poisson(l1 - k m1): this makes
    Poisson(l_i) of Poisson(m_i), and l1 >= k m1 is the second condition.  Conversely
    the slope of T is -e^{l1 - l2} at alpha = 1, and near alpha = 0 its logarithm grows
    by log(l2 / l1) from one count to the next: a smaller one of either would cross.

    Of the output M, (M - offset) / gain is an unbiased estimate of y, with variance
    (offset + gain y) / gain^2.

    For a mean lambda(y) that is not affine, see `lipschitz`.

    Args:
        offset: Mean for an empty count, in (0, inf).  Certified numbers are as tight as
            rounding for means up to about 3e4, and looser beyond.
        gain: Increase of the mean for one more, in (0, inf).
        sensitivity: By how much neighbors' counts differ, in (0, inf).
        relation: The neighboring relation the sensitivity refers to.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> release = fdp.PoissonMechanism(offset=20.0, gain=1.0)
        >>> print(f"{release.epsilon(delta=1e-3):.6f} {release.variance(100.0):.1f}")
        0.560029 120.0

    References:
        Pandey, Maleki, Kulkarni (2025) for Poisson privacy of counts; the order and the
        affine mechanism as stated here are proved above.
    """

    offset: Real[ArrayLike, ""] | None = parameter(
        "offset", _checks.finite_positive, Search(-1, 1e-9, 1e5), default=None
    )
    gain: Real[ArrayLike, ""] | None = parameter(
        "gain", _checks.finite_positive, Search(1, 1e-9, 1e5), default=None
    )
    sensitivity: Real[ArrayLike, ""] = parameter(
        "sensitivity", _checks.finite_positive, default=1.0, kw_only=True
    )
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)
    _divisible: ClassVar = True

    @classmethod
    @explained(
        rate=_checks.instance_of(Callable, "a function of the data"),
        largest_change=_checks.one(_checks.finite_positive),
        largest_log_change=_checks.one(_log_change),
    )
    def lipschitz(
        cls,
        *,
        largest_change: Any,
        largest_log_change: Any,
        rate: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> "PoissonMechanism":
        """The guarantee of Poisson(lambda(x)) for any mean lambda(x) > 0 of the data.

        By the order theorem of the class, the pair whose means differ by
        `largest_change` and whose logarithms differ by `largest_log_change` dominates.

        Args:
            largest_change: Bound of |lambda(x) - lambda(x')| over neighbors, in
                (0, inf).
            largest_log_change: Bound of |log lambda(x) - log lambda(x')|, in (0, 600].
            rate: The function lambda, from the data to a positive number or an array of
                such.  That it keeps both bounds is not checked.
            **options: `relation`, the neighboring relation of both bounds.

        Returns:
            A mechanism with this dominating pair.  Its `gain` is `largest_change`.
            With a rate, `mean` and `sample` are those of Poisson(lambda(x)) and take
            the data, and there are no estimates; otherwise all of these are those of
            the affine mean.

        Raises:
            TypeError: If the rate is not a function.
            ValueError: If a bound is out of range.

        Example:
            >>> import fdp_jax as fdp
            >>> import jax, jax.numpy as jnp
            >>> release = fdp.PoissonMechanism.lipschitz(
            ...     largest_change=1.0,
            ...     largest_log_change=0.05,
            ...     rate=lambda ages: 20.0 + jnp.sum(ages > 65),
            ... )
            >>> print(f"{release.offset:.4f}")
            19.5042
            >>> drawn = release.sample(jax.random.key(0), jnp.asarray([70, 30, 81]))
            >>> bool(drawn >= 0)
            True
        """
        steepest = _steepest(largest_change, largest_log_change)
        if rate is None:
            return cls(steepest, largest_change, **options)
        return _OfRate(steepest, largest_change, rate=rate, **options)

    def loss(self) -> ComposedLoss:
        low = as_float(self.offset)
        change = as_float(self.gain) * as_float(self.sensitivity)
        return one_release(PoissonLoss.of_change(low, change))

    def _group(self, size):
        # The counts 0 and `size` times the sensitivity are the worst of a group.
        return dataclasses.replace(self, sensitivity=product(self.sensitivity, size))

    def mean(self, statistic: Any) -> Float[Array, "..."]:
        """Mean of the output for a true count.

        Args:
            statistic: The count y, at least 0.

        Returns:
            offset + gain y.

        Raises:
            ValueError: If a count is negative or a parameter is not set.
        """
        return _rounded(self._mean(statistic))

    def _mean(self, statistic: Any) -> Any:
        """The mean with all of its digits."""
        self.require_complete()
        statistic = _checks.nonnegative("statistic", statistic)
        return _exact_mean(self.offset, self.gain, statistic)

    def sample(self, key: Key[Array, ""], statistic: Any) -> Float[Array, "..."]:
        """Draws the output; a reference sampler, not hardened against its randomness.

        Args:
            key: A JAX random key.
            statistic: The count y, at least 0.

        Returns:
            Poisson variables of mean offset + gain y: whole numbers as floats, since
            they may be too large for an integer (without x64 they have 24 bits).

        Raises:
            ValueError: If a count is negative, or so large that the mean is above 2^53,
                or a parameter is not set.

        References:
            Hörmann (1993) for means from 10 on.
        """
        mean = self._mean(statistic)
        if known(mean) is not None:
            _countable(_MEAN, mean)
        return _drawn(key, mean)

    def estimate(self, output: Any) -> Float[Array, "..."]:
        """The unbiased estimate of the count.

        Args:
            output: What was released.

        Returns:
            (output - offset) / gain, which may be negative.

        Raises:
            ValueError: If a parameter is not set.
        """
        self.require_complete()
        return _estimate(self.offset, self.gain, output)

    def variance(self, statistic: Any) -> Float[Array, "..."]:
        """Variance of the estimate for a true count.

        Args:
            statistic: The count y, at least 0.

        Returns:
            (offset + gain y) / gain^2.

        Raises:
            ValueError: If a count is negative or a parameter is not set.
        """
        return _variance(self._mean(statistic), self.gain)


class _OfRate(PoissonMechanism):
    """The pair of two bounds, and the law of the mean that keeps them."""

    rate: Callable[[Any], Any] = eqx.field(static=True, kw_only=True)

    def _mean(self, statistic: Any) -> Any:
        return _rate("rate", self.rate(statistic))

    def estimate(self, output: Any) -> Float[Array, "..."]:
        raise TypeError("a mean that is a function of the data has no estimate")

    def variance(self, statistic: Any) -> Float[Array, "..."]:
        return self.estimate(statistic)


_rounded = in_float64(as_float)
"""A number in the caller's precision."""


@in_float64(cast_out=False)
def _exact_mean(offset: Any, gain: Any, statistic: Any) -> Array:
    return as_float(offset) + as_float(gain) * as_float(statistic)


@in_float64
def _estimate(offset: Any, gain: Any, output: Any) -> Array:
    return (as_float(output) - as_float(offset)) / as_float(gain)


@in_float64
def _variance(mean: Any, gain: Any) -> Array:
    return as_float(mean) / jnp.square(as_float(gain))


@in_float64(cast_out=False)
def _steepest(change: Any, ratio: Any) -> Array:
    return as_float(change) / jnp.expm1(as_float(ratio))


@in_float64
def _drawn(key: Array, mean: Array) -> Array:
    mean = _countable(_MEAN, mean)
    few, many = jax.random.split(key)
    small = mean < _MANY
    # Of means that are not small JAX's sampler, all in float32, has a wrong law.
    counted = jax.random.poisson(few, jnp.where(small, mean, 1.0)).astype(float)
    return jnp.where(small, counted, _drawn_many(many, jnp.where(small, _MANY, mean)))


def _drawn_many(key: Array, mean: Float[Array, "..."]) -> Float[Array, "..."]:
    """Poisson variables of means from 10 on, by transformed rejection (PTRS)."""
    b = 0.931 + 2.53 * jnp.sqrt(mean)
    a = -0.059 + 0.02483 * b
    height = 1.1239 + 1.1328 / (b - 3.4)
    surely = 0.9277 - 3.6224 / (b - 2)

    def propose(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, count, found = state
        key, first, second = jax.random.split(key, 3)
        u = jax.random.uniform(first, mean.shape, mean.dtype) - 0.5
        v = jax.random.uniform(second, mean.shape, mean.dtype)
        side = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * a / side + b) * u + mean + 0.43)
        at = jnp.where((k >= 0) & (k < jnp.inf), k, 0.0)
        density = jnp.exp(log_poisson(at, mean))
        likely = v * height < density * (a / jnp.square(side) + b)
        inside = (k == at) & ((side >= 0.013) | (v <= side))
        taken = ((side >= 0.07) & (v <= surely)) | (inside & likely)
        return key, jnp.where(found | ~taken, count, k), found | taken

    start = key, mean, jnp.zeros(mean.shape, bool)
    return jax.lax.while_loop(lambda s: ~jnp.all(s[2]), propose, start)[1]
