"""Canonical noise as users see it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Real

from .. import tradeoff
from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import is_traced, known
from .._internal._precision import float_dtype, in_float64
from .._internal._record import Record
from ..curves import (
    Bound,
)
from ..mechanisms import (
    as_float,
    is_zero,
)
from ..tradeoff import AbstractTradeOff
from . import _families, law as _law
from ._recursion import CurveLaw
from .law import AbstractLaw
from .sources import exact_tradeoff


class CanonicalNoise(Record):
    """Canonical noise of a trade-off function; made by `canonical_noise`.

    For a statistic S that moves by at most `sensitivity` between neighbors, S + N
    satisfies `tradeoff`-DP, and at the largest move exactly that: no budget is left
    over.  N is symmetric about 0.  All methods work under `jit` and `vmap`; derivatives
    in x and in the parameters of f are those of the closed forms, or implicit ones.

    Warning:
        Samples are floating-point numbers, and the theorems are about real ones.  The
        bits of a released float can give the data away (Mironov 2012).  For a release
        against adversaries round statistic and noise to a grid (`rounded`, for counts)
        and draw with exact integer arithmetic, as OpenDP's samplers do.

        With x64 off samples are float32.  A statistic that is not exact in float32 (a
        count above 2^24) would be rounded before the noise is added, and move by more
        than its sensitivity: `fdp.inference.release_count` adds in float64.
    """

    law: AbstractLaw
    tradeoff: AbstractTradeOff
    """What a release satisfies, without error."""
    sensitivity: Real[ArrayLike, ""] = _checks.field(
        "sensitivity", _checks.finite_positive
    )

    def cdf(self, x: Any) -> Float[Array, "..."]:
        """F(x) = P(N <= x).

        Args:
            x: Any real number.

        Returns:
            The probability, with full relative accuracy in the left tail.

        Raises:
            ValueError: If x is NaN.
        """
        return _asked(self, "cdf", _checks.real("x", x))

    def sf(self, x: Any) -> Float[Array, "..."]:
        """S(x) = P(N > x).

        Args:
            x: Any real number.

        Returns:
            The probability, with full relative accuracy in the right tail.

        Raises:
            ValueError: If x is NaN.
        """
        return _asked(self, "sf", _checks.real("x", x))

    def log_sf(self, x: Any) -> Float[Array, "..."]:
        """Log S(x), finite however small S is.

        Args:
            x: Any real number.

        Returns:
            The logarithm, at most 0.

        Raises:
            ValueError: If x is NaN.
        """
        return _asked(self, "log_sf", _checks.real("x", x))

    def pdf(self, x: Any) -> Float[Array, "..."]:
        """The density; at a jump of it, the value on one side.

        Args:
            x: Any real number.

        Returns:
            The density, at least 0.

        Raises:
            ValueError: If x is NaN.
        """
        return _asked(self, "pdf", _checks.real("x", x))

    def log_pdf(self, x: Any) -> Float[Array, "..."]:
        """Logarithm of the density, -inf outside of the support.

        Args:
            x: Any real number.

        Returns:
            The logarithm.

        Differentiable in:
            x, and the parameters of closed forms.

        Raises:
            ValueError: If x is NaN.
        """
        return _asked(self, "log_pdf", _checks.real("x", x))

    def quantile(self, prob: Any) -> Float[Array, "..."]:
        """F^-1(prob), with inf{x: F(x) > 0} at 0: the support's left end.

        Args:
            prob: In [0, 1].  Pass the right tail to `isf` instead.

        Returns:
            The quantile; the ends of the support at 0 and 1.

        Raises:
            ValueError: If prob is outside [0, 1].
        """
        return -_asked(self, "isf", _checks.probability("prob", prob))

    def isf(self, tail: Any) -> Float[Array, "..."]:
        """S^-1(tail), the quantile at 1 - tail, accurate for tiny tails.

        Args:
            tail: In [0, 1].

        Returns:
            The x with P(N > x) = tail.

        Raises:
            ValueError: If tail is outside [0, 1].
        """
        return _asked(self, "isf", _checks.probability("tail", tail))

    def sample(self, key: Any, shape: int | tuple[int, ...] = ()) -> Array:
        """Draws from the law, for simulation; see the warning of the class.

        Args:
            key: Of `jax.random`.
            shape: Of the result.

        Returns:
            Independent values, differentiable in the parameters of f.  Of each tail
            they show what has a probability of 2^-54 or more.
        """
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        return _sample(self, _checks.random_key(key), _Shape(sizes))

    def mean(self) -> Float[Array, ""]:
        """The mean, 0 by symmetry (absolute moments of all orders are finite)."""
        return jnp.zeros((), float_dtype())

    def variance(self) -> Float[Array, ""]:
        """The variance: in closed form, or by quadrature to about 1e-10.

        The latter for the construction on `Gaussian`, `Laplace` and on curves without a
        family, such as lists of (eps, delta); it has forward-mode derivatives only.
        """
        return _asked(self, "variance")

    def characteristic_function(self, frequency: Any) -> Float[Array, "..."]:
        """E exp(i t N) at t = frequency; real, because the law is symmetric.

        Args:
            frequency: Any finite number; where quadrature is needed (see `variance`),
                at most 30 over the sensitivity in size.

        Returns:
            The value, in [-1, 1].

        Raises:
            ValueError: If a frequency is not finite, or too large for quadrature.
        """
        frequency = _checks.finite("frequency", frequency)
        scale = known(self.sensitivity)
        if self.law.fastest < np.inf:
            most = self.law.fastest / (1.0 if scale is None else float(scale))
            allowed = f"at most {most:g} in size, which quadrature resolves"
            test = lambda x: abs(x) <= most
            frequency = _checks.checked("frequency", frequency, allowed, test)
        return _asked(self, "characteristic_function", frequency)

    def made_for(self, sensitivity: Any) -> "CanonicalNoise":
        """This noise, for a statistic of a sensitivity that must be its own.

        Args:
            sensitivity: That of the statistic, or None.

        Returns:
            The noise.

        Raises:
            ValueError: If the noise was made for another sensitivity.
        """
        if sensitivity is None:
            return self
        traced = is_traced(self.sensitivity, sensitivity)
        shown = "" if traced else f", {self.sensitivity}"
        checked = _checks.error_if(
            self.sensitivity,
            lambda x: x != sensitivity,
            f"sensitivity must be that of the noise{shown}",
            lambda _: sensitivity,
        )
        return dataclasses.replace(self, sensitivity=checked)

    @property
    def support(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The ends of the support, infinite if f(0) = 1."""
        end = _asked(self, "end")
        return -end, end


