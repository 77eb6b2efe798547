"""The suite's own rules: the budget of compiled programs, and what it leaves out."""

import collections
import os
import pathlib
import re
import subprocess
import sys
from types import SimpleNamespace

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = "tests/internal/test_shapes.py", "tests/internal/test_logs.py::test_log_cosh"


def _run(most: int) -> tuple[int, str]:
    """What a run in a worker ends with that may compile so many operations."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment["FDP_JAX_TEST_OPERATIONS"] = str(most)
    parts = "-q", "-n", "1", "--dist", "loadfile", "-p", "no:cacheprovider"
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
    # The worker's, which the other process hears of.
    assert operations > programs > 10


def test_what_workers_have_compiled_is_added_up(request, monkeypatch):
    plugins = request.config.pluginmanager
    conftest = plugins.get_plugin(str(ROOT / "tests/conftest.py"))
    total = collections.Counter()
    monkeypatch.setattr(conftest._Compiled, "total", total)
    for operations in (300, 500):
        done = {"compiled": {"operations": operations, "programs": 4}}
        conftest.pytest_testnodedown(SimpleNamespace(workeroutput=done))
    assert total == {"operations": 800, "programs": 8}
