"""Times of the Delta-divergence: warm calls, gradients, and many pairs at once.

    python benchmarks/comparison.py [--pairs 200]

Prints one line per measurement; the figures depend on the machine and its load.  One
core of a busy two-core machine, float64, first call (compilation included) and warm:

    Gaussian, Laplace                          6.9 s      5 ms
    DP-SGD (0.54, 0.01, 500), (1.59, 0.1, 534)  19 s     21 ms
    DP-SGD (0.6, 0.01, 100), (1.39, 0.1, 100)            65 ms
    its gradient                                31 s     31 ms
    one of 40 to 100 pairs under vmap           18 s     16 to 39 ms
"""

import argparse
import functools
import statistics
import time

import jax
import jax.numpy as jnp

import fdp_jax as fdp


def dpsgd(sigma, prob, steps) -> fdp.DPSGD:
    """One training run."""
    return fdp.DPSGD(noise_multiplier=sigma, sampling_prob=prob, num_steps=steps)


def measure(name, function, repeats=7, per=1) -> None:
    """Print the time of the first call and the median of later ones."""
    start = time.perf_counter()
    jax.block_until_ready(function())
    first = time.perf_counter() - start
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function())
        times.append((time.perf_counter() - start) / per)
    warm = statistics.median(times)
    print(f"{name:44s} first {first:7.2f} s   warm {1e3 * warm:8.2f} ms", flush=True)


def main() -> None:
    """Measure and print."""
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    pairs = parser.parse_args().pairs
    closed = fdp.Gaussian(1.0), fdp.Laplace(1.0)
    measure("Gaussian, Laplace", lambda: fdp.delta_divergence(*closed))
    base = dpsgd(0.5415096, 0.01, 500.0)
    for other in ((1.58573, 0.1, 534.0), (20.9274, 0.9, 1500.0)):
        run = dpsgd(*other)
        call = functools.partial(fdp.delta_divergence, base, run)
        measure(f"DP-SGD, DP-SGD {other}", call)
    hard = dpsgd(0.6, 0.01, 100.0), dpsgd(1.386, 0.1, 100.0)
    measure("DP-SGD, few steps", lambda: fdp.delta_divergence(*hard))

    def value(sigma):
        return fdp.delta_divergence(base, dpsgd(sigma, 0.1, 534.0)).value.upper

    gradient = jax.jit(jax.grad(value))
    measure("its gradient", lambda: gradient(1.6))
    many = jax.jit(jax.vmap(value))
    sigmas = jnp.linspace(1.0, 3.0, pairs)
    measure(f"one of {pairs} pairs under vmap", lambda: many(sigmas), 2, pairs)


if __name__ == "__main__":
    main()
