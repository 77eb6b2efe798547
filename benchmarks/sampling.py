"""How long sampling schemes take, beside Poisson sampling and dp_accounting.

Warm medians of one epsilon, in one process, by turns; ratios are what counts.

    python benchmarks/sampling.py

Random allocation is timed beside PLD_accounting where that is installed.
"""

import importlib
import math
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


def allocations() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Runs of random allocation, and PLD_accounting's bracket or upper bound of each.

    Those of its tutorial (examples 1, 2.1 and 4), and one epoch.
    """
    scheme = fdp.sampling.RandomAllocation

    def gaussian(noise: float, batches: int, often: int) -> Any:
        sampling = scheme(batches, num_participations=often)
        return fdp.DPSGD(noise_multiplier=noise, sampling=sampling, num_steps=batches)

    def bracket(package: Any, delta: float, batches: int, often: int, width: float):
        return package.gaussian_allocation_epsilon_range(
            delta=delta,
            sigma=1.0,
            num_steps=batches,
            num_selected=often,
            num_epochs=1,
            epsilon_accuracy=width,
        )

    def above(package: Any) -> float:
        return package.gaussian_allocation_epsilon_configurable(
            params=package.PrivacyParams(
                sigma=3.0, num_steps=100, num_selected=5, num_epochs=1, delta=1e-6
            ),
            config=package.AllocationSchemeConfig(
                loss_discretization=0.05, tail_truncation=1e-7, max_grid_mult=50_000
            ),
            bound_type=package.BoundType.DOMINATES,
        )

    def laplace(package: Any) -> float:
        make = lambda: package.laplace_distribution(
            scale=3 / math.sqrt(2),
            value_discretization=5e-3,
            tail_truncation=package.DEFAULT_TAIL_TRUNCATION,
        )
        return package.general_allocation_epsilon(
            delta=1e-6,
            num_steps=100,
            num_selected=5,
            num_epochs=1,
            remove_realization=make(),
            add_realization=make(),
            config=package.AllocationSchemeConfig(
                loss_discretization=5e-3, tail_truncation=1e-10, max_grid_mult=30_000
            ),
            bound_type=package.BoundType.DOMINATES,
        )

    steps = fdp.Laplace(3 / math.sqrt(2))
    return {
        "Gaussian 1, 1 of 100": (
            (gaussian(1.0, 100, 1), 1e-6),
            lambda x: bracket(x, 1e-6, 100, 1, 0.05),
        ),
        "Gaussian 1, 5 of 1000": (
            (gaussian(1.0, 1000, 5), 1e-8),
            lambda x: bracket(x, 1e-8, 1000, 5, 0.1),
        ),
        "Gaussian 3, 5 of 100": ((gaussian(3.0, 100, 5), 1e-6), above),
        "Laplace, 5 of 100": (
            (fdp.Subsampled(steps, scheme(100, num_participations=5)), 1e-6),
            laplace,
        ),
    }


def _allocation_table(package: Any) -> None:
    head = "random allocation", "lattice", "epsilon <=", "ms", "PLD_accounting", "ms"
    print("\n| " + " | ".join((*head, "ratio")) + " |")
    print("|---|--:|--:|--:|--:|--:|--:|", flush=True)
    for name, ((run, delta), ask) in allocations().items():
        views = {"default": run}
        if "Gaussian" in name:
            views["2^12"] = run.using("grid", points=1 << 12)
        for lattice, view in views.items():
            view.epsilon(delta=delta)
            times: list[list[float]] = [[], []]
            value, theirs = 0.0, None
            for _ in range(3):
                began = time.perf_counter()
                value = float(view.epsilon(delta=delta))
                middle = time.perf_counter()
                theirs = ask(package)
                times[0].append(1e3 * (middle - began))
                times[1].append(1e3 * (time.perf_counter() - middle))
            own, other = (statistics.median(x) for x in times)
            row = (
                name,
                lattice,
                f"{value:.5f}",
                f"{own:.0f}",
                f"{theirs}",
                f"{other:.0f}",
            )
            print("| " + " | ".join((*row, f"{other / own:.0f}")) + " |", flush=True)


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
    try:
        package = importlib.import_module("PLD_accounting")
    except ImportError:
        print("\nPLD_accounting is not installed: nothing to time beside it.")
    else:
        _allocation_table(package)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
