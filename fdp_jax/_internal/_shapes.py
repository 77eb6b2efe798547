"""Zeros of the shapes of what a function returns."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def zeros_of(function: Callable[..., PyTree], *args: Any) -> PyTree:
    """Zeros of the shapes of what a function returns.

    The function is traced for it: let it be a `jax.jit`, which is not traced again
    where it is called.
    """
    shapes = jax.eval_shape(function, *args)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
