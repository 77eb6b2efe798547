"""Calibrate the noise of DP-SGD to attack error rates here and with riskcal 1.5.1.

    pip install riskcal==1.5.1
    python benchmarks/against_riskcal.py [--grid-step 1e-4]

One configuration in one process; theirs takes minutes at its default grid.  The
certified error rate of both answers is shown: below the target, the guarantee fails.
On two busy cores:

    here            116.5 ms  sigma 1.624017  beta 0.950000000
    riskcal      408005.8 ms  sigma 1.622827  beta 0.949938061
    ratio 3,501
"""

import argparse
import statistics
import time

import jax
from riskcal.calibration import dpsgd  # pyright: ignore[reportMissingImports]

import fdp_jax as fdp

ALPHA, BETA = 0.01, 0.95
SAMPLING_PROB, NUM_STEPS = 0.01, 10_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid-step", type=float, default=1e-4)
    grid_step = parser.parse_args().grid_step
    jax.config.update("jax_enable_x64", True)
    run = fdp.DPSGD(sampling_prob=SAMPLING_PROB, num_steps=NUM_STEPS)
    target = fdp.targets.ErrorRates(alpha=ALPHA, beta=BETA)

    def ours() -> float:
        return float(fdp.calibrate(run, target, solve_for="noise_multiplier").value)

    def rate(noise: float) -> float:
        achieved = fdp.DPSGD(
            noise_multiplier=noise, sampling_prob=SAMPLING_PROB, num_steps=NUM_STEPS
        )
        return float(achieved.beta(alpha=ALPHA))

    found = ours()
    times = []
    for _ in range(11):
        started = time.perf_counter()
        ours()
        times.append(time.perf_counter() - started)
    here = statistics.median(times)
    print(f"here     {1e3 * here:12.1f} ms  sigma {found:.6f}  beta {rate(found):.9f}")
    started = time.perf_counter()
    other = dpsgd.find_noise_multiplier_for_err_rates(
        alpha=ALPHA,
        beta=BETA,
        sample_rate=SAMPLING_PROB,
        num_steps=NUM_STEPS,
        grid_step=grid_step,
    )
    there = time.perf_counter() - started
    print(f"riskcal  {1e3 * there:12.1f} ms  sigma {other:.6f}  beta {rate(other):.9f}")
    print(f"ratio {there / here:,.0f}")


if __name__ == "__main__":
    main()
