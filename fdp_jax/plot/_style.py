"""How pictures look: colors that everybody can tell apart, and sizes for papers."""

from __future__ import annotations

from typing import Any

from .._internal import _checks
from .._internal._calls import explained

COLORS = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#000000"
"""Okabe and Ito (2008): distinct with any kind of color vision."""
DASHES = "-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2))
"""So that lines are told apart without any color, too."""

_SIZES = "a number of points, at least 2", lambda x: (x >= 2) & (x < 1000)


@explained(
    width=_checks.number(_checks.finite_positive),
    height=_checks.number(_checks.finite_positive),
    font_size=_checks.number(_checks.numbers_that_are(*_SIZES)),
)
def paper(
    width: float = 3.25, *, height: float | None = None, font_size: float = 8.0
) -> dict[Any, Any]:
    """Settings of matplotlib for figures that a paper includes at their own size.

    Args:
        width: Of a figure, in inches: that of a column or of the text. (3.25 and 6.75
            are those of many conferences with two columns.)
        height: In inches; four fifths of the width if None.
        font_size: In points; legends are a point smaller.

    Returns:
        For `matplotlib.pyplot.rc_context`; fonts are embedded as such (type 42).

    Raises:
        ValueError: If a size is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> settings = fdp.plot.paper(6.75, height=2.5)
        >>> settings["figure.figsize"], settings["font.size"]
        ((6.75, 2.5), 8.0)
    """
    height = 0.8 * width if height is None else height
    text = "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize"
    return {
        "figure.figsize": (width, height),
        "figure.constrained_layout.use": True,
        "font.size": font_size,
        **dict.fromkeys(text, font_size),
        "legend.fontsize": font_size - 1.0,
        "axes.linewidth": 0.6,
        "lines.linewidth": 1.2,
        "pdf.fonttype": 42,
        "ps.fonttype": 42,
        "savefig.dpi": 300,
    }
