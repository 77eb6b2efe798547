"""What a first call costs: size and compile time of some programs.

Prints, for each program, the equations of its jaxpr (nested ones counted once for every
place they stand in), the instructions and the lines of the optimized HLO (about half of
the lines are tables of source locations), and the CPU seconds that tracing, lowering
and compiling take under XLA's default settings, as inside a user's `jax.jit`, without
any cache; beside them the counts at commit ab61d01.  Then the CPU seconds of the first
run, in which the host compiles what a program leaves to it.  Seconds are those of this
machine: compare them with another checkout's, taken by turns in the same run, only.

    python benchmarks/compile_cost.py [--programs epsilon,beta] [--against CHECKOUT]
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

BEFORE = {
    "epsilon": (6_409, 15_771, 31_972),
    "delta": (8_464, 16_511, 36_001),
    "beta": (14_767, 33_783, 71_997),
    "advantage": (8_464, 16_494, 35_998),
    "curve": (10_474, 20_132, 51_520),
    "calibrate": (9_687, 22_027, 44_119),
    "gradient of epsilon": (9_158, 25_906, 43_346),
    "Hessian of epsilon": (14_680, 46_448, 65_727),
    "gradient of calibrate": (20_579, 49_859, 76_041),
    "Laplace on the grid": (3_070, 7_158, 14_340),
    "mixed composition": (6_921, 14_561, 30_594),
    "Delta-divergence": (11_697, 21_036, 48_669),
}
"""Equations, instructions and lines at commit ab61d01, jax 0.10.2, CPU."""

_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?[\w.\-]+ = ", re.MULTILINE)


def programs() -> dict[str, tuple[Callable[..., Any], tuple[float, ...]]]:
    """The programs by name, each with arguments to trace it for."""
    import jax

    import fdp_jax as fdp

    def run(noise: Any, prob: Any = 0.01, steps: Any = 1000) -> Any:
        return fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=steps)

    def noise_for(epsilon: Any) -> Any:
        found = fdp.calibrate(
            fdp.DPSGD(sampling_prob=0.01, num_steps=1000),
            fdp.targets.ApproxDP(epsilon=epsilon, delta=1e-5),
            solve_for="noise_multiplier",
        )
        return found.value

    def mixed(noise: Any) -> Any:
        parts = run(noise), fdp.Laplace(2.0).repeat(3), fdp.Gaussian(3.0)
        return fdp.compose(*parts).epsilon(delta=1e-5)

    def divergence(noise: Any) -> Any:
        return fdp.delta_divergence(run(noise), fdp.Gaussian(1.0)).value.upper

    epsilon = lambda *numbers: run(*numbers).epsilon(delta=1e-5)
    every = 1.1, 0.01, 1000.0
    return {
        "epsilon": (epsilon, (1.1,)),
        "epsilon of all numbers": (epsilon, every),
        "gradient in all numbers": (jax.grad(epsilon, (0, 1, 2)), every),
        "delta": (lambda noise: run(noise).delta(epsilon=1.0), (1.1,)),
        "beta": (lambda noise: run(noise).beta(alpha=0.1), (1.1,)),
        "advantage": (lambda noise: run(noise).advantage(), (1.1,)),
        "curve": (lambda noise: run(noise).curve(), (1.1,)),
        "calibrate": (noise_for, (2.0,)),
        "gradient of epsilon": (jax.grad(epsilon), (1.1,)),
        "Hessian of epsilon": (jax.hessian(epsilon), (1.1,)),
        "gradient of calibrate": (jax.grad(noise_for), (2.0,)),
        "Laplace on the grid": (
            lambda noise: fdp.Laplace(noise).repeat(100).epsilon(delta=1e-5),
            (20.0,),
        ),
        "mixed composition": (mixed, (1.1,)),
        "Delta-divergence": (divergence, (1.1,)),
    }


def equations(jaxpr: Any) -> int:
    """Equations of a jaxpr and of all that stand in it."""
    count = 0
    for equation in jaxpr.eqns:
        count += 1
        for value in equation.params.values():
            inner = value if isinstance(value, list | tuple) else [value]
            for part in inner:
                part = getattr(part, "jaxpr", part)
                count += equations(part) if hasattr(part, "eqns") else 0
    return count


def cost(function: Callable[..., Any], arguments: tuple[float, ...]) -> dict[str, Any]:
    """Size and CPU seconds of one program."""
    import jax

    clock = time.process_time
    began = clock()
    traced = jax.jit(function).trace(*arguments)
    after_trace = clock()
    lowered = traced.lower()
    after_lower = clock()
    compiled = lowered.compile()
    after_compile = clock()
    jax.block_until_ready(compiled(*arguments))
    after_run = clock()
    text = compiled.as_text() or ""
    return {
        "equations": equations(traced.jaxpr.jaxpr),
        "instructions": len(_INSTRUCTION.findall(text)),
        "lines": len(text.splitlines()),
        "trace": after_trace - began,
        "lower": after_lower - after_trace,
        "compile": after_compile - after_lower,
        "run": after_run - after_compile,
    }


def _in_another_process(name: str, checkout: pathlib.Path | None) -> dict[str, Any]:
    """The cost in a process of its own, of this package or of another checkout's."""
    environment = dict(os.environ, JAX_ENABLE_X64="1", FDP_JAX_CACHE="off")
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    if checkout is not None:
        environment["PYTHONPATH"] = str(checkout)
    command = [sys.executable, __file__, "--one", name]
    found = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    )
    return json.loads(found.stdout.splitlines()[-1])


def _row(name: str, now: dict[str, Any], other: dict[str, Any] | None) -> str:
    before = BEFORE.get(name)
    if other is not None:
        before = tuple(other[key] for key in ("equations", "instructions", "lines"))
    stages = "trace", "lower", "compile", "run"
    seconds = [now[key] for key in stages]
    cells = [name]
    for index, key in enumerate(("equations", "instructions", "lines")):
        cells.append(f"{now[key]:,}" + (f" ({before[index]:,})" if before else ""))
    cells += [f"{x:.1f}" for x in seconds]
    if other is not None:
        spent = sum(other[key] for key in stages)
        cells.append(f"{sum(seconds) / spent:.2f}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--programs", help="some of the names, separated by commas")
    parser.add_argument("--against", type=pathlib.Path, help="another checkout")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(cost(*programs()[options.one])))
        return
    chosen = options.programs.split(",") if options.programs else list(programs())
    head = ["program", "equations", "instructions", "lines", "trace", "lower"]
    head += ["compile", "first run (CPU s)"] + ["of the other's"] * bool(
        options.against
    )
    print("| " + " | ".join(head) + " |")
    print("|---" + "|--:" * (len(head) - 1) + "|", flush=True)
    for name in chosen:
        other = None
        if options.against:
            other = _in_another_process(name, options.against)
        print(_row(name, _in_another_process(name, None), other), flush=True)


if __name__ == "__main__":
    main()
