"""Whether a law is canonical noise: the four conditions, looked at on a grid."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from ..curves import Bound
from ..tradeoff import AbstractTradeOff
from ._post_process import cell_masses
from .sources import exact_tradeoff

_MOST_CELLS = 200_000


class CanonicalCheck(NamedTuple):
    """Worst failure of a candidate in each condition of the definition.

    The first two are tested with finitely many cells, which can only understate them:
    a check can refute a candidate, and supports it at the resolution of its grid.
    """

    private: float
    """(1) T(F, F(. - m)) >= f for all m: largest excess of delta over all m, eps."""
    exact: float
    """(2) T(F, F(. - 1)) = f: the same at shift 1, and whether thresholds attain f."""
    recursion: float
    """(3) f(alpha) = F(F^-1(1 - alpha) - 1): largest difference."""
    symmetric: float
    """(4) F(-x) = 1 - F(x): largest difference."""
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether all four are within the tolerance."""
        return max(self[:4]) <= self.tolerance


@explained(
    reach=_checks.number(_checks.finite_positive),
    cells_per_unit=_checks.whole_in(1, 10000),
)
def verify_canonical(
    cdf: Callable[[np.ndarray], Any],
    f: Any,
    *,
    reach: float = 12.0,
    cells_per_unit: int = 64,
    num_shifts: int = 8,
    tolerance: float = 1e-9,
) -> CanonicalCheck:
    """Test a distribution function for being canonical noise of f.

    Args:
        cdf: A distribution function on arrays, at unit sensitivity.
        f: As in `canonical_noise`; a trade-off function known exactly, for a check to
            full precision.
        reach: The grid covers [-reach, reach].
        cells_per_unit: Cells per unit; a multiple of `num_shifts`.  If the density
            has jumps, they should be at cell edges.
        num_shifts: Shifts m = 1/num_shifts, ..., 1 in condition 1.
        tolerance: Largest deviation that passes.

    Returns:
        `CanonicalCheck`, with a property `passed`.

    Guarantee:
        What fails is no canonical noise of f.  What passes was not refuted.

    Raises:
        ValueError: If the grid is not made of whole numbers of cells, or too large.

    Example:
        >>> import fdp_jax as fdp
        >>> from scipy.stats import norm
        >>> fdp.noise.verify_canonical(norm.cdf, fdp.tradeoff.Gaussian(1.0)).passed
        True

    References:
        Awan and Vadhan (2023), Definition 3.1.
    """
    shifts = _checks.whole("num_shifts", num_shifts, 1, cells_per_unit)
    count = round(reach * cells_per_unit)
    _checks.require(
        cells_per_unit % shifts == 0 and cells_per_unit <= count <= _MOST_CELLS,
        "cells_per_unit must be a multiple of num_shifts, and the grid must have "
        f"{cells_per_unit} to {_MOST_CELLS} cells on each side",
        count,
    )
    with jax.enable_x64(True):  # differences of 1e-9 are what this is about
        return _compared(cdf, f, count, cells_per_unit, shifts, tolerance)


def _compared(
    cdf: Callable[[np.ndarray], Any],
    f: Any,
    count: int,
    cells: int,
    shifts: int,
    tolerance: float,
) -> CanonicalCheck:
    f = exact_tradeoff(f, Bound.PESSIMISTIC)
    edges = np.arange(-count - cells, count + cells + 1) / cells
    value = np.asarray(cdf(edges), np.float64)
    mirrored = np.asarray(cdf(-edges), np.float64)
    symmetric = float(np.max(np.abs(value + mirrored - 1)))
    # alpha = 1 - F(x) is F(-x) if (4) holds, and has its digits then.
    beta = f.beta(alpha=np.clip(mirrored[cells:], 0, 1), bound=_MIDDLE)
    # Beyond the support F^-1(1) is its end.
    miss = np.abs(np.asarray(beta) - value[:-cells])
    recursion = float(np.max(miss, where=value[cells:] < 1, initial=0.0))
    moves = [k * cells // shifts for k in range(1, shifts + 1)]
    excess = _excess(value, cells, moves, f)
    # With (3) thresholds attain f, so that (2) can fail in one direction only.
    exact = max(float(excess[-1]), recursion)
    return CanonicalCheck(float(np.max(excess)), exact, recursion, symmetric, tolerance)


_MIDDLE = Bound.ESTIMATE


def _excess(
    value: np.ndarray, cells: int, moves: list[int], f: AbstractTradeOff
) -> np.ndarray:
    """For every move, the largest delta of the cells' masses minus that of f."""
    epsilons = 12 * np.sinh(np.linspace(-4, 4, 41)) / np.sinh(4)
    allowed = np.asarray(f.delta(epsilon=epsilons, bound=_MIDDLE))
    own = cell_masses(value[cells:-cells])
    found = []
    for steps in moves:
        moved = cell_masses(value[cells - steps : -cells - steps])
        gains = moved[None, :] - np.exp(epsilons)[:, None] * own[None, :]
        delta = np.sum(np.maximum(gains, 0), axis=1)
        found.append(max(float(np.max(delta - allowed)), 0.0))
    return np.asarray(found)
