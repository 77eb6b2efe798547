"""How a search behaves under `vmap`.

A search runs loops whose lengths depend on its parameters.  Under `vmap` such loops run
until the slowest member of the batch is done, and every step touches the state of all:
right for an accelerator, many times slower than one by one on a CPU.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from ._masks import merge, select
from ._place import on_cpu


@custom_vmap
def anywhere(flags: jax.Array) -> jax.Array:
    """Whether any flag is set, for any element of a batch: one answer for all.

    Of a condition on it only one branch is evaluated under `vmap`, too.
    """
    return jnp.any(flags)


@anywhere.def_vmap
def _over_a_batch(_size: int, _batched: list[bool], flags: jax.Array) -> Any:
    return anywhere(flags), False


def one_by_one(search: Callable[..., Any]) -> Callable[..., Any]:
    """Makes `vmap` of a search a sequential map on CPU, and a batch elsewhere.

    Args:
        search: Pure function of PyTrees of arrays, not differentiated.
    """
    # Traced once for all programs that ask it of the same kinds.
    search = jax.jit(search)
    mapped = custom_vmap(search)

    @mapped.def_vmap
    def rule(axis_size: int, in_batched: Any, *args: Any) -> tuple[Any, Any]:
        leaves, structure = jax.tree.flatten(args)
        moving = jax.tree.leaves(in_batched)
        axes = jax.tree.unflatten(structure, [0 if m else None for m in moving])

        def in_sequence(*leaves: Any) -> Any:
            def one(varying: Any) -> Any:
                full = merge(moving, varying, leaves)
                return mapped(*jax.tree.unflatten(structure, full))

            return lax.map(one, select(moving, leaves))

        def at_once(*leaves: Any) -> Any:
            return jax.vmap(search, axes)(*jax.tree.unflatten(structure, leaves))

        if on_cpu():
            # Programs for other machines, exported from here, go in sequence too.
            out = in_sequence(*leaves)
        else:
            out = lax.platform_dependent(*leaves, cpu=in_sequence, default=at_once)
        return out, jax.tree.map(lambda _: True, out)

    return mapped
