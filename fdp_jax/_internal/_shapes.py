"""Shapes of arrays and structures of PyTrees, by themselves."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import toeplitz
from jaxtyping import Array, Float, Int, PyTree


def zeros_of(function: Callable[..., PyTree], *args: Any) -> PyTree:
    """Zeros of the shapes of what a function returns.

    The function is traced for it: let it be a `jax.jit`, which is not traced again
    where it is called.
    """
    shapes = jax.eval_shape(function, *args)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


@jax.jit
def row_of(arrays: PyTree, index: Int[Array, ""]) -> PyTree:
    """One row of each of some arrays."""
    pick = lambda x: lax.dynamic_index_in_dim(x, index, keepdims=False)
    return jax.tree.map(pick, arrays)


def kinds_of(leaves: Iterable[Any]) -> tuple[tuple[Any, Any], ...]:
    """Shapes and types of arrays and numbers, to be part of a key."""
    types = lambda x: x.dtype if hasattr(x, "dtype") else np.result_type(x)
    return tuple((np.shape(x), types(x)) for x in leaves)


def as_matrix(strategy: Array, num_steps: int) -> Float[Array, "rows {num_steps}"]:
    """A matrix; a first column stands for that of a lower triangular Toeplitz one."""
    if strategy.ndim == 2:
        return strategy
    first = jnp.pad(strategy, (0, num_steps - strategy.size))
    return toeplitz(first, jnp.zeros_like(first))


class Fixed(NamedTuple):
    """A PyTree without arrays, as a part of a key: equal for equal structures."""

    leaves: tuple[Any, ...]
    structure: Any

    @classmethod
    def of(cls, tree: PyTree) -> "Fixed":
        """The key of a PyTree whose leaves are hashable."""
        leaves, structure = jax.tree.flatten(tree)
        return cls(tuple(leaves), structure)

    def tree(self) -> PyTree:
        """The PyTree itself."""
        return jax.tree.unflatten(self.structure, self.leaves)
