"""A small drawing of trade-off curves, for notebooks."""

import html
from typing import Any

import numpy as np

_SIDE, _MARGIN = 120.0, 14.0
_COLORS = "#1f77b4", "#d62728"
Lines = tuple[tuple[Any, Any], ...]
"""Curves, each of them as type I and type II errors."""


def page(text: str, lines: Lines) -> str:
    """HTML of a text beside the curves."""
    return (
        '<div style="display:flex;align-items:center;gap:1em">'
        f"{_svg(lines)}<pre style='margin:0'>{html.escape(text)}</pre></div>"
    )


def _svg(lines: Lines) -> str:
    curves = [
        f'<polyline fill="none" stroke="{color}" stroke-width="1.5" '
        f'points="{_points(*line)}"/>'
        for color, line in zip(_COLORS, lines, strict=False)
    ]
    size, end = _SIDE + 2 * _MARGIN, _MARGIN + _SIDE
    label = 'font-size="10" fill="currentColor" font-family="sans-serif"'
    return (
        f'<svg width="{size:g}" height="{size:g}" role="img" '
        'aria-label="trade-off function: type II error against type I error">'
        f'<rect x="{_MARGIN:g}" y="{_MARGIN:g}" width="{_SIDE:g}" height="{_SIDE:g}" '
        'fill="none" stroke="currentColor" stroke-width="0.5"/>'
        f'<line x1="{_MARGIN:g}" y1="{_MARGIN:g}" x2="{end:g}" y2="{end:g}" '
        'stroke="currentColor" stroke-width="0.5" stroke-dasharray="3"/>'
        f"{''.join(curves)}"
        f'<text x="{size / 2:g}" y="{size - 3:g}" {label}>α</text>'
        f'<text x="2" y="{size / 2:g}" {label}>β</text></svg>'
    )


def _points(alpha: Any, beta: Any) -> str:
    x = np.clip(np.asarray(alpha, float), 0, 1)
    y = np.clip(np.asarray(beta, float), 0, 1)
    places = zip(_MARGIN + _SIDE * x, _MARGIN + _SIDE * (1 - y), strict=True)
    return " ".join(f"{a:.2f},{b:.2f}" for a, b in places)
