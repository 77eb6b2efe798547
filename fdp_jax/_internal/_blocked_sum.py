"""A sum over a number of blocks that is known only at run time, differentiable.

`lax.while_loop` keeps array shapes static while the amount of work follows the
parameters, but it has no reverse mode.  A sum does not need one: its derivative is
the sum of the blocks' Jacobians, which is again a blocked sum.  Hence forward mode,
reverse mode and every higher order.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int, PyTree

from ._shapes import zeros_of

Block = Callable[[Array, PyTree, PyTree], tuple[PyTree, PyTree]]


def sums(arrays: tuple[Array, ...], axis: int) -> tuple[Array, ...]:
    """Sums of arrays side by side: one loop (XLA splits up the sum of one array)."""
    zeros = tuple(np.zeros((), x.dtype) for x in arrays)
    plus = lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True))
    return tuple(jax.lax.reduce(tuple(arrays), zeros, plus, (axis % arrays[0].ndim,)))


@dataclasses.dataclass(frozen=True)
class _WithJacobian:
    """A block function followed by its Jacobian; equal for equal `block`.

    Both in one pass, since they share most of their work.
    """

    block: Block

    def __call__(
        self, index: Array, args: PyTree, aux: PyTree
    ) -> tuple[tuple[PyTree, PyTree], PyTree]:
        flat, unravel = ravel_pytree(args)

        @jax.jit
        def main(flat: Array) -> tuple[PyTree, PyTree]:
            return self.block(index, unravel(flat), aux)

        shapes, _ = jax.eval_shape(main, flat)
        outputs = sum(x.size for x in jax.tree.leaves(shapes))
        if outputs < flat.size:
            value, pull, extra = jax.vjp(main, flat, has_aux=True)
            rows, rebuild = ravel_pytree(value)
            one = jnp.eye(outputs, dtype=rows.dtype)
            (rows,) = jax.vmap(lambda unit: pull(rebuild(unit)))(one)
            jacobian = jax.vmap(rebuild, in_axes=1, out_axes=-1)(rows)
        else:
            value, push, extra = jax.linearize(main, flat, has_aux=True)
            unit = jnp.eye(flat.size, dtype=flat.dtype)
            jacobian = jax.vmap(push, out_axes=-1)(unit)
        return (value, jacobian), extra


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def blocked_sum(
    block: Block, num_blocks: Int[Array, ""], args: PyTree, aux: PyTree
) -> tuple[PyTree, PyTree]:
    """Sums `block(i, args, aux)` over `i = 0, ..., num_blocks - 1`.

    Args:
        block: Pure function without closed-over tracers.  Returns a PyTree, which is
            differentiable in `args`, and one of further sums, which is not.
        num_blocks: Number of blocks, may be traced.
        args: PyTree of floating-point arrays of one dtype.
        aux: PyTree of arrays treated as constants.

    Returns:
        The two sums.
    """
    one = jax.jit(lambda index: block(index, args, aux))

    def step(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        index, total = carry
        return index + 1, jax.tree.map(jnp.add, total, one(index))

    none = jnp.zeros_like(num_blocks)
    start = none, zeros_of(one, none)
    return jax.lax.while_loop(lambda c: c[0] < num_blocks, step, start)[1]


@blocked_sum.defjvp
def _blocked_sum_jvp(block: Block, primals: tuple, tangents: tuple) -> tuple:
    num_blocks, args, aux = primals
    with_jacobian = _WithJacobian(block)
    (main, jacobian), extra = blocked_sum(with_jacobian, num_blocks, args, aux)
    direction, _ = ravel_pytree(tangents[1])
    tangent = jax.tree.map(lambda rows: rows @ direction, jacobian)
    return (main, extra), (tangent, jax.tree.map(jnp.zeros_like, extra))