@explained(log_concave=_checks.flag, bound=_checks.member_of(Bound))
def canonical_noise(
    f: Any,
    *,
    sensitivity: Any = 1.0,
    log_concave: bool = False,
    bound: Bound | str = Bound.PESSIMISTIC,
) -> CanonicalNoise:
    """The additive noise that spends a privacy budget f exactly.

    By default the construction of Awan and Vadhan: uniform in the middle, continued by
    S(x + 1) = f(1 - S(x)).  For f_{eps,delta} it is Tulap noise (the staircase with a
    step in the middle), for f_{0,delta} the uniform law.

    Args:
        f: A symmetric trade-off function other than Id: one of `fdp.tradeoff`, a
            mechanism or curve (its guarantee for both directions), or a list of
            (epsilon, delta) pairs, which may come from anywhere.
        sensitivity: In (0, inf), how far the statistic can move between neighbors.
        log_concave: Take the log-concave canonical noise instead: normal for
            `Gaussian`, Laplace for `Laplace`, logistic for `Logistic`, uniform for
            f_{0,delta}.
        bound: Which curve to take where f is known between certified bounds only.
            `PESSIMISTIC`: the release satisfies the guarantee that this package
            certifies for f, as in "no less private than what was proved of that run".
            `OPTIMISTIC`: the release is at least as private as f itself, whatever f
            is between the bounds.

    Returns:
        `CanonicalNoise`, whose `tradeoff` is what a release satisfies.

    Guarantee:
        S + N is `tradeoff`-DP, with equality of the trade-off functions at the largest
        move (exact numbers; see the warning of `CanonicalNoise`).
        What is known between bounds becomes a polygon of 2049 proved tangents, which
        lies below the certified beta by at most about 3e-6 for DP-SGD, and by 4e-7
        where epsilon(1e-15) is below 10 (a `TradeOff.of(run, epsilons=...)` keeps the
        thresholds it was given).

    Differentiable in:
        The parameters of f.  A guarantee known between bounds is a table; derivatives
        are those of the smooth curve it stands for, interpolated between its nodes
        (for `TradeOff.of` G_1 .1 to .3 % off at tails down to 1e-6, 1 % at 1e-9).

    Raises:
        ValueError: If f is not symmetric or is Id, or there is no log-concave noise.
        TypeError: If f is not a guarantee.

    Example:
        >>> import fdp_jax as fdp
        >>> noise = fdp.canonical_noise(fdp.tradeoff.ApproxDP(epsilon=1.0, delta=0.0))
        >>> print(f"{noise.quantile(0.99):.4f} {noise.variance():.4f}")
        3.9005 1.9247

    References:
        Awan and Vadhan (2023), Definitions 3.1 and 3.4, Proposition F.6; Awan and Dong
        (2022) for log-concave canonical noise.
    """
    exact = exact_tradeoff(f, bound)
    law = (_log_concave if log_concave else _construction)(exact)
    return CanonicalNoise(law, exact, sensitivity)


