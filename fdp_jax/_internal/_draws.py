"""Random choices of records, of which no probability is larger than stated."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Bool, Int

from ._concrete import known

_WORDS = 2.0**32


def with_prob(key: Array, prob: Any, size: int) -> Bool[Array, " n"]:
    """Independent events of one probability, rounded down to a multiple of 2^-32.

    Uniform numbers in float32, which programs without 64-bit numbers draw, would round
    it to a multiple of 2^-23, up or down.
    """
    bits = random.bits(key, (size,), jnp.uint32)
    numbers = known(prob)
    if numbers is None:
        least = jnp.floor(prob * _WORDS)
        certain, least = prob >= 1, jnp.minimum(least, _WORDS - 256).astype(jnp.uint32)
    else:
        certain, least = numbers >= 1, np.uint32(min(numbers * _WORDS, _WORDS - 1))
    return (bits < least) | certain


def subset(key: Array, size: Any, of: int) -> Bool[Array, " n"]:
    """A uniformly random set of so many."""
    return random.permutation(key, of) < size


def subset_of(key: Array, chosen: Bool[Array, " n"], most: Any) -> Bool[Array, " n"]:
    """A uniformly random part of a set, of no more than so many."""
    order = random.permutation(key, chosen.size)
    rank = jnp.cumsum(chosen[order]) - 1
    return chosen & (jnp.zeros_like(rank).at[order].set(rank) < most)


def one_of(key: Array, number: Any, size: int) -> Int[Array, " n"]:
    """Independent uniform choices of one of so many."""
    return random.randint(key, (size,), 0, jnp.asarray(number, jnp.int32))


def at(key: Array, step: Any) -> Array:
    """The key of a step."""
    return jax.random.fold_in(key, jnp.asarray(step, jnp.uint32))
