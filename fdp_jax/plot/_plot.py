"""Trade-off function and privacy profile on matplotlib axes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from .._internal._extras import imported
from .._internal._files import require_picture
from .._internal._record import described
from ..mechanisms import require_guarantee

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCALES = ("linear", "log", "logit")
_REMOVE = "#1f5a94"
_ADD = "#c8641e"
_CERTIFIED = "#555555"
_NUM_POINTS = 256


@explained(scale=_checks.one_of(SCALES))
def tradeoff(
    source,
    ax: Axes | None = None,
    *,
    scale: Literal["linear", "log", "logit"] = "linear",
    label: str | None = None,
) -> Axes:
    """Draw the certified trade-off function f, in both directions.

    f(alpha) is the smallest false negative rate of any attack whose false positive
    rate is at most alpha. The shaded region under the certified lower bound is where
    no attack can be; the dotted line 1 - alpha is what blind guessing achieves.

    Args:
        source: A mechanism, or the curve of one.
        ax: Axes to draw on; a new figure's if None.
        scale: "linear" for the whole square, "log" for the false positive rates of
            practical attacks (logarithmic alpha against the true positive rate
            1 - f), "logit" to see both tails.
        label: Prefix of the legend entries.

    Returns:
        The axes.

    Guarantee:
        The curves drawn are lower bounds of f ("log": upper bounds of the true
        positive rate).

    Raises:
        ValueError: If `scale` is none of the three.
        ImportError: If matplotlib is missing.
    """
    source, ax, alpha = _both_of(source), _axes(ax), _alphas(scale)
    title = "Trade-off function (shaded: no attack is here)"
    _finish_rates(ax, scale, alpha, title)
    height = lambda part: _height(part, scale, alpha)
    _shade(ax, alpha, height(source), 1.0 if scale == "log" else _floor(scale))
    _draw_directions(ax, source, alpha, height, label)
    _legend(ax, scale)
    return ax


@explained
def profile(
    source,
    ax: Axes | None = None,
    *,
    max_epsilon: float | None = None,
    label: str | None = None,
) -> Axes:
    """Draw the certified privacy profile delta(epsilon), in both directions.

    Args:
        source: A mechanism, or the curve of one.
        ax: Axes to draw on; a new figure's if None.
        max_epsilon: Right end of the axis, positive; by default the epsilon at
            delta = 1e-12.
        label: Prefix of the legend entries.

    Returns:
        The axes; delta is logarithmic.

    Guarantee:
        The curves drawn are upper bounds of delta.

    Raises:
        ValueError: If `max_epsilon` is not positive.
        ImportError: If matplotlib is missing.
    """
    source, ax = _both_of(source), _axes(ax)
    last = _last_epsilon([source], 1e-12) if max_epsilon is None else max_epsilon
    max_epsilon = float(_checks.number(_checks.finite_positive)("max_epsilon", last))
    # On the curve's own grid its bounds are tightest.
    grid = np.asarray(getattr(source.remove, "epsilon_grid", ()))
    epsilon = grid[(grid >= 0.0) & (grid <= max_epsilon)]
    if epsilon.size < 20:
        epsilon = np.linspace(0.0, max_epsilon, _NUM_POINTS)
    # Next to the largest loss delta falls like a line, of which chords on a logarithmic
    # scale are far below.
    log_delta = np.log(np.maximum(np.asarray(source.delta(epsilon=epsilon)), 1e-300))
    bent = np.diff(log_delta, 2) < -0.06
    steep = np.append(bent, False) | np.append(False, bent)
    between = np.geomspace(1e-6, 1.0, 100)[:, None] * np.diff(epsilon)[steep]
    epsilon = np.union1d(epsilon, epsilon[1:][steep] - between)
    deltas = lambda part: _deltas(part, epsilon)
    _draw_directions(ax, source, epsilon, deltas, label)
    _finish_profile(ax, max_epsilon, "Privacy profile (upper bound)")
    last = float(deltas(source)[-1])
    if last > 0.0:  # The worse direction fills the picture; the other may leave it.
        ax.set_ylim(0.3 * last, 1.0)
    _legend(ax, None)
    return ax


def _draw_directions(
    ax: Axes, source: Any, x: np.ndarray, height: Any, label: str | None
) -> None:
    """A line for each direction: `height` of it at `x`."""
    prefix = "" if label is None else f"{label}, "
    for part, style, color in (("remove", "-", _REMOVE), ("add", "--", _ADD)):
        shown = height(getattr(source, part))
        ax.plot(x, shown, style, color=color, label=f"{prefix}{part}")


def _shade(
    ax: Axes,
    x: Any,
    y: Any,
    other: Any,
    color: str = _CERTIFIED,
    alpha: float = 0.12,
    **options: Any,
) -> None:
    """A region between two heights."""
    ax.fill_between(x, y, other, color=color, alpha=alpha, linewidth=0, **options)


def _titled(ax: Axes, title: str, x: str, y: str) -> None:
    """The words around a picture."""
    ax.set(xlabel=x, ylabel=y)
    ax.set_title(title, fontsize="medium")


def _last_epsilon(curves: Iterable[Any], delta: float) -> float:
    """The largest of the curves' positive epsilons at a delta, 10 if there is none."""
    ends = [float(curve.epsilon(delta=delta)) for curve in curves]
    return max([end for end in ends if np.isfinite(end) and end > 0] or [10.0])


