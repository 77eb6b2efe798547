"""Gauss-Legendre rules on intervals and on panels between cuts.

Everything takes NumPy arrays as well as (traced) JAX arrays and keeps their dtype.
"""

import functools
from typing import Any

import numpy as np
from jaxtyping import Float


@functools.cache
def unit_rule(order: int) -> tuple[Float[np.ndarray, " order"], ...]:
    """Nodes and weights on [0, 1], exact for polynomials below degree `2 order`."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    rule = 0.5 * (nodes + 1), 0.5 * weights
    for part in rule:
        part.setflags(write=False)  # they are shared
    return rule


def on_intervals(low: Any, high: Any, order: int) -> tuple[Any, Any]:
    """Nodes and weights on each interval [low, high].

    Args:
        low: Lower ends, an array of any shape.
        high: Upper ends, of the same shape. Empty intervals have weights 0.
        order: Number of nodes of each interval.

    Returns:
        Nodes and weights, of the shape of `low` with a last axis of length `order`.
    """
    return _scaled(low, high - low, order)


def between(cuts: Any, order: int, panels: int = 1) -> tuple[Any, Any]:
    """Nodes and weights from the first cut to the last.

    Args:
        cuts: Places in increasing order between which the integrand is smooth.
        order: Number of nodes of each panel.
        panels: Number of equal panels from each cut to the next.

    Returns:
        Nodes, in increasing order, and weights: vectors of `(cuts - 1) panels order`
        numbers.
    """
    gaps = (cuts[1:] - cuts[:-1])[:, None]
    share = np.arange(panels, dtype=cuts.dtype) / panels
    width = gaps * np.full(panels, 1 / panels, cuts.dtype)
    nodes, weights = _scaled(cuts[:-1, None] + gaps * share, width, order)
    return nodes.ravel(), weights.ravel()


def _scaled(low: Any, width: Any, order: int) -> tuple[Any, Any]:
    nodes, weights = (x.astype(low.dtype) for x in unit_rule(order))
    return low[..., None] + width[..., None] * nodes, width[..., None] * weights
