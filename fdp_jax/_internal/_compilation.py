"""Programs that compile sooner where nothing else is being compiled."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

SOONER = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
"""XLA's older code generator for CPUs and less of LLVM: hundreds of small loops compile
in 40 % of the time and run as fast (jaxlib 0.10.2)."""


@functools.cache
def _options() -> dict[str, Any]:
    """The options, on a CPU and if this jaxlib knows them."""
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda x: x, compiler_options=SOONER)(0.0)
    except (jax.errors.JaxRuntimeError, ValueError):
        return {}
    return {"compiler_options": SOONER}


def jit_on_its_own(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`eqx.filter_jit` for calls from outside all transformations.

    Only those may have options of their own: JAX refuses them inside another program.
    """

    @functools.cache
    def jitted() -> Callable[..., Any]:
        return eqx.filter_jit(fn, **_options())

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return jitted()(*args, **kwargs)

    return wrapped
