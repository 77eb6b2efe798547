"""First calls under each Python on this machine, with the newest JAX that it can have.

For every interpreter found it makes an environment, installs the package there, runs a
few tests and measures the CPU seconds of import, of the first epsilon and of the first
calibration, each in a process of its own without kept programs.

    python benchmarks/version_matrix.py [--pythons 3.11,3.12,3.13] [--tests PATH ...]
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHONS = "3.11,3.12,3.13"
TESTS = (
    "tests/internal/test_interpreted.py",
    "tests/losses/test_closed_forms.py",
    "tests/curves/test_rounding.py",
)
_MEASURE = """
import json, sys, time
began = time.process_time()
import jax
import fdp_jax as fdp
imported = time.process_time()
run = fdp.DPSGD(noise_multiplier=1.1, sampling_prob=0.01, num_steps=1000)
value = float(run.epsilon(delta=1e-5))
first = time.process_time()
target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5)
family = fdp.DPSGD(sampling_prob=0.01, num_steps=1000)
noise = float(fdp.calibrate(family, target, solve_for="noise_multiplier").value)
print(json.dumps({
    "python": sys.version.split()[0], "jax": jax.__version__,
    "import": imported - began, "epsilon": first - imported,
    "calibrate": time.process_time() - first, "values": [value, noise],
}))
"""


def _run(*command: str, **options) -> str:
    return subprocess.run(
        command, check=True, text=True, capture_output=True, **options
    ).stdout


def environment(interpreter: str, folder: pathlib.Path) -> pathlib.Path:
    """A new environment with the package in it; its interpreter."""
    _run(interpreter, "-m", "venv", str(folder))
    python = folder / "bin" / "python"
    quiet = "--quiet", "--disable-pip-version-check"
    install = str(python), "-m", "pip", "install", *quiet
    _run(*install, str(ROOT), "pytest", "mpmath", "hypothesis", "matplotlib")
    return python


def row(version: str, tests: tuple[str, ...]) -> str:
    """One line of the table, or why there is none."""
    interpreter = shutil.which(f"python{version}")
    if interpreter is None:
        return f"| {version} | not on this machine |  |  |  |  |"
    with tempfile.TemporaryDirectory() as folder:
        try:
            python = environment(interpreter, pathlib.Path(folder) / "env")
        except subprocess.CalledProcessError as error:
            reason = (error.stderr or "").strip().splitlines()[-1:]
            return f"| {version} | not installed: {' '.join(reason)} |  |  |  |  |"
        settings = {**os.environ, "FDP_JAX_CACHE": "off"}
        found = json.loads(_run(str(python), "-c", _MEASURE, env=settings, cwd=folder))
        suite = subprocess.run(
            [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    outcome = suite.stdout.strip().splitlines()[-1] if suite.stdout else "no output"
    seconds = " | ".join(f"{found[k]:.1f}" for k in ("import", "epsilon", "calibrate"))
    return f"| {found['python']} | {found['jax']} | {seconds} | {outcome} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pythons", default=PYTHONS)
    parser.add_argument("--tests", nargs="*", default=TESTS)
    options = parser.parse_args()
    print("| Python | jax | import (CPU s) | first epsilon | calibrate | tests |")
    print("|---|---|--:|--:|--:|---|")
    for version in options.pythons.split(","):
        print(row(version, tuple(options.tests)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
