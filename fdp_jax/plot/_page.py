"""A page for browsers: the map of a sweep with its numbers under the pointer."""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any

import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from .._internal._extras import imported
from .._internal._files import write_at_once
from ..sweeps import Sweep
from ._sweep import edges, fixed, is_logarithmic, is_wide, require_sweep

_MOST_ROWS = 50_000
_WIDTH, _HEIGHT = 640, 480
_NOTE = "refused"


@explained
def sweep_page(
    source: Sweep,
    query: str,
    path: str | os.PathLike[str],
    *,
    x: str | None = None,
    y: str | None = None,
) -> None:
    """Write an interactive map of a sweep to an HTML file that needs nothing else.

    Colors show an answer over two columns, and a line above what is the same
    everywhere.  Under the pointer stand all numbers of a configuration as the table
    has them, not rounded, or why it was refused; the wheel zooms; the other axes of a
    grid have menus.  The page holds its data and its programs, so that it can be read
    without a network and sent by mail.

    Args:
        source: A sweep of at most 50,000 configurations.
        query: The name of the answer, or another column of numbers.
        path: The file, which ends in .html.
        x: The column from left to right; the last axis (or column that varies) if None.
        y: The one upwards; the axis before, or the answer where there is none, if None.

    Raises:
        KeyError: If there is no such column.
        ValueError: If there are more rows, a column has several numbers in a row, or
            the file has another name.
        ImportError: If altair or vl-convert-python is missing.
    """
    _checks.require(
        os.fspath(path).endswith(".html"), "path must end in .html", os.fspath(path)
    )
    picture = chart(source, query, x=x, y=y)
    imported("vl_convert", "a page", "html")
    write_at_once(path, picture.to_html(inline=True).encode())


def chart(source: Sweep, query: str, *, x: str | None, y: str | None) -> Any:
    """The map as an altair chart."""
    alt = imported("altair", "a page", "html")
    require_sweep(source)
    _checks.require(
        len(source) <= _MOST_ROWS,
        f"a page may have {_MOST_ROWS:,} configurations",
        f"{len(source):,}: sweep_map draws more",
    )
    columns = {name: source[name] for name in source if source[name].ndim == 1}
    moving = [name for name in source.names if len(set(columns[name].tolist())) > 1]
    moving = moving or list(source.names)
    x = moving[-1] if x is None else x
    others = [name for name in moving if name != x] or [query]
    y = others[-1] if y is None else y
    for name in (query, x, y):
        _checks.require(
            source[name].ndim == 1,
            f"column {name!r} must have one number in a row",
            f"shape {source[name].shape}",
        )
    shape = len(set(columns[x].tolist())), len(set(columns[y].tolist()))
    is_map = x in source.axes and y in source.axes
    places: dict[str, Any] = {
        "x": alt.X(**_axis(columns, x, of_axis=is_map)),
        "y": alt.Y(**_axis(columns, y, of_axis=is_map)),
    }
    rows, covered = _rows(source, columns, query), dict(places)
    for letter, name in ("x", x), ("y", y):
        if is_map and columns[name].dtype.kind in "fiu":
            first, last = _add_edges(rows, columns[name], letter)
            covered[letter] = covered[letter].copy()
            covered[letter]["field"] = first
            covered[f"{letter}2"] = {"x": alt.X2, "y": alt.Y2}[letter](field=last)
    color = alt.Color(**_axis(columns, query))
    tips = [
        alt.Tooltip(field=_escaped(name), type="nominal", title=name)
        for name in (*columns, _NOTE)
    ]
    told = alt.Chart(alt.InlineData(values=rows))
    drawn = alt.FieldEqualPredicate(field=_NOTE, equal="")
    marked = told.transform_filter(drawn)
    answers = (
        marked.mark_rect()
        if is_map
        else marked.mark_square(opacity=1, size=_size(*shape))
    )
    refused = told.transform_filter(alt.LogicalNotPredicate(**{"not": drawn}))
    refused = refused.mark_point(shape="cross", color="#999999")
    layers = alt.layer(
        answers.encode(**covered, color=color, tooltip=tips),
        refused.encode(**places, tooltip=tips),
    )
    rest = [name for name in source.axes if name in moving and name not in (x, y)]
    for place, name in enumerate(rest):
        options = [_told(value) for value in source.axes[name]]
        menu = alt.param(
            name=f"menu_{place}",
            value=options[0],
            bind=alt.binding_select(options=options, name=f"{name} "),
        )
        chosen = f"datum[{json.dumps(name)}] === {menu.name}"
        layers = layers.add_params(menu).transform_filter(chosen)
    title = fixed(source, query)
    return layers.properties(width=_WIDTH, height=_HEIGHT, title=title).interactive()


def _add_edges(rows: list[Any], values: np.ndarray, letter: str) -> tuple[str, str]:
    """The ends of the cells around values, as columns; their names."""
    names = f"{letter} from", f"{letter} to"
    axis, places = np.unique(values, return_inverse=True)
    ends = edges(axis).tolist()
    for row, place in zip(rows, places.tolist(), strict=True):
        row |= dict(zip(names, ends[place : place + 2], strict=True))
    return names


def _rows(source: Sweep, columns: dict[str, np.ndarray], query: str) -> list[Any]:
    """The table; what has no place among numbers is told by a note."""
    found = []
    for place, row in enumerate(source.rows):
        values = {name: _told(x[place]) for name, x in columns.items()}
        shown = values[query]
        note = source.refused.get(int(row), "" if _is_shown(shown) else f"{shown}")
        found.append(values | {_NOTE: note})
    return found


def _told(value: Any) -> Any:
    """A value as JSON has it; infinities and NaN as text."""
    value = value.item() if hasattr(value, "item") else value
    return value if _is_shown(value) or isinstance(value, str) else str(value)


def _is_shown(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _axis(
    columns: dict[str, np.ndarray], name: str, *, of_axis: bool = False
) -> dict[str, Any]:
    """The axis of a column: numbers on a scale, anything else by its names."""
    import altair as alt

    values = columns[name]
    about = {"field": _escaped(name), "title": name}
    if values.dtype.kind not in "fiu":
        return about | {"type": "nominal"}
    known = values[np.isfinite(values)]
    wide = is_logarithmic(known) if of_axis else is_wide(known)
    scale = alt.Scale(type="log" if wide else "linear", zero=False, nice=False)
    return about | {"type": "quantitative", "scale": scale}


def _escaped(name: str) -> str:
    """A field's name; dots and brackets would be paths into it."""
    return re.sub(r"([.\[\]\\])", r"\\\1", name)


def _size(columns: int, rows: int) -> float:
    """The area of a mark, so that a grid is covered."""
    side = min(_WIDTH / max(columns, 1), _HEIGHT / max(rows, 1))
    return float(np.clip(side, 3, 30) ** 2)
