"""Other noise from canonical noise: the map that no adversary could do better than."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._internal import _checks
from .._internal._calls import explained
from ..mechanisms import (
    as_float,
)
from ._noise import CanonicalNoise

_REACH = 1e-12


class PostProcessing(NamedTuple):
    """A random map from cells of N (or N + shift) to cells of another noise."""

    input_edges: np.ndarray
    """Between the cells of the canonical noise; the outer two are unbounded."""
    output_edges: np.ndarray
    """Edges of the cells of the other noise."""
    kernel: np.ndarray
    """Row i: probabilities of the output cells, given input cell i."""
    miss: float
    """Largest error of an output cell's probability, under N and under N + shift."""

    def sample(self, key: Any, value: Any) -> Array:
        """Draws output cells for released values.

        Args:
            key: Of `jax.random`.
            value: Values of N, or of N + sensitivity.

        Returns:
            Numbers of output cells, from 0.
        """
        key, value = _checks.random_key(key), jnp.asarray(value)
        row = jnp.searchsorted(jnp.asarray(self.input_edges), value)
        return jax.random.categorical(key, jnp.log(jnp.asarray(self.kernel))[row])


@explained(cells_per_unit=_checks.whole_in(2, 10000))
def post_process(
    noise: CanonicalNoise,
    other: Callable[[np.ndarray], Any],
    output_edges: Any,
    *,
    cells_per_unit: int = 64,
    tolerance: float = 1e-6,
) -> PostProcessing:
    """Turn a release with canonical noise into one with any other f-DP noise.

    For two neighbors at the largest distance, S + N can be mapped at random to a value
    with the law of S + M, whichever of the two S is: so M tells no more than N does.
    Here the values are cells of M's range.

    The map is built from shadows: each output cell takes the part of what is left of N
    that lies between two likelihood ratios and has the cell's two probabilities.

    Args:
        noise: Canonical noise of f.
        other: The distribution function of M, on arrays, with T(M, M + shift) >= f.
        output_edges: Edges between the output cells, increasing.
        cells_per_unit: Cells of N per unit of its sensitivity, even.
        tolerance: Largest probability by which the result may miss.

    Returns:
        `PostProcessing`.

    Raises:
        ValueError: If M is not f-DP (more than the tolerance allows), or the edges
            are not increasing.

    References:
        Awan and Vadhan (2023), Proposition 3.2; Blackwell (1951) for its proof;
        Beiglböck and Juillet (2016) for shadows.
    """
    edges = np.asarray(_checks.vector("output_edges", _checks.finite, output_edges))
    _checks.require(np.all(np.diff(edges) > 0), "output_edges must be increasing")
    with jax.enable_x64(True):
        return _mapped(noise, other, edges, cells_per_unit, tolerance)


def _mapped(
    noise: CanonicalNoise,
    other: Callable[[np.ndarray], Any],
    edges: np.ndarray,
    cells: int,
    tolerance: float,
) -> PostProcessing:
    scale = float(np.asarray(as_float(noise.sensitivity)))
    reach = float(np.asarray(noise.isf(_REACH))) / scale + 1
    half = int(np.ceil(reach * cells))
    places = np.arange(-half, half + 1) / cells * scale
    source = _masses(noise.cdf, places, scale)
    target = _masses(other, edges, scale)
    kernel = _shadows(source, target)
    miss = float(np.max(np.abs(kernel.T @ source.T - target.T)))
    _checks.require(
        miss <= tolerance,
        "other must be f-DP at this sensitivity, and cells_per_unit large enough: "
        f"the map misses by {miss:.2g}",
    )
    return PostProcessing(places, edges, kernel, miss)


def _masses(cdf: Callable[..., Any], edges: np.ndarray, shift: float) -> np.ndarray:
    """Probabilities of the cells, without and with the shift."""
    return np.stack([cell_masses(cdf(moved)) for moved in (edges, edges - shift)])


def cell_masses(cdf: Any) -> np.ndarray:
    """Probabilities between neighboring edges and beyond them, of a cdf at these."""
    ends = np.zeros(1), np.asarray(cdf, np.float64), np.ones(1)
    return np.maximum(np.diff(np.concatenate(ends)), 0)


def _shadows(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Splits the source into parts with the targets' masses under P and Q."""
    order = np.argsort(_shares(source), kind="stable")
    left = source[:, order].copy()
    whole = source.sum(axis=0)[order]
    kernel = np.zeros((order.size, target.shape[1]))
    # Extreme ratios first: what is left stays spread around the moderate ones.
    for j in np.argsort(-np.abs(_shares(target) - 0.5), kind="stable"):
        part = _window(left, target[:, j])
        taken = np.where(left > 0, part * left, 0.0)
        share = taken.sum(axis=0) / np.where(whole > 0, whole, 1.0)
        kernel[order, j] = share
        left = left - taken
    rest = 1 - kernel.sum(axis=1)
    total = target.sum(axis=0) / target.sum()
    kernel += np.maximum(rest, 0)[:, None] * total
    return kernel / kernel.sum(axis=1, keepdims=True)


def _shares(masses: np.ndarray) -> np.ndarray:
    """Q / (P + Q), an increasing function of the likelihood ratio."""
    total = masses.sum(axis=0)
    return np.where(total > 0, masses[1] / np.where(total > 0, total, 1.0), 0.5)


def _window(left: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The share of each cell in an interval of ratios with given total and Q mass."""
    total = np.concatenate([[0.0], np.cumsum(left.sum(axis=0))])
    second = np.concatenate([[0.0], np.cumsum(left[1])])
    amount = min(wanted.sum(), total[-1])

    def q_mass(start: float) -> float:
        ends = np.interp([start, start + amount], total, second)
        return ends[1] - ends[0]

    low, high = 0.0, total[-1] - amount
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if q_mass(middle) < wanted[1] else (low, middle)
    inside = np.minimum(total[1:], high + amount) - np.maximum(total[:-1], high)
    width = np.diff(total)
    return np.clip(np.where(width > 0, inside / np.where(width > 0, width, 1), 0), 0, 1)
