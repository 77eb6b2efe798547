"""Settings shared by the whole test suite."""

import collections
import contextlib
import ctypes
import functools
import gc
import importlib.metadata
import os
import pathlib
import tempfile
import time
import typing

import jax
import jax.monitoring
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from jax._src import compiler as jax_compiler, traceback_util
from jax.core import Tracer
from jaxlib.mlir import ir

from fdp_jax._internal import _compilation, _program_cache
from fdp_jax.curves import AbstractGuarantee, Bounds, _bounds

_ROOT = pathlib.Path(__file__).resolve().parent.parent

# Most of the time is spent in the compiler.  These options are those that the package
# gives to a query of its own, but for the optimization: without it programs compile in
# two thirds of the time and run two or three times longer, which is the lesser part.
# `make test-compiled` goes without, as users' programs do, and test_compilation.py.
# Read by the workers when they compile their first program; other versions of jaxlib
# may not know them.
_SOONER = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
_VERSION = importlib.metadata.version("jaxlib").rpartition(".")[0]
if _VERSION == "0.10":
    _SOONER += " --xla_cpu_use_fusion_emitters=false"
_KNOWN = _VERSION in {"0.10", "0.11", "0.12", "0.12.0"}
if _KNOWN and "FDP_JAX_TEST_DEFAULTS" not in os.environ:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_SOONER}".strip()
    _compilation.OPTIONS["xla_backend_optimization_level"] = 0

# Programs of plain calls are kept for the time of this run, so that its workers do not
# each trace and compile them, nor one of them again after `_Room.make`.  The user's own
# folder has no room for all that tests ask for.  A worker inherits the folder.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _PROGRAMS = tempfile.TemporaryDirectory(prefix="fdp_jax_tests_")
    os.environ["FDP_JAX_CACHE"] = _PROGRAMS.name
    # Threads of BLAS only wait for each other's small matrices, at the cost of a core
    # that another worker needs.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
_program_cache._MOST_BYTES = 1 << 32
# What is on disk need not all be in memory: `_Room.make` does not reach it.
_compilation._MOST_PROGRAMS = 32

# Traces are many objects that live long: do not look for cycles among them so often,
# and among the oldest of them only where there is no room (`_Room.make`): half a second
# for each million of objects, of which hardly any are garbage.
gc.freeze()
gc.set_threshold(50_000, 20, 10_000)

