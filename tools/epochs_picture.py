"""Draw the picture of docs/epochs.md: python tools/epochs_picture.py FOLDER.

The results are kept in the folder; a run that was stopped goes on, and one that is
finished is drawn again.  Prints the time and the numbers that the page states.
"""

import os
import pathlib
import sys
import time

import jax
import matplotlib
import matplotlib.pyplot as plt
import numpy as np

import fdp_jax as fdp

PICTURE = pathlib.Path(__file__).resolve().parent.parent / "docs/pictures/epochs.png"
RECORDS, LEAST_STEPS = 1_000_000, 2_000
TARGET = fdp.targets.ApproxDP(epsilon=3.0, delta=1e-7)
GRID = {
    "batch_size": np.geomspace(256, 65_536, 150),
    "epochs": np.geomspace(1, 100, 200),
}


def run(batch_size, epochs):
    """DP-SGD for so many epochs; its noise is left open."""
    steps = epochs * RECORDS / batch_size
    return fdp.DPSGD(sampling_prob=batch_size / RECORDS, num_steps=steps)


def planned(folder: str) -> fdp.sweeps.Sweep:
    """The noise multipliers, with the noise on the mean gradient."""
    began, used = time.perf_counter(), time.process_time()
    found = fdp.sweep(
        run,
        GRID,
        queries={"noise": {"target": TARGET, "solve_for": "noise_multiplier"}},
        folder=folder,
    )
    seconds, processor = time.perf_counter() - began, time.process_time() - used
    print(f"{seconds:.0f} s, {processor:.0f} s of processor, load {os.getloadavg()}")
    print(found.summary())
    return found


def draw(found: fdp.sweeps.Sweep) -> None:
    """A map, and what each amount of computing buys."""
    steps = found["epochs"] * RECORDS / found["batch_size"]
    on_the_mean = found["noise"] / found["batch_size"]
    long_enough = np.where(steps >= LEAST_STEPS, on_the_mean, np.nan)
    found = found.assign(noise_on_the_mean=long_enough)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    fdp.plot.sweep_map(found, "noise", left).set_title(
        "noise multiplier for (3, 1e-7)-DP, 1,000,000 records", fontsize=10
    )
    fdp.plot.pareto_front(found, "epochs", "noise_on_the_mean", right).set_title(
        f"what computing buys, with {LEAST_STEPS:,} steps or more", fontsize=10
    )
    figure.savefig(PICTURE, dpi=110)
    for epochs in (1, 3, 10, 30, 100):
        row = found["epochs"] <= epochs * (1 + 1e-12)
        best = np.nanargmin(np.where(row, found["noise_on_the_mean"], np.nan))
        told = [f"{name} {found[name][best]:.6g}" for name in ("epochs", "batch_size")]
        noise = f"noise {found['noise'][best]:.4f}, {on_the_mean[best]:.4g} on the mean"
        print(*told, f"steps {steps[best]:.0f}", noise, sep=", ")


def main() -> None:
    """Sweeps and draws."""
    jax.config.update("jax_enable_x64", True)
    matplotlib.use("agg")
    draw(planned(sys.argv[1]))


if __name__ == "__main__":
    main()
