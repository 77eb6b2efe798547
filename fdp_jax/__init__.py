"""fdp_jax: certified, differentiable differential-privacy accounting in JAX.

The way of the data:
losses -> engines -> curves -> mechanisms -> sampling -> montecarlo -> tradeoff
-> experiments -> noise -> inference -> limits -> selection -> divergences -> audit
-> comparison -> levy -> calibration -> accounting -> interop -> design -> training
-> sweeps -> reports -> plot -> cli.
"""

import importlib.metadata
import importlib.util
import pathlib
import sys

import lazy_loader

_found, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = importlib.metadata.version("fdp-jax")

# What every program needs is imported now, the rest on first use.  The command line
# reads its arguments first: help and errors of usage do not wait for JAX.
if [pathlib.PurePath(x).stem for x in sys.argv[:1]] != ["fdp-jax"]:
    from . import mechanisms as mechanisms


def __getattr__(name: str) -> object:
    if name in __all__ or name.startswith("_"):
        return _found(name)
    if name.isidentifier() and importlib.util.find_spec(f"{__name__}.{name}"):
        # Python asks for this before it imports the module: no time for suggestions.
        message = f"{name} is a module: import {__name__}.{name}"
        raise AttributeError(message, name=name)
    from ._internal._calls import no_name

    raise AttributeError(no_name(__name__, name, __all__))
