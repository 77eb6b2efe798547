"""Settings shared by the whole test suite."""

import pathlib

import jax
import matplotlib
import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)
# Most of a cold run is compilation; the cache makes the next run about three times
# faster. It holds compiled programs only, so it cannot change a result.
jax.config.update("jax_compilation_cache_dir", str(_ROOT / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

_MAPS = pathlib.Path("/proc/self/maps")


@pytest.fixture(autouse=True)
def _forget_compiled_programs():
    """Drops compiled programs before the process runs out of memory mappings.

    Each takes about a thousand, of the 65,530 that Linux allows by default; then the
    compiler aborts. Dropped programs come back from the cache on disk.
    """
    yield
    if _MAPS.exists() and _MAPS.read_bytes().count(b"\n") > 30_000:
        jax.clear_caches()
