"""Long accounts: time and memory of epsilon for many different settings.

Each row is a run of 10^6 steps of Poisson-subsampled Gaussian noise, in so many
settings of equal lengths: as a `Schedule`, as an `Accountant`, and by dp_accounting
where that ends within a minute.  Seconds are CPU time of warm queries; memory is what
the peak of a process of its own exceeds that of one with ten settings.

    python benchmarks/accounts.py [--settings 100,10000]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

STEPS = 1_000_000
DELTA = 1e-6
_FEW = 10
_MOST_OF_THEIRS = 100


def settings(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise multipliers and sampling probabilities at random."""
    rng = np.random.default_rng(0)
    return rng.uniform(0.8, 2.0, count), rng.uniform(0.0002, 0.002, count)


def of_schedule(count: int) -> Any:
    """All settings as arrays."""
    import fdp_jax as fdp

    def step(noise: Any, prob: Any) -> Any:
        each = STEPS // count
        return fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=each)

    return fdp.Schedule(step, *settings(count))


def of_accountant(count: int) -> Any:
    """The same, step by step."""
    import fdp_jax as fdp

    found = fdp.Accountant(capacity=count)
    for noise, prob in zip(*settings(count), strict=True):
        step = fdp.PoissonSubsampled(fdp.Gaussian(noise), prob)
        found = found.step(step, count=STEPS // count)
    return found


def of_theirs(count: int) -> float:
    """Epsilon by dp_accounting."""
    from dp_accounting import dp_event, pld

    accountant = pld.PLDAccountant()
    for noise, prob in zip(*settings(count), strict=True):
        step = dp_event.PoissonSampledDpEvent(prob, dp_event.GaussianDpEvent(noise))
        accountant.compose(step, STEPS // count)
    return accountant.get_epsilon(DELTA)


def measure(kind: str, count: int) -> dict[str, float]:
    """One row, in this process."""
    if kind == "dp_accounting":
        began = time.process_time()
        epsilon, seconds = of_theirs(count), [time.process_time() - began]
    else:
        make = of_schedule if kind == "Schedule" else of_accountant
        mechanism, seconds = make(count), []
        epsilon = float(mechanism.epsilon(delta=DELTA))
        for _ in range(3):
            began = time.process_time()
            epsilon = float(mechanism.epsilon(delta=DELTA))
            seconds.append(time.process_time() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"epsilon": epsilon, "seconds": min(seconds), "peak": peak}


def _in_a_process(kind: str, count: int) -> dict[str, float]:
    environment = dict(os.environ, JAX_ENABLE_X64="1")
    command = [sys.executable, __file__, "--one", kind, str(count)]
    found = subprocess.run(command, env=environment, check=True, capture_output=True)
    return json.loads(found.stdout.splitlines()[-1])


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--settings", default="100,10000", help="numbers of settings")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return
    print("| account | settings | epsilon | seconds | memory (MiB) |")
    print("|---|--:|--:|--:|--:|", flush=True)
    for kind in ("Schedule", "Accountant", "dp_accounting"):
        few = _in_a_process(kind, _FEW)
        for count in map(int, options.settings.split(",")):
            if kind == "dp_accounting" and count > _MOST_OF_THEIRS:
                continue
            found = _in_a_process(kind, count)
            row = f"| {kind} | {count:,} | {found['epsilon']:.9f} "
            row += f"| {found['seconds']:.2f} | {found['peak'] - few['peak']:.0f} |"
            print(row, flush=True)


if __name__ == "__main__":
    main()
