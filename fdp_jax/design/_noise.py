r"""The best additive noise with a piecewise constant density, by linear programming.

With k bins per unit of sensitivity, let p_i be the mass of bin i.  A shift by
(j + t) / k, 0 <= t < 1, splits every bin in two, in which the masses of bins j and
j + 1 steps away meet p; so its profile is (1 - t) delta_j + t delta_(j+1), and

    delta_j(eps) = sum_i max(p_(i - j) - e^eps p_i, 0) <= delta,   j = 1 .. k,

is all there is to check.  With a linear cost that is a linear program.  At delta = 0
the tail is that of p_(i + k) = e^-eps p_i.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy  # its parts load when they are used

from .._internal import _checks
from .._internal._calls import explained
from .._internal._quadrature import unit_rule
from .._internal._record import Record
from .._internal._show import short
from ..calibration import UnreachableTarget
from ..calibration.targets import AllOf, ApproxDP
from ..mechanisms import FromProbabilities

_ORDER = 8
"""Nodes of a bin."""
_TAIL = 80
"""At delta = 0 the tail is cut where it has fallen by e^-80."""
_ATTEMPTS = 6
_MOST_BINS, _MOST_EPSILON = 1 << 18, 300.0
_Matrix = Any  # scipy.sparse.csr_array, not loaded before it is used


class NoiseDesign(Record):
    """A density of additive noise; made by `optimal_noise`."""

    edges: np.ndarray
    """Ends of the bins, in units of the sensitivity."""
    density: np.ndarray
    """The density in each bin."""
    cost: float
    """Its expected cost."""
    deltas: np.ndarray
    """For each (epsilon, delta) asked for, the delta at the worst shift."""
    mechanism: FromProbabilities
    """The release at a shift of one sensitivity."""


_reach = _checks.numbers_that_are("in (0, 1000]", lambda x: (x > 0) & (x <= 1000))


@explained(num_bins=_checks.whole_in(1, 256), reach=_checks.number(_reach))
def optimal_noise(
    cost: Callable[[Any], Any],
    target: ApproxDP | AllOf,
    *,
    num_bins: int = 8,
    reach: float = 6.0,
) -> NoiseDesign:
    """The symmetric noise of least expected cost for one release of one number.

    Args:
        cost: Function of the noise (a NumPy array, in units of the sensitivity), at
            least 0, even and growing no faster than a power.
        target: An `ApproxDP`, or `AllOf` several: together any trade-off function of
            finitely many straight pieces.  With delta = 0 (pure DP) one alone.  Epsilon
            is at most 300, and at delta = 0 at least num_bins / 3276.
        num_bins: Bins per unit of sensitivity.
        reach: How far the noise (at delta = 0: its free part) extends, in (0, 1000].

    Returns:
        A `NoiseDesign`: the best histogram, so its cost is an upper bound of that of
        the best noise.

    Guarantee:
        With delta > 0 the target holds for every shift up to the sensitivity, which is
        checked by summation after the program is solved.  With delta = 0 the ratio of
        the masses of any two bins is checked to e^epsilon (1 + 1e-12), for the density
        continued beyond its last bin by e^-epsilon a unit; the bins given leave out
        tails of probability about e^-80, so what is drawn from them alone is
        (epsilon, delta)-DP with such a delta.

    Raises:
        ValueError: If an argument is out of range, or the cost is negative anywhere.
        TypeError: If the target is of another kind.
        UnreachableTarget: If there is no such noise within reach.

    Example:
        >>> import fdp_jax as fdp
        >>> target = fdp.targets.ApproxDP(epsilon=1.0, delta=0.0)
        >>> best = fdp.design.optimal_noise(abs, target, num_bins=8)
        >>> print(f"{best.cost:.4f}")  # the staircase mechanism has 0.9595
        0.9595

    References:
        Geng, Kairouz, Oh, Viswanath (2015) for the optimum of pure DP.
    """
    points = _points(target, num_bins)
    half = int(np.ceil(reach * num_bins))
    pure = points[0][1] == 0
    _checks.require(
        not pure or len(points) == 1,
        "target must be one ApproxDP if delta is 0",
        "AllOf",
        TypeError,
    )
    _checks.require(
        not pure or half >= num_bins,
        "no noise within reach meets the target: reach must be at least 1 where "
        "delta is 0",
        f"{reach:g}",
        UnreachableTarget,
    )
    decay = float(np.exp(-points[0][0])) if pure else 0.0
    spread = _spread(half, num_bins, decay)
    each = expected_costs(cost, spread.shape[0] // 2, num_bins)
    allowed = np.asarray([delta for _, delta in points])
    for _ in range(_ATTEMPTS):
        total = spread @ _solve(each, spread, points, allowed, num_bins)
        total = _repaired(total, decay, num_bins)
        deltas = [_worst_delta(total, e, num_bins, decay) for e, _ in points]
        over = np.asarray(deltas) - [delta for _, delta in points]
        if np.all(over <= 0):
            break
        # The program was solved to a tolerance; ask for that much more.
        allowed = allowed - 2 * np.maximum(over, 0)
    else:
        raise UnreachableTarget(
            "no noise within reach could be made to meet the target"
        )
    bins = total.size // 2
    edges = np.arange(-bins, bins + 1) / num_bins
    p, q = _pair(total, num_bins, num_bins, decay)
    pair = FromProbabilities(p / p.sum(), q / q.sum())
    worst = np.asarray(deltas)
    return NoiseDesign(edges, total * num_bins, float(each @ total), worst, pair)


def _points(target: Any, num_bins: int) -> list[tuple[float, float]]:
    each: Sequence[Any] = target.targets if isinstance(target, AllOf) else (target,)
    wanted = ApproxDP, "ApproxDP or AllOf several"
    each = [_checks.instance("target", one, *wanted) for one in each]
    points = [(float(one.epsilon), float(one.delta)) for one in each]
    # Of pure DP the bins reach to where the tail has fallen by e^-80.
    pure = any(delta == 0 for _, delta in points)
    least = _TAIL * num_bins / _MOST_BINS if pure else 0.0
    for epsilon, _ in points:
        _checks.require(
            least <= epsilon <= _MOST_EPSILON,
            f"epsilon of the target must be in [{least:g}, {_MOST_EPSILON:g}] "
            f"with {num_bins} bins a unit",
            epsilon,
        )
    return points


def _spread(half: int, num_bins: int, decay: float) -> _Matrix:
    """From the free masses of the bins at x > 0 to all bins, tail included."""
    right, factor = np.arange(half), np.ones(half)
    if decay > 0:
        # Until the tail is too small to matter to any cost.
        periods = int(np.ceil(_TAIL / -np.log(decay)))
        beyond = np.arange(periods * num_bins)
        right = np.append(right, half - num_bins + beyond % num_bins)
        factor = np.append(factor, decay ** (1.0 + beyond // num_bins))
    columns = np.append(right[::-1], right)
    values = np.append(factor[::-1], factor)
    rows = np.arange(columns.size)
    return scipy.sparse.csr_array(
        scipy.sparse.coo_array((values, (rows, columns)), (columns.size, half))
    )


def expected_costs(cost: Callable[[Any], Any], bins: int, num_bins: int) -> np.ndarray:
    """Mean cost of every bin."""
    nodes, weights = unit_rule(_ORDER)
    left = np.arange(-bins, bins)[:, None] / num_bins
    at = left + nodes / num_bins
    values = np.asarray(cost(at), np.float64)
    _checks.require(
        values.shape == at.shape and np.all(np.isfinite(values) & (values >= 0)),
        "cost must take an array of noise and return as many finite numbers, at "
        "least 0",
        f"{short(values)} for {short(at)}",
    )
    return values @ weights


def _solve(
    each: np.ndarray,
    spread: _Matrix,
    points: list[tuple[float, float]],
    allowed: np.ndarray,
    num_bins: int,
) -> np.ndarray:
    """The free masses of least cost."""
    shifts = range(1, num_bins + 1)
    each_excess = [
        _excess(spread, shift, np.exp(epsilon), delta == 0)
        for epsilon, delta in points
        for shift in shifts
    ]
    excess = scipy.sparse.vstack(each_excess)
    count, half = excess.shape
    if points[0][1] == 0:
        slacks, rows, limits = 0, excess, np.zeros(count)
    else:
        # Slacks are at least the excess; their sum is at most delta.
        slacks = count
        ones = [np.ones((1, x.shape[0])) for x in each_excess]
        sums = scipy.sparse.block_diag([scipy.sparse.coo_array(x) for x in ones])
        rows = scipy.sparse.block_array(
            [[excess, -scipy.sparse.eye_array(count)], [None, sums]]
        )
        limits = np.append(np.zeros(count), np.repeat(allowed, num_bins))
    mass = np.asarray(spread.sum(axis=0)).ravel()
    found = scipy.optimize.linprog(
        np.append(spread.T @ each, np.zeros(slacks)),
        A_ub=rows.tocsr(),
        b_ub=limits,
        A_eq=np.append(mass, np.zeros(slacks))[None],
        b_eq=[1.0],
        bounds=(0, None),
        method="highs",
    )
    _checks.require(
        found.x is not None,
        f"no noise within reach meets the target: {found.message}",
        wrong=UnreachableTarget,
    )
    return np.maximum(found.x[:half], 0)


def _excess(spread: _Matrix, shift: int, growth: float, pure: bool) -> _Matrix:
    """p_(i - j) - e^eps p_i, for all i; beyond a tail that goes on, nothing is new."""
    if pure:
        keep = 4 * spread.shape[1]
        middle = spread.shape[0] // 2
        low, high = max(0, middle - keep), min(spread.shape[0], middle + keep)
        inner = spread[low:high]
        return scipy.sparse.csr_array(inner[:-shift] - growth * inner[shift:])
    empty = scipy.sparse.csr_array((shift, spread.shape[1]))
    moved = scipy.sparse.vstack([empty, spread], format="csr")
    still = scipy.sparse.vstack([spread, empty], format="csr")
    return scipy.sparse.csr_array(moved - growth * still)


def _repaired(total: np.ndarray, decay: float, num_bins: int) -> np.ndarray:
    """With sum 1; at delta = 0 with the ratios that were meant, to the last digit."""
    if decay > 0:
        right = total[(total.size // 2) :].copy()
        # Outwards mass may fall by no more than e^-eps per unit; so tiny masses, which
        # the program leaves at zero, are raised.
        right[num_bins - 1] = max(right[num_bins - 1], decay * right[0])
        for i in range(num_bins, right.size):
            right[i] = max(right[i], decay * right[i - num_bins])
        right = np.maximum.accumulate(right[::-1])[::-1]
        total = np.append(right[::-1], right)
    return total / total.sum()


def _worst_delta(
    total: np.ndarray, epsilon: float, num_bins: int, decay: float
) -> float:
    """The largest delta over all shifts up to the sensitivity."""
    worst = 0.0
    for shift in range(1, num_bins + 1):
        still, moved = _pair(total, shift, num_bins, decay)
        # So much is the rounding of a ratio of one.
        excess = moved - np.exp(epsilon) * (1 + 1e-12 * (decay > 0)) * still
        worst = max(worst, float(np.maximum(excess, 0).sum()))
    return worst


def _pair(
    total: np.ndarray, shift: int, num_bins: int, decay: float
) -> tuple[np.ndarray, np.ndarray]:
    """The masses without and with a shift, on the bins that either of them has."""
    ends = decay * total[:num_bins], decay * total[-num_bins:]
    longer = np.concatenate([ends[0], total, ends[1]])
    return longer[shift:], longer[:-shift]
