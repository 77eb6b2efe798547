r"""Levy densities as jumps of finitely many sizes, with a bound of what that costs.

Large jumps.  A jump in [a, b] is moved to an end at random, so that the rates under P
and under Q are kept: a mean-preserving spread of the likelihood ratio of one jump, so
the new pair dominates (the jumps of a Poisson process are independent of one another).

Small jumps.  Let Z(w) = E_P e^{wX}.  Parseval's identity on the critical line gives for
any two losses, at every prior,

    |R - R~| <= (1 / 4 pi) int |Z(1/2 + i t) - Z~(1/2 + i t)| / (1/4 + t^2) dt.

With nu~ = e^{x/2} nu and small jumps replaced by a Gaussian of variance int x^2 nu~,
both |Z| are at most 1 (times exp(-s^2 (1/4 + t^2) / 2) for a common Gaussian part) and
the exponents differ by at most

    B(t) = M4 (t^4 / 24 + C / 384) + M3 (t^3 / 6 + t C / 24),   C = cosh(reach / 2),

M4 the fourth moment of nu~ and M3 its third absolute one (0 if nu~ is symmetric, as for
a symmetric trade-off function), so |Z - Z~| <= min(2, B(t)).
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._logs import LOG_2
from .._internal._quadrature import on_intervals
from .._internal._record import Record
from ..mechanisms import LevyTriplet

_ORDER = 12
_STEPS = 1 << 14
_FAR, _FARTHEST = 50.0, 700.0
_HALVINGS = 330
_REST = 1e-7
"""What may be left, of small jumps and of large ones, where the quadrature ends."""


class LevyApproximation(Record):
    """A triplet in place of a Levy density."""

    triplet: LevyTriplet
    error: float
    """Bound of the Bayes error's change by small jumps and cut tails, at any prior
    (quadrature of the density aside); moving the others only adds privacy loss."""
    small_jump_error: float
    """The part of the small jumps."""
    tail: float
    """Probability (the larger of both laws) of a jump beyond the largest size."""


@explained
def small_jump_error(
    *,
    fourth_moment: Any,
    third_moment: Any = 0.0,
    gaussian_variance: Any = 0.0,
    reach: float = 1.0,
) -> float:
    """Bound of the Delta-divergence between small jumps and a Gaussian.

    Args:
        fourth_moment: int x^4 e^{x/2} nu(dx) of the jumps replaced, at least 0.
        third_moment: int |x|^3 e^{x/2} nu(dx), or 0 if the triplet is symmetric.
        gaussian_variance: Variance of a Gaussian part that both losses have.
        reach: The largest |x| of the jumps replaced.

    Returns:
        A bound of |R - R~| at every prior: an upper Riemann sum.

    Guarantee:
        Upper bound, if the variance put in is int x^2 e^{x/2} nu(dx).

    Raises:
        ValueError: If a moment is negative.

    Example:
        >>> from fdp_jax.levy import small_jump_error
        >>> error = small_jump_error(fourth_moment=1e-6, gaussian_variance=0.5)
        >>> print(f"{error:.1e}")
        2.1e-08
    """
    numbers = {
        "fourth_moment": fourth_moment,
        "third_moment": third_moment,
        "gaussian_variance": gaussian_variance,
        "reach": reach,
    }
    fourth, third, variance, most = (
        float(_checks.checked_scalar(name, _checks.nonnegative, value))
        for name, value in numbers.items()
    )
    # t = tan(angle) / 2 makes the measure uniform on [0, pi / 2].
    angle = np.linspace(0, 0.5 * np.pi, _STEPS + 1)
    left, right = 0.5 * np.tan(angle[:-1]), 0.5 * np.tan(angle[1:])
    with np.errstate(over="ignore", divide="ignore"):
        # In logarithms: no jumps times an overflowing factor are none.
        bend = np.logaddexp(0.5 * most, -0.5 * most) - LOG_2
        gap = fourth * right**4 / 24 + np.exp(np.log(fourth) + bend) / 384
        gap = gap + third * right**3 / 6 + np.exp(np.log(third) + bend) * right / 24
        decay = np.exp(-0.5 * variance * (0.25 + left**2))
    total = np.sum(np.minimum(gap, 2) * decay) * 0.5 / _STEPS
    return float(min(total * (1 + 1e-10), 0.5))


@explained(symmetric=_checks.flag, num_points=_checks.whole_in(8, 1 << 14))
def from_density(
    density: Callable[[Any], Any],
    *,
    cut: float = 1e-2,
    reach: float = 20.0,
    num_points: int = 256,
    gaussian_variance: float = 0.0,
    symmetric: bool = False,
) -> LevyApproximation:
    """A triplet with finitely many sizes of jumps in place of a Levy density.

    Args:
        density: nu's density under P, a function of an array; e^x nu must be integrable
            at infinity and x^2 nu at 0.
        cut: Jumps smaller than this become a Gaussian part, in (0, reach).
        reach: Jumps larger than this are left out.
        num_points: Sizes of jumps on either side, at least 8.
        gaussian_variance: Of a Gaussian part that there is besides.
        symmetric: Whether nu(-x) = e^x nu(x), which makes the error smaller; checked.

    Returns:
        `LevyApproximation`, with a bound of the error that it makes.

    Raises:
        ValueError: If a number is out of range, the density is negative or not
            integrable as far as quadrature can tell, or it is not symmetric as stated.
    """
    _checks.require(
        0 < cut < reach < np.inf,
        "cut must be in (0, reach)",
        f"{cut} and reach = {reach}",
    )
    values = lambda x: _checked_density(density, x, symmetric)
    edges = np.geomspace(cut, reach, num_points)
    up = _spread(values, edges[:-1], edges[1:])
    down = _spread(values, -edges[1:], -edges[:-1])
    jumps = np.concatenate([-edges[::-1], edges])
    # Those of each edge; the bins of `down` run away from zero.
    below = np.append(down[1], 0.0) + np.append(0.0, down[0])
    above = np.append(up[0], 0.0) + np.append(0.0, up[1])
    rates = np.concatenate([below[::-1], above])
    second, third, fourth = _small(values, cut)
    small = small_jump_error(
        fourth_moment=fourth,
        third_moment=0.0 if symmetric else third,
        gaussian_variance=gaussian_variance,
        reach=cut,
    )
    tail = float(-np.expm1(-_tail(values, reach)))
    triplet = LevyTriplet(gaussian_variance + second, jumps=jumps, rates=rates)
    return LevyApproximation(triplet, small + tail, small, tail)


def _checked_density(
    density: Callable, x: np.ndarray, symmetric: bool
) -> Float[np.ndarray, "..."]:
    with jax.enable_x64(True), np.errstate(over="ignore", divide="ignore"):
        found = np.asarray(density(x), np.float64)
        other = np.asarray(density(-x), np.float64) if symmetric else None
    wrong = ~(np.isfinite(found) & (found >= 0))
    if np.any(wrong):
        place, value = x[wrong][0], found[wrong][0]
        raise ValueError(
            f"density must be a finite number, at least 0, got {value} at {place:.3g}"
        )
    near = np.abs(x) < _FAR
    mirrored = np.exp(np.where(near, x, 0.0)) * found
    _checks.require(
        other is None or np.allclose(other[near], mirrored[near], rtol=1e-8),
        "density must satisfy nu(-x) = e^x nu(x) if symmetric=True",
    )
    return found


def _bins(values: Callable, low: np.ndarray, high: np.ndarray) -> tuple:
    """Quadrature nodes of bins, and the density times the weights."""
    x, weights = on_intervals(low, high, _ORDER)
    return x, values(x) * weights


def _spread(values: Callable, low: np.ndarray, high: np.ndarray) -> tuple:
    """Rates at the ends of bins that keep the masses under P and Q."""
    x, mass = _bins(values, low, high)
    # expm1(x - low) / expm1(high - low), which overflow.
    share = np.expm1(low[:, None] - x) / np.expm1(low - high)[:, None]
    share = share * np.exp(x - high[:, None])
    return np.sum(mass * (1 - share), axis=1), np.sum(mass * share, axis=1)


def _small(values: Callable, cut: float) -> tuple[float, float, float]:
    """Second, third absolute and fourth moment of e^{x/2} nu on |x| < cut."""
    edges = cut * np.exp2(-np.arange(_HALVINGS))
    moments, innermost = np.zeros(3), 0.0
    for low, high in ((edges[1:], edges[:-1]), (-edges[:-1], -edges[1:])):
        x, mass = _bins(values, low, high)
        each = mass * np.exp(0.5 * x)
        innermost += np.sum(each[-1] * np.square(x[-1]))
        moments += [np.sum(each * np.abs(x) ** k) for k in (2, 3, 4)]
    second, third, fourth = (float(m) for m in moments)
    if not innermost <= _REST * second:
        raise ValueError(
            "density must make the integral of x^2 nu(dx) at 0 finite: jumps about "
            f"{edges[-1]:.0e} still have {innermost / second:.0e} of the variance"
        )
    return second, third, fourth


def _tail(values: Callable, reach: float) -> float:
    """The larger of both laws' rates of jumps beyond the reach."""
    edges = np.geomspace(reach, max(_FARTHEST, 2 * reach), 128)
    masses, last = np.zeros(2), 0.0
    for low, high in ((edges[:-1], edges[1:]), (-edges[1:], -edges[:-1])):
        x, mass = _bins(values, low, high)
        with np.errstate(divide="ignore", over="ignore"):
            tilted = np.exp(np.log(mass) + x)  # e^x alone overflows
        masses += [np.sum(mass), np.sum(tilted)]
        last += np.sum(mass[-1]) + np.sum(tilted[-1])
    _checks.require(
        last <= _REST,
        "density must leave next to no jumps where quadrature ends, with the "
        f"record or without: next to {edges[-1]:.0f} their rate is {last:.1e}",
    )
    return float(np.max(masses))
