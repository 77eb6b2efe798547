"""Compare fdp_jax with dp-accounting 0.6.0, both in this process.

Run: python benchmarks/against_dp_accounting.py [--parts epsilon,calibrate,...]

Parts: epsilon, calibrate, curve, gradient, sweep, heterogeneous, discrete, safety,
cold; all of them by default.
Each part that ran replaces its section in `benchmarks/RESULTS.md` and its line in the
table of `docs/benchmarks.md` (with --output FILE: its section in that file, and nothing
else).
Times are medians of repeated calls on
a machine that may be shared: read the ratios, which are paired, not the milliseconds.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import dp_accounting  # pyright: ignore[reportMissingImports]
import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import pld  # pyright: ignore[reportMissingImports]
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import fdp_jax as fdp

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent / "tests/data"
DELTA = 1e-5
SWEEP_SIZE, SWEEP_SAMPLE = 10_000, 20


SUMMARY: dict[str, str] = {}
"""Lines for docs/benchmarks.md: its rows by part, and the safety table."""


def configurations() -> list[dict]:
    """The five runs of the truth file, with epsilon at 1e-5 (larger direction)."""
    entries = json.loads((DATA / "dpsgd_truth.json").read_text())["entries"]
    found = {}
    for entry in entries:
        if entry["kind"] == "eps" and float(entry["delta"]) == DELTA:
            run = found.setdefault(
                entry["config"],
                {"name": entry["config"], "epsilon": 0.0}
                | {k: entry[k] for k in ("sigma", "q", "N")},
            )
            run["epsilon"] = max(run["epsilon"], float(entry["value"]))
    return list(found.values())


def ours(sigma, q, n) -> fdp.DPSGD:
    """One run here."""
    return fdp.DPSGD(noise_multiplier=sigma, sampling_prob=q, num_steps=n)


def event(sigma: float, q: float, n: int) -> dp_accounting.DpEvent:
    """The same run there."""
    step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(step, int(n))


def theirs(sigma: float, q: float, n: int, delta: float = DELTA) -> float:
    """Epsilon by their PLD accountant at its default grid."""
    accountant = pld.PLDAccountant()
    accountant.compose(event(sigma, q, n))
    return accountant.get_epsilon(delta)


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Median time of a call, after one call that is not counted."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ratio_summary(ratios: list[float], what: str) -> str:
    """Median, smallest and largest ratio in words."""
    return (
        f"Median ratio **{statistics.median(ratios):,.0f}** "
        f"(from {min(ratios):,.0f} to {max(ratios):,.0f}): {what}."
    )


def part_epsilon() -> str:
    """(a) Epsilon at delta = 1e-5, time and error."""
    jitted = jax.jit(lambda s, q, n: ours(s, q, n).epsilon(delta=DELTA))
    rows, eager_ratios, jit_ratios = [], [], []
    for run in configurations():
        s, q, n, truth = run["sigma"], run["q"], run["N"], run["epsilon"]
        t_theirs = seconds(lambda s=s, q=q, n=n: theirs(s, q, n), 3)
        t_eager = seconds(lambda s=s, q=q, n=n: ours(s, q, n).epsilon(delta=DELTA), 21)
        t_jit = seconds(lambda s=s, q=q, n=n: jitted(s, q, n), 21)
        bounds = ours(s, q, n).bounds(delta=DELTA)
        eager_ratios.append(t_theirs / t_eager)
        jit_ratios.append(t_theirs / t_jit)
        rows.append(
            [
                run["name"],
                f"{1e3 * t_theirs:.0f}",
                f"{1e3 * t_eager:.2f}",
                f"{1e3 * t_jit:.2f}",
                f"{eager_ratios[-1]:,.0f}",
                f"{theirs(s, q, n) / truth - 1:+.1e}",
                f"{float(bounds.estimate) / truth - 1:+.1e}",
                f"{float(bounds.upper) / truth - 1:+.1e}",
                f"{(float(bounds.upper) - float(bounds.lower)) / truth:.1e}",
            ]
        )
    head = [
        *("configuration", "theirs ms", "ours ms", "ours, jitted ms", "ratio"),
        *("their error", "our estimate's error", "our bound's error", "bracket width"),
    ]
    SUMMARY["epsilon"] = (
        "| epsilon(1e-5), one jitted (one eager) call "
        f"| {statistics.median(jit_ratios):,.0f} "
        f"({statistics.median(eager_ratios):,.0f}) times faster |"
    )
    return (
        "## Epsilon at delta = 1e-5\n\n"
        "Errors are relative, against 22-digit values; a negative error of a bound "
        "would be a wrong guarantee.\n\n"
        f"{table(head, rows)}\n\n"
        + ratio_summary(eager_ratios, "one eager call against `PLDAccountant`")
        + "  \n"
        + ratio_summary(jit_ratios, "one call of a jitted function")
    )


def part_calibrate() -> str:
    """(b) Noise multiplier for (8, 1e-5)."""
    target = fdp.targets.ApproxDP(epsilon=8.0, delta=DELTA)

    def calibrate(q: float, n: int):
        family = fdp.DPSGD(sampling_prob=q, num_steps=n)
        return fdp.calibrate(family, target, solve_for="noise_multiplier").value

    def calibrate_theirs(q: float, n: int) -> float:
        return dp_accounting.calibrate_dp_mechanism(
            pld.PLDAccountant, lambda s: event(s, q, n), 8.0, DELTA
        )

    rows, ratios = [], []
    for run in configurations():
        q, n = run["q"], run["N"]
        started = time.perf_counter()
        other = calibrate_theirs(q, n)
        t_theirs = time.perf_counter() - started
        t_ours = seconds(lambda q=q, n=n: calibrate(q, n), 11)
        value = float(calibrate(q, n))
        ratios.append(t_theirs / t_ours)
        achieved = ours(value, q, n).bounds(delta=DELTA)
        rows.append(
            [
                run["name"],
                f"{1e3 * t_theirs:,.0f}",
                f"{1e3 * t_ours:.1f}",
                f"{ratios[-1]:,.0f}",
                f"{other:.8f}",
                f"{value:.8f}",
                f"{float(achieved.upper) - 8.0:+.1e}",
            ]
        )
    head = [
        *("configuration", "theirs ms", "ours ms", "ratio"),
        *("their sigma", "our sigma", "our certified epsilon - 8"),
    ]
    SUMMARY["calibrate"] = (
        "| noise multiplier for (8, 1e-5) "
        f"| {statistics.median(ratios):,.0f} times faster |"
    )
    return (
        "## Noise multiplier for (8, 1e-5)\n\n"
        f"{table(head, rows)}\n\n"
        + ratio_summary(ratios, "against `calibrate_dp_mechanism` with PLD")
    )


def part_curve() -> str:
    """(c) The whole curve, both directions, against one of their epsilons."""
    rows, ratios = [], []
    for run in configurations():
        s, q, n = run["sigma"], run["q"], run["N"]
        t_theirs = seconds(lambda s=s, q=q, n=n: theirs(s, q, n), 3)
        t_ours = seconds(lambda s=s, q=q, n=n: ours(s, q, n).curve(), 11)
        ratios.append(t_theirs / t_ours)
        rows.append(
            [
                run["name"],
                f"{1e3 * t_theirs:.0f}",
                f"{1e3 * t_ours:.1f}",
                f"{ratios[-1]:.1f}",
            ]
        )
    head = ["configuration", "one epsilon, theirs ms", "whole curve, ours ms", "ratio"]
    SUMMARY["curve"] = (
        "| whole curve, both directions, against one epsilon of theirs "
        f"| {statistics.median(ratios):.1f} times as fast |"
    )
    return (
        "## The whole two-direction curve against one epsilon\n\n"
        f"{table(head, rows)}\n\nMedian ratio **{statistics.median(ratios):.1f}**."
    )


def part_gradient() -> str:
    """(d) Value and gradient against the value."""

    def epsilon(parameters):
        return ours(*parameters).epsilon(delta=DELTA)

    value, both = jax.jit(epsilon), jax.jit(jax.value_and_grad(epsilon))
    rows, ratios = [], []
    for run in configurations():
        point = tuple(jnp.asarray(float(run[k])) for k in ("sigma", "q", "N"))
        t_value = seconds(lambda point=point: value(point), 31)
        t_both = seconds(lambda point=point: both(point), 31)
        ratios.append(t_both / t_value)
        rows.append(
            [
                run["name"],
                f"{1e3 * t_value:.2f}",
                f"{1e3 * t_both:.2f}",
                f"{ratios[-1]:.2f}",
            ]
        )
    head = ["configuration", "value ms", "value and 3 derivatives ms", "ratio"]
    SUMMARY["gradient"] = (
        "| epsilon and its three derivatives (dp-accounting has none) "
        f"| {statistics.median(ratios):.1f} times the time of epsilon |"
    )
    return (
        "## Value and gradient against the value (jitted)\n\n"
        f"{table(head, rows)}\n\nMedian ratio **{statistics.median(ratios):.2f}**."
    )


def part_sweep() -> str:
    """(e) Ten thousand configurations in one call, on all cores."""
    draw = np.random.default_rng(20260101)
    sigma = np.exp(draw.uniform(np.log(0.6), np.log(10.0), SWEEP_SIZE))
    q = np.exp(draw.uniform(np.log(1e-3), np.log(1e-1), SWEEP_SIZE))
    n = np.round(np.exp(draw.uniform(np.log(1e2), np.log(1e5), SWEEP_SIZE)))

    mesh, parts = Mesh(np.asarray(jax.devices()), "part"), PartitionSpec("part")
    one = lambda p: ours(p[0], p[1], p[2]).epsilon(delta=DELTA)
    sweep = jax.shard_map(
        lambda points: jax.lax.map(one, points),
        mesh=mesh,
        in_specs=parts,
        out_specs=parts,
        check_vma=False,
    )
    points = jnp.stack([sigma, q, n], axis=1)
    points = jax.device_put(points, NamedSharding(mesh, parts))
    compiled = jax.jit(sweep).lower(points).compile()
    started = time.perf_counter()
    values = np.asarray(compiled(points))
    t_ours = time.perf_counter() - started
    started = time.perf_counter()
    sample = [
        theirs(float(sigma[i]), float(q[i]), int(n[i])) for i in range(SWEEP_SAMPLE)
    ]
    per_call = (time.perf_counter() - started) / SWEEP_SAMPLE
    other = np.asarray(sample)
    excess = np.max((values[:SWEEP_SAMPLE] - other) / np.maximum(other, 1e-3))
    loop = per_call * SWEEP_SIZE
    SUMMARY["sweep"] = (
        f"| {SWEEP_SIZE:,} configurations in one call (theirs extrapolated from "
        f"{SWEEP_SAMPLE}) | {loop / t_ours:,.0f} times faster |"
    )
    return (
        f"## {SWEEP_SIZE:,} configurations in one call\n\n"
        f"sigma in 0.6..10, q in 1e-3..1e-1, N in 1e2..1e5, log-uniform; one jitted "
        f"`jax.lax.map` on each of {jax.device_count()} devices (cores).\n\n"
        f"- here: {t_ours:.1f} s for all ({1e3 * t_ours / SWEEP_SIZE:.2f} ms each); "
        f"{int(np.isfinite(values).sum()):,} of {SWEEP_SIZE:,} finite\n"
        f"- dp-accounting: {1e3 * per_call:.0f} ms each over the first {SWEEP_SAMPLE} "
        f"of them, that is {loop / 60:.0f} min for all (extrapolated)\n"
        f"- largest relative excess of our bound over theirs on these "
        f"{SWEEP_SAMPLE}: {excess:+.1e} (theirs is an upper bound too at this delta)\n"
        f"\nRatio **{loop / t_ours:,.0f}**."
    )


def part_heterogeneous() -> str:
    """(h) A composition of 1053 mechanisms, all different."""
    draw = np.random.default_rng(20261101)
    gaussian, laplace = draw.uniform(4, 8, 3), draw.uniform(20, 60, 50)
    noise, q = draw.uniform(0.8, 1.4, 1000), 0.005

    def run(noise):
        step = lambda s: fdp.PoissonSubsampled(fdp.Gaussian(s), q)
        return fdp.compose(
            fdp.Schedule(fdp.Gaussian, gaussian),
            fdp.Schedule(fdp.Laplace, laplace),
            fdp.Schedule(step, noise),
        ).epsilon(delta=DELTA)

    value = jax.jit(run)
    both = jax.jit(jax.value_and_grad(run))
    t_ours = seconds(lambda: value(jnp.asarray(noise)), 3)
    t_both = seconds(lambda: both(jnp.asarray(noise)), 3)
    found = float(value(jnp.asarray(noise)))
    started = time.perf_counter()
    accountant = pld.PLDAccountant()
    for scale in gaussian:
        accountant.compose(dp_accounting.GaussianDpEvent(scale))
    for scale in laplace:
        accountant.compose(dp_accounting.LaplaceDpEvent(scale))
    for scale in noise:
        accountant.compose(event(scale, q, 1))
    other = accountant.get_epsilon(DELTA)
    t_theirs = time.perf_counter() - started
    SUMMARY["heterogeneous"] = (
        "| 3 Gaussian, 50 Laplace and 1000 subsampled Gaussian steps, all different "
        f"| {t_theirs / t_ours:,.0f} times faster |"
    )
    return (
        "## 1053 different mechanisms in one composition\n\n"
        f"- here: {t_ours:.2f} s jitted; {t_both:.2f} s with the gradient with respect "
        f"to all 1000 noise multipliers; epsilon <= {found:.9f}\n"
        f"- dp-accounting: {t_theirs:.1f} s; epsilon <= {other:.9f}\n"
        f"\nRatio **{t_theirs / t_ours:,.0f}** for the value, "
        f"**{t_theirs / t_both:,.0f}** with the gradient (which they do not have)."
    )


def part_discrete() -> str:
    """(i) Compositions of randomized response and of the discrete Gaussian."""
    rows, ratios = [], []
    losses = pld.privacy_loss_distribution

    def their_response(n: int) -> float:
        # Two outputs with odds e: replaced by a uniform one with probability 2/(1+e).
        single = losses.from_randomized_response(2 / (1 + np.e), 2)
        return single.self_compose(n).get_epsilon_for_delta(DELTA)

    def their_gaussian(n: int) -> float:
        single = losses.from_discrete_gaussian_mechanism(5.0)
        return single.self_compose(n).get_epsilon_for_delta(DELTA)

    response = jax.jit(
        lambda n: fdp.RandomizedResponse(1.0).repeat(n).bounds(delta=DELTA)
    )

    def gaussian(points: int | None = None):
        def bounds(n: float):
            run = fdp.DiscreteGaussian(5.0).repeat(n)
            chosen = run if points is None else run.using("grid", points=points)
            return chosen.bounds(delta=DELTA)

        return jax.jit(bounds)

    # Its losses are multiples of 1/25: few points, which are what is chosen where no
    # number is named, are as exact as many.
    default, many = gaussian(), gaussian(2**17)
    for name, call, other, n in (
        ("randomized response, epsilon 1", response, their_response, 100),
        ("discrete Gaussian, sigma 5", default, their_gaussian, 100),
        ("the same on 2^17 points", many, their_gaussian, 100),
        ("discrete Gaussian, sigma 5", default, their_gaussian, 1000),
        ("the same on 2^17 points", many, their_gaussian, 1000),
    ):
        t_theirs = seconds(lambda other=other, n=n: other(n), 3)
        t_ours = seconds(lambda call=call, n=n: call(float(n)), 11)
        bounds = call(float(n))
        truth = float(bounds.estimate)
        ratios.append(t_theirs / t_ours)
        rows.append(
            [
                f"{name}, {n} times",
                f"{1e3 * t_theirs:.0f}",
                f"{1e3 * t_ours:.2f}",
                f"{ratios[-1]:,.1f}",
                f"{other(n) / truth - 1:+.1e}",
                f"{(float(bounds.upper) - float(bounds.lower)) / truth:.1e}",
            ]
        )
    head = [
        *("composition", "theirs ms", "ours ms", "ratio"),
        *("their excess over our estimate", "our bracket's width"),
    ]
    SUMMARY["discrete"] = (
        "| compositions of randomized response and of the discrete Gaussian "
        f"| {min(ratios):,.0f} to {max(ratios):,.0f} times faster |"
    )
    return "## Discrete mechanisms\n\n" + table(head, rows)


def part_safety() -> str:
    """(f) Upper bounds against the truth at small delta."""
    entries = json.loads((DATA / "tail_truth.json").read_text())["entries"]
    rows = []
    for entry in entries:
        delta, truth = float(entry["delta"]), float(entry["epsilon"])
        args = entry["sigma"], entry["q"], entry["N"]
        claimed = theirs(*args, delta=delta)
        bounds = ours(*args).bounds(delta=delta)
        upper = float(bounds.upper)
        rows.append(
            [
                entry["delta"],
                f"{truth:.9f}",
                f"{claimed:.9f}" + (" **(too small)**" if claimed < truth else ""),
                f"{upper:.9f}" + (" **(too small)**" if upper < truth else ""),
                f"{upper / truth - 1:+.1e}",
            ]
        )
    head = ["delta", "truth", "dp-accounting's bound", "our bound", "our excess"]
    SUMMARY["safety"] = table(head, rows)
    return (
        "## Is the bound a bound? Epsilon of (sigma, q, N) = (1, 0.01, 10^4)\n\n"
        "Truth: 25 digits by `benchmarks/tail_truth.py`. A bound below the truth "
        "promises privacy that is not there.\n\n" + table(head, rows)
    )


_COLD = """
import time; start = time.perf_counter()
import jax, equinox, optimistix
base = time.perf_counter()
import fdp_jax as fdp
imported = time.perf_counter()
run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=1000)
float(run.epsilon(delta=1e-5))
first = time.perf_counter()
run = fdp.DPSGD(noise_multiplier=1.1, sampling_prob=0.02, num_steps=100)
float(run.epsilon(delta=1e-6))
second = time.perf_counter()
print(base - start, imported - base, first - imported, second - first)
"""


def part_cold() -> str:
    """(g) Import and first call in fresh processes."""

    def fresh(cache: str | None) -> list[float]:
        environment = dict(os.environ)
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        environment.pop("FDP_JAX_INTERPRET", None)
        if cache is not None:
            environment |= {
                "JAX_COMPILATION_CACHE_DIR": cache,
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
        output = subprocess.run(
            [sys.executable, "-c", _COLD],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return [float(x) for x in output.split()]

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        fresh(folder)
        for name, cache in (("no cache", None), ("warm persistent cache", folder)):
            times = np.median([fresh(cache) for _ in range(3)], axis=0)
            rows.append([name, *(f"{t:.2f}" for t in times)])
    head = [
        *("", "import jax, equinox, optimistix s", "import fdp_jax on top s"),
        *("first epsilon s", "second epsilon, other values s"),
    ]
    plain, cached = rows
    SUMMARY["cold"] = (
        "| first epsilon in a fresh process, compilation included "
        f"| {plain[3]} s, {cached[3]} s with a persistent cache |"
    )
    return "## Cold start (fresh process, median of 3)\n\n" + table(head, rows)


PARTS = {
    "epsilon": part_epsilon,
    "calibrate": part_calibrate,
    "curve": part_curve,
    "gradient": part_gradient,
    "sweep": part_sweep,
    "heterogeneous": part_heterogeneous,
    "discrete": part_discrete,
    "safety": part_safety,
    "cold": part_cold,
}


def machine() -> str:
    """What the numbers were measured on."""
    name = platform.processor() or platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return (
        f"{name}, {len(os.sched_getaffinity(0))} cores (shared), "
        f"Python {platform.python_version()}, jax {jax.__version__}, "
        f"NumPy {np.__version__}, device {jax.devices()[0].platform}, float64"
    )


def store(results: pathlib.Path, name: str, section: str, command: str) -> None:
    """Put one part into the results file; the other parts stay as they are."""
    known = {}
    if results.exists():
        marked = r"<!-- part (\w+) -->\n(.*?)\n<!-- end part -->"
        text = results.read_text(encoding="utf-8")
        known = dict(re.findall(marked, text, flags=re.DOTALL))
    known[name] = (
        f"{section}\n\n`{command}` on {machine()}.\n\n"
        f"<!-- summary\n{SUMMARY[name]}\n-->"
    )
    parts = [
        f"<!-- part {part} -->\n{known[part]}\n<!-- end part -->"
        for part in PARTS
        if part in known
    ]
    head = (
        "# fdp_jax against dp-accounting 0.6.0\n\n"
        "Written by `benchmarks/against_dp_accounting.py`. Both libraries run in the "
        "same process, one configuration after the other; ratio means their time over "
        "ours."
    )
    results.write_text("\n\n".join([head, *parts]) + "\n", encoding="utf-8")


def fill_page(results: pathlib.Path) -> None:
    """Copy the summaries of the results file into the two tables of the docs."""
    marked = r"<!-- part (\w+) -->.*?<!-- summary\n(.*?)\n-->"
    text = results.read_text(encoding="utf-8")
    summary = dict(re.findall(marked, text, flags=re.DOTALL))
    rows = [summary[part] for part in PARTS if part != "safety" and part in summary]
    blocks = {"speed": "\n".join(["| | fdp_jax |", "|---|---|", *rows])}
    if "safety" in summary:
        blocks["safety"] = summary["safety"]
    page = HERE.parent / "docs/benchmarks.md"
    text = page.read_text(encoding="utf-8")
    for name, block in blocks.items():
        marks = rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)"
        new = lambda found, block=block: f"{found[1]}{block}\n{found[2]}"
        text, count = re.subn(marks, new, text, flags=re.DOTALL)
        assert count == 1, name
    page.write_text(text, encoding="utf-8")


def main() -> None:
    """Run the chosen parts and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--output", help="write there, and leave the docs alone")
    arguments = parser.parse_args()
    chosen = arguments.parts.split(",")
    unknown = set(chosen) - set(PARTS)
    if unknown:
        parser.error(f"unknown parts {sorted(unknown)}; known are {list(PARTS)}")

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)  # for the sweep
    results = pathlib.Path(arguments.output or HERE / "RESULTS.md")
    for name in chosen:
        print(f"... {name}", file=sys.stderr, flush=True)
        command = f"python benchmarks/against_dp_accounting.py --parts {name}"
        section = PARTS[name]()
        print(section, "\n", flush=True)
        store(results, name, section, command)
    if arguments.output is None:
        fill_page(results)


if __name__ == "__main__":
    main()