# Each traced check of a number (`eqx.error_if`) asks of all frames of the stack whether
# they are JAX's own: a twentieth of the time.
if hasattr(traceback_util, "include_filename"):  # not so in another JAX
    traceback_util.include_filename = functools.cache(traceback_util.include_filename)

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)
# Most of a cold run is compilation; a cache makes the next run about three times
# faster, and filling it costs this one a twentieth: `mkdir .jax_cache` where tests are
# run again and again.  It holds compiled programs only, so it cannot change a result.
if (_ROOT / ".jax_cache").is_dir():
    jax.config.update("jax_compilation_cache_dir", str(_ROOT / ".jax_cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Ends that cross become trivial ones before anybody sees them, which would hide the
# defect from most tests: leave them, and fail whatever test looks at such bounds.
_bounds.MEND = False


def _with_ends_in_order(found):
    ends = found.lower, found.upper
    if not any(isinstance(x, Tracer) for x in ends):
        assert np.all(np.asarray(ends[0]) <= np.asarray(ends[1])), f"crossed: {found}"
    return found


_pick, _query = Bounds.pick, AbstractGuarantee.bounds


@functools.wraps(_pick)
def _checked_pick(self, *args, **kwargs):
    return _pick(_with_ends_in_order(self), *args, **kwargs)


@functools.wraps(_query)
def _checked_query(self, *args, **query):
    return _with_ends_in_order(_query(self, *args, **query))


Bounds.pick, AbstractGuarantee.bounds = _checked_pick, _checked_query

_SLOW = frozenset((_ROOT / "tests" / "slow.txt").read_text().splitlines())


# What a run of all tests but the slow ones may compile, in operations of its programs
# as they reach the compiler: their number decides how long it takes.  Plain calls and
# users' programs (`programs.py`) are interpreted, and compiled where that is much work,
# on all machines alike.  Raise it only if what is new cannot share a program that is
# there, nor be `jitted`.
_MOST_OPERATIONS = int(os.environ.get("FDP_JAX_TEST_OPERATIONS", 800_000))
_LARGE = 2000


class _Compiled:
    """What this process has compiled, or would have if it were not in `.jax_cache`."""

    total: typing.ClassVar = collections.Counter()

    @classmethod
    def watch(cls) -> None:
        original = getattr(jax_compiler, "compile_or_get_cached", None)
        if original is None:  # another JAX: then there is no budget
            return

        @functools.wraps(original)
        def counted(backend, computation, *args, **kwargs):
            size = 0

            def visit(operation):
                nonlocal size
                size += 1
                return ir.WalkResult.ADVANCE

            computation.operation.walk(visit)
            cls.total.update(operations=size, programs=1, large=size > _LARGE)
            return original(backend, computation, *args, **kwargs)

        jax_compiler.compile_or_get_cached = counted
        jax.monitoring.register_event_duration_secs_listener(cls._took)

    @classmethod
    def _took(cls, event: str, duration_secs: float, **kwargs) -> None:
        del kwargs
        if event.startswith("/jax/core/compile/"):
            cls.total["milliseconds"] += round(1000 * duration_secs)

    @classmethod
    def is_too_much(cls, config) -> bool:
        counts = config.getoption("markexpr") == "not slow"
        return counts and cls.total["operations"] > _MOST_OPERATIONS


_Compiled.watch()


def pytest_configure(config):
    """Tests look at both ends of what is loose; test_doubts.py is about the warning."""
    config.addinivalue_line("filterwarnings", "ignore::fdp_jax.LooseBoundWarning")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks the tests that are left to `make test-all`.

    The tests of a file share programs, and run in one process (`--dist loadfile`).  The
    longest file comes first: else one worker waits for the other in the end.
    """
    for item in items:
        if item.nodeid in _SLOW:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: "test_readme" not in item.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """A worker hands on what it compiled; the run fails if that is too much."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["compiled"] = dict(_Compiled.total)
    elif _Compiled.is_too_much(session.config) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Adds up what the workers compiled."""
    _Compiled.total.update(getattr(node, "workeroutput", {}).get("compiled", {}))


def pytest_terminal_summary(terminalreporter, config):
    """Says what was compiled."""
    found, much = _Compiled.total, _Compiled.is_too_much(config)
    terminalreporter.write_line(
        f"compiled: {found['operations']:,} operations in {found['programs']:,} "
        f"programs ({found['large']:,} of more than {_LARGE:,}), in "
        f"{found['milliseconds'] / 1000:.0f} seconds of tracing and compiling"
        + (f"; at most {_MOST_OPERATIONS:,} are allowed" if much else ""),
        red=much,
    )


class _Room:
    """What compiled programs may take of a process and of the machine.

    Each takes about a thousand memory mappings, of the 65,530 that Linux allows by
    default; then the compiler aborts. Three seconds are enough for some thousand.
    """

    maps, resident = (pathlib.Path(f"/proc/self/{x}") for x in ("maps", "statm"))
    unit = os.sysconf("SC_PAGE_SIZE")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    most = 0.76 / max(workers, 2) * unit * os.sysconf("SC_PHYS_PAGES")
    looked = 0.0

    @classmethod
    def used(cls) -> int:
        return cls.unit * int(cls.resident.read_text().split()[1])

    @classmethod
    def is_short(cls) -> bool:
        now = time.process_time()
        if not cls.maps.exists() or now < cls.looked + 3:
            return False
        cls.looked = now
        many = cls.maps.read_bytes().count(b"\n") > 45_000
        return many or cls.used() > cls.most

    @classmethod
    def make(cls) -> None:
        jax.clear_caches()
        gc.collect()
        # The allocator keeps what is freed, unless it is asked to give it back.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        # What it keeps all the same is not to be asked for again and again.
        cls.most = max(cls.most, cls.used() + 2**31)


@pytest.fixture(autouse=True)
def _close_pictures():
    """Closes what a test has drawn: those of many tests are a warning in the next."""
    yield
    plt.close("all")


@pytest.fixture(autouse=True)
def _forget_compiled_programs():
    """Drops compiled programs before there is no room for more.

    Dropped programs come back from the cache on disk, but are traced anew.
    """
    yield
    if _Room.is_short():
        _Room.make()
