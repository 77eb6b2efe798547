"""Whole curves of Levy triplets, beside the same by the grid in the same run.

taskset -c 0 python benchmarks/levy.py

There is no peer: each row gives the time of a warm `curve()`, how much longer the grid
takes, and the widest relative bracket of delta above 1e-12.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import fdp_jax as fdp
from fdp_jax.curves._curve import make_curve
from fdp_jax.mechanisms import resolve

_REPEATS = 7
_NODES = np.linspace(0.0, 1.0, 129)
_TRIPLETS = {
    "Gaussian part, 2 sizes": (0.5, [0.8, -0.5], [0.7, 0.3]),
    "Gaussian part, 7 sizes": (0.5, np.linspace(0.1, 0.7, 7), [0.1] * 7),
    "1 size": (0.0, [0.8], [0.7]),
    "1 size, rate 1e6": (0.0, [2e-3], [1e6]),
    "2 sizes": (0.0, [0.8, -0.5], [0.7, 0.3]),
    "2 sizes, rates 40, 90": (0.0, [0.3, 0.11], [40.0, 90.0]),
    "3 sizes": (0.0, [1.0, -0.7, 0.2], [2.0, 1.0, 5.0]),
    "4 sizes": (0.0, [0.4, 0.3, 0.2, 0.1], [0.1] * 4),
    "5 sizes": (0.0, [0.5, 0.4, 0.3, 0.2, 0.1], [1.0] * 5),
    "8 sizes": (0.0, np.linspace(0.1, 0.8, 8), [0.1] * 8),
    "7 sizes, rates 1": (0.0, np.linspace(0.1, 0.8, 7), [1.0] * 7),
}


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, warm, and the result."""
    found, times = None, []
    for _ in range(_REPEATS + 1):
        started = time.perf_counter()
        found = jax.block_until_ready(call())
        times.append(time.perf_counter() - started)
    return float(np.median(times[1:])), found


def _width(curve: fdp.Curve) -> float:
    """Of the brackets at the nodes, relatively."""
    lower, upper = (
        np.asarray(x)
        for x in (curve.both.log_delta_grid.lower, curve.both.log_delta_grid.upper)
    )
    seen = upper > np.log(1e-12)
    return float(np.max(np.expm1(upper - lower)[seen]))


def _main() -> None:
    jax.config.update("jax_enable_x64", True)
    for name, (variance, jumps, rates) in _TRIPLETS.items():
        triplet = fdp.LevyTriplet(variance, jumps=jumps, rates=rates)
        ours, curve = _timed(triplet.curve)
        whole = resolve(triplet.using("grid")).whole.composed
        grid, other = _timed(lambda whole=whole: make_curve(whole, _NODES))
        print(
            f"{name:26} {1e3 * ours:6.0f} ms, {_width(curve):.0e} wide; "
            f"the grid: {grid / ours:.1f} times that, {_width(other):.0e} wide"
        )


if __name__ == "__main__":
    _main()
