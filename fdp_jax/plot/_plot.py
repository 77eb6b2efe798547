"""Trade-off function and privacy profile on matplotlib axes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from .._internal._files import require_picture
from .._internal._record import described
from ..mechanisms import require_guarantee

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCALES = ("linear", "log", "logit")
_REMOVE = "#1f5a94"
_ADD = "#c8641e"
_CERTIFIED = "#555555"
_NUM_POINTS = 300


@explained
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
    _checks.choice("scale", scale, SCALES)
    source = _both_of(source)
    ax = _axes(ax)
    alpha = _alphas(scale)
    prefix = "" if label is None else f"{label}, "

    certified = _height(source, scale, alpha)
    private = 1.0 if scale == "log" else _floor(scale)
    ax.fill_between(
        alpha, certified, private, color=_CERTIFIED, alpha=0.12, linewidth=0
    )
    _finish_rates(ax, scale, alpha)
    for part, style, color in (("remove", "-", _REMOVE), ("add", "--", _ADD)):
        shown = _height(getattr(source, part), scale, alpha)
        ax.plot(alpha, shown, style, color=color, label=f"{prefix}{part}")
    ax.set_title("Trade-off function (shaded: no attack is here)", fontsize="medium")
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
        max_epsilon: Right end of the axis; by default the epsilon at delta = 1e-12.
        label: Prefix of the legend entries.

    Returns:
        The axes; delta is logarithmic.

    Guarantee:
        The curves drawn are upper bounds of delta.

    Raises:
        ImportError: If matplotlib is missing.
    """
    source = _both_of(source)
    ax = _axes(ax)
    if max_epsilon is None:
        max_epsilon = float(source.epsilon(delta=1e-12))
        if not (np.isfinite(max_epsilon) and max_epsilon > 0.0):
            max_epsilon = 10.0
    # On the curve's own grid its bounds are tightest.
    grid = np.asarray(getattr(source.remove, "epsilon_grid", ()))
    epsilon = grid[(grid >= 0.0) & (grid <= max_epsilon)]
    if epsilon.size < 20:
        epsilon = np.linspace(0.0, max_epsilon, _NUM_POINTS)
    prefix = "" if label is None else f"{label}, "
    ends = []
    for name, color, style in (("remove", _REMOVE, "-"), ("add", _ADD, "--")):
        delta = np.asarray(getattr(source, name).delta(epsilon=epsilon))
        delta = np.where(delta > 0.0, delta, np.nan)
        ax.plot(epsilon, delta, style, color=color, label=f"{prefix}{name}")
        ends += [delta[-1]] if delta[-1] > 0.0 else []
    ax.set(yscale="log", xlim=(0.0, max_epsilon))
    if ends:  # The worse direction fills the picture; the other may leave it.
        ax.set_ylim(0.3 * max(ends), 1.0)
    ax.set_xlabel("epsilon (nats)")
    ax.set_ylabel("delta")
    ax.set_title("Privacy profile (upper bound)", fontsize="medium")
    ax.legend(frameon=False)
    return ax


def _floor(scale: str) -> float:
    return 1e-6 if scale == "logit" else 0.0


def _height(source, scale: str, alpha: np.ndarray) -> np.ndarray:
    """False negative rates; on the logarithmic scale true positive ones."""
    if scale == "log":
        # The true positive rate is asked for as such: 1 - beta would lose it.
        return np.asarray(source.tpr(fpr=alpha))
    floor = _floor(scale)
    return np.clip(np.asarray(source.beta(alpha=alpha)), floor, 1.0 - floor)


def _finish_rates(ax: Axes, scale: str, alpha: np.ndarray) -> None:
    """Axes of error rates, with what blind guesses attain."""
    if scale == "log":
        ax.set(xscale="log", yscale="log", ylim=(alpha[0], 1.0))
        ax.set_ylabel("true positive rate")
    else:
        if scale == "logit":
            ax.set(xscale="logit", yscale="logit")
        else:
            ax.set_aspect("equal")
        floor = _floor(scale)
        ax.set_ylim(floor, 1.0 - floor)
        ax.set_ylabel("false negative rate")
    blind = alpha if scale == "log" else 1.0 - alpha
    ax.plot(alpha, blind, ":", color="black", linewidth=1, label="blind guessing")
    ax.set_xlim(0.0 if scale == "linear" else alpha[0], alpha[-1])
    ax.set_xlabel("false positive rate")


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
        angle = np.linspace(1e-4, np.pi, _NUM_POINTS)
        return 0.5 * (1.0 - np.cos(angle))
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
    if not (hasattr(curve, "remove") and hasattr(curve, "add")):
        raise TypeError(
            "source must have both directions, as mechanisms and their curves have, "
            f"got {described(source)}: plot.overlay draws one"
        )
    return curve


def _axes(ax: Axes | None) -> Axes:
    with _needs_matplotlib():
        import matplotlib.axes
        import matplotlib.pyplot as plt
    ax = plt.subplots(layout="constrained")[1] if ax is None else ax
    return _checks.instance("ax", ax, matplotlib.axes.Axes, "axes of matplotlib")


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
    with _needs_matplotlib():
        from matplotlib.figure import Figure
    require_picture("path", path)
    source = _both_of(source)
    figure = Figure(figsize=(13.0, 4.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    tradeoff(source, left)
    tradeoff(source, middle, scale="log")
    profile(source, right)
    if title is not None:
        figure.suptitle(title)
    figure.savefig(path, dpi=150)


@contextlib.contextmanager
def _needs_matplotlib() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ImportError(
            "Plots need matplotlib; install fdp-jax with the extra 'plot'."
        ) from error
