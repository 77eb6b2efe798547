"""Pictures of a sweep: a map with contour lines, and a Pareto front."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from .._internal._extras import imported
from ..sweeps import Sweep
from ._plot import _axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_FRONT, _OTHERS = "#c8641e", "#9db4cc"
_LEVELS = 6


@explained
def sweep_map(
    source: Sweep,
    query: str,
    ax: Axes | None = None,
    *,
    at: dict[str, Any] | None = None,
) -> Axes:
    """Draw an answer over two axes of a grid: colors, and contour lines with numbers.

    What is drawn is the end on the private side.  Refused configurations stay white.
    Values of an axis that are no numbers have places in their order; numbers that are
    spaced like powers are drawn on a logarithmic scale.  Above stands what is the same
    everywhere.

    Args:
        source: A complete sweep over a grid.
        query: The name of the answer.
        ax: Axes to draw on; a new figure's if None.
        at: Values of the other axes, by name, if there are more than two.

    Returns:
        The axes.

    Raises:
        ValueError: If two axes do not remain, or a value is none of its axis.
        ImportError: If matplotlib is missing.
    """
    require_sweep(source)
    values, axes = np.asarray(source.grid(query)), source.axes
    _checks.require(
        at is None or isinstance(at, Mapping),
        "at must be a mapping of axes to values",
        f"{at!r}",
    )
    for name, value in (at or {}).items():
        _checks.require(
            name in axes and value in axes[name],
            "at must name values of axes",
            f"{name}={value!r}",
        )
        place = list(axes).index(name)
        values = values.take(int(np.argmax(axes.pop(name) == value)), axis=place)
    _checks.require(
        len(axes) == 2 and values.ndim == 2,
        "a map has two axes, and one number at each place: choose values "
        "of the others by at=",
        f"{list(axes)} and {query} of shape {values.shape}",
    )
    ax = _axes(ax)
    (y_name, y), (x_name, x) = axes.items()
    x, y = _places(x, ax.xaxis), _places(y, ax.yaxis)
    across, up = np.argsort(x), np.argsort(y)
    x, y = x[across], y[up]
    shown = np.ma.masked_invalid(values[np.ix_(up, across)])
    wide = is_wide(shown.compressed())
    norm = "log" if wide else "linear"
    colors = ax.pcolormesh(edges(x), edges(y), shown, norm=norm)
    ax.figure.colorbar(colors, ax=ax, label=query)
    levels = _levels(shown, wide)
    if min(values.shape) > 1 and levels.size:
        lines = ax.contour(x, y, shown, levels=levels, colors="white", linewidths=0.8)
        ax.clabel(lines, fmt="%.3g", fontsize="x-small")
    _finish(ax, (x_name, x), (y_name, y))
    for letter, places in ("x", x), ("y", y):
        if is_logarithmic(places):
            ax.set(**{f"{letter}scale": "log"})
            _label_powers(getattr(ax, f"{letter}axis"), places)
    ax.set_title(textwrap.fill(fixed(source, query, at), 70), fontsize="small")
    return ax


@explained
def pareto_front(
    source: Sweep,
    x: str,
    y: str,
    ax: Axes | None = None,
    *,
    label: str | None = None,
) -> Axes:
    """Draw two columns against each other, and the configurations that none beats.

    A configuration is on the front if no other one is at most as large in both columns
    and smaller in one.

    Args:
        source: A sweep.
        x: Column of which less is better, such as "num_steps".
        y: The other one, such as a calibrated "noise_multiplier".
        ax: Axes to draw on; a new figure's if None.
        label: Of the front in a legend.

    Returns:
        The axes.

    Raises:
        KeyError: If there is no such column.
        ValueError: If it does not hold one number for each configuration.
        ImportError: If matplotlib is missing.
    """
    require_sweep(source)
    points = np.stack([_numbers_of(source, name) for name in (x, y)], axis=1)
    points = points[np.all(np.isfinite(points), axis=1)]
    front = points[on_front(points)]
    ax = _axes(ax)
    ax.plot(*points.T, ".", color=_OTHERS, markersize=3)
    front = front[np.argsort(front[:, 0])]
    ax.step(*front.T, ".-", color=_FRONT, where="post", label=label)
    _finish(ax, (x, points[:, 0]), (y, points[:, 1]))
    if label is not None:
        ax.legend(frameon=False)
    return ax


def require_sweep(source: Any) -> None:
    """Refuses what is no sweep.

    Raises:
        TypeError: If it is something else.
    """
    _checks.instance("source", source, Sweep, "what fdp.sweep returns")


def _numbers_of(source: Sweep, name: str) -> np.ndarray:
    found = source[name]
    _checks.require(
        found.ndim == 1 and found.dtype.kind in "fiu",
        f"column {name!r} must hold one number for each configuration",
        f"{found.dtype} of shape {found.shape}",
    )
    return found


def _places(values: np.ndarray, axis: Axis) -> np.ndarray:
    """Where the values of an axis are drawn; what is no number gets a label."""
    if values.dtype.kind in "fiu":
        return values
    places = np.arange(len(values))
    axis.set_ticks(places, labels=[str(x) for x in values])
    return places


def _finish(ax: Axes, *columns: tuple[str, np.ndarray]) -> None:
    """The name of either axis, and a scale that its numbers are seen on."""
    for letter, (name, numbers) in zip("xy", columns, strict=True):
        # To set a scale anew, a linear one too, takes the labels of names away.
        scale = {f"{letter}scale": "log"} if is_wide(numbers) else {}
        ax.set(**{f"{letter}label": name}, **scale)


def _label_powers(axis: Axis, places: np.ndarray) -> None:
    """Round numbers on a logarithmic axis that has few powers of ten."""
    if places.max() < 1000 * places.min():
        ticker = imported("matplotlib.ticker", "a picture", "plot")
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")


def _levels(shown: np.ma.MaskedArray, wide: bool) -> np.ndarray:
    """Round numbers between the least and the largest, for contour lines."""
    if shown.count() == 0:
        return np.zeros(0)
    ticker = imported("matplotlib.ticker", "a picture", "plot")
    low, high = shown.min(), shown.max()
    decades = np.log10(high / low) if wide else 0.0
    steps = (1.0, 2.0, 5.0) if decades < 2 else (1.0, 3.0) if decades < 4 else (1.0,)
    locator = (
        ticker.LogLocator(subs=steps, numticks=_LEVELS)
        if wide
        else ticker.MaxNLocator(_LEVELS)
    )
    found = locator.tick_values(low, high)
    return found[(found > low) & (found < high)]


def fixed(source: Sweep, query: str, at: Mapping[str, Any] | None = None) -> str:
    """A line with what is the same at all places of a picture."""
    columns = {name: source[name] for name in source.names if source[name].ndim == 1}
    asked = source.asked.get(query, {}).items()  # a text is the name of a column
    told = {name: x for name, x in asked if not isinstance(x, str)}
    told |= {name: x[0] for name, x in columns.items() if len(set(x.tolist())) == 1}
    numbers = int, float, np.number
    return ", ".join(
        f"{name} = {x:.10g}" if isinstance(x, numbers) else f"{name} = {x}"
        for name, x in (told | dict(at or {})).items()
    )


def edges(places: np.ndarray) -> np.ndarray:
    """Ends of the cells around the values of an axis, on the scale that it has."""
    wide = is_logarithmic(places)
    x = np.log(places) if wide else np.asarray(places, float)
    half = np.diff(x) / 2 if x.size > 1 else np.full(1, 0.5)
    found = np.append(x[0] - half[0], x + np.append(half, half[-1])[: x.size])
    return np.exp(found) if wide else found


def is_logarithmic(places: np.ndarray) -> bool:
    """Whether the values of an axis are spaced like powers, or are far apart."""
    x = np.unique(places)
    if x.size < 3 or not x[0] > 0:
        return bool(x.size == 2 and x[1] > 3 * x[0] > 0)
    uneven, ratios = [np.ptp(np.diff(y)) / np.ptp(y) for y in (x, np.log(x))]
    return is_wide(x) or bool(ratios < uneven - 1e-9)


def on_front(points: np.ndarray) -> np.ndarray:
    """Which points of a plane no other one beats."""
    order = np.lexsort((points[:, 1], points[:, 0]))
    heights = points[order, 1]
    least = np.minimum.accumulate(np.append(np.inf, heights))[:-1]
    found = np.zeros(len(points), bool)
    found[order] = heights < least
    return found


def is_wide(numbers: np.ndarray) -> bool:
    """Whether positive numbers are so different that a logarithmic scale shows more."""
    least, most = (numbers.min(), numbers.max()) if numbers.size else (0, 0)
    return bool(least > 0 and most > 20 * least)
