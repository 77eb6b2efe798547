"""Settings shared by the whole test suite."""

import pathlib

import jax
import matplotlib

_ROOT = pathlib.Path(__file__).resolve().parent.parent

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)
# Most of a cold run is compilation; the cache makes the next run about three times
# faster. It holds compiled programs only, so it cannot change a result.
jax.config.update("jax_compilation_cache_dir", str(_ROOT / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