def _deltas(source: Any, epsilon: np.ndarray) -> np.ndarray:
    """Deltas on a logarithmic axis, which has no 0."""
    delta = np.asarray(source.delta(epsilon=epsilon))
    return np.where(delta > 0, delta, np.nan)


def _finish_profile(ax: Axes, most: float, title: str) -> None:
    """Axes of a privacy profile."""
    ax.set(yscale="log", xlim=(0.0, most))
    _titled(ax, title, "epsilon (nats)", "delta")


def _floor(scale: str) -> float:
    return 1e-6 if scale == "logit" else 0.0


def _height(source, scale: str, alpha: np.ndarray) -> np.ndarray:
    """False negative rates; on the logarithmic scale true positive ones."""
    if scale == "log":
        # The true positive rate is asked for as such: 1 - beta would lose it.
        return np.asarray(source.tpr(fpr=alpha))
    floor = _floor(scale)
    return np.clip(np.asarray(source.beta(alpha=alpha)), floor, 1.0 - floor)


def _finish_rates(ax: Axes, scale: str, alpha: np.ndarray, title: str) -> None:
    """Axes of error rates, with what blind guesses attain."""
    detects, floor = scale == "log", _floor(scale)
    ax.set(xscale=scale, yscale=scale, aspect="equal" if scale == "linear" else "auto")
    ax.set_ylim(*((alpha[0], 1.0) if detects else (floor, 1.0 - floor)))
    blind = alpha if detects else 1.0 - alpha
    ax.plot(alpha, blind, ":", color="black", linewidth=1, label="blind guessing")
    ax.set_xlim(0.0 if scale == "linear" else alpha[0], alpha[-1])
    shown = "true positive rate" if detects else "false negative rate"
    _titled(ax, title, "false positive rate", shown)


def _legend(ax: Axes, scale: str | None) -> None:
    """A legend beside the lines: of error rates, where blind guesses are worst."""
    corner: Any = {"log": "lower right", None: "best"}.get(scale, "upper right")
    ax.legend(
        frameon=False,
        loc=corner,
        handlelength=1.6,
        handletextpad=0.5,
        labelspacing=0.25,
        borderaxespad=0.2,
        borderpad=0.2,
    )


def _alphas(scale: str) -> np.ndarray:
    if scale == "linear":
        # Denser at both ends, where f is steep.
        return 0.5 * (1.0 - np.cos(np.linspace(1e-4, np.pi, _NUM_POINTS)))
    if scale == "log":
        return np.geomspace(1e-6, 1.0, _NUM_POINTS)
    logit = np.linspace(np.log(1e-6), -np.log(1e-6), _NUM_POINTS)
    return 1.0 / (1.0 + np.exp(-logit))


def _as_curve(source: Any) -> Any:
    """The curve: one evaluation of the mechanism serves all points of a picture."""
    found: Any = require_guarantee("source", source)
    return found.curve() if hasattr(found, "curve") else found


def _both_of(source):
    """The curve of what has two directions."""
    curve = _as_curve(source)
    _checks.require(
        hasattr(curve, "remove") and hasattr(curve, "add"),
        "source must have both directions, as mechanisms and their curves have",
        f"{described(source)}: plot.overlay draws one",
        TypeError,
    )
    return curve


def _axes(ax: Axes | None) -> Axes:
    plt = imported("matplotlib.pyplot", "a picture", "plot")
    found: Any = plt.subplots(layout="constrained")[1] if ax is None else ax
    return _checks.instance("ax", found, plt.Axes, "axes of matplotlib")


@explained
def save(source, path, *, title: str | None = None) -> None:
    """Write a picture of the trade-off function and the privacy profile to a file.

    Args:
        source: A mechanism, or the curve of one.
        path: File to write; its suffix chooses the format (.png, .pdf, .svg).
        title: Line above the picture.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If matplotlib does not know the suffix.
        TypeError: If the source has not both directions.
        OSError: If the file cannot be written.
    """
    require_picture("path", path)
    source = _both_of(source)
    drawn = imported("matplotlib.figure", "a picture", "plot")
    figure = drawn.Figure(figsize=(13.0, 4.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    tradeoff(source, left)
    tradeoff(source, middle, scale="log")
    profile(source, right)
    if title is not None:
        figure.suptitle(title)
    figure.savefig(path, dpi=150)
