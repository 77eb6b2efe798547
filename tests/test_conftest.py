"""The suite's own rules: the budget of compiled programs, and what it leaves out."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = ["tests/internal/test_shapes.py", "tests/internal/test_logs.py"]


def _run(most: int) -> tuple[int, str]:
    """What a run in two workers ends with that may compile so many operations."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment["FDP_JAX_TEST_OPERATIONS"] = str(most)
    parts = "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *parts, *TESTS],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout


def test_a_run_that_compiles_too_much_fails():
    status, text = _run(10)
    assert " passed" in text
    assert " failed" not in text
    assert "at most 10 are allowed" in text
    assert status == 1
    found = re.search(r"compiled: ([\d,]+) operations in ([\d,]+) programs", text)
    assert found is not None
    operations, programs = (int(x.replace(",", "")) for x in found.groups())
    # Of both workers.
    assert operations > programs > 10
