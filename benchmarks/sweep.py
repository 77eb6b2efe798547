"""Sweeps: time, memory, devices and processes; beside a loop over dp-accounting.

`python benchmarks/sweep.py` takes some minutes and prints a table; `--size 100000` is
the size that the goals speak of, smaller ones are scaled to it.  `--quick`, which is
what `make bench` runs, writes its part of SWEEPS.md; it takes 220 s of processor time,
nearly all of it for programs, which each process compiles unless it finds them on disk.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import resource
import socket
import subprocess
import sys
import tempfile
import textwrap
import time

import jax
import numpy as np

import fdp_jax as fdp
from fdp_jax.cli._sweep import WHOLE_LOOPS

DELTA = 1e-5
TARGET = fdp.targets.ApproxDP(epsilon=3.0, delta=DELTA)
ALPHA = np.geomspace(1e-6, 1.0, 100)
KINDS = {
    "epsilon": {"epsilon": {"delta": DELTA}},
    "calibration": {"noise": {"target": TARGET, "solve_for": "noise_multiplier"}},
    "curve": {"curve": lambda mechanism: mechanism.curve().beta(alpha=ALPHA)},
}
GOALS = {"epsilon": 100_000, "calibration": 10_000, "curve": 1_000}


PAGE = pathlib.Path(__file__).with_name("SWEEPS.md")
QUICK_SIZE, QUICK_SAMPLE = 2_000, 5


def configurations(
    size: int, seed: int = 20260101, copies: int = 1
) -> fdp.sweeps.Columns:
    """DP-SGD runs, log-uniform, as in `against_dp_accounting.py`; in copies."""
    draw = np.random.default_rng(seed)
    log = lambda low, high: np.exp(draw.uniform(np.log(low), np.log(high), size))
    return fdp.sweeps.Columns(
        noise_multiplier=np.tile(log(0.6, 10.0), copies),
        sampling_prob=np.tile(log(1e-3, 1e-1), copies),
        num_steps=np.tile(np.round(log(1e2, 1e5)), copies),
    )


def measured(
    kind: str, size: int, chunk_size: int, copies: int, folder: str
) -> dict[str, float]:
    """Seconds of a sweep whose programs are compiled, and the most memory."""
    ask = lambda seed: fdp.sweep(
        fdp.DPSGD,
        configurations(size, seed, copies),
        queries=KINDS[kind],
        chunk_size=chunk_size,
        folder=os.path.join(folder, str(seed)) if folder else None,
        progress=False,
    )
    times = []
    for seed in (1, 2):
        began, used = time.perf_counter(), time.process_time()
        found = ask(seed)
        times.append((time.perf_counter() - began, time.process_time() - used))
    status = found.table.get(f"{found.queries[0]}_status", np.zeros(1, int))
    return {
        "first": times[0][0],
        "again": times[1][0],
        "processor": times[1][1],
        "loose": int(np.sum(status != 0)),
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def worker(arguments: argparse.Namespace) -> None:
    """One process of a measurement."""
    jax.config.update("jax_num_cpu_devices", arguments.devices)
    if arguments.processes > 1:
        jax.distributed.initialize(
            arguments.address,
            num_processes=arguments.processes,
            process_id=arguments.index,
        )
    found = measured(
        arguments.worker,
        arguments.size,
        arguments.chunk_size,
        arguments.copies,
        arguments.folder,
    )
    print(json.dumps(found))


def run(
    kind: str, size: int, devices: int = 1, processes: int = 1, *, each: bool = False
) -> dict[str, float]:
    """A measurement in processes of its own: the slowest one's times.

    With `each` every process has the whole size to work on, the same configurations.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _run(kind, size, devices, processes, each, folder)


