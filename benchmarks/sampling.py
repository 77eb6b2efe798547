"""How long sampling schemes take, beside Poisson sampling and dp_accounting.

Warm medians of one epsilon, in one process, by turns; ratios are what counts.

    python benchmarks/sampling.py
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import dp_accounting
import jax
from dp_accounting.pld import PLDAccountant

import fdp_jax as fdp

NOISE, STEPS, DELTA = 1.0, 1000, 1e-6
_TURNS = 15


def runs() -> dict[str, Any]:
    """One run of each scheme, with the noise and about the batches of the first."""
    schemes = fdp.sampling

    def run(scheme: Any, steps: int = STEPS, **options: Any) -> Any:
        return fdp.DPSGD(
            noise_multiplier=NOISE, sampling=scheme, num_steps=steps, **options
        )

    groups = schemes.CyclicPoisson(0.1, num_groups=10)
    return {
        "Poisson": run(schemes.Poisson(0.01)),
        "fixed size": run(schemes.FixedSize(prob=0.01), relation="replace_one"),
        "truncated Poisson": run(
            schemes.TruncatedPoisson(0.01, batch_size=700, dataset_size=60_000)
        ),
        "cyclic Poisson": run(groups),
        "banded matrix": fdp.MatrixMechanism(
            NOISE, [1.0, 0.5, 0.25], num_steps=STEPS, sampling=groups
        ),
        "shuffled epochs": run(schemes.ShuffledEpochs(100), relation="zero_out"),
        "examples of users": run(schemes.UserLevel(0.01, max_examples=4)),
        "random allocation, 1 epoch of 100": run(schemes.RandomAllocation(100), 100),
        "random allocation, 10 epochs of 1000": run(
            schemes.RandomAllocation(1000), 10_000
        ),
    }


def peers() -> dict[str, Callable[[], float]]:
    """The same by dp_accounting, where it has the scheme."""

    def epsilon(event: Any) -> float:
        accountant = PLDAccountant()
        accountant.compose(event)
        return accountant.get_epsilon(DELTA)

    gaussian = dp_accounting.GaussianDpEvent(NOISE)
    sampled = dp_accounting.PoissonSampledDpEvent(0.01, gaussian)
    truncated = dp_accounting.TruncatedSubsampledGaussianDpEvent(
        60_000, 0.01, 700, NOISE
    )
    return {
        "Poisson": lambda: epsilon(dp_accounting.SelfComposedDpEvent(sampled, STEPS)),
        "truncated Poisson": lambda: epsilon(
            dp_accounting.SelfComposedDpEvent(truncated, STEPS)
        ),
    }


def _seconds(ask: Callable[[], Any]) -> tuple[float, float]:
    ask()
    times, value = [], 0.0
    for _ in range(_TURNS):
        began = time.perf_counter()
        value = float(ask())
        times.append(time.perf_counter() - began)
    return statistics.median(times), value


def main() -> None:
    """Measure and print the table."""
    theirs = peers()
    print("| scheme | epsilon <= | ms | of Poisson's | dp_accounting, ms | ratio |")
    print("|---|--:|--:|--:|--:|--:|", flush=True)
    first = 0.0
    for name, run in runs().items():
        seconds, value = _seconds(lambda run=run: run.epsilon(delta=DELTA))
        first = first or seconds
        cells = [name, f"{value:.6f}", f"{1e3 * seconds:.2f}", f"{seconds / first:.1f}"]
        if name in theirs:
            other, bound = _seconds(theirs[name])
            cells += [f"{1e3 * other:.0f} ({bound:.6f})", f"{other / seconds:.0f}"]
        else:
            cells += ["", ""]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
