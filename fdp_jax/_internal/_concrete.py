"""What is known while a program is traced, and what is not: asked here alone."""

from typing import Any

import jax
import jax.core
import jax.extend.core as jec
import numpy as np

# What the state of tracing is outside of all transformations.
with jax.ensure_compile_time_eval():
    _EAGER = jec.get_opaque_trace_state()


def outside_transformations() -> bool:
    """Whether nothing is being traced, so that all numbers are known."""
    return jec.get_opaque_trace_state() == _EAGER


def is_traced(*values: Any) -> bool:
    """Whether an array among the leaves of some PyTrees is traced."""
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(values))


def known(value: Any) -> np.ndarray | None:
    """The numbers of a value, unless it is traced.

    NumPy's own: JAX traces whatever is computed inside of a transformation, also from
    arrays that are not traced themselves.
    """
    return None if isinstance(value, jax.core.Tracer) else np.asarray(value)