def _run(
    kind: str, size: int, devices: int, processes: int, each: bool, folder: str
) -> dict[str, float]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    # Of one size, so that all do the same work on programs.
    chunk_size = size if each else min(2048, -(-size // 8))
    copies = processes if each else 1
    every = [
        subprocess.Popen(
            [
                *(sys.executable, __file__, "--worker", kind, "--size", str(size)),
                *("--chunk-size", str(chunk_size), "--devices", str(devices)),
                *("--processes", str(processes), "--index", str(index)),
                *("--address", address, "--copies", str(copies)),
                *(("--folder", folder) if processes > 1 else ()),
            ],
            stdout=subprocess.PIPE,
            # As `fdp-jax sweep` runs.
            env=os.environ | {"XLA_FLAGS": WHOLE_LOOPS},
            text=True,
        )
        for index in range(processes)
    ]
    found = [json.loads(p.communicate()[0].splitlines()[-1]) for p in every]
    return {name: max(one[name] for one in found) for name in found[0]}


def loop_over_dp_accounting(sample: int) -> float:
    """Processor seconds of one epsilon of theirs, in a loop over a sample."""
    from against_dp_accounting import theirs

    table = configurations(sample).rows(np.arange(sample))
    began = time.process_time()
    for s, q, n in zip(*table.values(), strict=True):
        theirs(float(s), float(q), int(n))
    return (time.process_time() - began) / sample


def quick(size: int, sample: int) -> str:
    """Weak scaling over processes, and the ratio to dp-accounting's loop."""
    lines = [
        "| processes | configurations | s | processor s of a process | load |",
        "| --- | --- | --- | --- | --- |",
    ]
    each = []
    for processes in (1, 2, 4):
        found = run("epsilon", size, processes=processes, each=True)
        each.append(found["processor"] / size)
        lines.append(
            f"| {processes} | {processes * size:,} | {found['again']:.2f} "
            f"| {found['processor']:.2f} | {os.getloadavg()[0]:.1f} |"
        )
    theirs = loop_over_dp_accounting(sample)
    return (
        "\n".join(lines) + "\n\n"
        f"Every process asks {size:,} epsilons, the same ones, of one device; the "
        "processor time is the largest of any process. "
        f"An epsilon takes {1e3 * each[0]:.2f} ms of a core; in a loop over "
        f"dp-accounting (PLD, its default grid, mean of {sample} of these "
        f"configurations) {1e3 * theirs:,.0f} ms, which is {theirs / each[0]:,.0f} "
        "times as much. "
        f"{platform.machine()}, {os.cpu_count()} cores shared with other programs, "
        f"jax {jax.__version__}, NumPy {np.__version__}; no accelerator."
    )


def write(text: str) -> None:
    """Puts the part of `quick` into SWEEPS.md."""
    page = PAGE.read_text(encoding="utf-8")
    part = re.compile(r"(<!-- quick -->\n).*?(<!-- end quick -->)", re.DOTALL)
    lines = [
        x if x[:1] == "|" else textwrap.fill(x, 88, break_on_hyphens=False)
        for x in text.split("\n")
    ]
    new = "\n".join(lines)
    page, count = part.subn(lambda found: f"{found[1]}{new}\n{found[2]}", page)
    if count != 1:
        raise ValueError(f"{PAGE} must have one part <!-- quick -->")
    PAGE.write_text(page, encoding="utf-8")


def plain(size: int) -> dict[str, float]:
    """Seconds of `jax.vmap` and of `jax.lax.map`, jitted and on one core."""
    rows = tuple(configurations(size).rows(np.arange(size)).values())
    one = lambda s, q, n: fdp.DPSGD(
        noise_multiplier=s, sampling_prob=q, num_steps=n
    ).epsilon(delta=DELTA)
    ways = {
        "vmap": jax.vmap(one),
        "lax.map": lambda *x: jax.lax.map(lambda row: one(*row), x),
    }
    found = {}
    for name, way in ways.items():
        compiled = jax.jit(way).lower(*rows).compile()
        jax.block_until_ready(compiled(*rows))
        began = time.perf_counter()
        jax.block_until_ready(compiled(*rows))
        found[name] = time.perf_counter() - began
    return found


def killed(size: int, times: int) -> int:
    """How often a sweep killed at a random moment goes on to the same bytes."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import jax, sweep, fdp_jax as f;"
        "f.sweep(f.DPSGD, sweep.configurations(int(sys.argv[3])), chunk_size=64,"
        "queries=sweep.KINDS['epsilon'], folder=sys.argv[2], progress=False)"
    )
    here, same, draw = os.path.dirname(__file__), 0, np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as place:
        ask = lambda name: subprocess.Popen(
            [sys.executable, "-c", code, here, os.path.join(place, name), str(size)]
        )
        ask("warm").wait()
        began = time.perf_counter()
        ask("whole").wait()
        takes = time.perf_counter() - began
        for trial in range(times):
            process = ask(str(trial))
            time.sleep(takes * draw.uniform(0.1, 1.0))
            process.kill()
            process.wait()
            ask(str(trial)).wait()
            folders = os.path.join(place, "whole"), os.path.join(place, str(trial))
            same += _files(folders[0]) == _files(folders[1])
    return same


def _files(folder: str) -> dict[str, bytes]:
    found = {}
    for name in sorted(os.listdir(folder)):
        if not name.startswith("."):
            with open(os.path.join(folder, name), "rb") as file:
                found[name] = file.read()
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--sample", type=int, default=10)
    parser.add_argument("--worker", choices=tuple(KINDS))
    parser.add_argument("--chunk-size", type=int, default=2048)
    parser.add_argument("--quick", action="store_true")
    for name in ("devices", "processes", "copies"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--folder", default="")
    parser.add_argument("--address", default="")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if arguments.worker:
        worker(arguments)
        return
    if arguments.kills:
        same = killed(arguments.size, arguments.kills)
        print(f"killed {arguments.kills} times, the same bytes {same} times")
        return
    if arguments.quick:
        text = quick(QUICK_SIZE, QUICK_SAMPLE)
        print(text)
        write(text)
        return
    cores = os.cpu_count() or 1
    each = np.inf
    print("| sweep | devices | processes | s | ms each | loose | s for goal | MiB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind, goal in GOALS.items():
        size = max(8, arguments.size * goal // 100_000)
        layouts = [(cores, 1)]
        if kind == "epsilon":
            layouts = [(1, 1), (2, 1), (1, 2), (1, 4)]
        for devices, processes in layouts:
            found = run(kind, size, devices, processes)
            seconds = found["again"]
            if (kind, devices, processes) == ("epsilon", 1, 1):
                each = found["processor"] / size
            print(
                f"| {size:,} of {kind} | {devices} | {processes} | {seconds:.2f} "
                f"| {1e3 * seconds / size:.3f} | {found['loose']:.0f} "
                f"| {seconds * goal / size:.1f} for {goal:,} | {found['MiB']:.0f} |",
                flush=True,
            )
    ways = plain(min(2_000, arguments.size))
    print(f"jax.vmap over jax.lax.map: {ways['vmap'] / ways['lax.map']:.2f}")
    theirs = loop_over_dp_accounting(arguments.sample)
    print(f"dp-accounting's loop over a sweep's processor time: {theirs / each:,.0f}")


if __name__ == "__main__":
    main()
