"""The noise multipliers of the DP scaling laws' grid, without an interpolation table.

    python benchmarks/scaling_laws.py --folder sigmas             # the whole, resumable
    python benchmarks/scaling_laws.py --folder sigmas --every 64  # 20 step counts
    python benchmarks/scaling_laws.py --check 40                  # the error of a table

The grid is that of McKenna et al. (2025, arXiv:2501.18914, nonparametric.py of
google-research/google-research/dp_scaling_laws): 15 epsilons from 2^-7 to 2^7, 1,280
step counts from 100 to 128,000 and 21 sampling probabilities from 2^-20 to 1, at delta
1e-8.  It is one sweep, written as Parquet, with the derivatives of the noise with
respect to step count and probability.  `--check` draws points between those of the
grid and compares their noise with what is interpolated between the eight around, linear
in logarithms, as is done there.
"""

import argparse
import itertools
import math
import resource
import time
from typing import Any

import jax
import numpy as np

DELTA = 1e-8
EPSILONS = 2.0 ** np.arange(-7, 8)
STEPS = 100.0 * np.arange(1, 1281)
PROBS = 2.0 ** np.arange(-20, 1)


def calibrated(configurations: Any, folder: str | None, chunk_size: int) -> Any:
    """The sweep over a grid or a table with columns goal, num_steps, sampling_prob."""
    import fdp_jax as fdp

    target = lambda goal: fdp.targets.ApproxDP(epsilon=goal, delta=DELTA)
    return fdp.sweep(
        fdp.DPSGD,
        configurations,
        queries={"noise": {"target": target, "solve_for": "noise_multiplier"}},
        gradients=["num_steps", "sampling_prob"],
        folder=folder,
        chunk_size=chunk_size,
    )


def grid(every: int) -> dict[str, np.ndarray]:
    """The axes, with every so many step counts."""
    steps = STEPS[every - 1 :: every]
    return {"goal": EPSILONS, "num_steps": steps, "sampling_prob": PROBS}


def points(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points within the grid, their cells' corners, and the weights of these.

    Returns:
        Shapes (count, 3), (count, 8, 3) and (count, 8).
    """
    draw = np.random.default_rng(seed)
    axes = EPSILONS, STEPS, PROBS
    within = [np.exp(draw.uniform(np.log(x[0]), np.log(x[-1]), count)) for x in axes]
    places = [np.searchsorted(x, y) for x, y in zip(axes, within, strict=True)]
    ends = [np.stack([x[i - 1], x[i]], -1) for x, i in zip(axes, places, strict=True)]
    shares = [
        np.log(y / end[:, 0]) / np.log(end[:, 1] / end[:, 0])
        for y, end in zip(within, ends, strict=True)
    ]
    corners, weights = [], []
    for sides in itertools.product((0, 1), repeat=3):
        corners.append(
            np.stack([x[:, s] for x, s in zip(ends, sides, strict=True)], -1)
        )
        parts = [w if s else 1 - w for w, s in zip(shares, sides, strict=True)]
        weights.append(math.prod(parts))
    return np.stack(within, -1), np.stack(corners, 1), np.stack(weights, 1)


def check(count: int, seed: int, chunk_size: int) -> None:
    """Print how far interpolated noise is from that of the points themselves."""
    import fdp_jax as fdp

    inside, corners, weights = points(count, seed)
    goal, steps, prob = np.concatenate([inside[:, None], corners], 1).reshape(-1, 3).T
    table = fdp.sweeps.Columns(goal=goal, num_steps=steps, sampling_prob=prob)
    noise = calibrated(table, None, chunk_size)["noise"].reshape(count, 9)
    table_says = np.exp(np.sum(weights * np.log(noise[:, 1:]), axis=1))
    off = table_says / noise[:, 0] - 1
    for label, some in {"all": off, "too little noise": -off[off < 0]}.items():
        large = np.quantile(np.abs(some), [0.5, 0.9, 1.0]) if some.size else []
        print(f"{label}: {some.size} points; off by (median, 90 %, most)", large)
    worst = np.argmax(np.abs(off))
    print("worst at (epsilon, steps, prob)", inside[worst], "by", off[worst])
    # What the noise of the table would really have.
    spent = fdp.sweep(
        fdp.DPSGD,
        fdp.sweeps.Columns(
            noise_multiplier=table_says,
            num_steps=inside[:, 1],
            sampling_prob=inside[:, 2],
        ),
        queries={"epsilon": {"delta": DELTA}},
    )["epsilon"]
    over = spent / inside[:, 0] - 1
    print("epsilon of the table's noise over the goal: least, median, most")
    print(np.quantile(over, [0.0, 0.5, 1.0]))


def main() -> None:
    """Run the sweep, or the check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--check", type=int, metavar="POINTS")
    parser.add_argument("--seed", type=int, default=20260101)
    parser.add_argument("--chunk-size", type=int, default=1024)
    parser.add_argument("--devices", type=int, default=2)
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", arguments.devices)
    began, used = time.perf_counter(), time.process_time()
    if arguments.check:
        check(arguments.check, arguments.seed, arguments.chunk_size)
    else:
        axes = grid(arguments.every)
        found = calibrated(axes, arguments.folder, arguments.chunk_size)
        print(found.summary())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    spent = time.perf_counter() - began, time.process_time() - used
    print(f"{spent[0]:.1f} s, {spent[1]:.1f} processor s, {peak:.0f} MiB")


if __name__ == "__main__":
    main()
