"""Several runs in one picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from ._plot import (
    _NUM_POINTS,
    SCALES,
    _alphas,
    _as_curve,
    _axes,
    _deltas,
    _finish_profile,
    _finish_rates,
    _height,
    _last_epsilon,
    _legend,
)
from ._style import COLORS, DASHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_KINDS = "tradeoff", "profile"
_FEW = 3
"""So many names have room beside the lines; more of them go beside the axes."""


@explained(kind=_checks.one_of(_KINDS), scale=_checks.one_of(SCALES))
def overlay(
    sources: Mapping[str, Any],
    ax: Axes | None = None,
    *,
    kind: Literal["tradeoff", "profile"] = "tradeoff",
    scale: Literal["linear", "log", "logit"] = "linear",
) -> Axes:
    """Draw the guarantees of several runs, a line for each.

    Args:
        sources: Mechanisms (both directions), single directions or curves, by what the
            legend calls them; at most six.
        ax: Axes to draw on; a new figure's if None.
        kind: "tradeoff" (error rates of attacks) or "profile" (delta against epsilon).
        scale: Of the error rates, as in `tradeoff`.

    Returns:
        The axes.  Lines differ in color and in dashes; the names of more than three
        stand to the right of the axes, for which constrained layout makes room.

    Guarantee:
        Lines are certified bounds on the private side.

    Raises:
        ValueError: If `kind` or `scale` is unknown, or the number of runs is not from
            1 to 6.
        TypeError: If the runs have no names.
        ImportError: If matplotlib is missing.
    """
    _checks.require(
        isinstance(sources, Mapping),
        "sources must be a mapping from names to runs",
        type(sources).__name__,
        TypeError,
    )
    _checks.require(
        0 < len(sources) <= len(COLORS),
        f"sources must be 1 to {len(COLORS)} runs",
        len(sources),
    )
    ax = _axes(ax)
    curves = {name: _as_curve(source) for name, source in sources.items()}
    x, heights = (_rates if kind == "tradeoff" else _profiles)(ax, curves, scale)
    for (name, y), color, dashes in zip(heights.items(), COLORS, DASHES, strict=False):
        ax.plot(x, y, color=color, linestyle=dashes, label=str(name))
    if len(sources) > _FEW:
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    else:
        _legend(ax, scale if kind == "tradeoff" else None)
    return ax


def _rates(ax: Axes, curves: dict[str, Any], scale: str) -> tuple[Any, dict[str, Any]]:
    alpha = _alphas(scale)
    _finish_rates(ax, scale, alpha, "Trade-off functions (private side)")
    return alpha, {name: _height(x, scale, alpha) for name, x in curves.items()}


def _profiles(ax: Axes, curves: dict[str, Any], scale: str) -> tuple[Any, Any]:
    most = _last_epsilon(curves.values(), 1e-9)
    epsilon = np.linspace(0.0, most, _NUM_POINTS)
    _finish_profile(ax, most, "Privacy profiles (upper bounds)")
    ax.set_ylim(1e-9, 1.0)
    return epsilon, {name: _deltas(x, epsilon) for name, x in curves.items()}
