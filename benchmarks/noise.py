"""Samples of canonical noise per second, beside NumPy's Laplace noise in the same run.

taskset -c 0 python benchmarks/noise.py [--samples 10000000]
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import fdp_jax as fdp

_REPEATS = 5
_LAWS = {
    "Tulap, epsilon = 1": fdp.tradeoff.ApproxDP(epsilon=1.0, delta=0.0),
    "of G_1, the construction": fdp.tradeoff.Gaussian(1.0),
}


def _median(call: Callable[[int], Any]) -> float:
    """Seconds, warm."""
    times = []
    for i in range(_REPEATS + 1):
        started = time.perf_counter()
        jax.block_until_ready(call(i))
        times.append(time.perf_counter() - started)
    return float(np.median(times[1:]))


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10**7)
    size = parser.parse_args().samples
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    theirs = _median(lambda i: rng.laplace(size=size))
    print(f"{'NumPy, Laplace':28} {1e-6 * size / theirs:8.1f} million a second")
    for name, f in _LAWS.items():
        noise = fdp.canonical_noise(f)
        draw = jax.jit(lambda key, noise=noise: noise.sample(key, (size,)))
        ours = _median(lambda i, draw=draw: draw(jax.random.key(i)))
        rate = 1e-6 * size / ours
        print(f"{name:28} {rate:8.1f} million a second, {theirs / ours:.2f} of NumPy's")


if __name__ == "__main__":
    _main()