_NO_LOG_CONCAVE = (
    "log_concave must be False for {}: it is not one of the infinitely divisible "
    "trade-off functions Gaussian, Laplace, Logistic and ApproxDP(epsilon=0, delta)"
)


def _construction(f: AbstractTradeOff) -> AbstractLaw:
    if isinstance(f, tradeoff.ApproxDP):
        return _families.TulapLaw(f.epsilon0, f.delta0)
    law = _families.shift_law(f)
    return CurveLaw(f) if law is None else _families.ShiftConstruction(law)


def _log_concave(f: AbstractTradeOff) -> AbstractLaw:
    if isinstance(f, tradeoff.ApproxDP) and is_zero(f.epsilon0):
        return _families.TulapLaw(f.epsilon0, f.delta0)
    law = _families.shift_law(f)
    if law is None:
        raise ValueError(_NO_LOG_CONCAVE.format(type(f).__name__))
    return law


# ----------------------------------------------------------------- inside float64


class _Shape(eqx.Module):
    sizes: tuple[int, ...] = eqx.field(static=True)


_ANSWERS: dict[str, Callable[..., Array]] = {
    "cdf": lambda law, unit, x: law.cdf(x / unit),
    "sf": lambda law, unit, x: law.sf(x / unit),
    "log_sf": lambda law, unit, x: law.log_sf(x / unit),
    "pdf": lambda law, unit, x: jnp.exp(law.log_pdf(x / unit)) / unit,
    "log_pdf": lambda law, unit, x: law.log_pdf(x / unit) - jnp.log(unit),
    "isf": lambda law, unit, tail: law.isf(tail) * unit,
    "variance": lambda law, unit: law.variance() * jnp.square(unit),
    "characteristic_function": lambda law, unit, t: law.characteristic_function(
        t * unit
    ),
    "end": lambda law, unit: law.end() * unit,
}
"""What is asked of a law whose unit is the sensitivity."""


@in_float64
def _asked(noise: CanonicalNoise, query: str, *given: Any) -> Array:
    unit = as_float(noise.sensitivity)
    return _ANSWERS[query](noise.law, unit, *map(as_float, given))


@in_float64
def _sample(noise: CanonicalNoise, key: Any, shape: _Shape) -> Array:
    return _law.sample(noise.law, key, shape.sizes) * as_float(noise.sensitivity)
