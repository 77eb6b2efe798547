"""Pictures of what a private output leaves open: posterior band, power envelope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import limits
from .._internal import _checks
from .._internal._calls import explained
from ..curves import AbstractGuarantee
from ._plot import _alphas, _axes, _titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@explained
def posterior_band(
    theta: Any, density: Any, ax: Axes | None = None, *, epsilon: Any, distance: Any
) -> Axes:
    """Draw a prior density and the band that holds every posterior.

    Args:
        theta: Parameters, a vector.
        density: A proper prior's density there.
        ax: Axes to draw on; a new figure's if None.
        epsilon: In [0, inf), per step between neighbors.
        distance: The largest distance between data sets that the model allows; they
            must be joined by paths of neighbors.

    Returns:
        The axes.

    Guarantee:
        The posterior given any output of an epsilon-DP mechanism is in the band.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If an argument is out of range.
    """
    theta = np.asarray(_checks.vector("theta", _checks.real, theta), np.float64)
    density = _checks.vector("density", _checks.nonnegative, density)
    ax, density = _axes(ax), np.asarray(density, np.float64)
    with np.errstate(divide="ignore"):
        logs = np.log(density)
    low, high = limits.posterior_density_bounds(
        logs, epsilon=epsilon, distance=distance, connected=True
    )
    low, high = np.exp(np.asarray(low)), np.exp(np.asarray(high))
    ax.fill_between(theta, low, high, alpha=0.25, label="every posterior", linewidth=0)
    ax.plot(theta, density, label="prior")
    _titled(ax, "Posterior density (certain bounds)", "parameter", "density")
    ax.legend(frameon=False)
    return ax


@explained
def power_envelope(
    f: AbstractGuarantee, ax: Axes | None = None, *, distances: Any = (1, 2, 4)
) -> Axes:
    """Draw the largest power of any test between models at some distances.

    Args:
        f: A guarantee for every ordered pair of neighbors.
        ax: Axes to draw on; a new figure's if None.
        distances: Largest distances between the models' data sets; one curve each.

    Returns:
        The axes.

    Guarantee:
        The curves are upper bounds of the power.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If a distance is out of range.
    """
    ax, alpha = _axes(ax), _alphas("linear")
    for k in distances:
        power = limits.power_bound(alpha, f, distance=k, connected=True)
        ax.plot(alpha, np.asarray(power), label=f"distance {k:g}")
    ax.plot(alpha, alpha, ":", color="gray", label="no data")
    _titled(ax, "Power (upper bound)", "level of the test", "power")
    ax.legend(frameon=False, loc="lower right")
    return ax
