"""Picture of an attack under the trade-off function that it is to respect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from .. import audit as audits
from .._internal._calls import explained
from ._plot import _alphas, _legend, _shade, tradeoff

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ATTACK = "#7a2a3a"


@explained
def audit(
    source,
    evidence: Any,
    ax: Axes | None = None,
    *,
    confidence: float = 0.95,
    scale: Literal["linear", "log", "logit"] = "linear",
    label: str | None = None,
) -> Axes:
    """Draw a certified trade-off function and what an attack attains, with confidence.

    The true trade-off function is between both: above the theory's lower bound, if that
    is right, and below the attack's upper bound with this confidence.  Points of the
    attack in the region where no attack can be falsify the guarantee.

    Args:
        source: A mechanism, or the curve of one.
        evidence: `audit.Counts` or `audit.Scores`.
        ax: Axes to draw on; a new figure's if None.
        confidence: In (0, 1), of all points of the attack together.
        scale: As in `tradeoff`.
        label: Prefix of the legend entries of the theory.

    Returns:
        The axes.

    Guarantee:
        With this confidence the attack's line is an upper bound of the trade-off
        function ("log": a lower bound of the largest true positive rate).

    Raises:
        TypeError: If the evidence is of another kind.
        ValueError: If the confidence or the scale is out of range.
        ImportError: If matplotlib is missing.
    """
    points = audits.tradeoff_points(evidence, confidence=confidence)
    ax = tradeoff(source, ax, scale=scale, label=label)
    alpha, detects = _alphas(scale), scale == "log"
    height = lambda beta: 1.0 - beta if detects else beta
    least, most = (0.0, 1.0) if scale == "linear" else (1e-6, 1.0 - 1e-6)
    line = height(points.upper(alpha=alpha)).clip(least, most)
    ax.plot(alpha, line, color=_ATTACK, label=f"attack ({confidence:.4g})")
    ax.plot(points.alpha, height(points.beta), ".", color=_ATTACK, markersize=4)
    _shade(ax, alpha, line, 0.0 if detects else 1.0, _ATTACK, 0.10)
    ax.set_title("Theory and attack", fontsize="medium")
    _legend(ax, scale)
    return ax
