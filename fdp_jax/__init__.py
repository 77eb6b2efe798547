"""fdp_jax: certified, differentiable differential-privacy accounting in JAX.

The way of the data:
losses -> engines -> curves -> mechanisms -> sampling -> montecarlo -> tradeoff
-> experiments -> noise -> inference -> limits -> divergences -> audit -> comparison
-> levy -> calibration -> accounting -> interop -> design -> training -> sweeps
-> reports -> plot -> cli.
"""

import importlib.metadata

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = importlib.metadata.version("fdp-jax")

# What every program needs is imported now, the rest on first use.
from . import mechanisms as mechanisms  # noqa: E402
