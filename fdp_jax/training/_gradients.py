"""Sums of bounded per-example gradients of batches whose sizes differ."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, PyTree

from .._internal import _checks
from .._internal._calls import explained
from .._internal._record import Record
from ._clipping import AbstractClipping

Loss = Callable[..., Array]
"""A function of a model and one example (and a key, if it draws): one number."""


class GradientSum(Record):
    """The sum of a batch's bounded per-example gradients, which noise is made for.

    It is not yet private, and neither are `loss` and `size`.
    """

    total: PyTree
    """The sum, with the structure of the gradient."""
    norm: Float[Array, ""]
    """What the gradients were clipped to."""
    kept: Array
    """How many gradients were left as they were."""
    size: Array
    """How many records of the batch had a finite gradient."""
    loss: Array
    """Sum of their losses."""


@explained
def per_example_gradients(
    loss: Loss, model: PyTree, examples: PyTree, key: Array | None = None
) -> tuple[Float[Array, " n"], PyTree]:
    """Losses of examples and their gradients, each with a leading axis.

    Args:
        loss: A function of the model and one example; with a key, of that too.
        model: A PyTree, an Equinox model for instance; of its leaves the inexact arrays
            are differentiated.
        examples: Arrays with one leading axis.
        key: For losses that draw, each example its own.
    """
    trained, fixed = eqx.partition(model, eqx.is_inexact_array)

    def one(trained: PyTree, example: PyTree, key: Any) -> Array:
        whole = eqx.combine(trained, fixed)
        return loss(whole, example) if key is None else loss(whole, example, key)

    size = jax.tree.leaves(examples)[0].shape[0]
    keys = None if key is None else jax.random.split(key, size)
    axes = (None, 0, None if key is None else 0)
    return jax.vmap(jax.value_and_grad(one), in_axes=axes)(trained, examples, keys)


@explained
def gradient_sum(
    loss: Loss,
    model: PyTree,
    data: PyTree,
    participants: Bool[Array, " n"],
    clipping: AbstractClipping,
    norm: Float[Array, ""],
    *,
    microbatch_size: int,
    key: Array | None = None,
) -> GradientSum:
    """The sum of the bounded gradients of those records that take part.

    Records are gathered into parts of one static size, as many as are needed: no batch
    is too large, nothing is compiled again, and how it is cut changes the rounding
    alone.

    Args:
        loss: See `per_example_gradients`.
        model: The model.
        data: Arrays with one leading axis, of all records.
        participants: Which records are in the batch.
        clipping: How a gradient is bounded.
        norm: The present norm.
        microbatch_size: Records whose gradients are in memory at a time.
        key: For losses that draw.

    Raises:
        ValueError: If microbatch_size is no whole number from 1.
    """
    width = _checks.whole("microbatch_size", microbatch_size, 1, 1 << 30)
    records = participants.shape[0]
    trained, fixed = eqx.partition(model, eqx.is_inexact_array)
    places = jnp.nonzero(participants, size=records + width, fill_value=records)[0]
    size = jnp.sum(participants)

    def add(index: Array, found: GradientSum) -> GradientSum:
        chosen = lax.dynamic_slice(places, (index * width,), (width,))
        here = chosen < records
        examples = jax.tree.map(lambda x: x[jnp.where(here, chosen, 0)], data)
        drawn = None if key is None else jax.random.fold_in(key, index)
        model = eqx.combine(trained, fixed)
        losses, gradients = per_example_gradients(loss, model, examples, drawn)
        clipped, kept, finite = _clipped_sum(gradients, here, clipping, norm)
        inside = here & finite
        return GradientSum(
            jax.tree.map(jnp.add, found.total, clipped),
            norm,
            found.kept + jnp.sum(kept & here),
            found.size + jnp.sum(inside),
            found.loss + jnp.sum(jnp.where(inside, losses, 0)),
        )

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, _wide(x)), trained)
    none = jnp.zeros_like(size)
    nothing = GradientSum(zeros, norm, none, none, jnp.zeros(()))
    return lax.fori_loop(0, -(-size // width), add, nothing)


def _clipped_sum(
    gradients: PyTree, here: Bool[Array, " n"], clipping: AbstractClipping, norm: Array
) -> tuple[PyTree, Bool[Array, " n"], Bool[Array, " n"]]:
    """The sum of bounded gradients; which were left as they were, and are finite.

    By products with a vector of factors: gradients of all examples are large, and
    should be read as seldom as possible.
    """
    leaves, structure = jax.tree.flatten(gradients)
    lengths = jnp.stack([_lengths(x) for x in leaves], axis=1)
    factors, kept = jax.vmap(clipping.factors, in_axes=(0, None))(lengths, norm)
    finite = jnp.isfinite(lengths).all(axis=1)
    kept = kept & finite
    factors = jnp.broadcast_to(factors.reshape(len(here), -1), lengths.shape)
    factors = jnp.where((here & finite)[:, None], factors, 0)

    def add(leaves: list[Array]) -> list[Array]:
        sums = lambda x, f: jnp.tensordot(
            f.astype(_wide(x)), x.astype(_wide(x)), 1, precision=lax.Precision.HIGHEST
        )
        return [sums(x, factors[:, i]) for i, x in enumerate(leaves)]

    def without_others(leaves: list[Array]) -> list[Array]:
        inside = lambda x: finite.reshape(-1, *[1] * (x.ndim - 1))
        return add([jnp.where(inside(x), x, 0) for x in leaves])

    # Zero times what is not finite is not zero.
    found = lax.cond(finite.all(), add, without_others, leaves)
    return jax.tree.unflatten(structure, found), kept, finite


def _wide(x: Array) -> Any:
    return jnp.promote_types(x.dtype, jnp.float32)


def _lengths(gradients: Array) -> Float[Array, " n"]:
    """Euclidean lengths of the gradients of all examples."""
    squares = jnp.square(gradients.astype(_wide(gradients)))
    return jnp.sqrt(jnp.sum(squares, axis=tuple(range(1, gradients.ndim))))
