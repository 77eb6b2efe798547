"""Canaries: records put into a training, or left out, whose scores an audit is fed."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from .._internal import _checks
from .._internal._calls import explained
from ._gradients import Loss, one_number, per_example_gradients
from ._noise import checked_key


@explained
def insert_canaries(
    key: Array, data: PyTree, canaries: PyTree
) -> tuple[PyTree, Bool[Array, " m"]]:
    """Puts canaries in the place of the last records, each by a fair coin of its own.

    Where one is left out its place is empty: a record of NaN, whose gradient is not
    finite, contributes nothing.

    Args:
        key: For the coins.
        data: Arrays of all records with one leading axis.
        canaries: The same of the canaries, fewer than there are records, and among them
            an array of floating-point numbers.

    Returns:
        The data, with as many records as before, and which canaries are in.

    Raises:
        ValueError: If there are too many, or no array can say that a place is empty.
    """
    leaves, places = jax.tree.leaves(canaries), jax.tree.leaves(data)
    number, records = leaves[0].shape[0], places[0].shape[0]
    _checks.require(
        number <= records,
        f"canaries must be at most as many as there are records, {records}",
        number,
    )
    _checks.require(
        any(eqx.is_inexact_array(x) for x in places),
        "data must hold floating-point numbers for empty places",
    )
    included = jax.random.bernoulli(checked_key(key), 0.5, (number,))

    def put(x: Array, canary: Array) -> Array:
        flags = included.reshape(-1, *[1] * (x.ndim - 1))
        nothing = jnp.nan if jnp.issubdtype(x.dtype, jnp.inexact) else 0
        return x.at[records - number :].set(jnp.where(flags, canary, nothing))

    return jax.tree.map(put, data, canaries), included


@explained
def loss_scores(
    loss: Loss, model: PyTree, examples: PyTree, *, before: PyTree = None
) -> Float[Array, " m"]:
    """How well a model knows examples: larger scores speak for membership.

    Args:
        loss: See `Trainer`.
        model: A trained one.
        examples: Arrays with one leading axis.
        before: A model that has not seen them, for comparison.

    Returns:
        By how much the loss is smaller than that model's; without one, minus the loss.
    """
    of = lambda model: jax.vmap(lambda example: one_number(loss)(model, example))
    losses = of(model)(examples)
    return -losses if before is None else of(before)(examples) - losses


@explained
def gradient_scores(
    loss: Loss, model: PyTree, examples: PyTree, mean: PyTree
) -> Float[Array, " m"]:
    """How far a released mean points where examples would have pulled it.

    Args:
        loss: See `Trainer`.
        model: What the gradients were taken at.
        examples: Arrays with one leading axis.
        mean: A private mean that was released there, or the sum of several.

    Returns:
        The inner products of the mean with the gradients, each over its own length.
    """
    _, gradients = per_example_gradients(loss, model, examples)

    def score(gradient: PyTree) -> Any:
        pairs = list(zip(jax.tree.leaves(gradient), jax.tree.leaves(mean), strict=True))
        product = sum(jnp.sum(g * m) for g, m in pairs)
        length = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g, _ in pairs))
        return product / jnp.where(length > 0, length, 1)

    return jax.vmap(score)(gradients)
