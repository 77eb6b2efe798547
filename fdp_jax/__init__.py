"""fdp_jax: certified, differentiable differential-privacy accounting in JAX.

The way of the data:
losses -> engines -> curves -> mechanisms -> sampling -> montecarlo -> tradeoff
-> experiments -> noise -> inference -> limits -> divergences -> audit -> comparison
-> levy -> calibration -> accounting -> interop -> design -> training -> sweeps
-> reports -> plot -> cli.
"""

import importlib.metadata

import lazy_loader

_found, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = importlib.metadata.version("fdp-jax")

# What every program needs is imported now, the rest on first use.
from . import mechanisms as mechanisms  # noqa: E402


def __getattr__(name: str) -> object:
    if name in __all__ or name.startswith("_"):
        return _found(name)
    from ._internal._calls import no_name

    raise AttributeError(no_name(__name__, name, __all__))
