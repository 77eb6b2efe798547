"""Answers and rates on an accelerator, beside those of the same machine's processor.

    python benchmarks/accelerator.py                        # on JAX's default device
    JAX_PLATFORMS=cpu python benchmarks/accelerator.py      # the same on the CPU

Each line is printed as it is measured: plain calls (first and warm), then epsilons of
`jax.vmap` and of `fdp_jax.sweep` at several sizes, with the share that is tight and the
largest relative distance of the ends from those of plain calls on the CPU, which a
process of its own finds.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import fdp_jax as fdp
from fdp_jax.sweeps import _program

DELTA = 1e-5
CHECKED = 200
"""Rows that plain calls on the CPU look at again."""


def configurations(size: int, seed: int = 20260101) -> dict[str, np.ndarray]:
    """DP-SGD runs, log-uniform, as in `sweep.py`."""
    draw = np.random.default_rng(seed)
    log = lambda low, high: np.exp(draw.uniform(np.log(low), np.log(high), size))
    return {
        "noise_multiplier": log(0.6, 10.0),
        "sampling_prob": log(1e-3, 1e-1),
        "num_steps": np.round(log(1e2, 1e5)),
    }


def dp_sgd(noise: Any, prob: float, steps: int) -> fdp.DPSGD:
    """A run by the order of its arguments."""
    return fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=steps)


def plain_questions() -> dict[str, Callable[[], Any]]:
    """A question of every engine, and of every kind of query."""
    run = dp_sgd(1.0, 0.01, 1000)
    goal = fdp.targets.ApproxDP(epsilon=2.0, delta=DELTA)
    steps = lambda s: dp_sgd(s, 0.01, 1000).epsilon(delta=DELTA)
    return {
        "Gaussian epsilon": lambda: fdp.Gaussian(2.0).epsilon(delta=DELTA),
        "DP-SGD epsilon": lambda: run.bounds(delta=DELTA).upper,
        "DP-SGD delta": lambda: run.bounds(epsilon=1.0).upper,
        "DP-SGD beta": lambda: run.beta(alpha=0.05),
        "DP-SGD rare": lambda: dp_sgd(0.6, 1e-5, 10_000).epsilon(delta=1e-9),
        "mixed": lambda: fdp.compose(run, fdp.Laplace(1.0)).epsilon(delta=DELTA),
        "Laplace x 100": lambda: fdp.Laplace(2.0).repeat(100).epsilon(delta=DELTA),
        "gradient": lambda: jax.grad(steps)(1.0),
        "jit": lambda: jax.jit(steps)(1.0),
        "calibration": lambda: (
            fdp.calibrate(run, goal, solve_for="noise_multiplier").value
        ),
    }


def timed(ask: Callable[[], Any], turns: int = 5) -> tuple[float, float, Any]:
    """Seconds of the first call, least of some more, and the answer."""
    began = time.perf_counter()
    answer = jax.block_until_ready(ask())
    first, rest = time.perf_counter() - began, []
    for _ in range(turns):
        began = time.perf_counter()
        jax.block_until_ready(ask())
        rest.append(time.perf_counter() - began)
    return first, min(rest), answer


def ends_on_cpu(rows: dict[str, np.ndarray]) -> np.ndarray:
    """Both ends of epsilon by plain calls of a process on the CPU, shape (n, 2)."""
    given = json.dumps({name: x.tolist() for name, x in rows.items()})
    done = subprocess.run(
        [sys.executable, __file__, "--ends"],
        input=given,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    return np.asarray(json.loads(done.stdout.splitlines()[-1]))


def print_ends() -> None:
    """Read configurations from standard input and print their ends."""
    rows = {name: np.asarray(x) for name, x in json.load(sys.stdin).items()}
    found = fdp.sweep(
        fdp.DPSGD, fdp.sweeps.Columns(**rows), queries={"e": {"delta": DELTA}}
    )
    ends = np.stack([found.table["e_lower"], found.table["e_upper"]], -1)
    print(json.dumps(ends.tolist()))


def batched(size: int, engine: str = "auto") -> Callable[[], Any]:
    """Epsilons of `jax.vmap` under `jax.jit`: lower, upper, status."""
    rows = {name: jax.device_put(x) for name, x in configurations(size).items()}

    def one(row: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
        bounds = fdp.DPSGD(**row).using(engine).bounds(delta=DELTA)
        return bounds.lower, bounds.upper, bounds.status

    run = jax.jit(jax.vmap(one))
    return lambda: run(rows)


def swept(size: int, batch: int, chunk: int) -> Callable[[], Any]:
    """Epsilons of a sweep, so many at once."""
    _program._BATCH = batch  # pyright: ignore[reportPrivateUsage]
    columns = fdp.sweeps.Columns(**configurations(size))

    def ask() -> tuple[np.ndarray, ...]:
        found = fdp.sweep(
            fdp.DPSGD,
            columns,
            queries={"e": {"delta": DELTA}},
            chunk_size=chunk,
            progress=False,
        )
        return tuple(found.table[f"e_{x}"] for x in ("lower", "upper", "status"))

    return ask


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ends", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--vmap", type=int, nargs="*", default=[])
    parser.add_argument("--engine", nargs="*", default=["auto"])
    parser.add_argument("--sweep", type=int, nargs=3, action="append", default=[])
    parser.add_argument("--devices", type=int, default=1, help="of a CPU")
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", arguments.devices)
    jax.config.update("jax_enable_x64", True)
    if arguments.ends:
        print_ends()
        return
    print(jax.devices(), jax.__version__, flush=True)
    for name, ask in plain_questions().items() if arguments.plain else ():
        first, again, answer = timed(ask)
        print(f"{name}: {first:.2f} s, {1e3 * again:.2f} ms, {answer!r}", flush=True)
    asked = [
        (f"vmap {n} {engine}", n, batched(n, engine))
        for n in arguments.vmap
        for engine in arguments.engine
    ]
    for size, batch, chunk in arguments.sweep:
        label = f"sweep {size} by {batch} in {chunk}"
        asked.append((label, size, lambda a=(size, batch, chunk): swept(*a)()))
    for label, size, ask in asked:
        first, again, (lower, upper, status) = timed(ask, 1)
        few = {name: x[:CHECKED] for name, x in configurations(size).items()}
        there = ends_on_cpu(few)
        here = np.stack([lower, upper], -1)[:CHECKED]
        off = np.nanmax(np.abs(here / there - 1))
        crossed = np.sum((here[:, 0] > there[:, 1]) | (here[:, 1] < there[:, 0]))
        print(
            f"{label}: {first:.2f} s, {again:.3f} s, {1e6 * again / size:.1f} us each, "
            f"tight {np.mean(np.asarray(status) == 0):.4f}, off {off:.1e}, "
            f"disjoint {crossed}",
            flush=True,
        )


if __name__ == "__main__":
    main()
